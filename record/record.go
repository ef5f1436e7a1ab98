// Package record reads, checks and builds Kafka record batches.
//
// A [Batch] is the bytes of one batch exactly as they travel and are stored: it is checked
// and addressed in place and never copied to be looked at. What a broker changes, the base
// offset and the leader epoch, lies outside the batch checksum. A [Reader] walks the
// records inside, [AppendBatch] builds a batch, [AppendRecompressed] changes its codec.
//
// All bytes are taken for hostile: lengths and counts are checked against what is there
// before they are used, and decompression has a limit. Only magic 2 exists here (Kafka
// protocol guide, "Record Batch"; KIP-98). Integers are big-endian.
//
//	┌──────────────┬──────────┬────────────────┬─────────┬───────┬──────────────┬───────────────────┐
//	│ base offset 8│ length 4 │ leader epoch 4 │ magic 1 │ crc 4 │ attributes 2 │ last offset Δ 4   │
//	├──────────────┴─┬────────┴──────┬─────────┴────┬────┴───────┴────┬─────────┴─────┬─────────────┤
//	│ base time 8    │ max time 8    │ producer 8   │ prod. epoch 2   │ base seq. 4   │ count 4     │
//	├────────────────┴───────────────┴──────────────┴─────────────────┴───────────────┴─────────────┤
//	│ records, compressed as one block by the codec of the attributes                               │
//	└───────────────────────────────────────────────────────────────────────────────────────────────┘
//
// The length counts from the leader epoch on; the CRC-32C covers the attributes and all after.
package record

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tabletopic/tabletopic/internal/crc32c"
)

// HeaderSize is the size in bytes of a batch without its records.
const HeaderSize = 61

const (
	lengthAt          = 8
	leaderEpochAt     = 12
	magicAt           = 16
	crcAt             = 17
	attributesAt      = 21
	lastOffsetDeltaAt = 23
	baseTimestampAt   = 27
	maxTimestampAt    = 35
	producerIDAt      = 43
	producerEpochAt   = 51
	baseSequenceAt    = 53
	countAt           = 57

	magic2 = 2

	codecMask         = 0x07
	logAppendTimeBit  = 0x08
	transactionalBit  = 0x10
	controlBit        = 0x20
	deleteHorizonBit  = 0x40
	lengthCountsAfter = 12 // bytes of a batch that its length field leaves out
)

// NoProducerID, NoProducerEpoch and NoSequence stand in a batch without idempotent producer.
const (
	NoProducerID    = int64(-1)
	NoProducerEpoch = int16(-1)
	NoSequence      = int32(-1)
)

var (
	// ErrCorrupt says that the bytes are not a record batch. It is final.
	ErrCorrupt = errors.New("corrupt record batch")
	// ErrMagic says that the bytes are a message set of the formats before Kafka 0.11,
	// which is not supported. It is final.
	ErrMagic = errors.New("unsupported record batch magic")
	// ErrTooLarge says that a batch decompresses to more than the reader's limit.
	ErrTooLarge = errors.New("record batch too large")
)

// Batch is one record batch as on the wire. Its accessors need at least [HeaderSize]
// bytes, which Split and Check make sure of.
type Batch []byte

// Record is one record. A nil Key or Value is null, which differs from an empty one.
type Record struct {
	Offset    int64
	Timestamp int64 // ms since 1970
	Key       []byte
	Value     []byte
	Headers   []Header
}

// Header is one header of a record. A nil Value is null.
type Header struct {
	Key   string
	Value []byte
}

// Split cuts the first whole batch off b. It looks at length and magic only; see Check.
func Split(b []byte) (first Batch, rest []byte, err error) {
	if len(b) < magicAt+1 {
		return nil, nil, fmt.Errorf("%w: %d bytes are less than a header", ErrCorrupt, len(b))
	}
	if b[magicAt] != magic2 {
		return nil, nil, fmt.Errorf("%w: %d, want 2", ErrMagic, int8(b[magicAt]))
	}
	length := int32(binary.BigEndian.Uint32(b[lengthAt:]))
	if length < HeaderSize-lengthCountsAfter || int64(length) > int64(len(b)-lengthCountsAfter) {
		return nil, nil, fmt.Errorf("%w: length field says %d, %d bytes follow it", ErrCorrupt, length, len(b)-lengthCountsAfter)
	}
	n := lengthCountsAfter + int(length)
	return Batch(b[:n:n]), b[n:], nil
}

// Check reports whether b is one whole batch with a sound header and checksum. It does not
// look at the records; a Reader does.
func (b Batch) Check() error {
	if len(b) < HeaderSize {
		return fmt.Errorf("%w: %d bytes are less than a header", ErrCorrupt, len(b))
	}
	if b[magicAt] != magic2 {
		return fmt.Errorf("%w: %d, want 2", ErrMagic, int8(b[magicAt]))
	}
	if length := int32(binary.BigEndian.Uint32(b[lengthAt:])); int64(length) != int64(len(b)-lengthCountsAfter) {
		return fmt.Errorf("%w: length field says %d, %d bytes follow it", ErrCorrupt, length, len(b)-lengthCountsAfter)
	}
	if got, want := crc32c.Checksum(b[attributesAt:]), b.crc(); got != want {
		return fmt.Errorf("%w: checksum %08x, header says %08x", ErrCorrupt, got, want)
	}
	if c := b.Codec(); c > CodecZstd {
		return fmt.Errorf("%w: unknown compression codec %d", ErrCorrupt, c)
	}
	delta, n := b.lastOffsetDelta(), b.NumRecords()
	if delta < 0 || delta == 1<<31-1 || n < 0 || n > int(delta)+1 {
		return fmt.Errorf("%w: %d records in %d offsets", ErrCorrupt, n, int64(delta)+1)
	}
	return nil
}

