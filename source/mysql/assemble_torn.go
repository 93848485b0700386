package mysql

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/lakesyncd/lakesyncd/source"
)

// tornGroups remembers transactions that a server's crash left unfinished in its
// log: MariaDB keeps such a piece at the end of a file and goes on with the next
// file. The rows of one may have been handed out when that is seen, and rows
// can't be taken back, so the log is read again from the last saved position, and
// this note says what to leave out.
type tornGroups struct {
	path  string
	known []tornGroup
}

type tornGroup struct {
	Name  source.Position `json:"name"`
	Begin source.Position `json:"begin"` // by file
}

func openTorn(dir, pipeline string) (*tornGroups, error) {
	t := &tornGroups{path: filepath.Join(dir, pipeline+".torn.json")}
	b, err := os.ReadFile(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &t.known)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: read the note of unfinished transactions %s: %w; remove it to go on without", source.ErrCannotServe, t.path, err)
	}
	return t, nil
}

func (t *tornGroups) is(g *group) bool {
	return t != nil && len(t.known) > 0 && slices.Contains(t.known, tornGroup{g.name, g.begin.position()})
}

func (t *tornGroups) write(known []tornGroup) error {
	b, err := json.Marshal(known)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(t.path), 0o750)
	}
	if err == nil {
		err = os.WriteFile(t.path, b, 0o640)
	}
	if err != nil {
		return fmt.Errorf("%w: note an unfinished transaction: %w", source.ErrCannotServe, err)
	}
	t.known = known
	return nil
}

// tornEnd is called when a file's beginning shows that the file before ended
// inside of a transaction, which therefore never was.
func (a *assembler) tornEnd() error {
	g := a.group
	if g.schema {
		return a.stop("the file before %s ends inside of a transaction that creates a table: the server died while it wrote it; %s", a.file, copyAnew)
	}
	if g.emitted || a.resume != nil {
		t := tornGroup{g.name, g.begin.position()}
		known := append(slices.Clone(a.torn.known), t)
		if err := a.torn.write(known[max(0, len(known)-16):]); err != nil {
			return err
		}
		return fmt.Errorf("%w: %s, begun at %s, ends with its file: the server died while it wrote it", source.ErrRestart, g.name, t.Begin)
	}
	if g.park != nil {
		g.park.drop()
	}
	a.group = group{}
	a.statement++
	return nil
}

// tornWhole is called when a transaction ends that was noted as unfinished: the
// log is not the one that the note is about.
func (a *assembler) tornWhole() error {
	if err := a.torn.write(nil); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s was unfinished when it was read before and is whole now", source.ErrRestart, a.group.name)
}
