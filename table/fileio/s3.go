package fileio

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/lakesyncd/lakesyncd/config"
)

const (
	tries = 4 // of a request, before the caller is told to wait
	// finishTime: a store may put the parts of a large object together before it
	// answers.
	finishTime = 3 * time.Minute
	// tokenKey is object metadata that tells an own write whose reply was lost
	// from somebody else's.
	tokenKey = "lakesyncd-token"
)

// s3Store is an S3 bucket, or what speaks its language. A key is used as it is.
//
// Exclusive creation is a PUT with If-None-Match: *, replacing one with If-Match
// of the ETag. A store that ignores the condition would break every promise, so
// whoever relies on it tests it at start.
//
// The SDK's own retries are off: it would take the 412 of a second try, whose
// first was stored and only the reply lost, for a lost race. Each write carries
// a token instead, and the object is read back when a try may have arrived.
// Checksums beyond what an operation demands are off too, since many stores
// refuse them; the signature covers each body.
type s3Store struct {
	observer
	client *s3.Client
	log    *slog.Logger
	wait   time.Duration // before the second try
	quiet  time.Duration // a try that does not move for so long is given up
	chunks *chunkList
	slots  chan struct{} // held by each part on its way
	known  sync.Map      // buckets that were seen to exist
}

func newS3(ctx context.Context, cfg config.S3, opts Options) (*s3Store, error) {
	region := cfg.Region
	if region == "" && cfg.Endpoint != "" {
		region = "us-east-1"
	}
	load := []func(*awsconfig.LoadOptions) error{}
	if region != "" {
		load = append(load, awsconfig.WithRegion(region))
	}
	if cfg.AccessKey != "" {
		load = append(load, awsconfig.WithCredentialsProvider(
			credentials.NewStaticCredentialsProvider(cfg.AccessKey, cfg.SecretKey.Reveal(), "")))
	}
	ac, err := awsconfig.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, fmt.Errorf("settings of the S3 client: %w", err)
	}
	if ac.Region == "" {
		return nil, errors.New("storage.s3.region is not set, nor AWS_REGION")
	}
	s := &s3Store{
		observer: newObserver("s3", opts),
		log:      opts.Log,
		wait:     opts.RetryWait,
		quiet:    opts.Quiet,
		chunks:   newChunkList(64),
		slots:    make(chan struct{}, 4),
	}
	s.client = s3.NewFromConfig(ac, func(o *s3.Options) {
		if cfg.Endpoint != "" {
			o.BaseEndpoint = aws.String(strings.TrimRight(cfg.Endpoint, "/"))
		}
		o.UsePathStyle = cfg.PathStyle
		o.Retryer = aws.NopRetryer{}
		o.RetryMaxAttempts = 1
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.HTTPClient = &http.Client{
			Transport: &http.Transport{
				Proxy:                 http.ProxyFromEnvironment,
				DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
				TLSHandshakeTimeout:   10 * time.Second,
				ExpectContinueTimeout: time.Second,
				DisableCompression:    true, // a file is its bytes
				IdleConnTimeout:       60 * time.Second,
				MaxIdleConnsPerHost:   16,
				ForceAttemptHTTP2:     false,
			},
			// A redirect means another region: the signature would not fit there.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	})
	return s, nil
}

// bucketKey takes a URI apart.
func bucketKey(uri string) (bucket, key string, err error) {
	rest, ok := strings.CutPrefix(uri, "s3://")
	if !ok {
		return "", "", fmt.Errorf("%q is not an s3:// URI", uri)
	}
	bucket, key, _ = strings.Cut(rest, "/")
	if bucket == "" {
		return "", "", fmt.Errorf("%q names no bucket: write s3://bucket/prefix", uri)
	}
	if key != "" {
		if err := checkKey(key); err != nil {
			return "", "", fmt.Errorf("%q contains %w", uri, err)
		}
	}
	return bucket, key, nil
}

func (s *s3Store) enter(ctx context.Context, path string) (bucket, key string, err error) {
	if err := ctx.Err(); err != nil {
		return "", "", err
	}
	bucket, key, err = bucketKey(path)
	if err == nil && key == "" {
		err = fmt.Errorf("%q names no object", path)
	}
	return bucket, key, err
}

// once makes one try. The request calls moved whenever bytes of a body went over,
// so that a slow line is told from a dead one, however large the body.
func (s *s3Store) once(ctx context.Context, op string, request func(ctx context.Context, moved func()) error) error {
	quiet := s.quiet
	if op == opFinish {
		quiet = max(quiet, finishTime)
	}
	try, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.AfterFunc(quiet, cancel)
	defer timer.Stop()
	err := request(try, func() { timer.Reset(quiet) })
	switch {
	case err == nil:
	case try.Err() != nil && ctx.Err() == nil:
		err = &s3Failure{class: ErrUnavailable, cause: fmt.Errorf("nothing moved for %v", quiet), again: true, mayHaveArrived: true}
	default:
		err = s3Error(ctx, err)
	}
	s.count(op, &err)
	return err
}

// tried says how a sequence of tries went.
type tried struct {
	err      error // of the last
	mayExist bool  // one that did not succeed may have been carried out all the same
}

// try repeats a request until it succeeds, is refused, or has been tried enough.
func (s *s3Store) try(ctx context.Context, op string, request func(ctx context.Context, moved func()) error) tried {
	var t tried
	began, wait := time.Now(), s.wait
	for n := 1; ; n++ {
		t.err = s.once(ctx, op, request)
		if t.err == nil {
			return t
		}
		var f *s3Failure
		if !errors.As(t.err, &f) {
			return t
		}
		t.mayExist = t.mayExist || f.mayHaveArrived
		if !f.again || n == tries || ctx.Err() != nil || time.Since(began) > s.quiet {
			return t
		}
		s.log.Debug("trying again", "op", op, "attempt", n, "err", t.err)
		select {
		case <-ctx.Done():
			t.err = ctx.Err()
			return t
		case <-time.After(wait/2 + mathrand.N(wait)):
		}
		wait *= 4
	}
}

// write puts an object, under a condition or none, and gives its ETag. met is
// what a condition that does not hold means.
func (s *s3Store) write(ctx context.Context, path, bucket, key string, data []byte, ifMatch, ifNoneMatch *string, met error) (etag string, err error) {
	token := rand.Text()
	in := &s3.PutObjectInput{
		Bucket: &bucket, Key: &key, ContentLength: aws.Int64(int64(len(data))),
		IfMatch: ifMatch, IfNoneMatch: ifNoneMatch, Metadata: map[string]string{tokenKey: token},
	}
	t := s.try(ctx, opPut, func(ctx context.Context, moved func()) error {
		in.Body = &movingReader{bytes.NewReader(data), moved}
		out, err := s.client.PutObject(ctx, in)
		if err == nil {
			etag = aws.ToString(out.ETag)
		}
		return err
	})
	switch {
	case t.err == nil && etag == "":
		return "", fmt.Errorf("%w: the store gave no ETag", ErrDenied)
	case t.err == nil:
		return etag, nil
	}
	refused := errors.Is(t.err, errCondition) || ifMatch != nil && errors.Is(t.err, ErrNotExist)
	if !t.mayExist {
		if refused {
			return "", met
		}
		return "", t.err
	}
	// Which of the tries arrived? A context that has ended cannot ask.
	if ctx.Err() == nil {
		var head *s3.HeadObjectOutput
		look := s.try(ctx, opHead, func(ctx context.Context, moved func()) (err error) {
			head, err = s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &bucket, Key: &key})
			return err
		})
		switch {
		case look.err == nil && head.Metadata[tokenKey] == token:
			return aws.ToString(head.ETag), nil
		case look.err == nil && refused:
			return "", met
		case errors.Is(look.err, ErrNotExist) && refused && ifMatch != nil:
			return "", met
		}
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	}
	// Not wrapped: whoever asks for ErrUnavailable takes it for "did not happen".
	return "", fmt.Errorf("%w: %v", ErrUnknown, t.err)
}

