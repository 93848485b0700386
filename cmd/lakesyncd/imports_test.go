package main_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// allowed is the picture of the packages: who may import whom. The main program
// may import everything. Tests are not part of it.
var allowed = map[string][]string{
	"config":               {},
	"source":               {},
	"source/mysql":         {"source", "config"},
	"source/postgres":      {"source", "config"},
	"table/fileio":         {"config"},
	"table":                {"table/fileio", "config"},
	"sink":                 {"source", "table", "table/fileio", "config"},
	"checkpoint":           {"sink", "source", "table", "table/fileio"},
	"table/fileio/faultfs": {"table/fileio"},
}

func TestPackagesImportOnlyWhatThePictureAllows(t *testing.T) {
	const module = "github.com/lakesyncd/lakesyncd/"
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", module+"...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		pkg := strings.TrimPrefix(f[0], module)
		if pkg == "cmd/lakesyncd" || strings.HasPrefix(pkg, "test/") {
			continue
		}
		may, ok := allowed[pkg]
		if !ok {
			t.Errorf("package %s is not in the picture: is it needed?", pkg)
			continue
		}
		seen++
		for _, imp := range f[1:] {
			if ours, is := strings.CutPrefix(imp, module); is && !slices.Contains(may, ours) {
				t.Errorf("%s imports %s, which the picture does not allow", pkg, ours)
			}
			if strings.HasPrefix(imp, "github.com/apache/iceberg-go") && !strings.HasPrefix(pkg, "table") && pkg != "sink" {
				t.Errorf("%s imports %s: Iceberg stays in table and sink", pkg, imp)
			}
		}
	}
	if seen < 6 {
		t.Errorf("go list showed only %d packages of the picture", seen)
	}
}
