package postgres

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// lsn is a place in the server's log of changes (WAL). Places of one server and
// timeline are ordered.
type lsn uint64

func (l lsn) String() string { return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l)) }

func (l lsn) position() source.Position { return source.Position("lsn:" + l.String()) }

func parseLSN(s string) (lsn, error) {
	hi, lo, ok := strings.Cut(s, "/")
	a, err1 := strconv.ParseUint(hi, 16, 32)
	b, err2 := strconv.ParseUint(lo, 16, 32)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%q is no place in a log, such as 16/B374D848", s)
	}
	return lsn(a<<32 | b), nil
}

func parsePosition(p source.Position) (lsn, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(string(p)), "lsn:")
	if !ok {
		return 0, fmt.Errorf("%q is no position of PostgreSQL, such as lsn:16/B374D848", p)
	}
	l, err := parseLSN(text)
	if err != nil {
		return 0, fmt.Errorf("read position %q: %w", p, err)
	}
	return l, nil
}

// Reached reports whether have contains everything up to want. Both are
// "lsn:X/Y" and of one server.
func Reached(have, want source.Position) (bool, error) {
	h, err := parsePosition(have)
	if err != nil {
		return false, err
	}
	w, err := parsePosition(want)
	if err != nil {
		return false, err
	}
	return h >= w, nil
}
