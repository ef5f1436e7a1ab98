package streamstore

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tabletopic/tabletopic/internal/crc32c"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// WAL bulk, version 2: one object of the s3 WAL, one group commit of the file WAL, where
// bulks follow one another and up to 64 KiB of zeros may follow the last. Integers are big-endian.
//
//	┌──────────┬───────┬────────┬─────┬────────┬─────────┬─────────┬────────────┬──────────┬─────────────┬─────┬───────────┐
//	│ "TWAL" 4 │ ver 1 │ kind 1 │ 0 2 │ node 4 │ count 4 │ epoch 8 │ sequence 8 │ nonce 16 │ body size 8 │ 0 4 │ CRC-32C 4 │ header, 64
//	├──────────┴───────┴────────┴─────┴────────┴─────────┴─────────┴────────────┴──────────┴─────────────┴─────┴───────────┤
//	│ count records, 44 + payload each, and filling                                                                        │ body
//	├────────────────────────────────────────────────────────────┬───────────┬─────────────────────────────────────────────┤
//	│ size of the bulk 8                                         │ CRC-32C 4 │ "LAWT" 4                                    │ trailer, 16
//	└────────────────────────────────────────────────────────────┴───────────┴─────────────────────────────────────────────┘
//
// Kind 1 holds data and is whole blocks of 4 KiB, so that it goes to a disk from where its records
// were put together. Kind 2 is a fence: no body, written by whoever takes the WAL over.
// The nonce is drawn once by each writer; it tells one's own bulk from anybody else's. The
// header's checksum covers the 60 bytes before it, the trailer's everything before it. Magic,
// version and the header's checksum keep their places in every version, so that a newer
// version is told from a damaged one.
//
//	┌────────┬─────┬─────────┬──────────┬─────────┬───────────────┬─────────────────┬────────────────┬─────────┐
//	│ kind 1 │ 0 3 │ count 4 │ stream 8 │ epoch 8 │ base offset 8 │ max timestamp 8 │ payload size 4 │ payload │ record
//	└────────┴─────┴─────────┴──────────┴─────────┴───────────────┴─────────────────┴────────────────┴─────────┘
//
// Record kind 1 carries its payload. Kind 2 is kept for a pointer to bytes in another object.
// A byte 0xff where a record would begin is filling, and so is what follows it up to the end of
// that block of the bulk, where a record or more filling begins, or to the trailer. It is not
// zero: whole sectors of zeros are what a crash leaves of a bulk.
//
// Versions:
//
//	1  first
//	2  filling; a bulk of data is whole blocks
const (
	walVersion = 2

	walHeaderSize  = 64
	walTrailerSize = 16
	walRecordSize  = 44
	walFenceSize   = walHeaderSize + walTrailerSize

	bulkData  = 1
	bulkFence = 2

	recordInline  = 1
	recordFilling = 0xff

	walBlock = 4 << 10 // what is written past the page cache is whole blocks: any disk takes these

	maxPayload = 256 << 20 // bytes of one batch
)

var (
	walMagic        = [4]byte{'T', 'W', 'A', 'L'}
	walTrailerMagic = [4]byte{'L', 'A', 'W', 'T'}
)

// ErrCorrupt says that stored bytes are not what was written. The error that wraps it
// names the object or file and the position.
var ErrCorrupt = errors.New("corrupt")

// errNewer says that stored bytes are of a later version of this program. It is no corruption.
var errNewer = errors.New("written by a newer version of this program")

