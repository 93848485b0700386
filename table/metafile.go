package table

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	icetable "github.com/apache/iceberg-go/table"

	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// Layout of a table's metadata folder.
const (
	metadataFolder = "/metadata/"
	hintFile       = "version-hint.text"
)

func metadataPath(location string, version int) string {
	return location + metadataFolder + "v" + strconv.Itoa(version) + ".metadata.json"
}

func hintPath(location string) string { return location + metadataFolder + hintFile }

// errTaken: another metadata file is where ours should have gone.
var errTaken = errors.New("version was taken by another commit")

// find returns the newest version of a table's metadata and what the hint says
// (0: no hint). It reads the hint and probes upwards from there; only where
// that leads nowhere it lists the folder. ErrNotFound: there is no metadata.
func find(ctx context.Context, fs fileio.FS, location string) (version, hint int, hintVersion string, err error) {
	text, hintVersion, err := fs.Read(ctx, hintPath(location))
	switch {
	case errors.Is(err, fileio.ErrNotExist):
	case err != nil:
		return 0, 0, "", fmt.Errorf("read version hint: %w", err)
	default:
		// A hint that can't be read is no hint, but it is one to be replaced.
		hint, err = strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || hint < 0 {
			hint = 0
		}
	}
	if hint > 0 {
		exists, err := exists(ctx, fs, metadataPath(location, hint))
		if err != nil {
			return 0, 0, "", err
		}
		version = hint
		if !exists {
			version = 0
		}
	}
	if version == 0 {
		if version, err = findByListing(ctx, fs, location); err != nil {
			return 0, 0, "", err
		}
	}
	version, err = probe(ctx, fs, location, version)
	return version, hint, hintVersion, err
}

// probe walks upwards from a version that exists to the newest one.
func probe(ctx context.Context, fs fileio.FS, location string, version int) (int, error) {
	for {
		next, err := exists(ctx, fs, metadataPath(location, version+1))
		if err != nil || !next {
			return version, err
		}
		version++
	}
}

func exists(ctx context.Context, fs fileio.FS, path string) (bool, error) {
	_, err := fs.Stat(ctx, path)
	if errors.Is(err, fileio.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for metadata: %w", err)
	}
	return true, nil
}

var (
	versionedName  = regexp.MustCompile(`^v(\d+)\.metadata\.json$`)
	compressedName = regexp.MustCompile(`^v\d+(\.gz\.metadata\.json|\.metadata\.json\.gz)$`)
	catalogName    = regexp.MustCompile(`^\d+-[0-9a-f-]+(\.gz)?\.metadata\.json$`)
)

func findByListing(ctx context.Context, fs fileio.FS, location string) (int, error) {
	newest, other := 0, ""
	folder := location + metadataFolder
	err := fs.List(ctx, strings.TrimSuffix(folder, "/"), func(info fileio.Info) error {
		name := strings.TrimPrefix(info.Path, folder)
		if m := versionedName.FindStringSubmatch(name); m != nil {
			n, err := strconv.Atoi(m[1])
			if err == nil && n > newest {
				newest = n
			}
		} else if compressedName.MatchString(name) || catalogName.MatchString(name) {
			other = info.Path
		}
		return nil
	})
	switch {
	case err != nil && !errors.Is(err, fileio.ErrNotExist):
		return 0, fmt.Errorf("list metadata: %w", err)
	case newest > 0:
		return newest, nil
	case other != "":
		return 0, fmt.Errorf("%w: %s is compressed or belongs to another catalog: have its writer commit once with write.metadata.compression-codec=none in the layout of the Hadoop catalog (vN.metadata.json), or name another table", ErrUnfit, other)
	}
	return 0, ErrNotFound
}

