package objectstore

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrShort says that an object ends before the range that was asked for.
var ErrShort = errors.New("object ends before the range")

// GetInto reads an object from off on into bufs, one after the other, for a caller who wants
// the parts of a range in memory of their own. From a directory or S3 it does so without a
// copy. It fails with ErrShort if the object ends before they are full; what bufs hold after
// an error is undefined.
func GetInto(ctx context.Context, b Bucket, key string, off int64, bufs ...[]byte) error {
	if err := CheckKey(key); err != nil {
		return fmt.Errorf("get: %w", err)
	}
	var err error
	switch b := b.(type) {
	case *prefixed:
		return GetInto(ctx, b.b, b.prefix+key, off, bufs...)
	case *observed:
		begin := time.Now()
		err = GetInto(ctx, b.b, key, off, bufs...)
		received := int64(0)
		if err == nil {
			received = bodySize(bufs)
		}
		b.o.ObserveRequest(Request{Op: OpGet, Purpose: purposeOf(ctx), Key: key, Received: received, Duration: time.Since(begin), Err: err})
		return err
	case *S3:
		err = b.getInto(ctx, key, off, bufs)
	case *Dir:
		err = b.getInto(ctx, key, off, bufs)
	default:
		return copyInto(ctx, b, key, off, bufs)
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", key, err)
	}
	return nil
}

func copyInto(ctx context.Context, b Bucket, key string, off int64, bufs [][]byte) error {
	n := bodySize(bufs)
	data, err := b.Get(ctx, key, off, n)
	if err != nil {
		return err
	}
	if int64(len(data)) < n {
		return fmt.Errorf("get %s: %w", key, ErrShort)
	}
	for _, buf := range bufs {
		data = data[copy(buf, data):]
	}
	return nil
}