// checkVersion refuses a version that this program does not know. The checksum was right.
func checkVersion(what string, v, newest byte) error {
	if v == 0 || v > newest {
		return fmt.Errorf("%w: %s of version %d, this program knows up to %d: start the program that wrote it", errNewer, what, v, newest)
	}
	return nil
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

type nonce [16]byte

type bulkHeader struct {
	version uint8
	kind    uint8
	node    NodeID
	count   uint32
	epoch   int64
	seq     uint64
	nonce   nonce
	body    uint64 // bytes of records and filling
}

// wholeBlocks returns n rounded up to blocks.
func wholeBlocks(n int64) int64 { return (n + walBlock - 1) / walBlock * walBlock }

// size is the number of bytes of the whole bulk.
func (h bulkHeader) size() uint64 { return walHeaderSize + h.body + walTrailerSize }

func appendBulkHeader(dst []byte, h bulkHeader) []byte {
	at := len(dst)
	dst = append(dst, walMagic[:]...)
	dst = append(dst, h.version, h.kind, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.node))
	dst = binary.BigEndian.AppendUint32(dst, h.count)
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.epoch))
	dst = binary.BigEndian.AppendUint64(dst, h.seq)
	dst = append(dst, h.nonce[:]...)
	dst = binary.BigEndian.AppendUint64(dst, h.body)
	dst = append(dst, 0, 0, 0, 0)
	return binary.BigEndian.AppendUint32(dst, crc32c.Checksum(dst[at:]))
}

func parseBulkHeader(src []byte) (h bulkHeader, tail []byte, err error) {
	if len(src) < walHeaderSize {
		return h, nil, corrupt("WAL bulk header has %d bytes, want %d", len(src), walHeaderSize)
	}
	if [4]byte(src) != walMagic {
		return h, nil, corrupt("magic %q, want %q: not a WAL of this program, or damaged; nothing was changed, put back what was there", src[:4], walMagic[:])
	}
	if got, want := crc32c.Checksum(src[:60]), binary.BigEndian.Uint32(src[60:]); got != want {
		return h, nil, corrupt("WAL bulk header checksum %08x, want %08x", got, want)
	}
	if err := checkVersion("WAL bulk", src[4], walVersion); err != nil {
		return h, nil, err
	}
	h = bulkHeader{
		version: src[4],
		kind:    src[5],
		node:    NodeID(binary.BigEndian.Uint32(src[8:])),
		count:   binary.BigEndian.Uint32(src[12:]),
		epoch:   int64(binary.BigEndian.Uint64(src[16:])),
		seq:     binary.BigEndian.Uint64(src[24:]),
		nonce:   nonce(src[32:48]),
		body:    binary.BigEndian.Uint64(src[48:]),
	}
	switch {
	case h.kind == bulkData && h.count > 0 && h.body >= uint64(h.count)*walRecordSize && h.body < 1<<40 && (h.version == 1 || h.size()%walBlock == 0):
	case h.kind == bulkFence && h.count == 0 && h.body == 0:
	default:
		return h, nil, corrupt("WAL bulk of kind %d with %d records in %d bytes", h.kind, h.count, h.body)
	}
	return h, src[walHeaderSize:], nil
}

// appendBulkTrailer appends the trailer of a bulk whose bytes so far have the checksum crc.
func appendBulkTrailer(dst []byte, size uint64, crc uint32) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint64(dst, size)
	crc = crc32c.Update(crc, dst[at:])
	dst = binary.BigEndian.AppendUint32(dst, crc)
	return append(dst, walTrailerMagic[:]...)
}

// appendFence appends a whole fence.
func appendFence(dst []byte, node NodeID, epoch int64, seq uint64, by nonce) []byte {
	at := len(dst)
	h := bulkHeader{version: walVersion, kind: bulkFence, node: node, epoch: epoch, seq: seq, nonce: by}
	dst = appendBulkHeader(dst, h)
	return appendBulkTrailer(dst, h.size(), crc32c.Checksum(dst[at:]))
}

