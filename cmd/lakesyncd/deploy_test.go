package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/lakesyncd/lakesyncd/config"
)

const root = "../.."

func text(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A name that ends in _ is a prefix in a comment or test.
var metricName = regexp.MustCompile(`lakesyncd_[a-z_]*[a-z]`)

// inCode finds the metrics that the program defines: their names are whole string
// literals.
func inCode(t *testing.T) []string {
	t.Helper()
	literal := regexp.MustCompile(`"(lakesyncd_[a-z_]+)"`)
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "test" || d.Name() == ".git" || d.Name() == ".cache") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range literal.FindAllStringSubmatch(string(data), -1) {
			found[m[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 20 {
		t.Fatalf("only %d metrics were found in the code", len(found))
	}
	return keys(found)
}

func TestMetricsAreDocumented(t *testing.T) {
	code := inCode(t)
	page := metricName.FindAllString(text(t, "docs/reference/metrics.md"), -1)
	for _, name := range code {
		if !slices.Contains(page, name) {
			t.Errorf("docs/reference/metrics.md lacks %s", name)
		}
	}
	for _, name := range page {
		if !slices.Contains(code, name) {
			t.Errorf("docs/reference/metrics.md has %s, the code has not", name)
		}
	}
}

func TestAlertsAndDashboardUseMetricsThatExist(t *testing.T) {
	code := inCode(t)
	for _, file := range []string{"deploy/prometheus/alerts.yaml", "deploy/prometheus/alerts_test.yaml", "deploy/grafana/lakesyncd.json", "docs/runbooks/streaming.md", "docs/runbooks/waiting_lake.md", "docs/runbooks/misfits.md"} {
		names := metricName.FindAllString(text(t, file), -1)
		if len(names) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range names {
			plain := name
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				plain = strings.TrimSuffix(plain, suffix)
			}
			if !slices.Contains(code, name) && !slices.Contains(code, plain) {
				t.Errorf("%s uses %s, which does not exist", file, name)
			}
		}
	}
	if !json.Valid([]byte(text(t, "deploy/grafana/lakesyncd.json"))) {
		t.Error("the dashboard is not JSON")
	}
}

func TestEveryAlertHasWhatAPersonNeeds(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(text(t, "deploy/prometheus/alerts.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	index := text(t, "docs/runbooks/README.md")
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s lacks severity, summary or description", r.Alert)
			}
			_, runbook, ok := strings.Cut(r.Annotations["runbook_url"], "/blob/main/")
			if !ok {
				t.Errorf("%s has no runbook", r.Alert)
				continue
			}
			text(t, runbook)
			if !strings.Contains(index, r.Alert) {
				t.Errorf("docs/runbooks/README.md lacks %s", r.Alert)
			}
			if !strings.Contains(text(t, "deploy/prometheus/alerts_test.yaml"), "alertname: "+r.Alert) {
				t.Errorf("%s is not tested", r.Alert)
			}
		}
	}
}

func TestEveryStateHasARunbookAndAReference(t *testing.T) {
	page := text(t, "docs/reference/http.md")
	for _, s := range states {
		if body := text(t, "docs/runbooks/"+string(s)+".md"); !strings.HasPrefix(body, "# "+string(s)) {
			t.Errorf("the runbook of %s has another title", s)
		}
		if !strings.Contains(page, "| `"+string(s)+"` |") {
			t.Errorf("docs/reference/http.md lacks the state %s", s)
		}
	}
}

func TestAlertsByPromtool(t *testing.T) {
	if testing.Short() {
		t.Skip("fetches promtool")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), "../../test/servers/tool.sh", append([]string{"promtool"}, args...)...)
		cmd.Dir = filepath.Join(root, "deploy/prometheus")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}

func TestKubernetesFiles(t *testing.T) {
	err := filepath.WalkDir(filepath.Join(root, "deploy/kubernetes"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var doc map[string]any
		if err := yaml.Unmarshal(data, &doc); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// The configuration is right but for the secret, which is mounted there.
	example := text(t, "deploy/kubernetes/overlays/example/pipeline.yaml")
	file := filepath.Join(t.TempDir(), "pipeline.yaml")
	example = strings.Replace(example, "${file:/run/secrets/lakesyncd/password}", "x", 1)
	if err := os.WriteFile(file, []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(file); err != nil {
		t.Error(err)
	}
}

// systemd must not restart what only a person can mend, and must restart the rest.
func TestUnitRestartsByExitCode(t *testing.T) {
	unit := text(t, "deploy/systemd/lakesyncd@.service")
	for _, line := range []string{"Type=notify", "Restart=on-failure", "RestartPreventExitStatus=64 78", "ProtectSystem=strict", "DynamicUser=yes"} {
		if !strings.Contains(unit, "\n"+line+"\n") {
			t.Errorf("the unit lacks %s", line)
		}
	}
}

func TestLinksOfThePagesHold(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, folder := range []string{"docs/reference", "docs/runbooks"} {
		files, err := filepath.Glob(filepath.Join(root, folder, "*.md"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range link.FindAllStringSubmatch(string(data), -1) {
				if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
		}
	}
}
