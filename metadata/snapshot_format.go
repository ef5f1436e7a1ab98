package metadata

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Snapshot: the rows of all tables at one moment.
//
//	┌──────────┬────────┬────────┬──────────┬───────┬──────────┬──────────────┬──────────┐
//	│ "TMSN" 4 │ ver  1 │ header │ crc32c 4 │ bases │ crc32c 4 │ zstd(tables) │ crc32c 4 │
//	└──────────┴────────┴────────┴──────────┴───────┴──────────┴──────────────┴──────────┘
//	header: cluster 22, generation 8, number 8, schema 8, change 8, taken 8, fingerprint 8
//	bases:  subjects 8, n 1, base …
//	base:   number 8, change 8, subjects 8
//	tables: table …, 0
//	table:  name s, columns v, column s …, row …, 0
//	row:    1, value for each column
//	value:  0 null | 1 integer z | 2 text s | 3 bytes s
//
// Integers are big-endian; v is an unsigned and z a zigzag varint, s is v bytes. Each checksum is over
// all before it, so that header and bases can be read alone; the first keeps its place in every version.
// schema is the number of the newest migration, change the last
// number of the change log, taken in ms since 1970. The fingerprint changes whenever the tables
// do, but for what a restore makes good.
//
// With bases, oldest first, a snapshot is a difference: its table changed_subject names the subjects
// that changed since the last base, and of the tables of the schema registry it has the rows of those
// alone. The rest is in the bases, the first of which is whole and each other a difference to those
// before it. subjects is of how many subjects a snapshot has rows. All other tables are always whole.
//
// Versions: 1, the first; 2, bases.
const (
	snapshotMagic      = "TMSN"
	snapshotVersion    = 2
	snapshotHeaderSize = len(snapshotMagic) + 1 + clusterIDSize + 6*8 + 4
	snapshotBaseSize   = 3 * 8
	// snapshotHeadSize is how many bytes of an object hold header and bases, whatever their number.
	snapshotHeadSize = snapshotHeaderSize + 8 + 1 + maxSnapshotBases*snapshotBaseSize + 4

	changedSubject = "changed_subject"

	valueNull  = 0
	valueInt   = 1
	valueText  = 2
	valueBytes = 3

	// maxSnapshotString bounds a text or value: a schema, the settings of a catalog.
	maxSnapshotString  = 64 << 20
	maxSnapshotColumns = 1000
	// maxSnapshotBases bounds what a restore reads. Each base has at most half the subjects of the one
	// before it.
	maxSnapshotBases = 32
)

// SnapshotInfo says which snapshot of the metadata it is.
type SnapshotInfo struct {
	Cluster    string
	Generation int64     // of the database
	Number     int64     // dense in a generation, from 1
	Schema     int       // number of the newest migration
	Change     int64     // last number of the change log
	Taken      time.Time // by the clock of the node that took it

	fingerprint uint64
	subjects    int64          // of how many it has rows
	bases       []snapshotBase // oldest first; none if it is whole
}

// A snapshotBase is a snapshot that others are differences to.
type snapshotBase struct {
	number, change, subjects int64
}

var errCorruptSnapshot = errors.New("corrupt metadata snapshot")

func appendSnapshotHeader(dst []byte, h SnapshotInfo) []byte {
	begin := len(dst)
	dst = append(dst, snapshotMagic...)
	dst = append(dst, snapshotVersion)
	dst = append(dst, h.Cluster...)
	for _, v := range []int64{h.Generation, h.Number, int64(h.Schema), h.Change, h.Taken.UnixMilli(), int64(h.fingerprint)} {
		dst = binary.BigEndian.AppendUint64(dst, uint64(v))
	}
	dst = append(dst[:begin], sealed(dst[begin:])...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.subjects))
	dst = append(dst, byte(len(h.bases)))
	for _, b := range h.bases {
		for _, v := range []int64{b.number, b.change, b.subjects} {
			dst = binary.BigEndian.AppendUint64(dst, uint64(v))
		}
	}
	return append(dst[:begin], sealed(dst[begin:])...)
}

