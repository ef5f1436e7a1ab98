package streamstore

import (
	"encoding/binary"
	"slices"

	"github.com/tabletopic/tabletopic/internal/crc32c"
)

// Data object, version 1: a stream set object (kind 1) or a stream object (kind 2).
// Integers are big-endian.
//
//	┌──────────┬───────┬────────┬─────┬─────────────┬───────────┐
//	│ "TOBJ" 4 │ ver 1 │ kind 1 │ 0 2 │ object id 8 │ CRC-32C 4 │ header, 20
//	├──────────┴───────┴────────┴─────┴─────────────┴───────────┤
//	│ blocks, by (stream, start)                                │
//	├───────────────────────────────────────────────────────────┤
//	│ index entries of 48, one per block                        │
//	├───────────────────────────────────────────────────────────┤
//	│ footer, 40                                                │
//	└───────────────────────────────────────────────────────────┘
//
// A block holds batches of one stream. Its checksum covers the 28 bytes before it and the batches.
//
//	┌──────────┬─────────┬───────────┬─────────────┬─────┬───────────┬───────────────────────────────┐
//	│ stream 8 │ start 8 │ batches 4 │ body size 4 │ 0 4 │ CRC-32C 4 │ batches, 24 + payload each    │ block, 32 + body
//	└──────────┴─────────┴───────────┴─────────────┴─────┴───────────┴───────────────────────────────┘
//	┌───────────────┬─────────────────┬─────────┬────────────────┬─────────┐
//	│ base offset 8 │ max timestamp 8 │ count 4 │ payload size 4 │ payload │ batch
//	└───────────────┴─────────────────┴─────────┴────────────────┴─────────┘
//	┌──────────┬─────────┬───────┬────────────┬─────────────────┬────────┬───────────┐
//	│ stream 8 │ start 8 │ end 8 │ position 8 │ max timestamp 8 │ size 4 │ batches 4 │ index entry, 48
//	└──────────┴─────────┴───────┴────────────┴─────────────────┴────────┴───────────┘
//	┌──────────────────┬──────────┬───────────────┬─────────────┬────────────────────────┬─────────────────────────┬──────────┐
//	│ index position 8 │ blocks 4 │ object size 8 │ object id 8 │ CRC-32C of the index 4 │ CRC-32C of the footer 4 │ "JBOT" 4 │ footer, 40
//	└──────────────────┴──────────┴───────────────┴─────────────┴────────────────────────┴─────────────────────────┴──────────┘
//
// The header keeps its layout in every version; a later version whose footer is another has
// another magic there. Readers begin at the footer, and look at the header when they do not
// understand it.
//
// Versions:
//
//	1  first
const (
	objectVersion = 1

	objectHeaderSize = 20
	blockHeaderSize  = 32
	batchHeaderSize  = 24
	indexEntrySize   = 48
	footerSize       = 40
)

var (
	objectMagic = [4]byte{'T', 'O', 'B', 'J'}
	footerMagic = [4]byte{'J', 'B', 'O', 'T'}
)

func appendObjectHeader(dst []byte, kind ObjectKind, id ObjectID) []byte {
	at := len(dst)
	dst = append(dst, objectMagic[:]...)
	dst = append(dst, objectVersion, byte(kind), 0, 0)
	dst = binary.BigEndian.AppendUint64(dst, uint64(id))
	return binary.BigEndian.AppendUint32(dst, crc32c.Checksum(dst[at:]))
}

func parseObjectHeader(src []byte) (kind ObjectKind, id ObjectID, tail []byte, err error) {
	if len(src) < objectHeaderSize || [4]byte(src) != objectMagic {
		return 0, 0, nil, corrupt("object header % x, want magic %q", src[:min(len(src), 4)], objectMagic[:])
	}
	if got, want := crc32c.Checksum(src[:16]), binary.BigEndian.Uint32(src[16:]); got != want {
		return 0, 0, nil, corrupt("object header checksum %08x, want %08x", got, want)
	}
	if err := checkVersion("data object", src[4], objectVersion); err != nil {
		return 0, 0, nil, err
	}
	kind = ObjectKind(src[5])
	if kind != KindStreamSet && kind != KindStream {
		return 0, 0, nil, corrupt("object kind %d", kind)
	}
	return kind, ObjectID(binary.BigEndian.Uint64(src[8:])), src[objectHeaderSize:], nil
}

