# The image holds the static binary, certificates and nothing else.
FROM golang:1.26-bookworm AS build
ARG VERSION=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /lakesyncd ./cmd/lakesyncd

FROM gcr.io/distroless/static-debian12:nonroot
LABEL org.opencontainers.image.title="lakesyncd" \
      org.opencontainers.image.description="Follows a database's log into Apache Iceberg tables, exactly once" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /lakesyncd /usr/local/bin/lakesyncd
USER nonroot
EXPOSE 9187
ENTRYPOINT ["/usr/local/bin/lakesyncd"]
CMD ["run", "-config", "/etc/lakesyncd/lakesyncd.yaml"]
