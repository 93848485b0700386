package mysql

import (
	"strings"
	"unicode/utf8"
)

// Bits of sql_mode that change how a statement reads.
const (
	modeRealAsFloat        = 1 << 0
	modeANSIQuotes         = 1 << 2
	modeMariaDBOracle      = 1 << 9
	modeNoBackslashEscapes = 1 << 20
)

type tokenKind uint8

const (
	tokenEnd    tokenKind = iota
	tokenWord             // a keyword or a name without quotes
	tokenName             // a quoted name
	tokenString           // a string literal
	tokenNumber           // digits
	tokenPunct            // one character
	tokenBad              // an unfinished string or comment
)

// token is one lexical element; Text of names and strings is without quotes and
// escapes, Upper is a word in capitals.
type token struct {
	kind  tokenKind
	text  string
	upper string
	start int // where it begins in the statement
}

func (t token) is(word string) bool { return t.kind == tokenWord && t.upper == word }

func (t token) punct(c byte) bool { return t.kind == tokenPunct && t.text[0] == c }

// name reports whether the token can be the name of a thing.
func (t token) name() bool { return t.kind == tokenWord || t.kind == tokenName }

// lexer cuts a statement into tokens. What a versioned comment holds counts as
// part of the statement if the server runs it.
type lexer struct {
	s       string
	pos     int
	mode    uint64
	flavor  Flavor
	version int  // as in /*!80023 … */; 0: not known, everything is run
	inside  int  // versioned comments that are open
	whole   bool // semicolons do not end the statement
}

func (l *lexer) next() token {
	if !l.skip() {
		return token{kind: tokenBad, start: l.pos}
	}
	if l.pos >= len(l.s) {
		return token{kind: tokenEnd, start: len(l.s)}
	}
	start, c := l.pos, l.s[l.pos]
	switch {
	case c == ';' && !l.whole:
		l.pos = len(l.s)
		return token{kind: tokenEnd, start: start}
	case c == '`' || c == '"' && l.mode&modeANSIQuotes != 0:
		text, ok := l.quoted(c, false)
		if !ok {
			return token{kind: tokenBad, start: start}
		}
		return token{kind: tokenName, text: text, start: start}
	case c == '\'' || c == '"':
		text, ok := l.quoted(c, l.mode&modeNoBackslashEscapes == 0)
		if !ok {
			return token{kind: tokenBad, start: start}
		}
		return token{kind: tokenString, text: text, start: start}
	case wordByte(c):
		digits := true
		for l.pos < len(l.s) && wordByte(l.s[l.pos]) {
			digits = digits && l.s[l.pos] >= '0' && l.s[l.pos] <= '9'
			l.pos++
		}
		text := l.s[start:l.pos]
		if digits {
			return token{kind: tokenNumber, text: text, start: start}
		}
		return token{kind: tokenWord, text: text, upper: strings.ToUpper(text), start: start}
	}
	_, n := utf8.DecodeRuneInString(l.s[start:])
	l.pos += n
	return token{kind: tokenPunct, text: l.s[start:l.pos], start: start}
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}

// skip moves over blanks and comments; false means that a comment has no end.
func (l *lexer) skip() bool {
	for l.pos < len(l.s) {
		rest := l.s[l.pos:]
		switch c := rest[0]; {
		case c <= ' ' || c == 0x7f:
			l.pos++
		case c == '#', strings.HasPrefix(rest, "--") && (len(rest) == 2 || rest[2] <= ' '):
			if i := strings.IndexByte(rest, '\n'); i >= 0 {
				l.pos += i + 1
			} else {
				l.pos = len(l.s)
			}
		case l.inside > 0 && strings.HasPrefix(rest, "*/"):
			l.inside--
			l.pos += 2
		case strings.HasPrefix(rest, "/*"):
			if n, run := l.versioned(rest); run {
				l.inside++
				l.pos += n
				continue
			}
			i := strings.Index(rest[2:], "*/")
			if i < 0 {
				return false
			}
			l.pos += i + 4
		default:
			return true
		}
	}
	return l.inside == 0
}

// versioned says whether the comment at the beginning of s is run by the server,
// and how long its opening is.
func (l *lexer) versioned(s string) (int, bool) {
	n := 2
	maria := strings.HasPrefix(s[n:], "M!")
	if maria {
		n++
	} else if !strings.HasPrefix(s[n:], "!") {
		return 0, false
	}
	n++
	if maria && l.flavor != FlavorMariaDB {
		return 0, false
	}
	v, digits := 0, 0
	for digits < 6 && n < len(s) && s[n] >= '0' && s[n] <= '9' {
		v = v*10 + int(s[n]-'0')
		digits++
		n++
	}
	switch {
	case digits == 0:
		return n, true
	case digits < 5:
		return n - digits, true // the digits are part of the text
	case l.flavor == FlavorMariaDB && !maria && v >= 50700 && v < 100000:
		return 0, false // MySQL's versions that MariaDB does not follow
	}
	return n, l.version == 0 || v <= l.version
}

