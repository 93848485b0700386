package postgres

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lakesyncd/lakesyncd/source"
)

func rawTuple(values ...string) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(values)))
	for _, v := range values {
		switch v {
		case "NULL":
			b = append(b, 'n')
		case "same":
			b = append(b, 'u')
		default:
			b = append(binary.BigEndian.AppendUint32(append(b, 't'), uint32(len(v))), v...)
		}
	}
	return b
}

func TestCutsRowsOutOfMessages(t *testing.T) {
	oid := []byte{0, 0, 0x40, 0x01}
	old, now := rawTuple("1", "NULL"), rawTuple("2", "same")
	msg := append(append(append(append([]byte{}, oid...), 'K'), old...), 'N')
	msg = append(msg, now...)
	m, err := parseRow('U', msg)
	if err != nil {
		t.Fatal(err)
	}
	want := rowMessage{oid: 0x4001, oldKind: 'K', old: old, new: now}
	if diff := cmp.Diff(want, m, cmp.AllowUnexported(rowMessage{})); diff != "" {
		t.Error(diff)
	}
	// PG-049: a message that was cut anywhere is an error and no panic.
	for i := range msg {
		if _, err := parseRow('U', msg[:i]); err == nil {
			t.Errorf("a message of %d bytes in place of %d was taken", i, len(msg))
		}
	}
	if _, err := parseRow('I', msg); err == nil {
		t.Error("an insert with an old row was taken")
	}
}

func TestPositionsAreOrderedAsNumbers(t *testing.T) {
	for _, tt := range []struct {
		have, want string
		ok, bad    bool
	}{
		{"lsn:0/A", "lsn:0/A", true, false},
		{"lsn:10/0", "lsn:9/FFFFFFFF", true, false},
		{"lsn:0/9", "lsn:0/A", false, false},
		{"lsn:0/a", "lsn:0/A", true, false},
		{"lsn:0/A rest", "lsn:0/A", false, true},
		{"lsn:123456789/0", "lsn:0/A", false, true},
		{"gtid:0-1-1", "lsn:0/A", false, true},
		{"lsn:A", "lsn:0/A", false, true},
	} {
		ok, err := Reached(source.Position(tt.have), source.Position(tt.want))
		if ok != tt.ok || (err != nil) != tt.bad {
			t.Errorf("Reached(%s, %s) is %v, %v", tt.have, tt.want, ok, err)
		}
	}
}

func TestFindsWhereATimelineWasLeft(t *testing.T) {
	const history = "1\t0/3000158\tno recovery target specified\n\n# comment\n2\t0/5000000\tbefore 2026\n"
	if at, ok := leftAt(history, 1); !ok || at != 0x3000158 {
		t.Errorf("timeline 1 was left at %v, %v", at, ok)
	}
	if at, ok := leftAt(history, 2); !ok || at != 0x5000000 {
		t.Errorf("timeline 2 was left at %v, %v", at, ok)
	}
	if _, ok := leftAt(history, 3); ok {
		t.Error("timeline 3 was never there")
	}
}

func TestQuotesForTheReplicationCommand(t *testing.T) {
	o := &Options{}
	o.Config.Slot, o.Config.Publication = "s", `a "b" 'c'`
	want := `"proto_version" '1', "publication_names" '"a ""b"" ''c''"'`
	if have := strings.Join(pluginArgs(o), ", "); have != want {
		t.Errorf("the options are %s, want %s", have, want)
	}
}

// PG-049: whatever comes, no parser panics or reads beyond the message.
func FuzzMessages(f *testing.F) {
	for _, s := range []string{"", "B", "I\x00\x00\x40\x01N\x00\x01t\x00\x00\x00\x011", "R\x00\x00\x40\x01public\x00a\x00d\x00\x01\x01id\x00\x00\x00\x00\x17\xff\xff\xff\xff", "T\x00\x00\x00\x01\x00\x00\x00\x40\x01", strings.Repeat("U", 40)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		body := b[1:]
		_, _ = parseBegin(body)
		_, _ = parseCommit(body)
		_, _ = parseRelation(body)
		_, _ = parseTruncate(body)
		for _, kind := range []byte("IUD") {
			m, err := parseRow(kind, body)
			if err == nil && len(m.old)+len(m.new) > len(body) {
				t.Errorf("rows of %d bytes from a message of %d", len(m.old)+len(m.new), len(body))
			}
		}
	})
}
