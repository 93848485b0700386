package fileio

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// errCondition: the store says that the condition of a request does not hold.
var errCondition = errors.New("precondition failed")

// s3Failure is one try that did not succeed.
type s3Failure struct {
	class  error // one of the package's errors, errCondition, or nil
	cause  error
	status int    // of HTTP, 0 without a reply
	code   string // of S3
	// again: the same request may succeed soon.
	again bool
	// mayHaveArrived: the store may have carried it out all the same.
	mayHaveArrived bool
}

func (f *s3Failure) Error() string {
	if f.class == nil {
		return f.cause.Error()
	}
	return f.class.Error() + ": " + f.cause.Error()
}

func (f *s3Failure) Unwrap() []error {
	if f.class == nil {
		return []error{f.cause}
	}
	return []error{f.class, f.cause}
}

// failure gives the failure in err, an empty one if there is none.
func failure(err error) *s3Failure {
	var f *s3Failure
	if errors.As(err, &f) {
		return f
	}
	return &s3Failure{}
}

// shortBody is a reply that ended early.
type shortBody struct {
	got, want int64
	cause     error
}

func (e *shortBody) Error() string {
	return fmt.Sprintf("body ended after %d of %d bytes: %v", e.got, e.want, e.cause)
}
func (e *shortBody) Unwrap() error { return e.cause }

// s3Error classifies what a try gave; ctx is the caller's.
func s3Error(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		// The caller gave up, wherever the request was.
		return &s3Failure{class: nil, cause: ctx.Err(), mayHaveArrived: true}
	}
	var reply *smithyhttp.ResponseError
	if errors.As(err, &reply) && reply.Response != nil && reply.Response.Response != nil && reply.HTTPStatusCode() >= 300 {
		return replyError(reply.HTTPStatusCode(), err)
	}
	var short *shortBody
	if errors.As(err, &short) {
		return &s3Failure{class: ErrUnavailable, cause: short, again: true}
	}
	var sign *v4.SigningError
	var network net.Error
	if errors.As(err, &sign) {
		// No credentials, or their provider is out of reach.
		if errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) {
			return &s3Failure{class: ErrUnavailable, cause: sign, again: true}
		}
		return &s3Failure{class: ErrDenied, cause: sign}
	}
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return &s3Failure{class: ErrDenied, cause: cert}
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return &s3Failure{class: ErrUnavailable, cause: dial, again: true}
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		// Such as an error inside a reply with status 200.
		return &s3Failure{class: ErrUnavailable, cause: fmt.Errorf("%s: %s", api.ErrorCode(), api.ErrorMessage()), again: true, mayHaveArrived: true}
	}
	var send *url.Error
	if errors.As(err, &send) {
		return &s3Failure{class: ErrUnavailable, cause: send.Err, again: true, mayHaveArrived: true}
	}
	if errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &reply) {
		return &s3Failure{class: ErrUnavailable, cause: err, again: true, mayHaveArrived: true}
	}
	var bad *smithy.SerializationError
	var params smithy.InvalidParamsError
	if errors.As(err, &bad) || errors.As(err, &params) {
		return &s3Failure{cause: err} // never left this process
	}
	// What is left are connections cut in the middle and replies that make no
	// sense, a proxy's page for example.
	return &s3Failure{class: ErrUnavailable, cause: err, again: true, mayHaveArrived: true}
}

// replyError classifies by status and S3's code.
func replyError(status int, err error) error {
	code, message := http.StatusText(status), ""
	var api smithy.APIError
	if errors.As(err, &api) {
		if api.ErrorCode() != "" {
			code = api.ErrorCode()
		}
		message = api.ErrorMessage()
	}
	f := &s3Failure{cause: fmt.Errorf("%d %s", status, code), status: status, code: code}
	if message != "" && message != code {
		f.cause = fmt.Errorf("%d %s: %s", status, code, message)
	}
	switch code {
	case "NoSuchBucket":
		f.class = ErrDenied
		return f
	case "SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "ServiceUnavailable":
		f.class, f.again = ErrUnavailable, true // turned away at the door
		return f
	case "ConditionalRequestConflict", "OperationAborted":
		f.class, f.again = ErrUnavailable, true // another write is under way
		return f
	case "RequestTimeout", "InternalError":
		f.class, f.again, f.mayHaveArrived = ErrUnavailable, true, true
		return f
	case "RequestTimeTooSkewed", "ExpiredToken", "TokenRefreshRequired":
		// Mended by the clock or the credentials' provider while we wait.
		f.class, f.again = ErrUnavailable, true
		return f
	case "NoSuchUpload":
		// A rule of the bucket or a person aborted it: written again it succeeds.
		f.class = ErrUnavailable
		return f
	}
	switch {
	case status == http.StatusNotFound:
		f.class = ErrNotExist
	case status == http.StatusPreconditionFailed:
		f.class = errCondition
	case status == http.StatusTooManyRequests:
		f.class, f.again = ErrUnavailable, true
	case status == http.StatusInsufficientStorage:
		f.class = ErrUnavailable // full: soon is too early
	case status == http.StatusNotImplemented:
		f.class = ErrDenied
	case status >= 500:
		// A gateway says 502, 503 and 504 also when the store has done its part.
		f.class, f.again, f.mayHaveArrived = ErrUnavailable, true, true
	case status == http.StatusRequestTimeout:
		f.class, f.again, f.mayHaveArrived = ErrUnavailable, true, true
	default:
		f.class = ErrDenied
	}
	return f
}

// named says what was being done to which path.
func named(verb, path string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, errCondition) {
		// No caller asked for a condition that it would not know by another name.
		return fmt.Errorf("%s %s: %w: %w", verb, path, ErrChanged, err)
	}
	return fmt.Errorf("%s %s: %w", verb, path, err)
}
