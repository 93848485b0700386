package postgres

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pglogrepl"

	"github.com/lakesyncd/lakesyncd/source"
)

// lsn is a place in the server's log of changes (WAL). Places of one server and
// timeline are ordered.
type lsn pglogrepl.LSN

func (l lsn) String() string { return pglogrepl.LSN(l).String() }

func (l lsn) position() source.Position { return source.Position("lsn:" + l.String()) }

// The package's parser takes what begins like a place, and numbers that overflow.
var wholeLSN = regexp.MustCompile(`^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$`)

func parseLSN(s string) (lsn, error) {
	l, err := pglogrepl.ParseLSN(s)
	if err != nil || !wholeLSN.MatchString(s) {
		return 0, fmt.Errorf("%q is no place in a log, such as 16/B374D848", s)
	}
	return lsn(l), nil
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