func (s *s3Store) CreateExclusive(ctx context.Context, path string, data []byte) error {
	bucket, key, err := s.enter(ctx, path)
	if err == nil {
		_, err = s.write(ctx, path, bucket, key, data, nil, aws.String("*"), ErrExists)
	}
	return named("create", path, err)
}

func (s *s3Store) Put(ctx context.Context, path string, data []byte) error {
	bucket, key, err := s.enter(ctx, path)
	if err == nil {
		_, err = s.write(ctx, path, bucket, key, data, nil, nil, nil)
	}
	return named("put", path, err)
}

func (s *s3Store) Replace(ctx context.Context, path string, data []byte, version string) (string, error) {
	bucket, key, err := s.enter(ctx, path)
	var next string
	switch {
	case err != nil:
	case version == "":
		next, err = s.write(ctx, path, bucket, key, data, nil, aws.String("*"), ErrChanged)
	default:
		next, err = s.write(ctx, path, bucket, key, data, &version, nil, ErrChanged)
	}
	return next, named("replace", path, err)
}

func (s *s3Store) Read(ctx context.Context, path string) (data []byte, version string, err error) {
	bucket, key, err := s.enter(ctx, path)
	if err != nil {
		return nil, "", named("read", path, err)
	}
	t := s.try(ctx, opGet, func(ctx context.Context, moved func()) error {
		out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
		if err != nil {
			return err
		}
		defer out.Body.Close()
		data, err = readBody(out.Body, out.ContentLength, moved)
		version = aws.ToString(out.ETag)
		return err
	})
	if t.err != nil {
		return nil, "", named("read", path, t.err)
	}
	return data, version, nil
}

