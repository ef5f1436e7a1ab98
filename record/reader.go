package record

import (
	"fmt"
	"unsafe"
)

// DefaultLimit is how many bytes a batch may decompress to unless the Reader says otherwise.
const DefaultLimit = 128 << 20

// keepBuffer is the largest decompression buffer that a Reader keeps between batches.
const keepBuffer = 8 << 20

// minRecord is the size of a record with nothing in it: six one-byte varints and the attributes.
const minRecord = 7

// A Reader walks the records of one batch after another and reuses its buffers. It
// allocates nothing per record. The zero value is ready; it is not safe for concurrent use.
type Reader struct {
	// Limit is how many bytes a batch may decompress to. DefaultLimit if zero.
	Limit int

	batch   Batch
	body    []byte // all records of the batch, decompressed
	src     []byte // what of body is not read
	left    int    // records not read
	delta   int64  // offset delta of the last record read
	bytes   int    // of the last record read
	append_ bool   // all records have the batch's maximal time
	headers []Header
	dec     decompressor
}

// Reset starts at the first record of b, which must have passed Check. What earlier
// records point to is invalid from here on.
func (r *Reader) Reset(b Batch) error {
	limit := r.Limit
	if limit == 0 {
		limit = DefaultLimit
	}
	r.batch, r.body, r.src, r.left, r.delta = b, nil, nil, 0, -1
	r.headers = r.headers[:0]
	if len(b) < HeaderSize {
		return fmt.Errorf("%w: %d bytes are less than a header", ErrCorrupt, len(b))
	}
	body := []byte(b[HeaderSize:])
	if c := b.Codec(); c != CodecNone {
		var err error
		if body, err = r.dec.decompress(c, body, limit); err != nil {
			return fmt.Errorf("decompress %v batch at offset %d: %w", c, b.BaseOffset(), err)
		}
	}
	n := b.NumRecords()
	if n < 0 || n > len(body)/minRecord {
		return fmt.Errorf("%w: %d records claimed in %d bytes", ErrCorrupt, n, len(body))
	}
	r.body, r.src, r.left, r.append_ = body, body, n, b.LogAppendTime()
	return nil
}

// Body returns the records of the batch as they are inside the compression.
func (r *Reader) Body() []byte { return r.body }

// RecordBytes is how many bytes the last record has in the batch, decompressed, behind its length.
func (r *Reader) RecordBytes() int { return r.bytes }

// Next reads the next record into rec. It returns false at the end, and an error where the
// bytes are not what the header claims; the records before remain good. Key, Value and
// Headers point into the batch or the reader's buffer and are valid until Reset.
func (r *Reader) Next(rec *Record) (bool, error) {
	if r.left == 0 {
		if len(r.src) != 0 {
			return false, r.corrupt("bytes after the last record")
		}
		return false, nil
	}
	size, src, ok := uvarint(r.src)
	length := unzigzag(size)
	if !ok || length < minRecord-1 || length > int64(len(src)) {
		return false, r.corrupt("record length")
	}
	r.src, r.bytes = src[length:], int(length)
	src = src[:length:length]
	r.left--

	src = src[1:] // the attributes of a record have no meaning yet
	u, src, ok := uvarint(src)
	if !ok {
		return false, r.corrupt("timestamp")
	}
	rec.Timestamp = r.batch.BaseTimestamp() + unzigzag(u)
	if r.append_ {
		rec.Timestamp = r.batch.MaxTimestamp()
	}
	u, src, ok = uvarint(src)
	delta := unzigzag(u)
	if !ok || delta <= r.delta || delta > int64(r.batch.lastOffsetDelta()) {
		return false, r.corrupt("offset")
	}
	r.delta = delta
	rec.Offset = r.batch.BaseOffset() + delta
	if rec.Key, src, ok = nullable(src); !ok {
		return false, r.corrupt("key")
	}
	if rec.Value, src, ok = nullable(src); !ok {
		return false, r.corrupt("value")
	}
	// Nearly all records end here, with a count of zero.
	if len(src) == 1 && src[0] == 0 {
		rec.Headers = nil
		return true, nil
	}
	return r.readHeaders(rec, src)
}

func (r *Reader) readHeaders(rec *Record, src []byte) (bool, error) {
	u, src, ok := uvarint(src)
	n := unzigzag(u)
	if !ok || n < 0 || n > int64(len(src)/2) { // a header takes two bytes at least
		return false, r.corrupt("header count")
	}
	first := len(r.headers)
	for range n {
		var h Header
		var key []byte
		if key, src, ok = nullable(src); !ok || key == nil {
			return false, r.corrupt("header key")
		}
		if h.Value, src, ok = nullable(src); !ok {
			return false, r.corrupt("header value")
		}
		h.Key = unsafe.String(unsafe.SliceData(key), len(key))
		r.headers = append(r.headers, h)
	}
	if len(src) != 0 {
		return false, r.corrupt("bytes after the headers")
	}
	rec.Headers = r.headers[first:len(r.headers):len(r.headers)]
	return true, nil
}

func (r *Reader) corrupt(what string) error {
	return fmt.Errorf("%w: %s in record %d of %d, batch at offset %d", ErrCorrupt, what,
		r.batch.NumRecords()-r.left, r.batch.NumRecords(), r.batch.BaseOffset())
}

// nullable reads bytes with a length before them; −1 is null.
func nullable(src []byte) (b, rest []byte, ok bool) {
	u, src, ok := uvarint(src)
	if !ok {
		return nil, nil, false
	}
	n := unzigzag(u)
	if n < 0 {
		return nil, src, n == -1
	}
	if n > int64(len(src)) {
		return nil, nil, false
	}
	return src[:n:n], src[n:], true
}

// uvarint reads a varint of up to 64 bits; ok is false if it is cut off or overflows.
func uvarint(src []byte) (v uint64, rest []byte, ok bool) {
	if len(src) > 0 && src[0] < 0x80 {
		return uint64(src[0]), src[1:], true
	}
	if len(src) > 1 && src[1] < 0x80 {
		return uint64(src[0]&0x7f) | uint64(src[1])<<7, src[2:], true
	}
	return uvarintLong(src)
}

func uvarintLong(src []byte) (v uint64, rest []byte, ok bool) {
	for i, c := range src {
		if i == 9 && c > 1 {
			return 0, nil, false
		}
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return v, src[i+1:], true
		}
	}
	return 0, nil, false
}

func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }
