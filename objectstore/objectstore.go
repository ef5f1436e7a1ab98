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
	"time"
)

// A Bucket is safe for concurrent use. Keys are slash-separated, valid UTF-8, at most
// 1,000 bytes, with no empty, "." or ".." segment; other keys are refused.
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
)
