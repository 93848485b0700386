package main

import "runtime/debug"

// version is set by the linker: -X main.version=1.2.3. It is the one
// variable that a release needs.
var version string

// programVersion is the release, or the commit that the program was built from.
func programVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "-dirty"
			}
		}
	}
	if len(commit) >= 12 {
		return commit[:12] + dirty
	}
	return "devel"
}
