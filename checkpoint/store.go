package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lakesyncd/lakesyncd/table/fileio"
)

var (
	// ErrNoRecord: the store has no record, or not the one asked for.
	ErrNoRecord = errors.New("no checkpoint record")
	// ErrBroken: the store holds something else than whole records of this
	// pipeline, one after the other. Somebody must look.
	ErrBroken = errors.New("the checkpoint store is damaged")
	// ErrFenced: another instance of the pipeline runs or has taken over. The
	// program ends with 75.
	ErrFenced = errors.New("another instance runs this pipeline")
)

// keepRecords is the least that Prune leaves. Last looks for gaps among as many.
const keepRecords = 10

// Store keeps the records of one pipeline in a folder, one file per record,
// created exclusively under its number and never changed. It is safe for
// concurrent use.
type Store struct {
	fs       fileio.FS
	folder   string
	pipeline string
	now      func() time.Time
}

// OpenStore gives the store of a pipeline. Nothing is read yet.
func OpenStore(fs fileio.FS, folder, pipeline string, now func() time.Time) *Store {
	if now == nil {
		now = time.Now
	}
	return &Store{fs: fs, folder: strings.TrimRight(folder, "/"), pipeline: pipeline, now: now}
}

// String is the folder's URI, for messages.
func (s *Store) String() string { return s.folder }

func (s *Store) path(id int64) string {
	return fileio.Join(s.folder, fmt.Sprintf("%020d.json", id))
}

var recordName = regexp.MustCompile(`^[0-9]{20}\.json$`)

// What may lie beside the records.
const (
	statusName = "status.json"
	leaseName  = "lease.json"
	lockName   = "lock"
)

// IDs lists the numbers of the records that there are, ascending.
func (s *Store) IDs(ctx context.Context) ([]int64, error) {
	ids, _, err := s.list(ctx)
	return ids, err
}

// list also names the first file that is neither ours nor below a folder of its
// own: spill_dir may lie below the store.
func (s *Store) list(ctx context.Context) (ids []int64, foreign string, err error) {
	err = s.fs.List(ctx, s.folder, func(i fileio.Info) error {
		name := strings.TrimPrefix(i.Path, s.folder+"/")
		switch {
		case recordName.MatchString(name):
			id, err := strconv.ParseInt(strings.TrimSuffix(name, ".json"), 10, 64)
			if err != nil || id < 1 {
				return fmt.Errorf("checkpoint record %s: not a number that a record can have", i.Path)
			}
			ids = append(ids, id)
		case strings.Contains(name, "/"), name == statusName, name == leaseName, name == lockName:
		case foreign == "":
			foreign = i.Path
		}
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	slices.Sort(ids)
	return ids, foreign, nil
}

// Last gives the newest record. ErrNoRecord comes only from a store that holds
// nothing at all: files that we don't know, a gap in the numbers or a broken
// record are errors which name it, since to begin anew there would copy
// everything a second time.
func (s *Store) Last(ctx context.Context) (*Record, error) {
	ids, foreign, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		if foreign != "" {
			return nil, fmt.Errorf("checkpoint store %s has no record but holds %s: is it the right folder? Move the file away if it is (%w)", s.folder, foreign, ErrBroken)
		}
		return nil, fmt.Errorf("%w in %s", ErrNoRecord, s.folder)
	}
	newest := ids[len(ids)-1]
	for i := len(ids) - 2; i >= 0 && newest-ids[i] < keepRecords; i-- {
		if missing := ids[i+1] - 1; ids[i] != missing {
			return nil, fmt.Errorf("checkpoint record %s is missing: somebody removed it; put it back, or move the records above it away and run lakesyncd checkpoint set -from-tables (%w)",
				s.path(missing), ErrBroken)
		}
	}
	return s.Get(ctx, newest)
}

// Get reads one record. ErrNoRecord: there is none of that number.
func (s *Store) Get(ctx context.Context, id int64) (*Record, error) {
	data, _, err := s.fs.Read(ctx, s.path(id))
	if errors.Is(err, fileio.ErrNotExist) {
		return nil, fmt.Errorf("%w %s", ErrNoRecord, s.path(id))
	}
	if err != nil {
		return nil, err
	}
	r, err := s.decode(data, id)
	if err != nil {
		return nil, fmt.Errorf("checkpoint record %s: %w (%w); restore it, or move it away and run lakesyncd checkpoint set -from-tables", s.path(id), err, ErrBroken)
	}
	return r, nil
}

func (s *Store) decode(data []byte, id int64) (*Record, error) {
	r, err := decodeRecord(data)
	if err != nil {
		return nil, err
	}
	if r.Pipeline != s.pipeline {
		return nil, fmt.Errorf("it belongs to pipeline %q, not %q", r.Pipeline, s.pipeline)
	}
	if r.ID != id {
		return nil, fmt.Errorf("it says that it is number %d", r.ID)
	}
	return r, nil
}

// decodeRecord is strict: a key that we don't know may be something that a newer
// version counts on.
func decodeRecord(data []byte) (*Record, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("not valid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var r Record
	if err := d.Decode(&r); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("it is cut short after %d bytes", len(data))
		}
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the record")
	}
	return &r, r.validate()
}

