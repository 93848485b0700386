package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"one": "x\n", "two": "x\n\n", "crlf": "x\r\n", "dollar": "${env:A}$$", "binary": "\xff"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"A": "a", "EMPTY": "", "DOLLAR": "${env:A}$$", "NAME": "one"}
	s := substituter{dir: dir, env: func(k string) (string, bool) { v, ok := env[k]; return v, ok }}
	for in, want := range map[string]string{
		"":                              "",
		"plain":                         "plain",
		"$":                             "$",
		"$x":                            "$x",
		"a$$b":                          "a$b",
		"$${env:A}":                     "${env:A}",
		"${env:A}":                      "a",
		"<${env:A}|${env:A}>":           "<a|a>",
		"${env:DOLLAR}":                 "${env:A}$$",
		"${env:EMPTY}":                  "",
		"${env:EMPTY:-d}":               "d",
		"${env:NO:-d}":                  "d",
		"${env:NO:-}":                   "",
		"${env:NO:-a:-b}":               "a:-b",
		"${env:NO:-${env:A}}":           "a",
		"${file:one}":                   "x",
		"${file:two}":                   "x\n",
		"${file:crlf}":                  "x",
		"${file:dollar}":                "${env:A}$$",
		"${file:${env:NAME}}":           "x",
		"${file:" + dir + "/one}":       "x",
		"}":                             "}",
		"{a: b}":                        "{a: b}",
		"${env:NO:-$$}":                 "$",
		"${env:NO:-with spaces, ok: 1}": "with spaces, ok: 1",
	} {
		got, err := s.expand(in)
		if err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"${", "${}", "${env:A", "${env:}", "${env:NO}", "${env:1A}", "${env:A-b}", "${x:y}", "${file:}", "${file:none}", "${file:binary}",
		"${file:.}", strings.Repeat("${env:NO:-", 20) + strings.Repeat("}", 20)} {
		if got, err := s.expand(in); err == nil {
			t.Errorf("%q: got %q, want an error", in, got)
		}
	}
}

// Whatever stands in a file, parsing ends with a configuration or with problems,
// and a value that a reference brings in is never part of a message.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const secret = "s3cr3t-value"
		c, err := parse("testdata/fuzz.yaml", data, func(string) (string, bool) { return secret, true })
		if err != nil {
			if len(err.(Problems)) == 0 {
				t.Error("an error without a problem")
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%q prints a substituted value: %v", data, err)
			}
			return
		}
		if !pipelineName.MatchString(c.Pipeline) || c.Server() == nil && c.Source.Postgres == nil || c.Checkpoint.Store == "" {
			t.Errorf("%q gives an incomplete configuration", data)
		}
	})
}

func FuzzExpand(f *testing.F) {
	f.Add("${env:A:-${file:x}}$$")
	f.Fuzz(func(t *testing.T, text string) {
		s := substituter{dir: "/nowhere", env: func(string) (string, bool) { return "", false }}
		got, err := s.expand(text)
		if err == nil && !strings.Contains(text, "$") && got != text {
			t.Errorf("%q became %q", text, got)
		}
		// What is escaped comes back as it was.
		if back, err := s.expand(strings.ReplaceAll(text, "$", "$$")); err != nil || back != text {
			t.Errorf("%q escaped became %q, %v", text, back, err)
		}
	})
}

func FuzzGlob(f *testing.F) {
	f.Add("a*b?\\*", "axbx*")
	f.Fuzz(func(t *testing.T, pattern, s string) {
		matchGlob(pattern, s)
		if !matchGlob("*", s) {
			t.Errorf("* does not match %q", s)
		}
		if escaped := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`).Replace(s); !matchGlob(escaped, s) {
			t.Errorf("%q does not match %q", escaped, s)
		}
	})
}
