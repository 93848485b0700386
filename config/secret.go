package config

import "log/slog"

// Secret is text that never prints: not by fmt, YAML, JSON or slog.
type Secret string

// Reveal gives the text to the one place that needs it.
func (s Secret) Reveal() string { return string(s) }

const masked = "<secret>"

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return masked
}

func (s Secret) GoString() string             { return s.String() }
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
func (s Secret) MarshalYAML() (any, error)    { return s.String(), nil }
func (s Secret) LogValue() slog.Value         { return slog.StringValue(s.String()) }