// BaseOffset is the offset of the first record.
func (b Batch) BaseOffset() int64 { return int64(binary.BigEndian.Uint64(b)) }

// SetBaseOffset rewrites the base offset in place; the checksum does not cover it.
func (b Batch) SetBaseOffset(offset int64) { binary.BigEndian.PutUint64(b, uint64(offset)) }

// LastOffset is the last offset that the batch spans.
func (b Batch) LastOffset() int64 { return b.BaseOffset() + int64(b.lastOffsetDelta()) }

// NextOffset is the offset after the batch.
func (b Batch) NextOffset() int64 { return b.LastOffset() + 1 }

// Count is the number of offsets that the batch spans. It is more than NumRecords after
// compaction.
func (b Batch) Count() int32 { return b.lastOffsetDelta() + 1 }

// LeaderEpoch is the epoch of the leader that appended the batch.
func (b Batch) LeaderEpoch() int32 { return int32(binary.BigEndian.Uint32(b[leaderEpochAt:])) }

// SetLeaderEpoch rewrites the leader epoch in place; the checksum does not cover it.
func (b Batch) SetLeaderEpoch(epoch int32) {
	binary.BigEndian.PutUint32(b[leaderEpochAt:], uint32(epoch))
}

// Attributes are the flags that Codec, LogAppendTime, IsTransactional and IsControl read.
func (b Batch) Attributes() int16 { return int16(binary.BigEndian.Uint16(b[attributesAt:])) }

// Codec is how the records are compressed.
func (b Batch) Codec() Codec { return Codec(b.Attributes() & codecMask) }

// LogAppendTime reports whether the broker set the time of the records: all have MaxTimestamp.
func (b Batch) LogAppendTime() bool { return b.Attributes()&logAppendTimeBit != 0 }

// IsTransactional reports whether the batch belongs to a transaction.
func (b Batch) IsTransactional() bool { return b.Attributes()&transactionalBit != 0 }

// IsControl reports whether the records are markers of transactions and not data.
func (b Batch) IsControl() bool { return b.Attributes()&controlBit != 0 }

// DeleteHorizon is the time from which compaction may drop the tombstones of the batch
// (KIP-534): the base timestamp is then that time instead of the time of the first record.
func (b Batch) DeleteHorizon() (millis int64, ok bool) {
	return b.BaseTimestamp(), b.Attributes()&deleteHorizonBit != 0
}

// BaseTimestamp is the time in ms that the times of the records are relative to.
func (b Batch) BaseTimestamp() int64 { return int64(binary.BigEndian.Uint64(b[baseTimestampAt:])) }

// MaxTimestamp is the largest time in ms of the records.
func (b Batch) MaxTimestamp() int64 { return int64(binary.BigEndian.Uint64(b[maxTimestampAt:])) }

// SetLogAppendTime gives all records the time millis and renews the checksum.
func (b Batch) SetLogAppendTime(millis int64) {
	binary.BigEndian.PutUint16(b[attributesAt:], uint16(b.Attributes()|logAppendTimeBit))
	b.SetMaxTimestamp(millis)
}

// SetMaxTimestamp corrects the largest time of the records and renews the checksum.
func (b Batch) SetMaxTimestamp(millis int64) {
	binary.BigEndian.PutUint64(b[maxTimestampAt:], uint64(millis))
	b.setCRC()
}

// SetCreateTime says that the times of the records are the producer's, and renews the checksum.
func (b Batch) SetCreateTime() {
	binary.BigEndian.PutUint16(b[attributesAt:], uint16(b.Attributes()&^logAppendTimeBit))
	b.setCRC()
}

// ProducerID is the idempotent producer, or NoProducerID.
func (b Batch) ProducerID() int64 { return int64(binary.BigEndian.Uint64(b[producerIDAt:])) }

// ProducerEpoch is the epoch of the idempotent producer, or NoProducerEpoch.
func (b Batch) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(b[producerEpochAt:])) }

// BaseSequence is the producer's sequence number of the first record, or NoSequence.
func (b Batch) BaseSequence() int32 { return int32(binary.BigEndian.Uint32(b[baseSequenceAt:])) }

// LastSequence is the producer's sequence number of the last offset; sequence numbers wrap
// from 2³¹−1 to 0.
func (b Batch) LastSequence() int32 {
	return int32((uint32(b.BaseSequence()) + uint32(b.lastOffsetDelta())) & (1<<31 - 1))
}

// NumRecords is how many records the header claims.
func (b Batch) NumRecords() int { return int(int32(binary.BigEndian.Uint32(b[countAt:]))) }

func (b Batch) lastOffsetDelta() int32 {
	return int32(binary.BigEndian.Uint32(b[lastOffsetDeltaAt:]))
}

func (b Batch) crc() uint32 { return binary.BigEndian.Uint32(b[crcAt:]) }

// Checksum is the CRC-32C of the whole batch, by the one in its header, which must be right; 0 for a batch so small that
// to sum it up is quicker.
func (b Batch) Checksum() uint32 {
	if len(b) < crc32c.WorthCombining {
		return 0
	}
	return crc32c.Extend(crc32c.Checksum(b[:attributesAt]), b[attributesAt:], b.crc())
}

func (b Batch) setCRC() {
	binary.BigEndian.PutUint32(b[crcAt:], crc32c.Checksum(b[attributesAt:]))
}
