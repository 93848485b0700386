package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func appendedLine(op string, id, tx, u, a, ordinal int) string {
	if op == "t" {
		return fmt.Sprintf(`{"id":null,"tx":null,"u":null,"a":null,"_op":"t","_position":"p%d","_ordinal":0}`, tx)
	}
	return fmt.Sprintf(`{"id":%d,"tx":%d,"u":%d,"a":%d,"_op":"%s","_position":"p%d","_ordinal":%d}`, id, tx, u, a, op, tx, ordinal)
}

// What judges must itself be seen to find each kind of fault.
func TestHistoryFindsWhatIsLostDoubledAndWrong(t *testing.T) {
	h := &history{txs: [][]change{
		{{"c", 1, state{1, 10, 0}}, {"c", 2, state{1, 11, 0}}},
		{{"u", 1, state{2, 20, 1}}, {"d", 2, state{1, 11, 0}}},
		{{op: "t"}},
		{{"c", 3, state{4, 40, 2}}},
	}}
	copied := []string{appendedLine("r", 1, 1, 0, 10, 0), appendedLine("r", 2, 1, 0, 11, 0)}
	// The delete's row has the before image; its place is of its own transaction.
	deleted := `{"id":2,"tx":1,"u":0,"a":11,"_op":"d","_position":"p2","_ordinal":1}`
	logged := []string{appendedLine("u", 1, 2, 1, 20, 0), deleted, appendedLine("t", 0, 3, 0, 0, 0), appendedLine("c", 3, 4, 2, 40, 0)}
	all := append(append([]string{}, copied...), logged...)
	without := func(i int) []string { return append(append([]string{}, all[:i]...), all[i+1:]...) }
	for _, c := range []struct {
		name                 string
		lines                []string
		lost, doubled, wrong int
	}{
		{"all there", all, 0, 0, 0},
		{"all from the copy", []string{appendedLine("r", 3, 4, 2, 40, 0)}, 0, 0, 0},
		{"a copied row lost", without(0), 1, 0, 0},
		{"a change lost", without(3), 1, 0, 0},
		{"a change twice", append(append([]string{}, all...), strings.Replace(logged[0], `"_ordinal":0`, `"_ordinal":9`, 1)), 0, 1, 0},
		{"a copied row twice", append(append([]string{}, all...), copied[0]), 0, 1, 0},
		{"a copied row with another value", append(without(0), appendedLine("r", 1, 1, 3, 10, 0)), 0, 0, 1},
		{"another order", append(without(3), strings.Replace(deleted, `"_ordinal":1`, `"_ordinal":-1`, 1)), 0, 0, 1},
		{"two changes at one place", append(without(3), strings.Replace(deleted, `"_ordinal":1`, `"_ordinal":0`, 1)), 0, 1, 1},
	} {
		lost, doubled, wrong := h.judge(c.lines)
		if len(lost) != c.lost || len(doubled) != c.doubled || len(wrong) != c.wrong {
			t.Errorf("%s: lost %v, doubled %v, wrong %v; want %d, %d, %d", c.name, lost, doubled, wrong, c.lost, c.doubled, c.wrong)
		}
	}
}

func TestDifferNamesKeys(t *testing.T) {
	r := &relation{key: []keyColumn{{name: "k"}}}
	line := func(k, v int) string { return fmt.Sprintf(`{"k":%d,"v":%d}`, k, v) }
	lost, doubled, wrong := differ(r, []string{line(1, 1), line(2, 2), line(3, 3), line(4, 4)},
		[]string{line(1, 1), line(2, 9), line(3, 3), line(3, 3), line(5, 5)})
	if fmt.Sprint(len(lost), len(doubled), len(wrong)) != "1 1 2" || !strings.HasPrefix(lost[0], "4:") || !strings.HasPrefix(doubled[0], "3:") {
		t.Errorf("lost %v, doubled %v, wrong %v", lost, doubled, wrong)
	}
}

func TestASeedGivesTheSameFaults(t *testing.T) {
	names := func() string {
		rnd := rand.New(rand.NewPCG(7, 7))
		var all []string
		for range 500 {
			f := pickFault(faults(), "file", nil, rnd)
			if f.lake == "s3" {
				t.Fatalf("%s without a store", f.name)
			}
			all = append(all, f.name)
		}
		return strings.Join(all, " ")
	}
	if a, b := names(), names(); a != b {
		t.Errorf("one seed, two series:\n%s\n%s", a, b)
	}
}