// parseSnapshotHeader reads the start of a snapshot, its header and bases.
func parseSnapshotHeader(src []byte) (h SnapshotInfo, tail []byte, err error) {
	if len(src) < len(snapshotMagic)+1 || string(src[:len(snapshotMagic)]) != snapshotMagic {
		return h, nil, fmt.Errorf("%w: no magic", errCorruptSnapshot)
	}
	if len(src) < snapshotHeaderSize {
		return h, nil, fmt.Errorf("%w: header of %d bytes", errCorruptSnapshot, len(src))
	}
	head, ok := unsealed(src[:snapshotHeaderSize])
	if !ok {
		return h, nil, fmt.Errorf("%w: checksum of the header", errCorruptSnapshot)
	}
	version := src[len(snapshotMagic)]
	if version < 1 || version > snapshotVersion {
		return h, nil, fmt.Errorf("metadata snapshot of version %d, this program reads versions up to %d", version, snapshotVersion)
	}
	rest := head[len(snapshotMagic)+1:]
	h.Cluster, rest = string(rest[:clusterIDSize]), rest[clusterIDSize:]
	var v [6]int64
	for i := range v {
		v[i] = int64(binary.BigEndian.Uint64(rest[8*i:]))
	}
	h.Generation, h.Number, h.Schema, h.Change, h.Taken, h.fingerprint = v[0], v[1], int(v[2]), v[3], time.UnixMilli(v[4]), uint64(v[5])
	if version == 1 {
		return h, src[snapshotHeaderSize:], nil
	}
	tail, err = h.parseBases(src)
	return h, tail, err
}

// parseBases reads what is between header and tables.
func (h *SnapshotInfo) parseBases(src []byte) (tail []byte, err error) {
	const first = snapshotHeaderSize + 8 + 1
	if len(src) < first {
		return nil, fmt.Errorf("%w: it ends before its bases", errCorruptSnapshot)
	}
	n := int(src[first-1])
	end := first + n*snapshotBaseSize + 4
	if n > maxSnapshotBases || len(src) < end {
		return nil, fmt.Errorf("%w: %d bases in %d bytes", errCorruptSnapshot, n, len(src))
	}
	if _, ok := unsealed(src[:end]); !ok {
		return nil, fmt.Errorf("%w: checksum of the bases", errCorruptSnapshot)
	}
	at := src[snapshotHeaderSize:]
	next := func() int64 {
		v := int64(binary.BigEndian.Uint64(at))
		at = at[8:]
		return v
	}
	h.subjects = next()
	at = at[1:]
	for range n {
		h.bases = append(h.bases, snapshotBase{next(), next(), next()})
	}
	return src[end:], nil
}

// A snapshotWriter builds a snapshot row by row; only the compressed bytes are kept.
type snapshotWriter struct {
	out bytes.Buffer
	z   *zstd.Encoder
	buf []byte
	err error
}

// snapshotWindow bounds what the encoder remembers, in bytes. A snapshot comes with each commit of a
// table: the 16 MiB that zstd takes otherwise were most of a commit's garbage.
const snapshotWindow = 1 << 20

func newSnapshotWriter(h SnapshotInfo) *snapshotWriter {
	w := &snapshotWriter{}
	w.out.Write(appendSnapshotHeader(nil, h))
	w.z, w.err = zstd.NewWriter(&w.out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(snapshotWindow))
	return w
}

func (w *snapshotWriter) flush() {
	if w.err == nil {
		_, w.err = w.z.Write(w.buf)
	}
	w.buf = w.buf[:0]
}

func (w *snapshotWriter) table(name string, columns []string) {
	w.buf = appendString(w.buf, name)
	w.buf = binary.AppendUvarint(w.buf, uint64(len(columns)))
	for _, c := range columns {
		w.buf = appendString(w.buf, c)
	}
	w.flush()
}

