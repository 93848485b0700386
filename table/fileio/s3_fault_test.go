package fileio_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// fakeS3 keeps objects in memory and answers requests by a script: each line is
// for the next request of a kind, as "PUT cut-after". What a real server does
// only when it suffers can be had from it at will. The kinds are HTTP's methods.
//
//	cut-before   the connection ends, nothing was done
//	cut-after    it was done, then the connection ends
//	502-after    it was done, but a gateway says 502
//	half         half of the body, then the connection ends
//	other-first  somebody else writes the object first
//	CODE NAME    such as "503 SlowDown": nothing was done
type fakeS3 struct {
	mu      sync.Mutex
	objects map[string]fakeObject
	script  map[string][]string
	asked   []string // methods, in order
}

type fakeObject struct {
	data []byte
	meta http.Header
}

func (o fakeObject) etag() string { return fmt.Sprintf("\"%x\"", md5.Sum(o.data)) }

func newFakeS3(t *testing.T, script ...string) (*fakeS3, fileio.FS, *fileio.Requests) {
	t.Helper()
	f := &fakeS3{objects: map[string]fakeObject{}, script: map[string][]string{}}
	f.then(script...)
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	var n fileio.Requests
	return f, openS3(t, config.S3{Endpoint: srv.URL, PathStyle: true, AccessKey: "a", SecretKey: "b"}, fileio.Options{Requests: &n, RetryWait: time.Millisecond}), &n
}

func (f *fakeS3) then(script ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, line := range script {
		method, what, _ := strings.Cut(line, " ")
		f.script[method] = append(f.script[method], what)
	}
}

func (f *fakeS3) put(key, data string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects["/lake/"+key] = fakeObject{data: []byte(data)}
}

func (f *fakeS3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r.Method)
	var what string
	if q := f.script[r.Method]; len(q) > 0 {
		what, f.script[r.Method] = q[0], q[1:]
	}
	switch {
	case what == "cut-before":
		panic(http.ErrAbortHandler)
	case what == "cut-after", what == "502-after":
		f.serve(httptest.NewRecorder(), r, body)
		if what == "cut-after" {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(502)
	case what == "other-first":
		f.objects[r.URL.Path] = fakeObject{data: []byte("somebody else's")}
		f.serve(w, r, body)
	case what == "half":
		o := f.objects[r.URL.Path]
		rec := httptest.NewRecorder()
		f.serve(rec, r, body)
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(o.data[:len(o.data)/2])
		panic(http.ErrAbortHandler)
	case what != "":
		status, code, _ := strings.Cut(what, " ")
		n, _ := strconv.Atoi(status)
		fail(w, n, code)
	default:
		f.serve(w, r, body)
	}
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	if code != "" {
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>as told</Message></Error>", code)
	}
}

func (f *fakeS3) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	o, ok := f.objects[r.URL.Path]
	switch r.Method {
	case http.MethodPut:
		switch match := r.Header.Get("If-Match"); {
		case r.Header.Get("If-None-Match") == "*" && ok:
			fail(w, 412, "PreconditionFailed")
			return
		case match != "" && !ok:
			fail(w, 404, "NoSuchKey")
			return
		case match != "" && match != o.etag():
			fail(w, 412, "PreconditionFailed")
			return
		}
		o = fakeObject{data: body, meta: http.Header{}}
		for k, v := range r.Header {
			if strings.HasPrefix(k, "X-Amz-Meta-") {
				o.meta[k] = v
			}
		}
		f.objects[r.URL.Path] = o
		w.Header().Set("ETag", o.etag())
	case http.MethodGet, http.MethodHead:
		if !ok {
			if r.URL.Path != "/lake" {
				fail(w, 404, "NoSuchKey")
			}
			return
		}
		for k, v := range o.meta {
			w.Header()[k] = v
		}
		w.Header().Set("ETag", o.etag())
		data, status := o.data, 200
		if h := r.Header.Get("Range"); h != "" {
			var from, to int
			fmt.Sscanf(h, "bytes=%d-%d", &from, &to)
			to = min(to+1, len(data))
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, len(data)))
			data, status = data[from:to], 206
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.WriteHeader(status)
		if r.Method == http.MethodGet {
			_, _ = w.Write(data)
		}
	case http.MethodDelete:
		delete(f.objects, r.URL.Path)
		w.WriteHeader(204)
	case http.MethodPost:
		fail(w, 400, "InvalidRequest") // no batch delete, no parts
	}
}

