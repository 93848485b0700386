package config_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lakesyncd/lakesyncd/config"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the .want files; commit them only if you understand the difference")

// Each *.bad.yaml has a *.want file with all its problems.
func TestLoadTellsEveryProblemWithLineKeyAndWayOut(t *testing.T) {
	t.Setenv("SECRET", "hunter2")
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			_, err := config.Load(file)
			var problems config.Problems
			if !errors.As(err, &problems) {
				t.Fatalf("got %v, want problems", err)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("a secret is printed: %v", err)
			}
			for _, p := range problems {
				if p.What == "" || p.Fix == "" || p.File != file {
					t.Errorf("incomplete problem %+v", p)
				}
			}
			want := strings.TrimSuffix(file, "yaml") + "want"
			if *rewrite {
				if err := os.WriteFile(want, []byte(err.Error()+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			text, rerr := os.ReadFile(want)
			if rerr != nil {
				t.Fatal(rerr)
			}
			if diff := cmp.Diff(string(text), err.Error()+"\n"); diff != "" {
				t.Errorf("problems differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLoadMissingFile(t *testing.T) {
	_, err := config.Load("testdata/nothing.yaml")
	var problems config.Problems
	if !errors.As(err, &problems) || !strings.Contains(err.Error(), "can't be read: no such file") {
		t.Fatalf("got %v", err)
	}
}

func TestLoadFillsDefaults(t *testing.T) {
	c, err := config.Load("testdata/minimal.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m := c.Source.MariaDB
	if m.Port != 3306 || m.TLS.Mode != config.TLSPreferred || m.Heartbeat.D() != 10*time.Second || m.Password.Reveal() != "pa$word" {
		t.Errorf("source: %+v %q", m, m.Password.Reveal())
	}
	if r := m.ServerID; r.First < 1<<30 || r.Last != r.First+3 {
		t.Errorf("server ids %v", r)
	}
	if got, want := c.Checkpoint.Store, "file:///srv/lake/.lakesyncd/shop"; got != want {
		t.Errorf("store %q, want %q", got, want)
	}
	if c.Memory != 256<<20 || c.RetryBudget.D() != 5*time.Minute || c.HTTP != "127.0.0.1:9187" || c.SpillDir == "" {
		t.Errorf("got %+v", c)
	}
	if diff := cmp.Diff(config.Snapshots{Keep: config.Duration(24 * time.Hour), Min: 20, Max: 500}, c.Snapshots); diff != "" {
		t.Error(diff)
	}
	want := config.Table{Table: "shop.x", Mode: "upsert", TargetFileSize: 128 << 20, Inserts: "proven", OnDropColumn: "drop", OnTruncate: "apply", Misfit: "null"}
	if diff := cmp.Diff(want, c.TableFor("shop", "x")); diff != "" {
		t.Error(diff)
	}
}

func loadFull(t *testing.T) *config.Config {
	t.Helper()
	t.Setenv("HOST", "db.internal")
	t.Setenv("PORT", "3307")
	t.Setenv("SECRETS", ".")
	t.Setenv("S3_SECRET", "s3-secret")
	c, err := config.Load("testdata/full.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestLoadReadsEveryKey(t *testing.T) {
	c := loadFull(t)
	m := c.Source.MySQL
	if c.Pipeline != "shop" || m.Host != "db.internal" || m.Port != 3307 || m.Password.Reveal() != "secret-from-file" {
		t.Errorf("references: %+v %q", m, m.Password.Reveal())
	}
	if m.ServerID != (config.IDRange{First: 5400, Last: 5403}) || m.Heartbeat.D() != 500*time.Millisecond {
		t.Errorf("source %+v", m)
	}
	if c.Memory != 1536<<20 || c.HTTP != "" || c.RetryBudget != 0 {
		t.Errorf("got %+v", c)
	}
	if !filepath.IsAbs(c.SpillDir) || !strings.HasSuffix(c.SpillDir, "config/testdata/spill") {
		t.Errorf("spill_dir %q does not start at the file's folder", c.SpillDir)
	}
	orders := c.TableFor("shop", "orders")
	if orders.Table != "sales.orders" || orders.Inserts != "upsert" || orders.Misfit != "null" || orders.Columns["price"].As != "decimal(12,2)" {
		t.Errorf("orders %+v", orders)
	}
	other := c.TableFor("shop", "other")
	if other.Mode != "append" || other.OnTruncate != "stop" || other.Table != "shop.other" {
		t.Errorf("other %+v", other)
	}
}

func TestLoadNamesSlotAndPublicationAfterThePipeline(t *testing.T) {
	c, err := config.Load("testdata/postgres.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p := c.Source.Postgres
	if p.Port != 5432 || p.TLS.Mode != config.TLSPreferred || p.Heartbeat.D() != 10*time.Second || p.Slot != "lakesync_shop" || p.Publication != "Mixed Case" {
		t.Errorf("got %+v", p)
	}
	if c.Captures("pg_catalog", "pg_class") || c.Captures("information_schema", "tables") || !c.Captures("public", "pg_x") {
		t.Error("the server's own schemas are captured, or others are not")
	}
}

func TestSecretsNeverPrint(t *testing.T) {
	c := loadFull(t)
	masked, err := c.Masked()
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(masked), "<secret>"); n != 2 {
		t.Errorf("%d secrets are masked, want 2:\n%s", n, masked)
	}
	for _, text := range []string{string(masked), fmt.Sprintf("%v %+v %#v %s", c, c, *c.Source.MySQL, c.Storage.S3.SecretKey)} {
		for _, secret := range []string{"secret-from-file", "s3-secret"} {
			if strings.Contains(text, secret) {
				t.Errorf("%q is printed in %s", secret, text)
			}
		}
	}
}

func TestMaskedLoadsAgain(t *testing.T) {
	c := loadFull(t)
	masked, err := c.Masked()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "masked.yaml")
	if err := os.WriteFile(path, masked, 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := config.Load(path)
	if err != nil {
		t.Fatalf("%v\n%s", err, masked)
	}
	second, err := again.Masked()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(masked), string(second)); diff != "" {
		t.Error(diff)
	}
}

func TestAtNamesTheLineOfAKey(t *testing.T) {
	c := loadFull(t)
	for key, line := range map[string]int{
		"source.mysql.port":         5,
		"source.mysql.tls.ca":       8,
		"relations[1]":              11,
		"tables[0].key":             22,
		"tables[0].columns.note.as": 26,
		"tables[1].key":             32,
		"nothing.at.all":            1,
	} {
		if p := c.At(key, "x", "y"); p.Line != line {
			t.Errorf("%s is on line %d, got %d", key, line, p.Line)
		}
	}
	if got, want := c.At("source.mysql.port", "a", "b").Error(), "testdata/full.good.yaml:5: source.mysql.port: a: b"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Every key of the structs stands in the example, and the example loads.
func TestExampleHasEveryKey(t *testing.T) {
	t.Setenv("SHOP_PASSWORD", "x")
	const file = "../configs/example.yaml"
	if _, err := config.Load(file); err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	reference, err := os.ReadFile("../docs/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(typ.Elem())
		case reflect.Struct:
			for i := range typ.NumField() {
				name, _, _ := strings.Cut(typ.Field(i).Tag.Get("yaml"), ",")
				if name == "" || name == "-" {
					continue
				}
				if !strings.Contains(string(example), name+":") {
					t.Errorf("%s has no %s", file, name)
				}
				if !regexp.MustCompile("[`.]" + name + "[`.]").Match(reference) {
					t.Errorf("docs/reference/config.md has no %s", name)
				}
				walk(typ.Field(i).Type)
			}
		}
	}
	walk(reflect.TypeFor[config.Config]())
}
