package record

import (
	"encoding/binary"
	"fmt"
	"sync"
)

// BatchOptions are the header fields of a batch to build.
type BatchOptions struct {
	// BaseOffset is the offset of the first record; the others follow without gap. A
	// partition assigns it anew on append.
	BaseOffset  int64
	LeaderEpoch int32
	Codec       Codec
	// Idempotent says that the producer fields below hold; without it the batch has none.
	Idempotent    bool
	ProducerID    int64
	ProducerEpoch int16
	BaseSequence  int32
	Transactional bool
	Control       bool
	LogAppendTime bool
}

// bodyPool holds the buffers that records are laid out in before they are compressed.
var bodyPool = sync.Pool{New: func() any { return new([]byte) }}

// AppendBatch appends to dst one batch of the records, in order. The offsets of the records
// are not looked at. There must be at least one record.
func AppendBatch(dst []byte, o BatchOptions, records []Record) ([]byte, error) {
	if len(records) == 0 {
		return nil, fmt.Errorf("build a batch: no records")
	}
	start := len(dst)
	dst = appendHeader(dst, o, records)
	if o.Codec == CodecNone {
		dst = appendRecords(dst, records)
		return finish(dst, start)
	}
	buf := bodyPool.Get().(*[]byte)
	defer bodyPool.Put(buf)
	body := appendRecords((*buf)[:0], records)
	if cap(body) <= keepBuffer {
		*buf = body
	}
	dst, err := appendCompressed(dst, o.Codec, body)
	if err != nil {
		return nil, err
	}
	return finish(dst, start)
}

// AppendRecompressed appends to dst the batch b with its records compressed by c; body is
// what is inside the compression of b (Reader.Body).
func AppendRecompressed(dst []byte, b Batch, body []byte, c Codec) ([]byte, error) {
	start := len(dst)
	dst = append(dst, b[:HeaderSize]...)
	binary.BigEndian.PutUint16(dst[start+attributesAt:], uint16(b.Attributes()&^codecMask|int16(c)))
	dst, err := appendCompressed(dst, c, body)
	if err != nil {
		return nil, err
	}
	return finish(dst, start)
}

func appendHeader(dst []byte, o BatchOptions, records []Record) []byte {
	attributes := int16(o.Codec)
	if o.LogAppendTime {
		attributes |= logAppendTimeBit
	}
	if o.Transactional {
		attributes |= transactionalBit
	}
	if o.Control {
		attributes |= controlBit
	}
	id, epoch, sequence := NoProducerID, NoProducerEpoch, NoSequence
	if o.Idempotent {
		id, epoch, sequence = o.ProducerID, o.ProducerEpoch, o.BaseSequence
	}
	latest := records[0].Timestamp
	for i := range records {
		latest = max(latest, records[i].Timestamp)
	}
	dst = binary.BigEndian.AppendUint64(dst, uint64(o.BaseOffset))
	dst = binary.BigEndian.AppendUint32(dst, 0) // length, by finish
	dst = binary.BigEndian.AppendUint32(dst, uint32(o.LeaderEpoch))
	dst = append(dst, magic2)
	dst = binary.BigEndian.AppendUint32(dst, 0) // checksum, by finish
	dst = binary.BigEndian.AppendUint16(dst, uint16(attributes))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(records)-1))
	dst = binary.BigEndian.AppendUint64(dst, uint64(records[0].Timestamp))
	dst = binary.BigEndian.AppendUint64(dst, uint64(latest))
	dst = binary.BigEndian.AppendUint64(dst, uint64(id))
	dst = binary.BigEndian.AppendUint16(dst, uint16(epoch))
	dst = binary.BigEndian.AppendUint32(dst, uint32(sequence))
	return binary.BigEndian.AppendUint32(dst, uint32(len(records)))
}

// finish writes length and checksum of the batch that starts at start.
func finish(dst []byte, start int) ([]byte, error) {
	b := Batch(dst[start:])
	if len(b) > 1<<31-1 {
		return nil, fmt.Errorf("%w: %d bytes, a batch holds less than 2 GiB", ErrTooLarge, len(b))
	}
	binary.BigEndian.PutUint32(b[lengthAt:], uint32(len(b)-lengthCountsAfter))
	b.setCRC()
	return dst, nil
}