// readState reads one version.
func readState(ctx context.Context, fs fileio.FS, location string, version int) (*state, error) {
	path := metadataPath(location, version)
	data, _, err := fs.Read(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	meta, err := icetable.ParseMetadataBytes(data)
	if err != nil {
		return nil, fmt.Errorf("%w: parse %s: %w", ErrUnfit, path, err)
	}
	return &state{version: version, size: int64(len(data)), meta: meta}, nil
}

// readNewest finds and reads the newest version. A version that is removed
// between the two, by a writer that found itself to be too late, is looked for
// again.
func readNewest(ctx context.Context, fs fileio.FS, location string) (st *state, hint int, hintVersion string, err error) {
	for range 3 {
		var version int
		version, hint, hintVersion, err = find(ctx, fs, location)
		if err != nil {
			return nil, 0, "", err
		}
		st, err = readState(ctx, fs, location, version)
		if err == nil || !errors.Is(err, fileio.ErrNotExist) {
			return st, hint, hintVersion, err
		}
	}
	return nil, 0, "", err
}

// swap makes next the table's metadata after version-1, or fails. errTaken
// proves that next is not, and never will be, part of the table.
// fileio.ErrUnknown leaves it open. snapshot is the last one that next adds, 0
// if it adds none.
func swap(ctx context.Context, fs fileio.FS, location string, version int, next []byte, snapshot int64) error {
	path := metadataPath(location, version)
	err := fs.CreateExclusive(ctx, path, next)
	for range 3 {
		if !errors.Is(err, fileio.ErrUnknown) || ctx.Err() != nil {
			break
		}
		// Asking again with the same bytes is safe: whichever of the requests
		// arrives first makes the same file.
		err = fs.CreateExclusive(ctx, path, next)
	}
	if errors.Is(err, fileio.ErrExists) || errors.Is(err, fileio.ErrUnknown) {
		have, _, readErr := fs.Read(ctx, path)
		switch {
		case readErr == nil && bytes.Equal(have, next):
			err = nil
		case readErr == nil:
			return errTaken
		case errors.Is(err, fileio.ErrExists):
			// It was there a moment ago. Who knows what will be.
			return fmt.Errorf("create %s: %w: it exists but cannot be read: %w", path, fileio.ErrUnknown, readErr)
		}
	}
	if err != nil {
		return fmt.Errorf("commit metadata: %w", err)
	}
	// A writer that slept for longer than old metadata is kept can create a
	// version that existed long ago.
	newest, err := probe(ctx, fs, location, version)
	if err != nil {
		return fmt.Errorf("%w: %w", fileio.ErrUnknown, err)
	}
	if newest == version {
		return nil
	}
	st, err := readState(ctx, fs, location, newest)
	if err != nil {
		return fmt.Errorf("%w: %w", fileio.ErrUnknown, err)
	}
	ours, err := descends(st.meta, path, next, snapshot)
	if err != nil {
		return err
	}
	if ours {
		return nil // somebody went on from it
	}
	return withdraw(ctx, fs, path)
}

// withdraw removes a version that came too late.
func withdraw(ctx context.Context, fs fileio.FS, path string) error {
	if err := fs.Remove(ctx, path); err != nil {
		return fmt.Errorf("remove a metadata file that came too late: %w", err)
	}
	return errTaken
}

// descends reports whether meta was made from the metadata file (path, data),
// which added the snapshot (0: none).
func descends(meta icetable.Metadata, path string, data []byte, snapshot int64) (bool, error) {
	if snapshot != 0 {
		return meta.SnapshotByID(snapshot) != nil, nil
	}
	ours, err := icetable.ParseMetadataBytes(data)
	if err != nil {
		return false, fmt.Errorf("parse own metadata: %w", err)
	}
	for entry := range meta.PreviousFiles() {
		if entry.MetadataFile == path && entry.TimestampMs == ours.LastUpdatedMillis() {
			return true, nil
		}
	}
	return false, nil
}

// raiseHint makes version-hint.text say at least version. It never goes down:
// the file is replaced only as the one that was read.
func raiseHint(ctx context.Context, fs fileio.FS, location string, version, hint int, hintVersion string) (int, string, error) {
	path := hintPath(location)
	for range 5 {
		if hint >= version {
			return hint, hintVersion, nil
		}
		next, err := fs.Replace(ctx, path, []byte(strconv.Itoa(version)), hintVersion)
		if err == nil {
			return version, next, nil
		}
		if !errors.Is(err, fileio.ErrChanged) && !errors.Is(err, fileio.ErrUnknown) {
			return hint, hintVersion, fmt.Errorf("write version hint: %w", err)
		}
		text, now, err := fs.Read(ctx, path)
		if errors.Is(err, fileio.ErrNotExist) {
			hint, hintVersion = 0, ""
			continue
		}
		if err != nil {
			return hint, hintVersion, fmt.Errorf("read version hint: %w", err)
		}
		if hint, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			hint = 0
		}
		hintVersion = now
	}
	return hint, hintVersion, fmt.Errorf("write version hint %s: %w: it changes all the time", path, fileio.ErrUnavailable)
}

// encodeMetadata is the metadata's JSON. lastUpdated 0 leaves the time as it is.
// iceberg-go takes the host's clock for commits without a snapshot; a clock that
// was set back would then make a file that other readers refuse.
func encodeMetadata(meta icetable.Metadata, lastUpdated int64) ([]byte, icetable.Metadata, error) {
	data, err := json.Marshal(meta)
	if err != nil {
		return nil, nil, fmt.Errorf("encode metadata: %w", err)
	}
	if lastUpdated == 0 || lastUpdated == meta.LastUpdatedMillis() {
		return data, meta, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, nil, fmt.Errorf("encode metadata: %w", err)
	}
	fields["last-updated-ms"] = json.RawMessage(strconv.FormatInt(lastUpdated, 10))
	if data, err = json.Marshal(fields); err != nil {
		return nil, nil, fmt.Errorf("encode metadata: %w", err)
	}
	if meta, err = icetable.ParseMetadataBytes(data); err != nil {
		return nil, nil, fmt.Errorf("encode metadata: %w", err)
	}
	return data, meta, nil
}