// quoted reads what stands between quotes; a doubled quote stands for one.
func (l *lexer) quoted(q byte, escapes bool) (string, bool) {
	i := l.pos + 1
	if end := strings.IndexByte(l.s[i:], q); end >= 0 && (i+end+1 >= len(l.s) || l.s[i+end+1] != q) &&
		!(escapes && strings.IndexByte(l.s[i:i+end], '\\') >= 0) {
		l.pos = i + end + 1
		return l.s[i : i+end], true
	}
	var b strings.Builder
	for i < len(l.s) {
		c := l.s[i]
		switch {
		case c == q && i+1 < len(l.s) && l.s[i+1] == q:
			b.WriteByte(q)
			i += 2
		case c == q:
			l.pos = i + 1
			return b.String(), true
		case c == '\\' && escapes && i+1 < len(l.s):
			b.WriteString(unescape(l.s[i+1]))
			i += 2
		default:
			b.WriteByte(c)
			i++
		}
	}
	l.pos = len(l.s)
	return "", false
}

// unescape is what a backslash and c stand for in a string.
func unescape(c byte) string {
	switch c {
	case '0':
		return "\x00"
	case 'b':
		return "\b"
	case 'n':
		return "\n"
	case 'r':
		return "\r"
	case 't':
		return "\t"
	case 'Z':
		return "\x1a"
	case '%', '_':
		return "\\" + string(rune(c))
	}
	return string([]byte{c})
}

// parser looks a few tokens ahead.
type parser struct {
	lex  lexer
	buf  []token
	bad  bool // a token was not one
	sql  string
	mode uint64
}

func (h *history) newParser(sql string, mode uint64) *parser {
	return &parser{sql: sql, mode: mode, lex: lexer{s: sql, mode: mode, flavor: h.flavor, version: commentVersion(h.facts.Version)}}
}

// commentVersion is a server's version as versioned comments write it.
func commentVersion(v string) int {
	v = strings.TrimPrefix(v, "5.5.5-") // what MariaDB 10 says first to old clients
	var part [3]int
	i := 0
	for _, c := range v {
		if c >= '0' && c <= '9' {
			part[i] = part[i]*10 + int(c-'0')
			continue
		}
		if i++; c != '.' || i == 3 {
			break
		}
	}
	return part[0]*10000 + part[1]*100 + part[2]
}

// peek returns the token that comes i tokens after the next.
func (p *parser) peek(i int) token {
	for len(p.buf) <= i {
		t := p.lex.next()
		if t.kind == tokenBad {
			p.bad = true
			t.kind = tokenEnd
			p.lex.pos = len(p.lex.s)
			p.lex.inside = 0
		}
		p.buf = append(p.buf, t)
	}
	return p.buf[i]
}

func (p *parser) next() token {
	t := p.peek(0)
	if t.kind != tokenEnd {
		p.buf = append(p.buf[:0], p.buf[1:]...)
	}
	return t
}

// accept takes the words if all of them come next.
func (p *parser) accept(words ...string) bool {
	for i, w := range words {
		if !p.peek(i).is(w) {
			return false
		}
	}
	for range words {
		p.next()
	}
	return true
}

// acceptAny takes the next word if it is one of these, and returns it.
func (p *parser) acceptAny(words ...string) string {
	for _, w := range words {
		if p.accept(w) {
			return w
		}
	}
	return ""
}

func (p *parser) acceptPunct(c byte) bool {
	if p.peek(0).punct(c) {
		p.next()
		return true
	}
	return false
}

// end reports whether the statement is over.
func (p *parser) end() bool { return p.peek(0).kind == tokenEnd }

// skipParens takes everything up to the parenthesis that closes the one which
// comes next.
func (p *parser) skipParens() bool {
	if !p.acceptPunct('(') {
		return false
	}
	for depth := 1; depth > 0; {
		switch t := p.next(); {
		case t.kind == tokenEnd:
			return false
		case t.punct('('):
			depth++
		case t.punct(')'):
			depth--
		}
	}
	return true
}

// skipToComma takes everything up to a comma or a closing parenthesis of this
// level, or the end.
func (p *parser) skipToComma() {
	for {
		t := p.peek(0)
		switch {
		case t.kind == tokenEnd || t.punct(',') || t.punct(')'):
			return
		case t.punct('('):
			if !p.skipParens() {
				return
			}
		default:
			p.next()
		}
	}
}

// qualified reads a table's name with or without its schema.
func (p *parser) qualified(schema string) (tableName, bool) {
	if p.peek(0).punct('.') && p.peek(1).name() { // .t means the default schema
		p.next()
	}
	t := p.next()
	if !t.name() && t.kind != tokenNumber {
		return tableName{}, false
	}
	if p.peek(0).punct('.') {
		p.next()
		n := p.next()
		if !n.name() && n.kind != tokenNumber {
			return tableName{}, false
		}
		return tableName{t.text, n.text}, true
	}
	return tableName{schema, t.text}, true
}
