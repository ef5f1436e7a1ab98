package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// An attempt is one HTTP request and its answer. It is given up when no byte moves for
// S3Config.StallTimeout, whatever the size of the object.
type attempt struct {
	ctx      context.Context
	stall    *time.Timer
	timeout  time.Duration
	body     *body // may be nil
	sent     int64
	received int64
}

var errStalled = errors.New("no byte moved in time")

// try runs do until it succeeds, fails for good, or the attempts are used up.
func (s *S3) try(ctx context.Context, op Op, key string, do func(*attempt) error) error {
	for n := 1; ; n++ {
		err := s.attempt(ctx, op, key, do)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return errors.Join(context.Cause(ctx), err)
		case !retryable(op, err):
			return err
		case n >= s.cfg.Attempts:
			return fmt.Errorf("%w: %d attempts: %w", ErrUnavailable, n, err)
		}
		if err := s.wait(ctx, n); err != nil {
			return err
		}
	}
}

// wait is what passes between attempt n and the next.
func (s *S3) wait(ctx context.Context, n int) error {
	return sleep(ctx, rand.N(min(s.cfg.Backoff<<min(n-1, 16), 5*time.Second)))
}

func (s *S3) attempt(ctx context.Context, op Op, key string, do func(*attempt) error) error {
	begin := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := &attempt{ctx: ctx, timeout: s.cfg.StallTimeout}
	a.stall = time.AfterFunc(a.timeout, func() { cancel(errStalled) })
	err := do(a)
	a.stall.Stop()
	if a.body != nil {
		a.body.release()
	}
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		err = fmt.Errorf("%w (%v): %w", errStalled, a.timeout, err)
	}
	if s.observer != nil {
		s.observer.ObserveRequest(Request{Op: op, Purpose: purposeOf(ctx), Key: key, Sent: a.sent, Received: a.received, Duration: time.Since(begin), Err: err})
	}
	return err
}

// progress puts the stall timeout off.
func (a *attempt) progress() { a.stall.Reset(a.timeout) }

// send makes the body of the attempt's request.
func (a *attempt) send(parts [][]byte) io.ReadSeeker {
	a.body = &body{parts: parts, size: bodySize(parts), progress: a.progress}
	a.sent = a.body.size
	return a.body
}

// receive counts what r gives.
func (a *attempt) receive(r io.Reader) io.Reader { return receiver{a, r} }

type receiver struct {
	a *attempt
	r io.Reader
}

func (r receiver) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.a.received += int64(n)
	r.a.progress()
	return n, err
}

// body reads the concatenation of several slices, which it does not copy. A transport may
// read on for a moment after its request has failed: once released, it reads no more.
type body struct {
	mu       sync.Mutex
	parts    [][]byte
	size     int64
	off      int64 // of the next byte
	part     int   // that holds it
	inPart   int
	progress func()
}

var errReleased = errors.New("request has ended")

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.off >= b.size {
		return 0, io.EOF
	}
	if b.parts == nil {
		return 0, errReleased
	}
	n := 0
	for n < len(p) && b.part < len(b.parts) {
		k := copy(p[n:], b.parts[b.part][b.inPart:])
		n += k
		if b.inPart += k; b.inPart == len(b.parts[b.part]) {
			b.part, b.inPart = b.part+1, 0
		}
	}
	b.off += int64(n)
	b.progress()
	return n, nil
}

func (b *body) Seek(offset int64, whence int) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += b.off
	case io.SeekEnd:
		offset += b.size
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek to %d", offset)
	}
	b.off, b.part, b.inPart = offset, 0, 0
	for rest := offset; b.part < len(b.parts); b.part++ {
		if rest < int64(len(b.parts[b.part])) {
			b.inPart = int(rest)
			break
		}
		rest -= int64(len(b.parts[b.part]))
	}
	return offset, nil
}

func (b *body) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.parts = nil
	b.progress = func() {}
}

type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// permanent marks an error that another attempt cannot cure.
func permanent(err error) error { return permanentError{err} }

// status is the HTTP status in err, 0 if there was no answer.
func status(err error) int {
	if e, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && e.Response != nil {
		return e.HTTPStatusCode()
	}
	return 0
}

// code is the S3 error code in err, such as NoSuchKey.
func code(err error) string {
	if e, ok := errors.AsType[keyError](err); ok {
		return e.code
	}
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode()
	}
	return ""
}

// retryable reports whether err, of one attempt, may not come again.
func retryable(op Op, err error) bool {
	if _, ok := errors.AsType[permanentError](err); ok {
		return false
	}
	switch code(err) {
	case "ConditionalRequestConflict", "OperationAborted", // 409: another request on the key is under way
		"RequestTimeout", "IncompleteBody", "BadDigest", // 400: the body came late or damaged
		"RequestTimeTooSkewed", "ExpiredToken", // 403: the SDK adjusts its clock, the chain its token
		"SlowDown", "InternalError", "ServiceUnavailable": // in a 200 as well
		return true
	}
	switch c := status(err); c {
	case 0:
		if _, ok := errors.AsType[keyError](err); ok {
			return false // of a Delete, with a code that is not one of the above
		}
		return true // no answer, or one that cannot be read
	case http.StatusConflict:
		// Stores name the race differently; but these two, of stores in a file system, stay.
		return op == OpPutIfAbsent && code(err) != "ObjectParentIsFile" && code(err) != "ExistingObjectIsDirectory"
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented:
		return false
	default:
		return c >= 500 || c < 300
	}
}

// explain turns an error of the SDK into one of the package, or says what to do about it.
func (s *S3) explain(err error) error {
	switch c := status(err); c {
	case http.StatusPreconditionFailed:
		return fmt.Errorf("%w (412)", ErrExists)
	case http.StatusNotFound:
		switch code(err) {
		case "NoSuchUpload":
			return err
		case "NoSuchBucket":
			return fmt.Errorf("%w: bucket %s does not exist: create it, or correct the URL: %w", ErrRefused, s.cfg.Bucket, err)
		}
		return ErrNotFound
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect:
		e, _ := errors.AsType[*smithyhttp.ResponseError](err)
		return fmt.Errorf("%w: bucket %s is not in region %s: set ?region=%s: %w",
			ErrRefused, s.cfg.Bucket, s.cfg.Region, e.Response.Header.Get("X-Amz-Bucket-Region"), err)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w: access to bucket %s refused: check the credentials and the bucket's policy: %w", ErrRefused, s.cfg.Bucket, err)
	default:
		if (c >= 400 && c < 500 || c == http.StatusNotImplemented) && !errors.Is(err, ErrUnavailable) {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	return err
}
