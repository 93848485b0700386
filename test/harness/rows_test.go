package harness

import (
	"math"
	"testing"
)

func TestCanonicalFloats(t *testing.T) {
	for _, c := range []struct {
		f    float64
		bits int
		want string
	}{
		{100000, 64, "100000.0"}, {1e16, 64, "1e+16"}, {1.5e-5, 64, "1.5e-05"}, {0.1, 32, "0.1"},
		{16777216, 32, "16777216.0"}, {3.402823e38, 32, "3.402823e+38"}, {math.Copysign(0, -1), 64, "-0.0"},
		{1e100, 64, "1e+100"}, {0.0001, 64, "0.0001"},
	} {
		if got := string(appendFloat(nil, c.f, c.bits)); got != c.want {
			t.Errorf("%v as %d bits: %s, want %s", c.f, c.bits, got, c.want)
		}
	}
}

func TestCanonicalValues(t *testing.T) {
	for _, c := range []struct {
		dataType, columnType string
		v                    any
		want                 string
	}{
		{"bigint", "bigint unsigned", "18446744073709551615", `"18446744073709551615"`},
		{"time", "time(6)", []byte("-838:59:59.000000"), "-3020399000000"},
		{"time", "time(2)", []byte("-00:00:00.01"), "-10000"},
		{"datetime", "datetime(3)", []byte("9999-12-31 23:59:59.999"), `"9999-12-31T23:59:59.999000"`},
		{"timestamp", "timestamp", []byte("2024-07-01 06:30:00"), `"2024-07-01T06:30:00.000000Z"`},
		{"datetime", "datetime", []byte("2024-00-01 00:00:00"), "null"},
		{"date", "date", []byte("0000-00-00"), "null"},
		{"bit", "bit(1)", []byte{1}, "true"},
		{"bit", "bit(12)", []byte{0x0f, 0xff}, "4095"},
		{"bit", "bit(64)", []byte{255, 255, 255, 255, 255, 255, 255, 255}, `"18446744073709551615"`},
		{"varbinary", "varbinary(4)", []byte{1, 2, 0, 0}, `"01020000"`},
		{"varchar", "varchar(4)", []byte("a\"\\\n\x01é"), `"a\"\\\n\u0001é"`},
		{"vector", "vector(2)", []byte{0, 0, 128, 63, 0, 0, 32, 64}, "[1.0,2.5]"},
		{"decimal", "decimal(5,2)", []byte("-0.00"), `"0.00"`},
	} {
		got, err := appendValue(nil, column{name: "c", dataType: c.dataType, columnType: c.columnType}, c.v)
		if err != nil || string(got) != c.want {
			t.Errorf("%s %v: %s, %v, want %s", c.columnType, c.v, got, err, c.want)
		}
	}
}

func TestDiffCountsWhatIsThereTwice(t *testing.T) {
	if d := Diff([]string{"a", "b"}, []string{"a", "b"}); d != "" {
		t.Errorf("equal lines differ: %s", d)
	}
	want := "2 rows wanted, 3 read: 1 lost, 2 surplus\n- b\n+ a\n+ c"
	if d := Diff([]string{"a", "b"}, []string{"a", "a", "c"}); d != want {
		t.Errorf("got %s\nwant %s", d, want)
	}
}
