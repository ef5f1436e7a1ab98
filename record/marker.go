package record

import (
	"encoding/binary"
	"fmt"
)

// A Marker is the one record of a control batch: it ends the transaction of a producer in a
// partition (KIP-98). Its key is a version and a type, its value a version and the epoch of the
// coordinator, 16 and 32 bits.
type Marker struct {
	ProducerID       int64
	ProducerEpoch    int16
	CoordinatorEpoch int32
	Commit           bool // else abort
}

const (
	markerAbort  = 0
	markerCommit = 1
)

// AppendMarker appends to dst the control batch of a marker of the time millis.
func AppendMarker(dst []byte, m Marker, millis int64) ([]byte, error) {
	kind := uint16(markerAbort)
	if m.Commit {
		kind = markerCommit
	}
	key := binary.BigEndian.AppendUint16(make([]byte, 2, 4), kind)
	value := binary.BigEndian.AppendUint32(make([]byte, 2, 6), uint32(m.CoordinatorEpoch))
	return AppendBatch(dst, BatchOptions{
		Idempotent: true, ProducerID: m.ProducerID, ProducerEpoch: m.ProducerEpoch, BaseSequence: NoSequence, Transactional: true, Control: true,
	}, []Record{{Timestamp: millis, Key: key, Value: value}})
}

// ParseMarker reads a control batch with r.
func ParseMarker(r *Reader, b Batch) (Marker, error) {
	m := Marker{ProducerID: b.ProducerID(), ProducerEpoch: b.ProducerEpoch()}
	if err := r.Reset(b); err != nil {
		return m, fmt.Errorf("marker at offset %d: %w", b.BaseOffset(), err)
	}
	var rec Record
	ok, err := r.Next(&rec)
	if err != nil {
		return m, fmt.Errorf("marker at offset %d: %w", b.BaseOffset(), err)
	}
	if !ok || len(rec.Key) < 4 || len(rec.Value) < 6 || binary.BigEndian.Uint16(rec.Key[2:]) > markerCommit {
		return m, fmt.Errorf("%w: the control batch at offset %d is neither commit nor abort", ErrCorrupt, b.BaseOffset())
	}
	m.Commit = binary.BigEndian.Uint16(rec.Key[2:]) == markerCommit
	m.CoordinatorEpoch = int32(binary.BigEndian.Uint32(rec.Value[2:]))
	return m, nil
}
