package sink

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lakesyncd/lakesyncd/source"
)

// TestJavaReadsTheModel gives what random histories left to Iceberg's own Java
// library: its audit of metadata and files finds nothing, its rows are the model's.
func TestJavaReadsTheModel(t *testing.T) {
	if testing.Short() {
		t.Skip("starts the Java reader")
	}
	seed := seedOf()
	for i, sh := range modelShapes() {
		b := modelBudgets[1+i%3]
		t.Run(sh.name+"/"+b.name, func(t *testing.T) {
			dir := t.TempDir()
			m := newModel(t, "file://"+dir, sh, b, seed)
			m.run(40)
			m.store()
			var want []string
			for _, r := range m.rows {
				want = append(want, m.canonical(r))
			}
			slices.Sort(want)
			java(t, "check", dir+"/shop/t", "--all")
			got := strings.Split(strings.TrimSuffix(java(t, "rows", dir+"/shop/t"), "\n"), "\n")
			if len(want) == 0 {
				want = []string{""}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("rows (-want +got):\n%s", d)
			}
		})
	}
}

func java(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("../test/readers/java.sh", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("java.sh %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out)
}

func (m *model) canonical(r []any) string {
	var fields []string
	for i, c := range m.rel.Columns {
		v := fmt.Sprint(r[i])
		switch {
		case r[i] == nil:
			v = "null"
		case c.Type.Kind == source.String:
			v = `"` + v + `"`
		case c.Type.Kind == source.Decimal:
			sign, x := "", r[i].(int)
			if x < 0 {
				sign, x = "-", -x
			}
			v = fmt.Sprintf(`"%s%d.%02d"`, sign, x/100, x%100)
		}
		fields = append(fields, `"`+c.Name+`":`+v)
	}
	return "{" + strings.Join(fields, ",") + "}"
}