func (w *snapshotWriter) row(values []any) error {
	w.buf = append(w.buf, 1)
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			w.buf = append(w.buf, valueNull)
		case int64:
			w.buf = binary.AppendVarint(append(w.buf, valueInt), v)
		case string:
			w.buf = appendString(append(w.buf, valueText), v)
		case []byte:
			w.buf = appendString(append(w.buf, valueBytes), v)
		default:
			return fmt.Errorf("a value of type %T", v)
		}
	}
	w.flush()
	return w.err
}

// end ends a table, and the tables after the last.
func (w *snapshotWriter) end() {
	w.buf = append(w.buf, 0)
	w.flush()
}

// finish returns the object.
func (w *snapshotWriter) finish() ([]byte, error) {
	w.end()
	if err := errors.Join(w.err, w.z.Close()); err != nil {
		return nil, err
	}
	return sealed(w.out.Bytes()), nil
}

func appendString[T string | []byte](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// A snapshotVisitor takes the tables of a snapshot; row is called with values that it may keep.
type snapshotVisitor struct {
	table func(name string, columns []string) error
	row   func(values []any) error
}

// parseSnapshot checks a whole snapshot and visits its tables.
func parseSnapshot(src []byte, visit snapshotVisitor) (SnapshotInfo, error) {
	h, tail, err := parseSnapshotHeader(src)
	if err != nil {
		return h, err
	}
	if _, ok := unsealed(src); len(tail) < 4 || !ok {
		return h, fmt.Errorf("%w: checksum", errCorruptSnapshot)
	}
	return h, parseTables(tail[:len(tail)-4], visit)
}

func parseTables(compressed []byte, visit snapshotVisitor) error {
	z, err := zstd.NewReader(bytes.NewReader(compressed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(64<<20))
	if err != nil {
		return fmt.Errorf("%w: %w", errCorruptSnapshot, err)
	}
	defer z.Close()
	r := &snapshotReader{in: bufio.NewReaderSize(z, 64<<10)}
	for {
		name := r.string()
		if r.err == nil && name == "" {
			break
		}
		columns := make([]string, 0, 16)
		for n := r.count(maxSnapshotColumns); n > 0 && r.err == nil; n-- {
			columns = append(columns, r.string())
		}
		if r.err != nil {
			return r.err
		}
		if err := visit.table(name, columns); err != nil {
			return err
		}
		for r.flag() {
			values := make([]any, len(columns))
			for i := range values {
				values[i] = r.value()
			}
			if r.err != nil {
				return r.err
			}
			if err := visit.row(values); err != nil {
				return err
			}
		}
		if r.err != nil {
			return r.err
		}
	}
	if _, err := r.in.Read(r.one[:]); err != io.EOF {
		return fmt.Errorf("%w: more than the tables (%v)", errCorruptSnapshot, err)
	}
	return nil
}

// snapshotReader reads the decompressed tables until the first error.
type snapshotReader struct {
	in  io.Reader
	one [1]byte
	err error
}

func (r *snapshotReader) fail(err error) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %w", errCorruptSnapshot, err)
	}
}

// ReadByte makes it a reader of varints.
func (r *snapshotReader) ReadByte() (byte, error) {
	if r.err != nil {
		return 0, r.err
	}
	if _, err := io.ReadFull(r.in, r.one[:]); err != nil {
		r.fail(err)
		return 0, r.err
	}
	return r.one[0], nil
}

func (r *snapshotReader) count(most int) int {
	v, err := binary.ReadUvarint(r)
	if err != nil || v > uint64(most) {
		r.fail(fmt.Errorf("length %d: %w", v, errors.Join(err)))
		return 0
	}
	return int(v)
}