type blockHeader struct {
	stream  StreamID
	start   int64
	batches uint32
	body    uint32
	crc     uint32
}

// appendBlockHeader appends all but the checksum, which putBlockCRC adds.
func appendBlockHeader(dst []byte, h blockHeader) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.stream))
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.start))
	dst = binary.BigEndian.AppendUint32(dst, h.batches)
	dst = binary.BigEndian.AppendUint32(dst, h.body)
	return append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
}

func putBlockCRC(header []byte, crc uint32) { binary.BigEndian.PutUint32(header[28:], crc) }

func appendBatchHeader(dst []byte, b RecordBatch) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(b.BaseOffset))
	dst = binary.BigEndian.AppendUint64(dst, uint64(b.MaxTimestamp))
	dst = binary.BigEndian.AppendUint32(dst, uint32(b.Count))
	return binary.BigEndian.AppendUint32(dst, uint32(len(b.Payload)))
}

func parseBatch(src []byte) (b RecordBatch, tail []byte, err error) {
	if len(src) < batchHeaderSize {
		return b, nil, corrupt("batch has %d bytes, want at least %d", len(src), batchHeaderSize)
	}
	n := binary.BigEndian.Uint32(src[20:])
	if uint64(len(src)) < batchHeaderSize+uint64(n) {
		return b, nil, corrupt("batch has %d bytes, want %d", len(src), batchHeaderSize+uint64(n))
	}
	end := batchHeaderSize + int(n)
	b = RecordBatch{
		BaseOffset:   int64(binary.BigEndian.Uint64(src)),
		MaxTimestamp: int64(binary.BigEndian.Uint64(src[8:])),
		Count:        int32(binary.BigEndian.Uint32(src[16:])),
		Payload:      src[batchHeaderSize:end:end],
	}
	if b.Count < 1 || b.BaseOffset < 0 || b.End() < b.BaseOffset {
		return b, nil, corrupt("batch with base %d and count %d", b.BaseOffset, b.Count)
	}
	return b, src[end:], nil
}

// parseBlock parses one whole block. The batches share src.
func parseBlock(src []byte) (h blockHeader, batches []RecordBatch, err error) {
	if len(src) < blockHeaderSize {
		return h, nil, corrupt("block has %d bytes, want at least %d", len(src), blockHeaderSize)
	}
	h = blockHeader{
		stream:  StreamID(binary.BigEndian.Uint64(src)),
		start:   int64(binary.BigEndian.Uint64(src[8:])),
		batches: binary.BigEndian.Uint32(src[16:]),
		body:    binary.BigEndian.Uint32(src[20:]),
		crc:     binary.BigEndian.Uint32(src[28:]),
	}
	body := src[blockHeaderSize:]
	if uint64(h.body) != uint64(len(body)) || h.batches == 0 || uint64(h.batches)*batchHeaderSize > uint64(len(body)) {
		return h, nil, corrupt("block of %d batches in %d bytes, found %d bytes", h.batches, h.body, len(body))
	}
	crc := crc32c.Update(crc32c.Checksum(src[:28]), body)
	if crc != h.crc {
		return h, nil, corrupt("block checksum %08x, want %08x", crc, h.crc)
	}
	batches = make([]RecordBatch, h.batches)
	next := h.start
	for i := range batches {
		if batches[i], body, err = parseBatch(body); err != nil {
			return h, nil, err
		}
		if batches[i].BaseOffset != next {
			return h, nil, corrupt("batch at offset %d, want %d", batches[i].BaseOffset, next)
		}
		next = batches[i].End()
	}
	if len(body) > 0 {
		return h, nil, corrupt("%d bytes after the last batch of a block", len(body))
	}
	return h, batches, nil
}

// indexEntry is where an object keeps one block.
type indexEntry struct {
	Stream       StreamID
	Start        int64
	End          int64
	Position     int64
	MaxTimestamp int64 // largest within; -1 if none
	Size         uint32
	Batches      uint32

	object ObjectID // that the block lies in; a reader sets it
}