// readBody reads what the header announced, or to the end if it did not say.
func readBody(body io.Reader, size *int64, moved func()) ([]byte, error) {
	body = &movingBody{body, moved}
	if size == nil {
		data, err := io.ReadAll(body)
		if err != nil {
			return nil, &shortBody{got: int64(len(data)), want: -1, cause: err}
		}
		return data, nil
	}
	data := make([]byte, *size)
	if n, err := io.ReadFull(body, data); err != nil {
		return nil, &shortBody{got: int64(n), want: *size, cause: err}
	}
	return data, nil
}

// movingBody and movingReader tell that something went over.
type movingBody struct {
	io.Reader
	moved func()
}

func (b *movingBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.moved()
	return n, err
}

type movingReader struct {
	io.ReadSeeker
	moved func()
}

func (r *movingReader) Read(p []byte) (int, error) {
	r.moved()
	return r.ReadSeeker.Read(p)
}

func (s *s3Store) Stat(ctx context.Context, path string) (Info, error) {
	bucket, key, err := s.enter(ctx, path)
	if err != nil {
		return Info{}, named("stat", path, err)
	}
	var out *s3.HeadObjectOutput
	t := s.try(ctx, opHead, func(ctx context.Context, moved func()) (err error) {
		out, err = s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &bucket, Key: &key})
		return err
	})
	if errors.Is(t.err, ErrNotExist) {
		t.err = s.explainNotExist(ctx, bucket, t.err)
	}
	if t.err != nil {
		return Info{}, named("stat", path, t.err)
	}
	s.known.Store(bucket, true)
	return Info{Path: path, Size: aws.ToInt64(out.ContentLength), ModTime: aws.ToTime(out.LastModified)}, nil
}

// explainNotExist tells a bucket that does not exist from an object that does
// not: the reply to a HEAD has no body that would.
func (s *s3Store) explainNotExist(ctx context.Context, bucket string, notExist error) error {
	if _, ok := s.known.Load(bucket); ok {
		return notExist
	}
	t := s.try(ctx, opHead, func(ctx context.Context, moved func()) error {
		_, err := s.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &bucket})
		return err
	})
	switch {
	case t.err == nil:
		s.known.Store(bucket, true)
		return notExist
	case errors.Is(t.err, ErrNotExist):
		return fmt.Errorf("%w: there is no bucket %q", ErrDenied, bucket)
	case errors.Is(t.err, ErrDenied):
		// Not allowed to look at the bucket itself; the object is what counts.
		return notExist
	default:
		return t.err
	}
}

