package objectstore

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrShort says that an object ends before the range that was asked for.
var ErrShort = errors.New("object ends before the range")

// A Part of an object is so many bytes from Off on, for [GetParts].
type Part struct {
	Off    int64
	Size   int
	Memory []byte // where they are to be: Size bytes or more, better [PartMemory]
	Data   []byte // of Memory, where they are; GetParts sets it
}

// blockSize is what place in memory, position and length of a read or write past the page cache must be multiples of, on any disk.
const blockSize = 4 << 10

// PartMemory is how much memory a part of size bytes has best: if it begins with a block of 4 KiB, a directory can read a
// large part past the page cache, which takes whole blocks.
func PartMemory(size int) int { return (size+blockSize-1)/blockSize*blockSize + blockSize }

// GetParts reads parts of an object, which follow one another, with one request. From a directory or S3 it does so without a
// copy. It fails with ErrShort if the object ends before them; what their memory holds after an error is undefined.
func GetParts(ctx context.Context, b Bucket, key string, parts []Part) error {
	if err := CheckKey(key); err != nil {
		return fmt.Errorf("get: %w", err)
	}
	for i := range parts {
		parts[i].Data = parts[i].Memory[:parts[i].Size]
	}
	var err error
	switch b := b.(type) {
	case *prefixed:
		return GetParts(ctx, b.b, b.prefix+key, parts)
	case *observed:
		begin := time.Now()
		err = GetParts(ctx, b.b, key, parts)
		received := int64(0)
		if err == nil {
			from, to := rangeOf(parts)
			received = to - from
		}
		b.o.ObserveRequest(Request{Op: OpGet, Purpose: purposeOf(ctx), Key: key, Received: received, Duration: time.Since(begin), Err: err})
		return err
	case *S3:
		err = b.getParts(ctx, key, parts)
	case *Dir:
		err = b.getParts(ctx, key, parts)
	default:
		return copyParts(ctx, b, key, parts)
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", key, err)
	}
	return nil
}

func copyParts(ctx context.Context, b Bucket, key string, parts []Part) error {
	from, to := rangeOf(parts)
	data, err := b.Get(ctx, key, from, to-from)
	if err != nil {
		return err
	}
	if int64(len(data)) < to-from {
		return fmt.Errorf("get %s: %w", key, ErrShort)
	}
	for _, p := range parts {
		copy(p.Data, data[p.Off-from:])
	}
	return nil
}

// rangeOf returns where the parts begin, and end.
func rangeOf(parts []Part) (from, to int64) {
	if len(parts) == 0 {
		return 0, 0
	}
	last := parts[len(parts)-1]
	return parts[0].Off, last.Off + int64(last.Size)
}
