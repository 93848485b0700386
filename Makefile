# Targets are described by the comment after ##; `make` prints them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Everything but the tests from outside, which have a target of their own.
PACKAGES = $(shell go list ./... | grep -v /test/)
OUTSIDE := go test -count=1 -timeout 60m ./test/e2e

.PHONY: help
help: ## this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

.PHONY: build
build: ## bin/lakesyncd, static, without cgo
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/lakesyncd ./cmd/lakesyncd

.PHONY: demo
demo: build ## a real server, a crash, and the rows as another reader sees them; SOURCE=mariadb, mysql or postgres
	@test/prepare.sh demo $(SOURCE)
	@go run ./test/demo -source $(SOURCE)

.PHONY: test
test: ## the whole suite on real servers that it starts itself (up to 45 minutes on 2 cores)
	test/prepare.sh test
	$(MAKE) --no-print-directory build vet
	go test -race -count=1 -timeout 30m $(PACKAGES)
	$(OUTSIDE)
	go test -count=1 ./test/harness ./test/torture

.PHONY: test-short
test-short: vet ## what needs no server (up to 3 minutes)
	go test -short ./...

.PHONY: test-release
test-release: build lint ## the long form: more servers, more changes, more crashes, all readers
	test/prepare.sh release
	go test -race -count=1 -timeout 60m $(PACKAGES)
	go test -count=1 -timeout 180m ./test/e2e -long -changes 200000 -kills 30

.PHONY: bench
bench: build ## our costs beside those of mysqldump and mysqlbinlog, one JSON line a figure
	@test/prepare.sh bench
	@go run ./test/bench

N ?= 50
SEED ?= 0
SOURCE ?= mariadb
WAREHOUSE ?= file

.PHONY: torture
torture: build ## N random faults (50) from SEED; SOURCE=mariadb or mysql, WAREHOUSE=file or s3
	@test/prepare.sh test
	@go run ./test/torture -n $(N) -seed $(SEED) -source $(SOURCE) -warehouse $(WAREHOUSE)

.PHONY: vet
vet:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "not gofmt-ed: $$unformatted"; exit 1; }
	go vet ./...

.PHONY: lint
lint: vet ## gofmt, vet and staticcheck
	go run $(STATICCHECK) ./...

.PHONY: image
image: ## a container image, if docker or podman is there
	$$(command -v docker || command -v podman) build --build-arg VERSION=$(VERSION) -t lakesyncd:$(VERSION) .
