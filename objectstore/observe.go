package objectstore

import (
	"context"
	"sync/atomic"
	"time"
)

// Op is a kind of request, also the word for it in metrics.
type Op string

// The kinds of requests. A multipart upload is one OpMultipart to begin, one for each
// part, and one to complete or abort.
const (
	OpPut         Op = "put"
	OpPutIfAbsent Op = "put_if_absent"
	OpMultipart   Op = "multipart"
	OpGet         Op = "get"
	OpList        Op = "list"
	OpDelete      Op = "delete"
)

// Purpose is what a request is for, also the word for it in metrics. Whoever begins a piece
// of work names it with [For]; the names are those of all of Table Topic, so that the bill of
// an object store can be read by them.
type Purpose string

// The purposes of requests.
const (
	ForWAL        Purpose = "wal"        // write-ahead log of the life that runs: bulks, and their deletes
	ForRecovery   Purpose = "recovery"   // write-ahead logs of lives that ended: fences, replay
	ForUpload     Purpose = "upload"     // objects of what was appended
	ForCompaction Purpose = "compaction" // reads and writes of compaction
	ForRead       Purpose = "read"       // data for fetches
	ForIndex      Purpose = "index"      // indexes and composites, to find that data
	ForCleanup    Purpose = "cleanup"    // deletes of what nothing names, and the search for it
	ForMetadata   Purpose = "metadata"   // snapshots and generations of the metadata database
	ForTable      Purpose = "table"      // data files and metadata of tables
	ForCheck      Purpose = "check"      // tabletopic object list and check
	ForProbe      Purpose = "probe"      // the check at the start that a store does what is needed
)

type purposeKey struct{}

// For says what the requests made with the context are for. The innermost counts.
func For(ctx context.Context, p Purpose) context.Context {
	return context.WithValue(ctx, purposeKey{}, p)
}

// purposeOf returns what For said of ctx, "" if it said nothing.
func purposeOf(ctx context.Context) Purpose {
	p, _ := ctx.Value(purposeKey{}).(Purpose)
	return p
}

// WithPurpose returns b, whose requests are for p if nobody says what they are for.
func WithPurpose(b Bucket, p Purpose) Bucket { return &purposed{b, p} }

type purposed struct {
	b Bucket
	p Purpose
}

func (w *purposed) context(ctx context.Context) context.Context {
	if purposeOf(ctx) != "" {
		return ctx
	}
	return For(ctx, w.p)
}

func (w *purposed) Put(ctx context.Context, key string, body ...[]byte) error {
	return w.b.Put(w.context(ctx), key, body...)
}

func (w *purposed) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	return w.b.PutIfAbsent(w.context(ctx), key, body...)
}

func (w *purposed) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	return w.b.Get(w.context(ctx), key, off, n)
}

func (w *purposed) List(ctx context.Context, prefix, after string) ([]Object, error) {
	return w.b.List(w.context(ctx), prefix, after)
}

func (w *purposed) Delete(ctx context.Context, keys ...string) error {
	return w.b.Delete(w.context(ctx), keys...)
}

func (w *purposed) Location(key string) string { return Location(w.b, key) }

// Request is what an Observer learns of one request.
type Request struct {
	Op       Op
	Purpose  Purpose // as For says; empty if nobody said
	Key      string  // the first of several; of a List the prefix
	Sent     int64   // bytes of the body
	Received int64   // bytes of the object read
	Duration time.Duration
	Err      error // as the store gave it: of an attempt that is tried again too
}

// An Observer is told of requests when they end, from many goroutines.
type Observer interface {
	ObserveRequest(Request)
}

// Observe returns b with its requests reported to o. Of S3 each HTTP request counts, those
// of retries and multipart uploads included; elsewhere each call does, and each begun
// thousand keys of a Delete.
func Observe(b Bucket, o Observer) Bucket {
	switch b := b.(type) {
	case *S3:
		return b.observed(o)
	case *prefixed:
		return &prefixed{b: Observe(b.b, o), prefix: b.prefix}
	}
	return &observed{b: b, o: o}
}

type observed struct {
	b Bucket
	o Observer
}

func (w *observed) Put(ctx context.Context, key string, body ...[]byte) error {
	begin := time.Now()
	err := w.b.Put(ctx, key, body...)
	w.o.ObserveRequest(Request{Op: OpPut, Purpose: purposeOf(ctx), Key: key, Sent: bodySize(body), Duration: time.Since(begin), Err: err})
	return err
}

func (w *observed) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	begin := time.Now()
	err := w.b.PutIfAbsent(ctx, key, body...)
	w.o.ObserveRequest(Request{Op: OpPutIfAbsent, Purpose: purposeOf(ctx), Key: key, Sent: bodySize(body), Duration: time.Since(begin), Err: err})
	return err
}

func (w *observed) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	begin := time.Now()
	data, err := w.b.Get(ctx, key, off, n)
	w.o.ObserveRequest(Request{Op: OpGet, Purpose: purposeOf(ctx), Key: key, Received: int64(len(data)), Duration: time.Since(begin), Err: err})
	return data, err
}

func (w *observed) List(ctx context.Context, prefix, after string) ([]Object, error) {
	begin := time.Now()
	page, err := w.b.List(ctx, prefix, after)
	w.o.ObserveRequest(Request{Op: OpList, Purpose: purposeOf(ctx), Key: prefix, Duration: time.Since(begin), Err: err})
	return page, err
}

func (w *observed) Delete(ctx context.Context, keys ...string) error {
	begin := time.Now()
	err := w.b.Delete(ctx, keys...)
	for i := 0; i < len(keys); i += PageKeys {
		w.o.ObserveRequest(Request{Op: OpDelete, Purpose: purposeOf(ctx), Key: keys[i], Duration: time.Since(begin), Err: err})
	}
	return err
}

func (w *observed) Location(key string) string { return Location(w.b, key) }

// Counter is an Observer that counts. Its zero value is ready.
type Counter struct {
	put, putIfAbsent, multipart, get, list, delete atomic.Int64
	sent, received, failed                         atomic.Int64
}

// ObserveRequest implements Observer.
func (c *Counter) ObserveRequest(r Request) {
	c.of(r.Op).Add(1)
	c.sent.Add(r.Sent)
	c.received.Add(r.Received)
	if r.Err != nil {
		c.failed.Add(1)
	}
}

func (c *Counter) of(op Op) *atomic.Int64 {
	switch op {
	case OpPut:
		return &c.put
	case OpPutIfAbsent:
		return &c.putIfAbsent
	case OpMultipart:
		return &c.multipart
	case OpGet:
		return &c.get
	case OpList:
		return &c.list
	default:
		return &c.delete
	}
}

// Count is the number of requests of one kind, failed ones included.
func (c *Counter) Count(op Op) int64 { return c.of(op).Load() }

// Requests is the number of requests of all kinds.
func (c *Counter) Requests() int64 {
	return c.put.Load() + c.putIfAbsent.Load() + c.multipart.Load() + c.get.Load() + c.list.Load() + c.delete.Load()
}

// Sent is the number of body bytes in Puts, Received that of object bytes in Gets.
func (c *Counter) Sent() int64     { return c.sent.Load() }
func (c *Counter) Received() int64 { return c.received.Load() }

// Failed is the number of requests that ended in an error, ErrNotFound and ErrExists included.
func (c *Counter) Failed() int64 { return c.failed.Load() }
