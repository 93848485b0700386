package config

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// A pattern is NAMESPACE.NAME: "*" stands for any run of characters, "?" for
// one, "\" takes the next character literally. The first dot that is not behind
// a "\" divides the two parts, so that "shop.*" never reaches into another
// namespace. Letters are compared as they are, not by case.

// splitPattern divides a pattern at its first plain dot.
func splitPattern(p string) (namespace, name string, ok bool) {
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
		case '.':
			return p[:i], p[i+1:], true
		}
	}
	return "", "", false
}

// checkPattern says what is wrong with a pattern.
func checkPattern(p string) error {
	namespace, name, ok := splitPattern(p)
	switch {
	case !ok:
		return errors.New("a pattern names a namespace and a relation with a dot between")
	case namespace == "" || name == "":
		return errors.New("one side of the dot is empty")
	case strings.HasSuffix(p, `\`) && !strings.HasSuffix(p, `\\`):
		return errors.New(`a "\" at the end escapes nothing`)
	}
	return nil
}

// matchPattern reports whether pattern covers the relation. A pattern without a
// dot covers nothing.
func matchPattern(pattern, namespace, name string) bool {
	ns, n, ok := splitPattern(pattern)
	return ok && matchGlob(ns, namespace) && matchGlob(n, name)
}

// matchGlob works in time linear in len(p)·len(s): on a mismatch only the last
// star takes one character more.
func matchGlob(p, s string) bool {
	star, mark := -1, 0 // pattern index behind the last star, and where in s it began
	pi, si := 0, 0
	for si < len(s) {
		if pi < len(p) {
			switch p[pi] {
			case '*':
				pi++
				star, mark = pi, si
				continue
			case '?':
				_, w := utf8.DecodeRuneInString(s[si:])
				pi, si = pi+1, si+w
				continue
			case '\\':
				if pi+1 < len(p) && p[pi+1] == s[si] {
					pi, si = pi+2, si+1
					continue
				}
			default:
				if p[pi] == s[si] {
					pi, si = pi+1, si+1
					continue
				}
			}
		}
		if star < 0 {
			return false
		}
		mark++
		pi, si = star, mark
	}
	for pi < len(p) && p[pi] == '*' {
		pi++
	}
	return pi == len(p)
}

// systemNamespaces belong to the server; no pattern reaches them.
var systemNamespaces = [...]string{"mysql", "information_schema", "performance_schema", "sys"}

// Captures reports whether the relation is to be replicated: the last entry of
// relations that covers it decides. The server's own schemas never are.
func (c *Config) Captures(namespace, name string) bool {
	if c.Source.MySQL != nil || c.Source.MariaDB != nil {
		for _, s := range systemNamespaces {
			if strings.EqualFold(namespace, s) {
				return false
			}
		}
	}
	if c.Source.Postgres != nil && (namespace == "information_schema" || strings.HasPrefix(namespace, "pg_")) {
		return false
	}
	for i := len(c.Relations) - 1; i >= 0; i-- {
		p, out := strings.CutPrefix(c.Relations[i], "!")
		if matchPattern(p, namespace, name) {
			return !out
		}
	}
	return false
}

// TableFor gives the settings of the table that a relation becomes: the first
// entry of tables whose match covers it, its defaults filled in, its name
// resolved. There is always one.
func (c *Config) TableFor(namespace, name string) Table {
	var t Table
	for i := range c.Tables {
		if matchPattern(c.Tables[i].Match, namespace, name) {
			t = c.Tables[i]
			break
		}
	}
	if t.Table == "" {
		t.Table = namespace + "." + name
	}
	t.fill()
	return t
}

// TableKey is the path in the file of the entry that TableFor takes for a
// relation, "tables[2]" for example, for messages; "tables" if none matches.
func (c *Config) TableKey(namespace, name string) string {
	for i := range c.Tables {
		if matchPattern(c.Tables[i].Match, namespace, name) {
			return index("tables", i)
		}
	}
	return "tables"
}