const fakePath = "s3://lake/v5.metadata.json"

// B49: success, conflict and unknown are decided by reading, not by status.
func TestS3ResolvesLostReplies(t *testing.T) {
	for name, c := range map[string]struct {
		before string // content of the object, "" for none
		script []string
		want   error
		holds  string
	}{
		"reply lost, then found":              {"", []string{"PUT cut-after"}, nil, "mine"},
		"gateway error after it was stored":   {"", []string{"PUT 502-after"}, nil, "mine"},
		"internal error after it was stored":  {"", []string{"PUT 502-after", "PUT 500 InternalError"}, nil, "mine"},
		"request lost, then stored":           {"", []string{"PUT cut-before"}, nil, "mine"},
		"lost twice":                          {"", []string{"PUT cut-before", "PUT cut-after"}, nil, "mine"},
		"taken before":                        {"theirs", nil, fileio.ErrExists, "theirs"},
		"taken, and the reply to that lost":   {"theirs", []string{"PUT cut-after"}, fileio.ErrExists, "theirs"},
		"somebody else came between":          {"", []string{"PUT cut-before", "PUT other-first"}, fileio.ErrExists, "somebody else's"},
		"taken by the same content":           {"mine", nil, fileio.ErrExists, "mine"},
		"same content of another, reply lost": {"mine", []string{"PUT cut-before"}, fileio.ErrExists, "mine"},
		"conflict while writing":              {"", []string{"PUT 409 ConditionalRequestConflict"}, nil, "mine"},
		"conflict, then taken":                {"", []string{"PUT 409 ConditionalRequestConflict", "PUT other-first"}, fileio.ErrExists, "somebody else's"},
		"throttled":                           {"", []string{"PUT 503 SlowDown", "PUT 503 SlowDown"}, nil, "mine"},
		"reading back is lost once":           {"", []string{"PUT cut-after", "HEAD cut-before"}, nil, "mine"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, store, n := newFakeS3(t, c.script...)
			if c.before != "" {
				fake.put("v5.metadata.json", c.before)
			}
			err := store.CreateExclusive(t.Context(), fakePath, []byte("mine"))
			if !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("got %v, want %v (%v)", err, c.want, n)
			}
			wantContent(t, store, fakePath, c.holds)
		})
	}
}

func TestS3SaysUnknownWhenNothingCanTell(t *testing.T) {
	for name, script := range map[string][]string{
		"never a reply, nothing found":   {"PUT cut-before", "PUT cut-before", "PUT cut-before", "PUT cut-before"},
		"reply lost and store gone":      {"PUT cut-after", "PUT cut-before", "PUT cut-before", "PUT cut-before", "HEAD cut-before", "HEAD cut-before", "HEAD cut-before", "HEAD cut-before"},
		"refused in the end, but after?": {"PUT cut-before", "PUT 403 AccessDenied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, store, n := newFakeS3(t, script...)
			err := store.CreateExclusive(t.Context(), fakePath, []byte("mine"))
			if !errors.Is(err, fileio.ErrUnknown) || errors.Is(err, fileio.ErrUnavailable) || errors.Is(err, fileio.ErrExists) {
				t.Errorf("got %v, want ErrUnknown (%v)", err, n)
			}
		})
	}
}