func appendIndexEntry(dst []byte, e indexEntry) []byte {
	for _, v := range [5]int64{int64(e.Stream), e.Start, e.End, e.Position, e.MaxTimestamp} {
		dst = binary.BigEndian.AppendUint64(dst, uint64(v))
	}
	dst = binary.BigEndian.AppendUint32(dst, e.Size)
	return binary.BigEndian.AppendUint32(dst, e.Batches)
}

func parseIndexEntry(src []byte) indexEntry {
	i64 := func(at int) int64 { return int64(binary.BigEndian.Uint64(src[at:])) }
	return indexEntry{
		Stream: StreamID(i64(0)), Start: i64(8), End: i64(16), Position: i64(24), MaxTimestamp: i64(32),
		Size: binary.BigEndian.Uint32(src[40:]), Batches: binary.BigEndian.Uint32(src[44:]),
	}
}

type footer struct {
	index    int64 // position of the index
	blocks   uint32
	size     int64 // of the object
	id       ObjectID
	indexCRC uint32
}

func appendFooter(dst []byte, f footer) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint64(dst, uint64(f.index))
	dst = binary.BigEndian.AppendUint32(dst, f.blocks)
	dst = binary.BigEndian.AppendUint64(dst, uint64(f.size))
	dst = binary.BigEndian.AppendUint64(dst, uint64(f.id))
	dst = binary.BigEndian.AppendUint32(dst, f.indexCRC)
	dst = binary.BigEndian.AppendUint32(dst, crc32c.Checksum(dst[at:]))
	return append(dst, footerMagic[:]...)
}

// parseFooter parses the footer that ends src.
func parseFooter(src []byte) (f footer, err error) {
	if len(src) < footerSize {
		return f, corrupt("object footer has %d bytes, want %d", len(src), footerSize)
	}
	src = src[len(src)-footerSize:]
	if [4]byte(src[36:]) != footerMagic {
		return f, corrupt("object footer magic %q, want %q", src[36:], footerMagic[:])
	}
	if got, want := crc32c.Checksum(src[:32]), binary.BigEndian.Uint32(src[32:]); got != want {
		return f, corrupt("object footer checksum %08x, want %08x", got, want)
	}
	f = footer{
		index:    int64(binary.BigEndian.Uint64(src)),
		blocks:   binary.BigEndian.Uint32(src[8:]),
		size:     int64(binary.BigEndian.Uint64(src[12:])),
		id:       ObjectID(binary.BigEndian.Uint64(src[20:])),
		indexCRC: binary.BigEndian.Uint32(src[28:]),
	}
	if f.index < objectHeaderSize || f.size-footerSize-int64(f.blocks)*indexEntrySize != f.index {
		return f, corrupt("object of %d bytes with %d index entries at %d", f.size, f.blocks, f.index)
	}
	return f, nil
}

// parseIndex parses src, which runs from the index to the end of the object.
func parseIndex(src []byte) ([]indexEntry, error) {
	f, err := parseFooter(src)
	if err != nil {
		return nil, err
	}
	src = src[:len(src)-footerSize]
	if int64(len(src)) != int64(f.blocks)*indexEntrySize {
		return nil, corrupt("index has %d bytes, want %d entries", len(src), f.blocks)
	}
	if got := crc32c.Checksum(src); got != f.indexCRC {
		return nil, corrupt("index checksum %08x, want %08x", got, f.indexCRC)
	}
	entries := make([]indexEntry, f.blocks)
	for i := range entries {
		e := parseIndexEntry(src[i*indexEntrySize:])
		if e.Start < 0 || e.End <= e.Start || e.Position < objectHeaderSize || e.Position > f.index-int64(e.Size) || e.Size < blockHeaderSize {
			return nil, corrupt("index entry %d: %+v", i, e)
		}
		if i > 0 && (e.Stream < entries[i-1].Stream || e.Stream == entries[i-1].Stream && e.Start != entries[i-1].End) {
			return nil, corrupt("index entry %d does not follow its predecessor: %+v after %+v", i, e, entries[i-1])
		}
		entries[i] = e
	}
	return entries, nil
}

