package harness

import (
	"database/sql"
	"testing"
)

func TestCanonicalValuesOfPostgres(t *testing.T) {
	const numeric30 = 30<<16 + 10 + 4
	for _, c := range []struct {
		typ, element string
		mod          int
		text         string
		want         string
	}{
		{"int8", "", -1, "-9223372036854775808", "-9223372036854775808"},
		{"bool", "", -1, "true", "true"},
		{"float4", "", -1, "1e+16", "1e+16"},
		{"float8", "", -1, "-Infinity", `"-Infinity"`},
		{"numeric", "", numeric30, "12.5000000000", `"12.5000000000"`},
		{"numeric", "", numeric30, "NaN", "null"},
		{"numeric", "", -1, "NaN", `"NaN"`},
		{"date", "", -1, "0", `"1970-01-01"`},
		{"date", "", -1, "-719529", `"-0001-12-31"`},
		{"date", "", -1, "2932897", `"+10000-01-01"`},
		{"timestamp", "", -1, "-1", `"1969-12-31T23:59:59.999999"`},
		{"timestamptz", "", -1, "1709210096123456", `"2024-02-29T12:34:56.123456Z"`},
		{"time", "", -1, "86400000000", "86400000000"},
		{"bytea", "", -1, "00ff", `"00ff"`},
		{"bpchar", "", 9, "x    ", `"x    "`},
		{"_text", "text", -1, `["a",null,"\"\n"]`, `["a",null,"\"\n"]`},
		{"_int4", "int4", -1, `[]`, `[]`},
	} {
		got, err := appendPG(nil, pgColumn{name: "c", typ: c.typ, mod: c.mod, element: c.element}, sql.NullString{String: c.text, Valid: true})
		if err != nil || string(got) != c.want {
			t.Errorf("%s %s: %s, %v, want %s", c.typ, c.text, got, err, c.want)
		}
	}
	for mod, want := range map[int]int{numeric30: 30, 5<<16 + 10 + 4: 10, 5<<16 + (2048 - 3) + 4: 8} {
		if got := pgPrecision(mod); got != want {
			t.Errorf("modifier %d: precision %d, want %d", mod, got, want)
		}
	}
}
