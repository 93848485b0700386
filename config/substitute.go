package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// substituter replaces ${env:NAME}, ${env:NAME:-default}, ${file:PATH} and $$ in
// one scalar. It works after YAML is parsed, so that no value can change the
// structure of the file, and what it puts in is not looked at again. A name, a
// path or a default may hold references itself:
// ${file:${env:CREDENTIALS_DIRECTORY}/password}.
type substituter struct {
	dir string // relative paths start here
	env func(string) (string, bool)
}

const (
	maxReferenceDepth = 8
	maxFile           = 1 << 20 // bytes of a file that a value may be read from
)

// expand returns the text with its references resolved. Errors name variables
// and files, never values.
func (s *substituter) expand(text string) (string, error) {
	if !strings.Contains(text, "$") {
		return text, nil
	}
	var b strings.Builder
	rest, err := s.run(text, &b, false, 0)
	if err == nil && rest != "" {
		err = errors.New("reference ends in the middle")
	}
	return b.String(), err
}

// run expands up to the end, or, nested, up to the closing brace of the
// reference around it, and returns what follows.
func (s *substituter) run(text string, b *strings.Builder, nested bool, depth int) (string, error) {
	if depth > maxReferenceDepth {
		return "", fmt.Errorf("references nested deeper than %d", maxReferenceDepth)
	}
	for text != "" {
		switch {
		case strings.HasPrefix(text, "$$"):
			b.WriteByte('$')
			text = text[2:]
		case strings.HasPrefix(text, "${"):
			var inner strings.Builder
			rest, err := s.run(text[2:], &inner, true, depth+1)
			if err != nil {
				return "", err
			}
			value, err := s.resolve(inner.String())
			if err != nil {
				ref := text[2 : len(text)-len(rest)-1]
				return "", fmt.Errorf("${%s}: %w", plain(ref), err)
			}
			b.WriteString(value)
			text = rest
		case nested && text[0] == '}':
			return text[1:], nil
		default:
			b.WriteByte(text[0])
			text = text[1:]
		}
	}
	if nested {
		return "", errors.New("reference without its closing }")
	}
	return "", nil
}

func (s *substituter) resolve(ref string) (string, error) {
	kind, arg, _ := strings.Cut(ref, ":")
	switch kind {
	case "env":
		name, def, hasDefault := strings.Cut(arg, ":-")
		if !envName(name) {
			return "", errors.New("not the name of a variable")
		}
		value, ok := s.env(name)
		switch {
		case ok && (value != "" || !hasDefault):
			return value, nil
		case hasDefault:
			return def, nil
		}
		return "", errors.New("the environment variable is not set")
	case "file":
		return s.file(arg)
	}
	return "", errors.New("unknown kind of reference")
}

// file returns the content without one line break at its end.
func (s *substituter) file(path string) (string, error) {
	if path == "" {
		return "", errors.New("names no file")
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.dir, path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", errors.New(cause(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return "", errors.New(cause(err))
	case len(data) > maxFile:
		return "", errors.New("the file is larger than a value can be")
	case !utf8.Valid(data):
		return "", errors.New("the file is not UTF-8 text")
	}
	text := string(data)
	if t, ok := strings.CutSuffix(text, "\n"); ok {
		text = strings.TrimSuffix(t, "\r")
	}
	return text, nil
}

// plain is a reference as the file has it, for messages, without a default: that
// may be a secret.
func plain(ref string) string {
	ref, _, hasDefault := strings.Cut(ref, ":-")
	if hasDefault {
		ref += ":-…"
	}
	return ref
}

func envName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
