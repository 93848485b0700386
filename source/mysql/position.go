package mysql

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// place is a position that has been read: a set of GTIDs of MySQL, the newest
// GTID of each domain of MariaDB, or a file with an offset. Exactly one of the
// three is used.
type place struct {
	set     *gtidSet
	domains domains
	file    string
	offset  uint64
}

func (p place) isFile() bool { return p.file != "" }

// position is the text of p, the form that is saved.
func (p place) position() source.Position {
	switch {
	case p.isFile():
		return source.Position("file:" + p.file + ":" + strconv.FormatUint(p.offset, 10))
	case p.set != nil:
		return source.Position(p.set.append(append(make([]byte, 0, 8+64*len(p.set.runs)), "gtid:"...)))
	}
	return source.Position("gtid:" + p.domains.String())
}

// parsePlace reads "gtid:…" in the form of f, and "file:NAME:OFFSET".
func parsePlace(f Flavor, pos source.Position) (place, error) {
	s := strings.TrimSpace(string(pos))
	switch {
	case strings.HasPrefix(s, "gtid:"):
		s = s[len("gtid:"):]
		if f == FlavorMariaDB {
			d, err := parseDomains(s)
			if err != nil {
				return place{}, fmt.Errorf("position %q: %w", pos, err)
			}
			return place{domains: d}, nil
		}
		set, err := parseGTIDSet(s)
		if err != nil {
			return place{}, fmt.Errorf("position %q: %w", pos, err)
		}
		return place{set: set}, nil
	case strings.HasPrefix(s, "file:"):
		s = s[len("file:"):]
		i := strings.LastIndexByte(s, ':')
		if i <= 0 {
			return place{}, fmt.Errorf("position %q: want file:NAME:OFFSET", pos)
		}
		off, err := strconv.ParseUint(s[i+1:], 10, 63)
		if err != nil {
			return place{}, fmt.Errorf("position %q: the offset is no number", pos)
		}
		return place{file: s[:i], offset: max(off, 4)}, nil
	}
	return place{}, fmt.Errorf("position %q: want gtid:… or file:NAME:OFFSET", pos)
}

// flavorOf guesses whose GTIDs a text holds: MariaDB's are three numbers.
func flavorOf(pos source.Position) Flavor {
	s, ok := strings.CutPrefix(strings.TrimSpace(string(pos)), "gtid:")
	if ok {
		first, _, _ := strings.Cut(s, ",")
		if strings.Count(first, "-") == 2 && !strings.Contains(first, ":") {
			return FlavorMariaDB
		}
	}
	return FlavorMySQL
}

// Reached reports whether have is at want or past it. Both are the texts of one
// server: GTIDs are compared by what they contain, files by the number that
// their name ends with and then by offset. Positions of two kinds can't be
// compared.
func Reached(have, want source.Position) (bool, error) {
	f := flavorOf(have)
	if strings.HasPrefix(string(have), "gtid:") && strings.TrimSpace(string(have)) == "gtid:" {
		f = flavorOf(want)
	}
	h, err := parsePlace(f, have)
	if err != nil {
		return false, err
	}
	w, err := parsePlace(f, want)
	if err != nil {
		return false, err
	}
	if h.isFile() != w.isFile() {
		return false, fmt.Errorf("positions %q and %q are of two kinds and can't be compared", have, want)
	}
	switch {
	case h.isFile():
		c, err := compareFiles(h, w)
		return c >= 0, err
	case h.set != nil:
		return h.set.contains(w.set), nil
	}
	return h.domains.contains(w.domains), nil
}

// compareFiles orders two places of one server's log.
func compareFiles(a, b place) (int, error) {
	an, ai, err := splitFile(a.file)
	if err != nil {
		return 0, err
	}
	bn, bi, err := splitFile(b.file)
	if err != nil {
		return 0, err
	}
	if an != bn {
		return 0, fmt.Errorf("log files %s and %s are not of one log", a.file, b.file)
	}
	switch {
	case ai < bi, ai == bi && a.offset < b.offset:
		return -1, nil
	case ai == bi && a.offset == b.offset:
		return 0, nil
	}
	return 1, nil
}

// splitFile takes "binlog.000012" apart. The number is compared as a number,
// since binlog.1000000 follows binlog.999999.
func splitFile(name string) (base string, n uint64, err error) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return "", 0, fmt.Errorf("log file %q does not end in a number", name)
	}
	n, err = strconv.ParseUint(name[i+1:], 10, 63)
	if err != nil {
		return "", 0, fmt.Errorf("log file %q does not end in a number", name)
	}
	return name[:i], n, nil
}

// sid is a server's UUID.
type sid [16]byte

func (s sid) append(b []byte) []byte {
	const digits = "0123456789abcdef"
	for i, x := range s {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			b = append(b, '-')
		}
		b = append(b, digits[x>>4], digits[x&15])
	}
	return b
}