// smallPayload is the size below which a payload is copied beside its header rather than
// handed to the bucket as a slice of its own.
const smallPayload = 2 << 10

// An objectBuilder lays out an object without copying large payloads.
type objectBuilder struct {
	id    ObjectID
	body  [][]byte // finished pieces
	arena []byte   // headers and small payloads; its chunks never move
	piece int      // start in arena of the piece that is not in body yet
	size  int64
	index []indexEntry

	copies bool // payloads of any size, so that nothing of the caller's is held
}

func newObjectBuilder(kind ObjectKind, id ObjectID) *objectBuilder {
	b := &objectBuilder{id: id}
	b.reserve(objectHeaderSize)
	b.arena = appendObjectHeader(b.arena, kind, id)
	b.size = objectHeaderSize
	return b
}

// reserve makes room for n bytes at the end of the arena, which stay where they are.
func (b *objectBuilder) reserve(n int) {
	if cap(b.arena)-len(b.arena) >= n {
		return
	}
	b.cut()
	b.arena, b.piece = make([]byte, 0, max(n, 64<<10)), 0
}

// cut ends the current piece.
func (b *objectBuilder) cut() {
	if len(b.arena) > b.piece {
		b.body = append(b.body, b.arena[b.piece:len(b.arena):len(b.arena)])
		b.piece = len(b.arena)
	}
}

// addStream appends the batches of one stream as blocks of about blockBytes. Streams must
// come in order; batches must be contiguous. sums are the CRC-32C of the payloads, each 0 if
// it is not known; nil if none is.
func (b *objectBuilder) addStream(stream StreamID, batches []RecordBatch, sums []uint32, blockBytes int) {
	if sums == nil {
		sums = make([]uint32, len(batches))
	}
	for len(batches) > 0 {
		n, body := 0, 0
		for n < len(batches) && (n == 0 || body+batchHeaderSize+len(batches[n].Payload) <= blockBytes) {
			body += batchHeaderSize + len(batches[n].Payload)
			n++
		}
		b.addBlock(stream, batches[:n], sums[:n], body)
		batches, sums = batches[n:], sums[n:]
	}
}

func (b *objectBuilder) addBlock(stream StreamID, batches []RecordBatch, sums []uint32, body int) {
	b.reserve(blockHeaderSize)
	at := len(b.arena)
	b.arena = appendBlockHeader(b.arena, blockHeader{stream: stream, start: batches[0].BaseOffset, batches: uint32(len(batches)), body: uint32(body)})
	header := b.arena[at:]
	crc := crc32c.Checksum(header[:28])
	newest := int64(-1)
	for i, batch := range batches {
		newest = max(newest, batch.MaxTimestamp)
		n := batchHeaderSize
		small := b.copies || len(batch.Payload) <= smallPayload
		if small {
			n += len(batch.Payload)
		}
		b.reserve(n)
		at := len(b.arena)
		b.arena = appendBatchHeader(b.arena, batch)
		if small {
			b.arena = append(b.arena, batch.Payload...)
			crc = crc32c.Update(crc, b.arena[at:])
			continue
		}
		crc = crc32c.Extend(crc32c.Update(crc, b.arena[at:]), batch.Payload, sums[i])
		b.cut()
		b.body = append(b.body, batch.Payload)
	}
	putBlockCRC(header, crc)
	b.index = append(b.index, indexEntry{
		Stream: stream, Start: batches[0].BaseOffset, End: batches[len(batches)-1].End(),
		Position: b.size, MaxTimestamp: newest, Size: uint32(blockHeaderSize + body), Batches: uint32(len(batches)),
	})
	b.size += int64(blockHeaderSize + body)
}

// finish returns the pieces of the object and their total size.
func (b *objectBuilder) finish() ([][]byte, int64) {
	b.cut()
	tail := make([]byte, 0, len(b.index)*indexEntrySize+footerSize)
	for _, e := range b.index {
		tail = appendIndexEntry(tail, e)
	}
	f := footer{index: b.size, blocks: uint32(len(b.index)), size: b.size + int64(cap(tail)), id: b.id, indexCRC: crc32c.Checksum(tail)}
	tail = appendFooter(tail, f)
	return append(slices.Clip(b.body), tail), f.size
}
