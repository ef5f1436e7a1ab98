// Package objectstore is the one way to durable bytes: a flat key space with whole-object
// writes, conditional creation, ranged reads, ordered listing and batch deletion.
//
// [Memory], [Dir] and [S3] behave alike; package objectstoretest is their common
// conformance suite. All are strongly consistent: a Get, List or PutIfAbsent that starts
// after a write returned sees it.
package objectstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// A Bucket is safe for concurrent use. Keys are as [CheckKey] says; others are refused.
// No key may be a directory of another ("a" beside "a/b"): Memory and Dir refuse the
// second, S3 itself would not. The slices of a body are only read, and not after the
// call has returned.
type Bucket interface {
	// Put stores the concatenation of body at key, whole or not at all, replacing what
	// was there. After an error the old or the new object may be there.
	Put(ctx context.Context, key string, body ...[]byte) error

	// PutIfAbsent is Put that refuses with ErrExists when key is taken. ErrExists is
	// definite (though the object may be the caller's own, from an attempt whose answer
	// was lost); after any other error the object may or may not have been created.
	PutIfAbsent(ctx context.Context, key string, body ...[]byte) error

	// Get returns n bytes from off, fewer only where the object ends; n < 0 means to the
	// end. A negative off counts from the end: the last -off bytes (n is ignored).
	// ErrNotFound if there is no such object.
	Get(ctx context.Context, key string, off, n int64) ([]byte, error)

	// List returns up to 1,000 objects whose key starts with prefix and is greater than
	// after, in key order. An empty page is the end.
	List(ctx context.Context, prefix, after string) ([]Object, error)

	// Delete removes keys, any number of them. A missing key counts as removed. An error
	// that is a *DeleteError names those that may still be there.
	Delete(ctx context.Context, keys ...string) error
}

// Object is one entry of a listing.
type Object struct {
	Key      string
	Size     int64
	Modified time.Time
}

var (
	// ErrNotFound says that the key does not exist.
	ErrNotFound = errors.New("object not found")
	// ErrExists says that a conditional create met an object.
	ErrExists = errors.New("object already exists")
	// ErrUnavailable says that the store gave no answer, or that it is busy, in all attempts
	// that were made: the same request may succeed later.
	ErrUnavailable = errors.New("object store unavailable")
	// ErrRefused says that the store refuses such requests until somebody changes something:
	// credentials, a policy, the name of the bucket, the kind of store.
	ErrRefused = errors.New("refused by the object store")
)

// A DeleteError names the keys that a Delete may have left behind.
type DeleteError struct {
	Keys []string
	Err  error // of the first that failed
}

func (e *DeleteError) Error() string {
	return fmt.Sprintf("delete: %d keys may be left, first %s: %v", len(e.Keys), e.Keys[0], e.Err)
}

func (e *DeleteError) Unwrap() error { return e.Err }

const (
	// PageKeys is the most that one List returns.
	PageKeys = 1000
	// MaxKeyBytes is the longest key, prefixes included: S3 ends at 1,024.
	MaxKeyBytes = 1000
	// maxSegmentBytes is the longest name that the usual file systems take.
	maxSegmentBytes = 255
	// tempName begins the name of whatever Dir keeps for itself.
	tempName = ".tabletopic-tmp"
)

// CheckKey tells why key is not one: keys are slash-separated segments of valid UTF-8
// without control characters, 1 to 255 bytes each and 1,000 in all, none of them "." or
// ".." or beginning with ".tabletopic-tmp", which is where Dir keeps unfinished files.
func CheckKey(key string) error {
	switch {
	case key == "":
		return errors.New("empty key")
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("key of %d bytes is longer than %d: %.40q…", len(key), MaxKeyBytes, key)
	case !utf8.ValidString(key):
		return fmt.Errorf("key %q is not UTF-8", key)
	}
	for _, r := range key {
		// XML 1.0, in which S3 lists, has no way to write these.
		if r < 0x20 || r == 0x7f || r == 0xfffe || r == 0xffff {
			return fmt.Errorf("key %q has a control character", key)
		}
	}
	for segment := range strings.SplitSeq(key, "/") {
		switch {
		case segment == "" || segment == "." || segment == "..":
			return fmt.Errorf("key %q has the segment %q", key, segment)
		case len(segment) > maxSegmentBytes:
			return fmt.Errorf("key %q has a segment of %d bytes, longer than %d", key, len(segment), maxSegmentBytes)
		case strings.HasPrefix(segment, tempName):
			return fmt.Errorf("key %q has a reserved segment", key)
		}
	}
	return nil
}

// Location is the absolute location of key as table metadata names it: s3://bucket/key,
// file:///abs/path (nothing is percent-encoded) or mem:///key. [Locator.Resolve] is the
// way back. It is empty for a Bucket of another package that has no Location method.
func Location(b Bucket, key string) string {
	if l, ok := b.(interface{ Location(key string) string }); ok {
		return l.Location(key)
	}
	return ""
}

// span gives the part [from, to) of an object of size bytes that Get(off, n) asks for.
func span(size, off, n int64) (from, to int64) {
	if off < 0 {
		return max(size+off, 0), size
	}
	from = min(off, size)
	if n < 0 || n > size-from {
		return from, size
	}
	return from, from + n
}

func bodySize(body [][]byte) int64 {
	var n int64
	for _, p := range body {
		n += int64(len(p))
	}
	return n
}