func appendRecords(dst []byte, records []Record) []byte {
	for i := range records {
		r := &records[i]
		dst = appendRecord(dst, r, r.Timestamp-records[0].Timestamp, int64(i))
	}
	return dst
}

func appendRecord(dst []byte, r *Record, timeDelta, offsetDelta int64) []byte {
	dst = appendVarint(dst, int64(recordSize(r, timeDelta, offsetDelta)))
	dst = append(dst, 0) // attributes
	dst = appendVarint(dst, timeDelta)
	dst = appendVarint(dst, offsetDelta)
	dst = appendNullable(dst, r.Key)
	dst = appendNullable(dst, r.Value)
	dst = appendVarint(dst, int64(len(r.Headers)))
	for _, h := range r.Headers {
		dst = appendVarint(dst, int64(len(h.Key)))
		dst = append(dst, h.Key...)
		dst = appendNullable(dst, h.Value)
	}
	return dst
}

// recordSize is the size of a record after its length.
func recordSize(r *Record, timeDelta, offsetDelta int64) int {
	n := 1 + varintSize(timeDelta) + varintSize(offsetDelta) + nullableSize(r.Key) + nullableSize(r.Value) +
		varintSize(int64(len(r.Headers)))
	for _, h := range r.Headers {
		n += varintSize(int64(len(h.Key))) + len(h.Key) + nullableSize(h.Value)
	}
	return n
}

func appendVarint(dst []byte, v int64) []byte { return binary.AppendVarint(dst, v) }

func varintSize(v int64) int {
	n := 1
	for u := uint64(v<<1) ^ uint64(v>>63); u >= 0x80; u >>= 7 {
		n++
	}
	return n
}

func appendNullable(dst, b []byte) []byte {
	if b == nil {
		return appendVarint(dst, -1)
	}
	return append(appendVarint(dst, int64(len(b))), b...)
}

func nullableSize(b []byte) int {
	if b == nil {
		return 1
	}
	return varintSize(int64(len(b))) + len(b)
}

// AppendFiltered appends to dst the batch b with those of its records that are given, in order, with
// the offsets and times that they have there. What the header says of offsets, sequence numbers and the producer stays.
// deleteHorizon is the time from which the tombstones, or the marker, in it may go (KIP-534), in ms; −1 leaves what b
// says of that. There must be at least one record.
func AppendFiltered(dst []byte, b Batch, records []Record, deleteHorizon int64) ([]byte, error) {
	start := len(dst)
	dst = append(dst, b[:HeaderSize]...)
	h := Batch(dst[start:])
	if deleteHorizon >= 0 {
		binary.BigEndian.PutUint16(h[attributesAt:], uint16(b.Attributes()|deleteHorizonBit))
		binary.BigEndian.PutUint64(h[baseTimestampAt:], uint64(deleteHorizon))
	}
	binary.BigEndian.PutUint32(h[countAt:], uint32(len(records)))
	latest := int64(-1)
	for i := range records {
		latest = max(latest, records[i].Timestamp)
	}
	binary.BigEndian.PutUint64(h[maxTimestampAt:], uint64(latest))
	baseOffset, baseTime := b.BaseOffset(), h.BaseTimestamp()
	buf := bodyPool.Get().(*[]byte)
	defer bodyPool.Put(buf)
	body := (*buf)[:0]
	for i := range records {
		r := &records[i]
		body = appendRecord(body, r, r.Timestamp-baseTime, r.Offset-baseOffset)
	}
	if cap(body) <= keepBuffer {
		*buf = body
	}
	dst, err := appendCompressed(dst, b.Codec(), body)
	if err != nil {
		return nil, err
	}
	return finish(dst, start)
}

// AppendEmpty appends to dst a batch without records that spans count offsets from base on.
func AppendEmpty(dst []byte, base int64, count, leaderEpoch int32) []byte {
	start := len(dst)
	dst = appendHeader(dst, BatchOptions{BaseOffset: base, LeaderEpoch: leaderEpoch}, []Record{{Timestamp: -1}})
	h := Batch(dst[start:])
	binary.BigEndian.PutUint32(h[lastOffsetDeltaAt:], uint32(count-1))
	binary.BigEndian.PutUint32(h[countAt:], 0)
	dst, _ = finish(dst, start) // it is not too large
	return dst
}