func parseSID(t string) (s sid, err error) {
	x := strings.ReplaceAll(t, "-", "")
	if len(x) != 32 {
		return s, fmt.Errorf("%q is no server UUID", t)
	}
	if _, err = hex.Decode(s[:], []byte(x)); err != nil {
		return s, fmt.Errorf("%q is no server UUID", t)
	}
	return s, nil
}

// gtidRange is first to last, both inclusive.
type gtidRange struct{ first, last int64 }

// gtidRun is the numbers of one server and tag, in order, apart from each other.
type gtidRun struct {
	sid    sid
	tag    string
	ranges []gtidRange
	text   string // of the ranges; "" when it must be made again
}

// gtidSet is MySQL's set of GTIDs. It only ever holds what was put into it: a
// hole stays a hole.
type gtidSet struct{ runs []*gtidRun }

func (s *gtidSet) find(id sid, tag string) (int, bool) {
	lo, hi := 0, len(s.runs)
	for lo < hi {
		mid := (lo + hi) / 2
		r := s.runs[mid]
		c := bytes.Compare(r.sid[:], id[:])
		if c == 0 {
			c = strings.Compare(r.tag, tag)
		}
		switch {
		case c == 0:
			return mid, true
		case c < 0:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return lo, false
}

// add puts one GTID in and reports whether it was new.
func (s *gtidSet) add(id sid, tag string, gno int64) bool {
	i, ok := s.find(id, tag)
	if !ok {
		s.runs = slices.Insert(s.runs, i, &gtidRun{sid: id, tag: tag, ranges: []gtidRange{{gno, gno}}})
		return true
	}
	return s.runs[i].add(gtidRange{gno, gno})
}

// add reports whether anything of g was new.
func (r *gtidRun) add(g gtidRange) bool {
	if n := len(r.ranges); n > 0 && r.ranges[n-1].last+1 == g.first {
		r.ranges[n-1].last, r.text = g.last, ""
		return true
	}
	// i is the first range that could touch g, j the first after it that can't.
	i := 0
	for i < len(r.ranges) && r.ranges[i].last+1 < g.first {
		i++
	}
	if i < len(r.ranges) && r.ranges[i].first <= g.first && g.last <= r.ranges[i].last {
		return false
	}
	j := i
	for j < len(r.ranges) && r.ranges[j].first <= g.last+1 {
		g.first, g.last = min(g.first, r.ranges[j].first), max(g.last, r.ranges[j].last)
		j++
	}
	r.ranges = slices.Replace(r.ranges, i, j, g)
	r.text = ""
	return true
}

func (s *gtidSet) String() string { return string(s.append(make([]byte, 0, 64*len(s.runs)))) }

func (s *gtidSet) append(b []byte) []byte {
	for i, r := range s.runs {
		if i == 0 || s.runs[i-1].sid != r.sid {
			if i > 0 {
				b = append(b, ',')
			}
			b = r.sid.append(b)
		}
		if r.tag != "" {
			b = append(append(b, ':'), r.tag...)
		}
		if len(r.ranges) == 1 {
			b = appendRanges(b, r.ranges)
			continue
		}
		if r.text == "" {
			r.text = string(appendRanges(nil, r.ranges))
		}
		b = append(b, r.text...)
	}
	return b
}

func appendRanges(b []byte, rs []gtidRange) []byte {
	for _, g := range rs {
		b = strconv.AppendInt(append(b, ':'), g.first, 10)
		if g.last > g.first {
			b = strconv.AppendInt(append(b, '-'), g.last, 10)
		}
	}
	return b
}

// parseGTIDSet reads MySQL's text of a set, with tags and white space.
func parseGTIDSet(text string) (*gtidSet, error) {
	s := &gtidSet{}
	text = strings.Map(func(r rune) rune {
		if r == ' ' || r == '\n' || r == '\r' || r == '\t' {
			return -1
		}
		return r
	}, text)
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		fields := strings.Split(part, ":")
		id, err := parseSID(fields[0])
		if err != nil {
			return nil, err
		}
		if len(fields) < 2 {
			return nil, fmt.Errorf("%q names no transaction", part)
		}
		tag := ""
		for _, f := range fields[1:] {
			if f != "" && (f[0] == '_' || f[0] >= 'a' && f[0] <= 'z' || f[0] >= 'A' && f[0] <= 'Z') {
				tag = strings.ToLower(f)
				continue
			}
			first, last, isRange := strings.Cut(f, "-")
			a, err := strconv.ParseInt(first, 10, 64)
			b := a
			if err == nil && isRange {
				b, err = strconv.ParseInt(last, 10, 64)
			}
			if err != nil || a < 1 || b < a {
				return nil, fmt.Errorf("%q is no range of transactions", f)
			}
			i, ok := s.find(id, tag)
			if !ok {
				s.runs = slices.Insert(s.runs, i, &gtidRun{sid: id, tag: tag})
			}
			s.runs[i].add(gtidRange{a, b})
		}
	}
	return s, nil
}

// has reports whether one GTID is in the set.
func (s *gtidSet) has(id sid, tag string, gno int64) bool {
	i, ok := s.find(id, tag)
	return ok && slices.ContainsFunc(s.runs[i].ranges, func(g gtidRange) bool { return g.first <= gno && gno <= g.last })
}

func (s *gtidSet) contains(o *gtidSet) bool { return len(o.minus(s).runs) == 0 }

// minus is what of s is not in o.
func (s *gtidSet) minus(o *gtidSet) *gtidSet {
	d := &gtidSet{}
	for _, r := range s.runs {
		rest := slices.Clone(r.ranges)
		if i, ok := o.find(r.sid, r.tag); ok {
			for _, g := range o.runs[i].ranges {
				rest = cutRange(rest, g)
			}
		}
		if len(rest) > 0 {
			d.runs = append(d.runs, &gtidRun{sid: r.sid, tag: r.tag, ranges: rest})
		}
	}
	return d
}

func cutRange(rs []gtidRange, g gtidRange) []gtidRange {
	out := rs[:0:0]
	for _, r := range rs {
		if r.last < g.first || r.first > g.last {
			out = append(out, r)
			continue
		}
		if r.first < g.first {
			out = append(out, gtidRange{r.first, g.first - 1})
		}
		if r.last > g.last {
			out = append(out, gtidRange{g.last + 1, r.last})
		}
	}
	return out
}

// encode is the form that COM_BINLOG_DUMP_GTID takes: the classic one unless a
// tag is in the set.
func (s *gtidSet) encode() []byte {
	tagged := slices.ContainsFunc(s.runs, func(r *gtidRun) bool { return r.tag != "" })
	n := uint64(len(s.runs))
	var b []byte
	if tagged {
		// One format byte on either side of a count of six bytes.
		b = binary.LittleEndian.AppendUint64(b, n<<8|1|1<<56)
	} else {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	for _, r := range s.runs {
		b = append(b, r.sid[:]...)
		if tagged {
			b = append(append(b, byte(len(r.tag)<<1)), r.tag...)
		}
		b = binary.LittleEndian.AppendUint64(b, uint64(len(r.ranges)))
		for _, g := range r.ranges {
			b = binary.LittleEndian.AppendUint64(b, uint64(g.first))
			b = binary.LittleEndian.AppendUint64(b, uint64(g.last+1))
		}
	}
	return b
}

// mariaGTID is one GTID of MariaDB.
type mariaGTID struct {
	domain, server uint32
	seq            uint64
}

func (g mariaGTID) append(b []byte) []byte {
	b = strconv.AppendUint(b, uint64(g.domain), 10)
	b = strconv.AppendUint(append(b, '-'), uint64(g.server), 10)
	return strconv.AppendUint(append(b, '-'), g.seq, 10)
}

// domains is the newest GTID of each domain, sorted by domain. One entry per
// domain, whatever server wrote it: MariaDB refuses a start from two of one
// domain.
type domains []mariaGTID

func (d domains) String() string {
	var b []byte
	for i, g := range d {
		if i > 0 {
			b = append(b, ',')
		}
		b = g.append(b)
	}
	return string(b)
}

func (d domains) find(domain uint32) (int, bool) {
	return slices.BinarySearchFunc(d, domain, func(g mariaGTID, n uint32) int {
		switch {
		case g.domain < n:
			return -1
		case g.domain > n:
			return 1
		}
		return 0
	})
}

// with is d with g as its domain's newest.
func (d domains) with(g mariaGTID) domains {
	i, ok := d.find(g.domain)
	if ok {
		d[i] = g
		return d
	}
	return slices.Insert(d, i, g)
}

// contains compares sequence numbers in each domain: they only grow in a log
// that the server keeps in order.
func (d domains) contains(o domains) bool {
	return !slices.ContainsFunc(o, func(g mariaGTID) bool {
		i, ok := d.find(g.domain)
		return !ok || d[i].seq < g.seq
	})
}

func parseDomains(text string) (domains, error) {
	var d domains
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		f := strings.Split(part, "-")
		if len(f) != 3 {
			return nil, fmt.Errorf("%q is no GTID of MariaDB (DOMAIN-SERVER-NUMBER)", part)
		}
		var g mariaGTID
		n, err1 := strconv.ParseUint(f[0], 10, 32)
		m, err2 := strconv.ParseUint(f[1], 10, 32)
		q, err3 := strconv.ParseUint(f[2], 10, 64)
		if err1 != nil || err2 != nil || err3 != nil {
			return nil, fmt.Errorf("%q is no GTID of MariaDB (DOMAIN-SERVER-NUMBER)", part)
		}
		g.domain, g.server, g.seq = uint32(n), uint32(m), q
		if i, ok := d.find(g.domain); ok && d[i].seq > g.seq {
			continue
		}
		d = d.with(g)
	}
	return d, nil
}