func encodeRecord(r *Record) ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func (r *Record) validate() error {
	switch {
	case r.Format != 1:
		return fmt.Errorf("format %d is not known to this version, which knows 1", r.Format)
	case r.Pipeline == "":
		return errors.New("no pipeline")
	case r.ID < 1:
		return fmt.Errorf("number %d: records count from 1", r.ID)
	case r.Epoch < 1:
		return fmt.Errorf("epoch %d: epochs count from 1", r.Epoch)
	case !utf8.ValidString(string(r.Position)):
		// JSON would silently turn it into another position.
		return fmt.Errorf("position %q is not valid UTF-8", r.Position)
	}
	seen := map[string]bool{}
	for _, d := range r.Deltas {
		if d.Table == "" || seen[d.Table] {
			return fmt.Errorf("delta of table %q: without a name or a second one", d.Table)
		}
		seen[d.Table] = true
		for _, l := range d.Layers {
			for _, f := range l.Files {
				if !utf8.ValidString(f.Path) {
					return fmt.Errorf("delta of table %s: path %q is not valid UTF-8", d.Table, f.Path)
				}
			}
		}
	}
	return nil
}

// Put saves a record under its number; it is durable on return. Saving the same
// record again is no error, so an unknown outcome may be tried again.
//
// ErrFenced: the number is taken by another record, or there are newer ones.
func (s *Store) Put(ctx context.Context, r *Record) error {
	if r.Pipeline != s.pipeline {
		return fmt.Errorf("checkpoint record %s: it belongs to pipeline %q, not %q", s.path(r.ID), r.Pipeline, s.pipeline)
	}
	data, err := encodeRecord(r)
	if err != nil {
		return fmt.Errorf("checkpoint record %s: %w", s.path(r.ID), err)
	}
	err = s.fs.CreateExclusive(ctx, s.path(r.ID), data)
	if errors.Is(err, fileio.ErrExists) || errors.Is(err, fileio.ErrUnknown) {
		err = s.compare(ctx, r, data, err)
	}
	if err != nil {
		return err
	}
	// An instance that was asleep may have created a number again which the one
	// that took over has pruned meanwhile.
	ids, _, err := s.list(ctx)
	if err != nil {
		return err
	}
	if n := len(ids); n > 0 && ids[n-1] > r.ID {
		return fmt.Errorf("checkpoint record %s: record %d exists already: %w", s.path(r.ID), ids[n-1], ErrFenced)
	}
	return nil
}

// compare decides by reading whose record has the number.
func (s *Store) compare(ctx context.Context, r *Record, data []byte, cause error) error {
	have, _, err := s.fs.Read(ctx, s.path(r.ID))
	switch {
	case errors.Is(err, fileio.ErrNotExist):
		// It may still arrive.
		return fmt.Errorf("checkpoint record %s: %w: %w", s.path(r.ID), fileio.ErrUnknown, cause)
	case err != nil:
		return err
	case bytes.Equal(have, data):
		return nil
	}
	other, err := s.decode(have, r.ID)
	if err != nil {
		return fmt.Errorf("checkpoint record %s: %w", s.path(r.ID), err)
	}
	return fmt.Errorf("checkpoint record %s was written by %s in epoch %d, ours is %d: %w", s.path(r.ID), other.Writer, other.Epoch, r.Epoch, ErrFenced)
}

// Prune removes records but the newest keep, which is raised to ten if lower.
func (s *Store) Prune(ctx context.Context, keep int) error {
	ids, _, err := s.list(ctx)
	if err != nil || len(ids) == 0 {
		return err
	}
	keep = max(keep, keepRecords)
	newest := ids[len(ids)-1]
	var old []string
	for _, id := range ids {
		if id <= newest-int64(keep) {
			old = append(old, s.path(id))
		}
	}
	if len(old) == 0 {
		return nil
	}
	return s.fs.Remove(ctx, old...)
}

// savedStatus is status.json.
type savedStatus struct {
	SavedAt time.Time       `json:"saved_at"`
	Status  json.RawMessage `json:"status"`
}

// SaveStatus keeps the last state of the daemon as JSON, so that its status can
// be told when it is dead. Only the holder of the lease may call it.
func (s *Store) SaveStatus(ctx context.Context, status json.RawMessage) error {
	data, err := json.Marshal(savedStatus{s.now().UTC(), status})
	if err != nil {
		return fmt.Errorf("status %s: %w", fileio.Join(s.folder, statusName), err)
	}
	return s.fs.Put(ctx, fileio.Join(s.folder, statusName), append(data, '\n'))
}

// LoadStatus gives what SaveStatus kept, and when. fileio.ErrNotExist: nothing
// was kept.
func (s *Store) LoadStatus(ctx context.Context) (status json.RawMessage, at time.Time, err error) {
	path := fileio.Join(s.folder, statusName)
	data, _, err := s.fs.Read(ctx, path)
	if err != nil {
		return nil, time.Time{}, err
	}
	var st savedStatus
	if err := json.Unmarshal(data, &st); err != nil {
		return nil, time.Time{}, fmt.Errorf("status %s: %w", path, err)
	}
	return st.Status, st.SavedAt, nil
}