func TestS3ClassifiesRefusals(t *testing.T) {
	repeat := func(s string) []string { return slices.Repeat([]string{s}, 4) }
	for name, c := range map[string]struct {
		script []string
		want   error
		tries  int
	}{
		"full":                   {repeat("PUT 507 InsufficientStorage"), fileio.ErrUnavailable, 1},
		"throttled for long":     {repeat("PUT 503 SlowDown"), fileio.ErrUnavailable, 4},
		"too many requests":      {repeat("PUT 429 "), fileio.ErrUnavailable, 4},
		"clock":                  {repeat("PUT 403 RequestTimeTooSkewed"), fileio.ErrUnavailable, 4},
		"denied":                 {repeat("PUT 403 AccessDenied"), fileio.ErrDenied, 1},
		"no bucket":              {repeat("PUT 404 NoSuchBucket"), fileio.ErrDenied, 1},
		"conditions unknown":     {repeat("PUT 501 NotImplemented"), fileio.ErrDenied, 1},
		"another region":         {repeat("PUT 301 PermanentRedirect"), fileio.ErrDenied, 1},
		"conflict without end":   {repeat("PUT 409 ConditionalRequestConflict"), fileio.ErrUnavailable, 4},
		"a folder in the way":    {repeat("PUT 409 ObjectParentIsFile"), fileio.ErrDenied, 1},
		"token of yesterday":     {repeat("PUT 400 ExpiredToken"), fileio.ErrUnavailable, 4},
		"a request we got wrong": {repeat("PUT 400 InvalidArgument"), fileio.ErrDenied, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, store, n := newFakeS3(t, c.script...)
			err := store.CreateExclusive(t.Context(), fakePath, []byte("mine"))
			if !errors.Is(err, c.want) || errors.Is(err, fileio.ErrUnknown) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if n.Get("put") != c.tries || n.Get("head") != 0 {
				t.Errorf("took %v, want %d tries", n, c.tries)
			}
		})
	}
}

func TestS3ReplaceResolvesLostReplies(t *testing.T) {
	for name, c := range map[string]struct {
		script []string
		want   error
		holds  string
	}{
		"stored, reply lost":       {[]string{"PUT cut-after"}, nil, "two"},
		"not stored, then stored":  {[]string{"PUT cut-before"}, nil, "two"},
		"overtaken":                {[]string{"PUT other-first"}, fileio.ErrChanged, "somebody else's"},
		"lost, then overtaken":     {[]string{"PUT cut-before", "PUT other-first"}, fileio.ErrChanged, "somebody else's"},
		"conflict, then overtaken": {[]string{"PUT 409 ConditionalRequestConflict", "PUT other-first"}, fileio.ErrChanged, "somebody else's"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, store, n := newFakeS3(t)
			v1, err := store.Replace(t.Context(), fakePath, []byte("one"), "")
			if err != nil {
				t.Fatal(err)
			}
			fake.then(c.script...)
			v2, err := store.Replace(t.Context(), fakePath, []byte("two"), v1)
			if !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Fatalf("got %v, want %v (%v)", err, c.want, n)
			}
			_, have, err := store.Read(t.Context(), fakePath)
			if err != nil {
				t.Fatal(err)
			}
			if c.want == nil && have != v2 {
				t.Errorf("replace gave version %s, read %s", v2, have)
			}
			wantContent(t, store, fakePath, c.holds)
		})
	}
}

func TestS3ReadsOnWhenABodyBreaks(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB
	fake, store, _ := newFakeS3(t)
	fake.put("v5.metadata.json", string(want))
	fake.then("GET half", "GET cut-before", "GET 503 SlowDown")
	wantContent(t, store, fakePath, string(want))

	f, err := store.Open(t.Context(), fakePath)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fake.then("GET half", "GET cut-before")
	got, err := io.ReadAll(f)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("read: %d bytes, %v", len(got), err)
	}
	fake.then("GET half", "GET 500 InternalError")
	buf := make([]byte, 600<<10)
	if _, err := f.ReadAt(buf, 300<<10); err != nil || !bytes.Equal(buf, want[300<<10:900<<10]) {
		t.Errorf("ReadAt: %v", err)
	}
}

