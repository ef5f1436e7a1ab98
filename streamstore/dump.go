package streamstore

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
)

// A dumper prints bytes with what they mean, one field a line.
type dumper struct {
	w   io.Writer
	at  int // of the next field
	err error
}

// field prints the next n bytes of src, which starts at the dumper's position, and returns the rest.
func (d *dumper) field(src []byte, n int, format string, args ...any) []byte {
	n = min(n, len(src))
	const most = 16
	text := hex.EncodeToString(src[:min(n, most)])
	if n > most {
		text += "…"
	}
	if d.err == nil {
		_, d.err = fmt.Fprintf(d.w, "%08x  %-33s  %s\n", d.at, text, fmt.Sprintf(format, args...))
	}
	d.at += n
	return src[n:]
}

func (d *dumper) title(format string, args ...any) {
	if d.err == nil {
		_, d.err = fmt.Fprintf(d.w, format+"\n", args...)
	}
}

// fail returns the error to report for what follows at the dumper's position.
func (d *dumper) fail(err error) error {
	if d.err != nil {
		return d.err
	}
	return fmt.Errorf("at byte %d: %w", d.at, err)
}

func (d *dumper) indexEntry(src []byte, e indexEntry) []byte {
	src = d.field(src, 8, "stream %d", e.Stream)
	src = d.field(src, 8, "start %d", e.Start)
	src = d.field(src, 8, "end %d", e.End)
	src = d.field(src, 8, "position %d", e.Position)
	src = d.field(src, 8, "max timestamp %d", e.MaxTimestamp)
	src = d.field(src, 4, "size %d", e.Size)
	return d.field(src, 4, "batches %d", e.Batches)
}

// DumpWAL prints the bulks of a WAL object, a WAL segment file or a fence, field by field. It
// returns an error that names the position where the data is not what was written.
func DumpWAL(w io.Writer, data []byte) error {
	d := &dumper{w: w}
	for first := true; first || len(data) > 0; first = false {
		h, body, tail, err := parseBulk(data)
		if err != nil && !first && endsAt(bytes.NewReader(data), 0, int64(len(data))) {
			d.title("rest of the segment")
			d.field(data, len(data), "zero")
			return d.err
		}
		if err != nil {
			return d.fail(err)
		}
		kind := "data"
		if h.kind == bulkFence {
			kind = "fence"
		}
		d.title("WAL bulk %d", h.seq)
		data = d.field(data, 4, "magic %q", walMagic[:])
		data = d.field(data, 1, "version %d", h.version)
		data = d.field(data, 1, "kind %d: %s", h.kind, kind)
		data = d.field(data, 2, "zero")
		data = d.field(data, 4, "node %d", h.node)
		data = d.field(data, 4, "records %d", h.count)
		data = d.field(data, 8, "node epoch %d", h.epoch)
		data = d.field(data, 8, "sequence %d", h.seq)
		data = d.field(data, 16, "nonce")
		data = d.field(data, 8, "body size %d", h.body)
		data = d.field(data, 4, "zero")
		data = d.field(data, 4, "CRC-32C of the header")
		for i, at := 0, 0; at < len(body); {
			if next := skipFilling(body, at); next > at {
				d.title("filling")
				data = d.field(data, next-at, "filling")
				at = next
				continue
			}
			r, rest, err := parseRecord(body[at:])
			if err != nil {
				return d.fail(err)
			}
			d.title("record %d", i)
			data = d.field(data, 1, "kind %d: payload follows", body[at])
			data = d.field(data, 3, "zero")
			data = d.field(data, 4, "count %d", r.batch.Count)
			data = d.field(data, 8, "stream %d", r.stream)
			data = d.field(data, 8, "stream epoch %d", r.epoch)
			data = d.field(data, 8, "base offset %d", r.batch.BaseOffset)
			data = d.field(data, 8, "max timestamp %d", r.batch.MaxTimestamp)
			data = d.field(data, 4, "payload size %d", len(r.batch.Payload))
			if len(r.batch.Payload) > 0 {
				data = d.field(data, len(r.batch.Payload), "payload")
			}
			i, at = i+1, len(body)-len(rest)
		}
		d.title("trailer")
		data = d.field(data, 8, "size of the bulk %d", h.size())
		data = d.field(data, 4, "CRC-32C of the bulk")
		d.field(data, 4, "magic %q", walTrailerMagic[:])
		data = tail
		if d.err != nil {
			return d.err
		}
	}
	return nil
}

// DumpObject prints a stream object or stream set object, field by field. It returns an
// error that names the position where the data is not what was written.
func DumpObject(w io.Writer, data []byte) error {
	d := &dumper{w: w}
	kind, id, _, err := parseObjectHeader(data)
	if err != nil {
		return d.fail(err)
	}
	f, err := parseFooter(data)
	if err == nil && (f.size != int64(len(data)) || f.id != id) {
		err = corrupt("object %d has %d bytes, its footer says object %d of %d", id, len(data), f.id, f.size)
	}
	if err != nil {
		return fmt.Errorf("footer: %w", err)
	}
	entries, err := parseIndex(data[f.index:])
	if err != nil {
		return fmt.Errorf("index: %w", err)
	}
	name := map[ObjectKind]string{KindStreamSet: "stream set object", KindStream: "stream object"}[kind]
	d.title("%s %d", name, id)
	rest := d.field(data, 4, "magic %q", objectMagic[:])
	rest = d.field(rest, 1, "version %d", objectVersion)
	rest = d.field(rest, 1, "kind %d: %s", kind, name)
	rest = d.field(rest, 2, "zero")
	rest = d.field(rest, 8, "object id %d", id)
	rest = d.field(rest, 4, "CRC-32C of the header")
	for i, e := range entries {
		if int64(d.at) != e.Position || int64(e.Size) > int64(len(rest)) {
			return d.fail(corrupt("block %d is at %d with %d bytes, want it here", i, e.Position, e.Size))
		}
		batches, err := checkBlock(rest[:e.Size], e)
		if err != nil {
			return d.fail(err)
		}
		d.title("block %d", i)
		rest = d.field(rest, 8, "stream %d", e.Stream)
		rest = d.field(rest, 8, "start %d", e.Start)
		rest = d.field(rest, 4, "batches %d", len(batches))
		rest = d.field(rest, 4, "body size %d", e.Size-blockHeaderSize)
		rest = d.field(rest, 4, "zero")
		rest = d.field(rest, 4, "CRC-32C of the block")
		for _, b := range batches {
			rest = d.field(rest, 8, "  base offset %d", b.BaseOffset)
			rest = d.field(rest, 8, "  max timestamp %d", b.MaxTimestamp)
			rest = d.field(rest, 4, "  count %d", b.Count)
			rest = d.field(rest, 4, "  payload size %d", len(b.Payload))
			if len(b.Payload) > 0 {
				rest = d.field(rest, len(b.Payload), "  payload")
			}
		}
	}
	if int64(d.at) != f.index {
		return d.fail(corrupt("blocks end here, the index starts at %d", f.index))
	}
	for i, e := range entries {
		d.title("index entry %d", i)
		rest = d.indexEntry(rest, e)
	}
	d.title("footer")
	rest = d.field(rest, 8, "index position %d", f.index)
	rest = d.field(rest, 4, "blocks %d", f.blocks)
	rest = d.field(rest, 8, "object size %d", f.size)
	rest = d.field(rest, 8, "object id %d", f.id)
	rest = d.field(rest, 4, "CRC-32C of the index")
	rest = d.field(rest, 4, "CRC-32C of the footer")
	d.field(rest, 4, "magic %q", footerMagic[:])
	return d.err
}
