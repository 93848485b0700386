package harness

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A Judge holds tables against relations with several readers.
type Judge struct {
	Java   *Reader
	Others []*Reader
}

// NewJudge has the java reader and others by name. Close ends them.
func NewJudge(env []string, others ...string) *Judge {
	j := &Judge{Java: NewReader("java", env...)}
	for _, o := range others {
		j.Others = append(j.Others, NewReader(o, env...))
	}
	return j
}

// Close ends the readers' processes.
func (j *Judge) Close() {
	j.Java.Close()
	for _, o := range j.Others {
		o.Close()
	}
}

// Equal reports as an error of the test where the table differs from the
// relation, by the java reader and by each other reader, and what the audit of
// its metadata finds. It returns whether all is right.
func (j *Judge) Equal(t T, p *Pipeline, s *Server, schema, relation string) bool {
	t.Helper()
	return j.EqualLines(t, p.Table(schema, relation), s.Rows(t, schema, relation))
}

// EqualLines is Equal with the rows that the table must have.
func (j *Judge) EqualLines(t T, table string, want []string) bool {
	t.Helper()
	ok := true
	for _, r := range append([]*Reader{j.Java}, j.Others...) {
		lines, end, err := r.Ask("rows", table)
		switch {
		case err != nil:
			t.Errorf("%s: %v", table, err)
			ok = false
		case end != "0":
			t.Errorf("%s cannot read %s: %s", r.Name, table, strings.TrimPrefix(end, "2 "))
			ok = false
		default:
			if d := Diff(want, lines); d != "" {
				t.Errorf("%s as %s sees it: %s", table, r.Name, d)
				ok = false
			}
		}
	}
	j.Java.Audit(t, table)
	return ok
}

// A Snapshot is one entry of a table's metadata, oldest first.
type Snapshot struct {
	ID        int64             `json:"snapshot-id"`
	ParentID  int64             `json:"parent-snapshot-id"`
	Sequence  int64             `json:"sequence-number"`
	Timestamp int64             `json:"timestamp-ms"`
	Summary   map[string]string `json:"summary"`
}

// A Metadata is what the tests look at in a table's metadata file.
type Metadata struct {
	Version    int               // N of vN.metadata.json
	UUID       string            `json:"table-uuid"`
	Properties map[string]string `json:"properties"`
	Snapshots  []Snapshot        `json:"snapshots"`
	Current    int64             `json:"current-snapshot-id"`
	Schemas    []struct {
		ID         int   `json:"schema-id"`
		Identifier []int `json:"identifier-field-ids"`
		Fields     []struct {
			ID       int    `json:"id"`
			Name     string `json:"name"`
			Required bool   `json:"required"`
			Type     any    `json:"type"`
		} `json:"fields"`
	} `json:"schemas"`
	CurrentSchema int `json:"current-schema-id"`
	Refs          map[string]struct {
		ID int64 `json:"snapshot-id"`
	} `json:"refs"`
}

// Head is the current snapshot; nil if there is none.
func (m *Metadata) Head() *Snapshot {
	for i := range m.Snapshots {
		if m.Snapshots[i].ID == m.Current {
			return &m.Snapshots[i]
		}
	}
	return nil
}

// LoadMetadata reads the metadata that the hint of a local table names; nil if
// there is no table.
func LoadMetadata(t T, table string) *Metadata {
	t.Helper()
	hint, err := os.ReadFile(filepath.Join(table, "metadata", "version-hint.text"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(hint)))
	if err != nil {
		t.Fatalf("version hint of %s: %v", table, err)
	}
	b, err := os.ReadFile(filepath.Join(table, "metadata", "v"+strconv.Itoa(n)+".metadata.json"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	m := &Metadata{Version: n}
	if err := json.Unmarshal(b, m); err != nil {
		t.Fatalf("metadata of %s: %v", table, err)
	}
	return m
}
