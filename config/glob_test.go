package config_test

import (
	"testing"

	"github.com/lakesyncd/lakesyncd/config"
)

func TestCaptures(t *testing.T) {
	tests := []struct {
		relations       []string
		namespace, name string
		want            bool
	}{
		{[]string{"shop.*"}, "shop", "orders", true},
		{[]string{"shop.*"}, "shop", "", true},
		{[]string{"shop.*"}, "shopping", "orders", false},
		{[]string{"shop.*"}, "Shop", "orders", false},
		{[]string{"shop.*"}, "shop.x", "orders", false},
		{[]string{"shop.*"}, "shop", "a.b", true},
		{[]string{`shop\.x.*`}, "shop.x", "orders", true},
		{[]string{"shop.*", "!shop.tmp_*"}, "shop", "tmp_1", false},
		{[]string{"shop.*", "!shop.tmp_*", "shop.tmp_keep"}, "shop", "tmp_keep", true},
		{[]string{"!shop.tmp_*", "shop.*"}, "shop", "tmp_1", true},
		{[]string{"*.*"}, "mysql", "user", false},
		{[]string{"mysql.user"}, "mysql", "user", false},
		{[]string{"*.*"}, "Information_Schema", "x", false},
		{[]string{"shop.or?ers"}, "shop", "ordérs", false},
		{[]string{"shop.ord?rs"}, "shop", "ordérs", true},
		{[]string{"shop.*_*_z"}, "shop", "a_b_c_z", true},
		{[]string{"shop.*_*_z"}, "shop", "a_z", false},
		{[]string{`shop.a\*`}, "shop", "a*", true},
		{[]string{`shop.a\*`}, "shop", "ab", false},
		{[]string{`shop.\\`}, "shop", `\`, true},
		{nil, "shop", "orders", false},
	}
	for _, tt := range tests {
		c := config.Config{Relations: tt.relations, Source: config.Source{MySQL: &config.MySQL{}}}
		if got := c.Captures(tt.namespace, tt.name); got != tt.want {
			t.Errorf("%q captures %q.%q: %v, want %v", tt.relations, tt.namespace, tt.name, got, tt.want)
		}
	}
}

func TestTableForTakesTheFirstMatch(t *testing.T) {
	c := config.Config{Tables: []config.Table{
		{Match: "shop.orders", Table: "sales.orders"},
		{Match: "shop.*", Mode: "append"},
		{Match: "*.*", Inserts: "upsert"},
	}}
	for _, tt := range []struct{ namespace, name, table, mode, inserts, key string }{
		{"shop", "orders", "sales.orders", "upsert", "proven", "tables[0]"},
		{"shop", "Items", "shop.Items", "append", "proven", "tables[1]"},
		{"crm", "x", "crm.x", "upsert", "upsert", "tables[2]"},
	} {
		got := c.TableFor(tt.namespace, tt.name)
		if got.Table != tt.table || got.Mode != tt.mode || got.Inserts != tt.inserts || c.TableKey(tt.namespace, tt.name) != tt.key {
			t.Errorf("%s.%s: %+v", tt.namespace, tt.name, got)
		}
	}
}

func TestTableName(t *testing.T) {
	for name, want := range map[string]bool{
		"a.b": true, "A-b.c d": true, "a.b.c": true, "ü.ñ": true,
		"a": false, "a.": false, ".b": false, "..": false, "a./": false, "a.../x": false, ".lakesyncd.shop": false, "a.\x00": false, `a.b\c`: false,
	} {
		if got := config.TableName(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}
