package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Problem is one thing that is wrong with a file, and the way out.
type Problem struct {
	File string
	Line int    // 0: the file as a whole
	Key  string // path of the key, such as source.mysql.port or tables[1].key
	What string
	Fix  string
}

// Error reads FILE:LINE: KEY: WHAT: FIX.
func (p Problem) Error() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
		}
		b.WriteString(": ")
	}
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.What)
	if p.Fix != "" {
		b.WriteString(": " + p.Fix)
	}
	return b.String()
}

// Problems is everything that is wrong, in the order of lines. It is the error
// of Load; find it with errors.As.
type Problems []Problem

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].Error()
	}
	return strings.Join(lines, "\n")
}

// origin is where a key stands and what stands there.
type origin struct {
	line int
	raw  string // the scalar as written, before substitution
}

// Load reads a pipeline's file. Every error is of type Problems and holds all
// that is wrong. Relative paths in the file start at the file's folder.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, Problems{{File: path, What: "can't be read: " + cause(err), Fix: "name a readable file with -config"}}
	}
	return parse(path, data, os.LookupEnv)
}

// parse is Load without the outside world, as far as the file does not name it.
func parse(path string, data []byte, env func(string) (string, bool)) (*Config, error) {
	root, problem := document(path, data)
	if problem != nil {
		return nil, Problems{*problem}
	}
	dir := filepath.Dir(path)
	d := &decoder{file: path, sub: substituter{dir: dir, env: env}, origins: map[string]origin{}}
	c := Default()
	c.File = path
	d.value(root, reflectOf(c), "")
	c.origins = d.origins
	v := &validator{c: c, dir: dir, seen: d.failed}
	v.all()
	problems := append(d.problems, v.problems...)
	if len(problems) > 0 {
		slices.SortStableFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
		return nil, problems
	}
	c.derive()
	return c, nil
}

// document parses YAML into the one mapping that a file is.
func document(path string, data []byte) (*yaml.Node, *Problem) {
	bad := func(line int, what, fix string) (*yaml.Node, *Problem) {
		return nil, &Problem{File: path, Line: line, What: what, Fix: fix}
	}
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return bad(0, "the file is empty", "start from configs/example.yaml")
	case err != nil:
		line, what := yamlError(err)
		return bad(line, "not valid YAML: "+what, badYAML)
	}
	switch err := dec.Decode(&more); {
	case err == nil:
		return bad(more.Line, "a second document", "keep one pipeline in one file")
	case !errors.Is(err, io.EOF):
		line, what := yamlError(err)
		return bad(line, "not valid YAML: "+what, badYAML)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return bad(root.Line, "the file must be a mapping of keys", "start from configs/example.yaml")
	}
	return root, nil
}

const badYAML = `mind indentation, and put values with special characters in quotes; between { and } references too: "${env:NAME}"`

// yamlError takes line and text out of the parser's message. It hides the name
// of an unknown anchor: that is what an unquoted password with a "*" looks like.
func yamlError(err error) (line int, what string) {
	what = strings.TrimPrefix(err.Error(), "yaml: ")
	if n, _ := fmt.Sscanf(what, "line %d:", &line); n == 1 {
		_, what, _ = strings.Cut(what, ": ")
	}
	if strings.Contains(what, "unknown anchor") {
		what = "a value that begins with * refers to no anchor"
	}
	return line, what
}

// At makes a problem of a key of this file, for those who find it later than
// Load: a right that is missing at the server, a table that does not fit.
func (c *Config) At(key, what, fix string) Problem {
	return Problem{File: c.File, Line: c.line(key), Key: key, What: what, Fix: fix}
}

// line is the line of a key, or of the nearest section around it that the file
// has.
func (c *Config) line(key string) int {
	for {
		if o, ok := c.origins[key]; ok {
			return o.line
		}
		up, ok := parent(key)
		if !ok {
			return min(1, len(c.origins))
		}
		key = up
	}
}

// parent is the path of the section or list around a key.
func parent(key string) (string, bool) {
	i := strings.LastIndexAny(key, ".[")
	return key[:max(i, 0)], i > 0
}

// Masked is the effective configuration as YAML, every default filled in and
// secrets hidden.
func (c *Config) Masked() ([]byte, error) {
	var b strings.Builder
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(c); err != nil {
		return nil, fmt.Errorf("print configuration: %w", err)
	}
	return []byte(b.String()), e.Close()
}

// cause is a file error without the path, which a reference may have brought in.
func cause(err error) string {
	if pe := new(os.PathError); errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