// parseBulk parses the bulk at the start of src and checks all of it but the records.
func parseBulk(src []byte) (h bulkHeader, body, tail []byte, err error) {
	h, rest, err := parseBulkHeader(src)
	if err != nil {
		return h, nil, nil, err
	}
	if uint64(len(src)) < h.size() {
		return h, nil, nil, corrupt("WAL bulk has %d bytes, want %d", len(src), h.size())
	}
	body, tr := rest[:h.body], rest[h.body:h.body+walTrailerSize]
	if size := binary.BigEndian.Uint64(tr); size != h.size() || [4]byte(tr[12:]) != walTrailerMagic {
		return h, nil, nil, corrupt("WAL bulk trailer says %d bytes and %q, want %d and %q", size, tr[12:], h.size(), walTrailerMagic[:])
	}
	if got, want := crc32c.Checksum(src[:h.size()-8]), binary.BigEndian.Uint32(tr[8:]); got != want {
		return h, nil, nil, corrupt("WAL bulk checksum %08x, want %08x", got, want)
	}
	return h, body, src[h.size():], nil
}

type walRecord struct {
	stream StreamID
	epoch  int64
	batch  RecordBatch
}

// putRecordHeader writes the header of a record into the first 44 bytes of dst.
func putRecordHeader(dst []byte, r walRecord) {
	_ = dst[walRecordSize-1]
	dst[0], dst[1], dst[2], dst[3] = recordInline, 0, 0, 0
	binary.BigEndian.PutUint32(dst[4:], uint32(r.batch.Count))
	binary.BigEndian.PutUint64(dst[8:], uint64(r.stream))
	binary.BigEndian.PutUint64(dst[16:], uint64(r.epoch))
	binary.BigEndian.PutUint64(dst[24:], uint64(r.batch.BaseOffset))
	binary.BigEndian.PutUint64(dst[32:], uint64(r.batch.MaxTimestamp))
	binary.BigEndian.PutUint32(dst[40:], uint32(len(r.batch.Payload)))
}

// fill makes dst filling.
func fill(dst []byte) {
	for i := range dst {
		dst[i] = recordFilling
		if i > 0 && invariant.Off("wal-filling") {
			dst[i] = 0
		}
	}
}

// skipFilling returns where the next record of body begins, at byte at of it or behind filling;
// the end of body if none does.
func skipFilling(body []byte, at int) int {
	for at < len(body) && body[at] == recordFilling { // twice, if the trailer has no room where the records end
		at = int(wholeBlocks(walHeaderSize+int64(at)+1) - walHeaderSize)
	}
	return min(at, len(body))
}

// parseRecord parses the record at the start of src.
func parseRecord(src []byte) (r walRecord, tail []byte, err error) {
	if len(src) < walRecordSize {
		return r, nil, corrupt("WAL record has %d bytes, want at least %d", len(src), walRecordSize)
	}
	if src[0] != recordInline {
		return r, nil, fmt.Errorf("%w: record of kind %d: start the program that wrote it", errNewer, src[0])
	}
	n := binary.BigEndian.Uint32(src[40:])
	if uint64(len(src)) < walRecordSize+uint64(n) {
		return r, nil, corrupt("WAL record has %d bytes, want %d", len(src), walRecordSize+uint64(n))
	}
	r = walRecord{
		stream: StreamID(binary.BigEndian.Uint64(src[8:])),
		epoch:  int64(binary.BigEndian.Uint64(src[16:])),
		batch: RecordBatch{
			BaseOffset:   int64(binary.BigEndian.Uint64(src[24:])),
			Count:        int32(binary.BigEndian.Uint32(src[4:])),
			MaxTimestamp: int64(binary.BigEndian.Uint64(src[32:])),
			Payload:      src[walRecordSize : walRecordSize+int(n) : walRecordSize+int(n)],
		},
	}
	if r.batch.Count < 1 || r.batch.BaseOffset < 0 || r.batch.End() < r.batch.BaseOffset {
		return r, nil, corrupt("WAL record of stream %d with base %d and count %d", r.stream, r.batch.BaseOffset, r.batch.Count)
	}
	return r, src[walRecordSize+int(n):], nil
}
