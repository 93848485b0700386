package postgres

import (
	"bytes"
	"io"
	"testing"
	"testing/iotest"
)

func TestTheDriverReadsNoByteOfTheChanges(t *testing.T) {
	whole := []byte("Z\x00\x00\x00\x05IS\x00\x00\x00\x04W\x00\x00\x00\x07\x00\x00\x00d\x00\x00\x00\x08wxyz")
	const before = 6 + 5 + 8 // what belongs to the driver
	for name, r := range map[string]io.Reader{"at once": bytes.NewReader(whole), "byte by byte": iotest.OneByteReader(bytes.NewReader(whole))} {
		s := newStepper(r)
		var have []byte
		buf := make([]byte, 64)
		for len(have) < before {
			n, err := s.Read(buf)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			have = append(have, buf[:n]...)
		}
		if !bytes.Equal(have, whole[:before]) {
			t.Errorf("%s: the driver read %q, want %q", name, have, whole[:before])
		}
		rest, err := io.ReadAll(s.br)
		if err != nil || !bytes.Equal(rest, whole[before:]) {
			t.Errorf("%s: %q is left, %v, want %q", name, rest, err, whole[before:])
		}
	}
}

func TestPlacesAreReadWhole(t *testing.T) {
	for text, want := range map[string]lsn{"0/0": 0, "16/B374D848": 0x16B374D848, "ffffffff/FFFFFFFF": 1<<64 - 1} {
		if have, err := parseLSN(text); err != nil || have != want {
			t.Errorf("%s is %d, %v, want %d", text, have, err, want)
		}
	}
	// The package's own parser takes some of these.
	for _, text := range []string{"", "16", "16/", "16/B374D848x", "16/B374D848 ", "1FFFFFFFF/0", "0/1FFFFFFFF", "+1/2", "0x1/2"} {
		if have, err := parseLSN(text); err == nil {
			t.Errorf("%q is taken as %s", text, have)
		}
	}
}
