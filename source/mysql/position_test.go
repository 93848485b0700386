package mysql

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"

	"github.com/lakesyncd/lakesyncd/source"
)

const (
	uuidA = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
	uuidB = "9a5f0f4c-8b1e-11ef-8f4a-0242ac110002"
)

func TestReached(t *testing.T) {
	for _, c := range []struct {
		have, want source.Position
		yes        bool
	}{
		{"gtid:" + uuidA + ":1-77", "gtid:" + uuidA + ":5", true},
		{"gtid:" + uuidA + ":1-77", "gtid:" + uuidA + ":78", false},
		{"gtid:" + uuidA + ":1-7:9-10", "gtid:" + uuidA + ":8", false}, // MY-013
		{"gtid:" + uuidA + ":1-7," + uuidB + ":1-3", "gtid:" + uuidB + ":1-3", true},
		{"gtid:" + uuidA + ":1-7:t:1-2", "gtid:" + uuidA + ":t:2", true},
		{"gtid:" + uuidA + ":1-7", "gtid:" + uuidA + ":t:2", false},
		{"gtid:" + uuidA + ":1-7", "gtid:", true},
		{"gtid:", "gtid:" + uuidA + ":1", false},
		{"gtid:0-1-57,7-2-3", "gtid:0-1-57", true},
		{"gtid:0-1-57", "gtid:0-2-56", true}, // the domain counts, whoever wrote
		{"gtid:0-1-57", "gtid:0-1-58", false},
		{"gtid:0-1-57", "gtid:1-1-1", false},
		{"gtid:0-1-57", "gtid:", true},
		{"gtid:", "gtid:0-1-57", false},
		{"file:binlog.000003:154", "file:binlog.000003:154", true},
		{"file:binlog.000003:154", "file:binlog.000003:155", false},
		{"file:binlog.1000000:4", "file:binlog.999999:900", true}, // MY-126
		{"file:binlog.000003:5000000000", "file:binlog.000003:4999999999", true},
	} {
		got, err := Reached(c.have, c.want)
		if err != nil || got != c.yes {
			t.Errorf("Reached(%s, %s) = %v, %v", c.have, c.want, got, err)
		}
	}
	for _, c := range [][2]source.Position{
		{"file:binlog.000003:154", "gtid:0-1-57"}, {"gtid:" + uuidA + ":1", "gtid:0-1-57"},
		{"lsn:0/1", "lsn:0/1"}, {"file:a.000001:4", "file:b.000001:4"}, {"file:a.000001", "file:a.000001:4"},
		{"gtid:" + uuidA, "gtid:" + uuidA}, {"gtid:" + uuidA + ":0", "gtid:" + uuidA + ":1"},
	} {
		if _, err := Reached(c[0], c[1]); err == nil {
			t.Errorf("Reached(%s, %s) is no error", c[0], c[1])
		}
	}
}

func TestGTIDSetTextIsTheServers(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		uuidA + ":1-7:9-10":                uuidA + ":1-7:9-10",
		uuidA + ":1:2:3,\n" + uuidA + ":5": uuidA + ":1-3:5",
		uuidB + ":1, " + uuidA + ":2":      uuidA + ":2," + uuidB + ":1",
		uuidA + ":t2:4:1-2:Tag:1-3":        uuidA + ":t2:1-2:4:tag:1-3",
		uuidA + ":1-5:tag:7":               uuidA + ":1-5:tag:7",
	} {
		s, err := parseGTIDSet(in)
		if err != nil {
			t.Errorf("parse %q: %v", in, err)
		} else if s.String() != want {
			t.Errorf("parse %q = %q, want %q", in, s, want)
		}
	}
}

// The protocol library's set is the oracle: text, wire form and containment.
func TestGTIDSetAgreesWithTheLibrary(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var mine gtidSet
		theirs := gomysql.NewMysqlGTIDSet()
		have := map[string]bool{}
		for range r.IntN(60) {
			u, tag, gno := []string{uuidA, uuidB}[r.IntN(2)], []string{"", "", "x", "y1"}[r.IntN(4)], int64(1+r.IntN(12))
			id, err := parseSID(u)
			if err != nil {
				t.Fatal(err)
			}
			key := fmt.Sprint(u, tag, gno)
			if mine.add(id, tag, gno) == have[key] {
				t.Fatalf("add %s says that it is new: %v", key, !have[key])
			}
			have[key] = true
			text := u + ":"
			if tag != "" {
				text += tag + ":"
			}
			if err := theirs.Update(fmt.Sprint(text, gno)); err != nil {
				t.Fatal(err)
			}
		}
		if mine.String() != theirs.String() {
			t.Fatalf("%s, the library has %s", mine.String(), theirs.String())
		}
		if !slices.Equal(mine.encode(), theirs.Encode()) {
			t.Fatalf("wire form of %s differs", mine.String())
		}
		again, err := parseGTIDSet(mine.String())
		if err != nil || again.String() != mine.String() {
			t.Fatalf("%s reads as %s: %v", mine.String(), again, err)
		}
		if !mine.contains(again) || len(mine.minus(&gtidSet{}).runs) != len(mine.runs) {
			t.Fatalf("%s does not contain itself", mine.String())
		}
		if len(mine.runs) > 0 {
			g := mine.runs[0].ranges[0]
			less, _ := parseGTIDSet(mine.String())
			less.runs[0].ranges = cutRange(less.runs[0].ranges, gtidRange{g.first, g.first})
			less.runs[0].text = ""
			if less.contains(&mine) || !mine.contains(less) {
				t.Fatalf("%s minus one contains %s", less, mine.String())
			}
		}
	}
}

func TestDomainsKeepOneGTIDEach(t *testing.T) { // MY-008
	d, err := parseDomains("0-1-5")
	if err != nil {
		t.Fatal(err)
	}
	d = d.with(mariaGTID{0, 2022, 6}).with(mariaGTID{7, 3, 1}).with(mariaGTID{2, 3, 9})
	if got := d.String(); got != "0-2022-6,2-3-9,7-3-1" {
		t.Error(got)
	}
}

func FuzzParsePlace(f *testing.F) {
	for _, s := range []string{"gtid:" + uuidA + ":1-7:t:9", "gtid:0-1-57,1-1-1", "file:binlog.000001:154", "file:::", "gtid:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, flavor := range []Flavor{FlavorMySQL, FlavorMariaDB} {
			p, err := parsePlace(flavor, source.Position(s))
			if err != nil {
				continue
			}
			q, err := parsePlace(flavor, p.position())
			if err != nil || q.position() != p.position() {
				t.Errorf("%q reads as %q, which reads as %q: %v", s, p.position(), q.position(), err)
			}
		}
	})
}