func (s *s3Store) List(ctx context.Context, folder string, fn func(Info) error) error {
	folder = strings.TrimRight(folder, "/")
	if err := ctx.Err(); err != nil {
		return named("list", folder, err)
	}
	bucket, prefix, err := bucketKey(folder)
	if err != nil {
		return named("list", folder, err)
	}
	if prefix != "" {
		prefix += "/"
	}
	in := &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: &prefix}
	for {
		var page *s3.ListObjectsV2Output
		t := s.try(ctx, opList, func(ctx context.Context, moved func()) (err error) {
			page, err = s.client.ListObjectsV2(ctx, in)
			return err
		})
		if t.err != nil {
			return named("list", folder, t.err)
		}
		for _, o := range page.Contents {
			key := aws.ToString(o.Key)
			if strings.HasSuffix(key, "/") {
				continue // a folder's marker, made by a console
			}
			if err := fn(Info{Path: "s3://" + bucket + "/" + key, Size: aws.ToInt64(o.Size), ModTime: aws.ToTime(o.LastModified)}); err != nil {
				return err
			}
		}
		if !aws.ToBool(page.IsTruncated) {
			return nil
		}
		if aws.ToString(page.NextContinuationToken) == "" {
			return named("list", folder, fmt.Errorf("%w: a page says that more follows, but not where", ErrDenied))
		}
		in.ContinuationToken = page.NextContinuationToken
	}
}

// deleteBatch is the most that S3 takes in one request.
const deleteBatch = 1000

func (s *s3Store) Remove(ctx context.Context, paths ...string) error {
	byBucket := map[string][]string{}
	var errs []error
	for _, p := range paths {
		bucket, key, err := s.enter(ctx, p)
		if err != nil {
			errs = append(errs, named("remove", p, err))
			continue
		}
		byBucket[bucket] = append(byBucket[bucket], key)
	}
	for bucket, keys := range byBucket {
		for len(keys) > 0 {
			n := min(len(keys), deleteBatch)
			errs = append(errs, s.removeBatch(ctx, bucket, keys[:n])...)
			keys = keys[n:]
		}
	}
	return errors.Join(errs...)
}

func (s *s3Store) removeBatch(ctx context.Context, bucket string, keys []string) (errs []error) {
	if len(keys) > 1 {
		left, err := s.deleteObjects(ctx, bucket, keys)
		switch {
		case err == nil && len(left) == 0:
			return nil
		case err == nil:
			keys = left
		case errors.Is(err, ErrUnavailable), ctx.Err() != nil:
			return []error{named("remove", fmt.Sprintf("%d objects from s3://%s/%s", len(keys), bucket, keys[0]), err)}
		}
		// Some stores want another checksum for this request than the SDK
		// sends, or do not know it; one by one works everywhere.
	}
	for _, key := range keys {
		t := s.try(ctx, opDelete, func(ctx context.Context, moved func()) error {
			_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &key})
			return err
		})
		if t.err != nil && !errors.Is(t.err, ErrNotExist) {
			errs = append(errs, named("remove", "s3://"+bucket+"/"+key, t.err))
			if ctx.Err() != nil || errors.Is(t.err, ErrUnavailable) {
				return errs
			}
		}
	}
	return errs
}

// deleteObjects removes many at once and gives back those that were not.
func (s *s3Store) deleteObjects(ctx context.Context, bucket string, keys []string) (left []string, err error) {
	ids := make([]types.ObjectIdentifier, len(keys))
	for i := range keys {
		ids[i].Key = &keys[i]
	}
	t := s.try(ctx, opDelete, func(ctx context.Context, moved func()) error {
		out, err := s.client.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &bucket, Delete: &types.Delete{Objects: ids, Quiet: aws.Bool(true)}})
		left = nil
		if err == nil {
			for _, e := range out.Errors {
				if aws.ToString(e.Code) != "NoSuchKey" {
					left = append(left, aws.ToString(e.Key))
				}
			}
		}
		return err
	})
	return left, t.err
}