func (r *snapshotReader) bytes() []byte {
	n := r.count(maxSnapshotString)
	if r.err != nil {
		return nil
	}
	// What is not there is not allocated.
	var b bytes.Buffer
	if _, err := io.CopyN(&b, r.in, int64(n)); err != nil {
		r.fail(err)
	}
	return b.Bytes()
}

func (r *snapshotReader) string() string { return string(r.bytes()) }

func (r *snapshotReader) flag() bool {
	b, err := r.ReadByte()
	if err == nil && b > 1 {
		r.fail(fmt.Errorf("row mark %d", b))
	}
	return b == 1 && r.err == nil
}

func (r *snapshotReader) value() any {
	tag, err := r.ReadByte()
	if err != nil {
		return nil
	}
	switch tag {
	case valueNull:
		return nil
	case valueInt:
		v, err := binary.ReadVarint(r)
		if err != nil {
			r.fail(err)
		}
		return v
	case valueText:
		return r.string()
	case valueBytes:
		if b := r.bytes(); b != nil {
			return b
		}
		return []byte{}
	}
	r.fail(fmt.Errorf("value of kind %d", tag))
	return nil
}

// secretColumns are not shown: with them one could log in, or pretend to be a server.
var secretColumns = []string{"salt", "stored_key", "server_key", "secret"}

// DumpSnapshot writes the annotated text of a metadata snapshot.
func DumpSnapshot(w io.Writer, data []byte) error {
	h, tail, err := parseSnapshotHeader(data)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "%-46x magic %q\n%-46x version %d\n%-46x cluster %s\n", data[:4], data[:4], data[4:5], data[4], data[5:27], h.Cluster); err != nil {
		return err
	}
	at := data[27:]
	for _, f := range []string{
		fmt.Sprintf("generation %d", h.Generation), fmt.Sprintf("number %d", h.Number), fmt.Sprintf("schema %d", h.Schema),
		fmt.Sprintf("change %d", h.Change), "taken " + h.Taken.UTC().Format("2006-01-02T15:04:05.000Z"), "fingerprint",
	} {
		if _, err := fmt.Fprintf(w, "%-46x %s\n", at[:8], f); err != nil {
			return err
		}
		at = at[8:]
	}
	if _, err := fmt.Fprintf(w, "%-46x crc32c\n", at[:4]); err != nil {
		return err
	}
	if data[4] > 1 {
		if _, err := fmt.Fprintf(w, "%-46x %d subjects, %d bases\n", at[4:13], h.subjects, len(h.bases)); err != nil {
			return err
		}
		at = at[13:]
		for _, b := range h.bases {
			if _, err := fmt.Fprintf(w, "%-46x base %d: change %d, %d subjects\n", at[:snapshotBaseSize], b.number, b.change, b.subjects); err != nil {
				return err
			}
			at = at[snapshotBaseSize:]
		}
		if _, err := fmt.Fprintf(w, "%-46x crc32c\n", at[:4]); err != nil {
			return err
		}
	}
	var head []string
	if _, err := parseSnapshot(data, snapshotVisitor{
		table: func(name string, columns []string) error {
			head = columns
			_, err := fmt.Fprintf(w, "table %s %v\n", name, columns)
			return err
		},
		row: func(values []any) error {
			for i, v := range values {
				if i > 0 {
					if _, err := io.WriteString(w, ", "); err != nil {
						return err
					}
				}
				format := "%d"
				switch v.(type) {
				case nil:
					format, v = "%s", "null"
				case string:
					format = "%q"
				case []byte:
					format = "0x%x"
				}
				if slices.Contains(secretColumns, head[i]) {
					format, v = "%s", "secret"
				}
				if _, err := fmt.Fprintf(w, format, v); err != nil {
					return err
				}
			}
			_, err := io.WriteString(w, "\n")
			return err
		},
	}); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%-46x crc32c, after %d bytes of tables, compressed\n", data[len(data)-4:], len(tail)-4)
	return err
}