func TestS3GivesUpReadingAfterSomeTries(t *testing.T) {
	fake, store, n := newFakeS3(t)
	fake.put("v5.metadata.json", "x")
	fake.then(slices.Repeat([]string{"GET 503 SlowDown"}, 4)...)
	if _, _, err := store.Read(t.Context(), fakePath); !errors.Is(err, fileio.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if n.Get("get") != 4 {
		t.Errorf("took %v", n)
	}
}

// A store that knows no batch delete, or wants another checksum for it.
func TestS3RemovesOneByOneWhereBatchesAreRefused(t *testing.T) {
	fake, store, n := newFakeS3(t)
	fake.put("a", "x")
	fake.put("b", "x")
	if err := store.Remove(t.Context(), "s3://lake/a", "s3://lake/b", "s3://lake/c"); err != nil {
		t.Fatal(err)
	}
	if len(fake.objects) != 0 || n.Get("delete") != 4 {
		t.Errorf("left %d, took %v", len(fake.objects), n)
	}
}

func TestS3SmallFileIsSentAgainWhole(t *testing.T) {
	_, store, _ := newFakeS3(t, "PUT cut-before", "PUT 503 SlowDown")
	want := strings.Repeat("content ", 100_000)
	w, err := store.Create(t.Context(), fakePath)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, want); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	wantContent(t, store, fakePath, want)
}

func TestS3CancelDuringAWriteIsUnknown(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		cancel()
		<-r.Context().Done()
	}))
	defer srv.Close()
	store := openS3(t, config.S3{Endpoint: srv.URL, PathStyle: true, AccessKey: "a", SecretKey: "b"}, fileio.Options{RetryWait: time.Millisecond})
	err := store.CreateExclusive(ctx, fakePath, []byte("mine"))
	if !errors.Is(err, fileio.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want ErrUnknown and context.Canceled", err)
	}
}

// A server that takes the request and then says nothing, or half a body.
func TestS3GivesUpWhatStandsStill(t *testing.T) {
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write(make([]byte, 500))
			_ = http.NewResponseController(w).Flush()
		}
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}))
	defer srv.Close()
	defer close(release)
	store, err := fileio.Open(t.Context(), "s3://lake", config.Storage{S3: config.S3{Endpoint: srv.URL, PathStyle: true, AccessKey: "a", SecretKey: "b"}},
		fileio.Options{RetryWait: time.Millisecond, Quiet: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.CreateExclusive(t.Context(), fakePath, []byte("mine")); !errors.Is(err, fileio.ErrUnknown) {
		t.Errorf("create: got %v, want ErrUnknown", err)
	}
	if _, _, err := store.Read(t.Context(), fakePath); !errors.Is(err, fileio.ErrUnavailable) {
		t.Errorf("read: got %v, want ErrUnavailable", err)
	}
	if err := store.Remove(t.Context(), fakePath); !errors.Is(err, fileio.ErrUnavailable) {
		t.Errorf("remove: got %v, want ErrUnavailable", err)
	}
}

// B134: a body that moves is never given up, however long it takes.
func TestS3SlowBodyIsNotGivenUp(t *testing.T) {
	const quiet = 400 * time.Millisecond
	want := make([]byte, 20_000)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"x"`)
		w.Header().Set("Content-Length", strconv.Itoa(len(want)))
		for i := 0; i < len(want); i += 1000 {
			_, _ = w.Write(want[i : i+1000])
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(quiet / 10):
			case <-r.Context().Done():
				return
			}
		}
	}))
	defer srv.Close()
	var n fileio.Requests
	store, err := fileio.Open(t.Context(), "s3://lake", config.Storage{S3: config.S3{Endpoint: srv.URL, PathStyle: true, AccessKey: "a", SecretKey: "b"}},
		fileio.Options{RetryWait: time.Millisecond, Quiet: quiet, Requests: &n})
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := store.Read(t.Context(), fakePath)
	if err != nil || len(got) != len(want) || n.Total() != 1 {
		t.Errorf("read %d bytes, %v, %v", len(got), err, &n)
	}
}
