package table

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	icetable "github.com/apache/iceberg-go/table"
)

// Keys of ours, in snapshot summaries and table properties.
const (
	keyPipeline   = "lakesync.pipeline"
	keyEpoch      = "lakesync.epoch"
	keyCheckpoint = "lakesync.checkpoint"
	keyPosition   = "lakesync.position"
	keySourceTime = "lakesync.source-time"
	keyComplete   = "lakesync.complete"
	keyPartial    = "lakesync.partial"

	// markProperty and the pipeline's name: its mark, as JSON.
	markProperty = "lakesync.mark."
	// versionProperty says in vN.metadata.json that N; another writer keeps the
	// property but not the number.
	versionProperty = "lakesync.metadata-version"
	// EndedProperty is set when the relation was dropped at the source.
	EndedProperty = "lakesync.ended"
	// CreatedByProperty names the pipeline that made the table. As long as that
	// pipeline committed nothing, the definition is its to change.
	CreatedByProperty = "lakesync.created-by"
)

// maxPosition is the longest position, in bytes, that a summary or mark holds
// itself. A longer one is represented by its digest and kept in numbered
// properties: catalogs refuse long values.
const (
	maxPosition   = 1024
	digestPrefix  = "sha256:"
	positionChunk = 1000
)

// positionText is what stands for a position in summary and mark.
func positionText(position string) string {
	if len(position) <= maxPosition {
		return position
	}
	sum := sha256.Sum256([]byte(position))
	return digestPrefix + hex.EncodeToString(sum[:])
}

func markKey(pipeline string) string { return markProperty + pipeline }

func chunkKey(pipeline string, n int) string {
	return markKey(pipeline) + ".position." + strconv.Itoa(n)
}

// markProperties are the properties to set for a mark, and those to remove.
func markProperties(m Mark, have map[string]string) (set map[string]string, remove []string, err error) {
	stored := m
	stored.Position = positionText(m.Position)
	stored.SourceTime = m.SourceTime.UTC()
	text, err := json.Marshal(stored)
	if err != nil {
		return nil, nil, fmt.Errorf("encode mark: %w", err)
	}
	set = map[string]string{markKey(m.Pipeline): string(text)}
	n := 0
	if stored.Position != m.Position {
		for rest := m.Position; rest != ""; n++ {
			cut := min(positionChunk, len(rest))
			for cut < len(rest) && cut > 0 && !utf8.RuneStart(rest[cut]) {
				cut--
			}
			set[chunkKey(m.Pipeline, n)], rest = rest[:cut], rest[cut:]
		}
	}
	for ; have[chunkKey(m.Pipeline, n)] != ""; n++ {
		remove = append(remove, chunkKey(m.Pipeline, n))
	}
	return set, remove, nil
}

// markOf reads a pipeline's mark from the properties.
func markOf(properties map[string]string, pipeline string) (Mark, bool, error) {
	text, ok := properties[markKey(pipeline)]
	if !ok {
		return Mark{}, false, nil
	}
	var m Mark
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return Mark{}, false, fmt.Errorf("%w: table property %s is not a mark: %w", ErrForeign, markKey(pipeline), err)
	}
	if strings.HasPrefix(m.Position, digestPrefix) {
		var b strings.Builder
		for n := 0; properties[chunkKey(pipeline, n)] != ""; n++ {
			b.WriteString(properties[chunkKey(pipeline, n)])
		}
		if positionText(b.String()) != m.Position {
			return Mark{}, false, fmt.Errorf("%w: the properties %s… do not hold the position that the mark names", ErrForeign, chunkKey(pipeline, 0))
		}
		m.Position = b.String()
	}
	return m, true, nil
}

// Mark returns what the newest commit of the pipeline left in the table; false
// if there is none.
func (t *Table) Mark(pipeline string) (Mark, bool, error) {
	m, ok, err := markOf(t.meta().Properties(), pipeline)
	if err != nil {
		return m, ok, fmt.Errorf("table %s: %w", t.name, err)
	}
	return m, ok, nil
}

// Judge tells what the table's state means for a pipeline, without changing
// anything: ErrRolledBack, ErrForeign, or nil.
func (t *Table) Judge(pipeline string) error {
	m, ok, err := t.Mark(pipeline)
	if err != nil || !ok {
		return err
	}
	return t.judge(t.meta(), m)
}

// judge holds the head against the mark. A mark without a snapshot was written
// before the pipeline's first snapshot; its sequence number is then that of the
// head of the time.
func (t *Table) judge(meta icetable.Metadata, m Mark) error {
	head := meta.CurrentSnapshot()
	switch {
	case head == nil && m.SequenceNumber == 0:
		return nil
	case head == nil:
		return fmt.Errorf("table %s: %w: it has no current snapshot, but the mark of pipeline %s (checkpoint %d) knows one", t.name, ErrRolledBack, m.Pipeline, m.Checkpoint)
	case head.SequenceNumber < m.SequenceNumber:
		return fmt.Errorf("table %s: %w: its head %d has sequence number %d, below %d of the pipeline's last commit (snapshot %d, checkpoint %d)",
			t.name, ErrRolledBack, head.SnapshotID, head.SequenceNumber, m.SequenceNumber, m.SnapshotID, m.Checkpoint)
	}
	// The way back from the head. It may end at a snapshot that has expired,
	// which proves nothing.
	for s := head; s != nil && s.SequenceNumber >= m.SequenceNumber; {
		if s.SnapshotID == m.SnapshotID || (m.SnapshotID == 0 && s.SequenceNumber == m.SequenceNumber) {
			return nil
		}
		if !ours(s, m.Pipeline) && addsRows(s) {
			return t.foreign(s)
		}
		if s.ParentSnapshotID == nil {
			break
		}
		s = meta.SnapshotByID(*s.ParentSnapshotID)
	}
	if meta.SnapshotByID(m.SnapshotID) != nil {
		return fmt.Errorf("table %s: %w: snapshot %d of the pipeline's last commit (checkpoint %d) is not among the ancestors of the head %d",
			t.name, ErrRolledBack, m.SnapshotID, m.Checkpoint, head.SnapshotID)
	}
	return nil
}

func (t *Table) foreign(s *icetable.Snapshot) error {
	return fmt.Errorf("table %s: %w: snapshot %d (%s, %s) was not made by this pipeline, which must be the only writer of a table of the filesystem catalog: roll the table back to before it, or copy the relation again into a new table",
		t.name, ErrForeign, s.SnapshotID, operation(s), time.UnixMilli(s.TimestampMs).UTC().Format(time.RFC3339))
}

// ours: a snapshot of this pipeline.
func ours(s *icetable.Snapshot, pipeline string) bool {
	return s.Summary != nil && s.Summary.Properties[keyPipeline] == pipeline
}

// addsRows: a snapshot that is not merely the same rows in other files.
func addsRows(s *icetable.Snapshot) bool { return operation(s) != string(icetable.OpReplace) }

func operation(s *icetable.Snapshot) string {
	if s.Summary == nil {
		return "unknown"
	}
	return string(s.Summary.Operation)
}
