package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Codec is how the records of a batch are compressed, as numbered in the attributes.
type Codec int8

const (
	CodecNone   Codec = 0
	CodecGzip   Codec = 1
	CodecSnappy Codec = 2
	CodecLZ4    Codec = 3
	CodecZstd   Codec = 4
)

var codecNames = [...]string{"none", "gzip", "snappy", "lz4", "zstd"}

// String is the name that Kafka's compression.type uses, with "none" for no compression.
func (c Codec) String() string {
	if c < 0 || int(c) >= len(codecNames) {
		return fmt.Sprintf("codec(%d)", int8(c))
	}
	return codecNames[c]
}

// ParseCodec is the inverse of String; "uncompressed" means none too.
func ParseCodec(name string) (Codec, error) {
	if name == "uncompressed" {
		return CodecNone, nil
	}
	for i, n := range codecNames {
		if n == name {
			return Codec(i), nil
		}
	}
	return 0, fmt.Errorf("unknown compression %q, want one of %s", name, strings.Join(codecNames[:], ", "))
}

// decompressor owns the state of the codecs, each made at its first use.
type decompressor struct {
	buf    []byte
	src    bytes.Reader
	gzip   *gzip.Reader
	lz4    *lz4.Reader
	zstd   *zstd.Decoder
	zstdAt int // limit that zstd was made for
}

// decompress returns the content of src, at most limit bytes, in a buffer that the next
// call reuses.
func (d *decompressor) decompress(c Codec, src []byte, limit int) ([]byte, error) {
	if cap(d.buf) > keepBuffer {
		d.buf = nil
	}
	dst, err := d.decompressInto(d.buf[:0], c, src, limit)
	if err != nil {
		if errors.Is(err, ErrTooLarge) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	d.buf = dst
	return dst, nil
}

func (d *decompressor) decompressInto(dst []byte, c Codec, src []byte, limit int) ([]byte, error) {
	switch c {
	case CodecGzip:
		d.src.Reset(src)
		if d.gzip == nil {
			d.gzip = new(gzip.Reader)
		}
		if err := d.gzip.Reset(&d.src); err != nil {
			return nil, err
		}
		return readAll(dst, d.gzip, limit)
	case CodecSnappy:
		return decodeSnappy(dst, src, limit)
	case CodecLZ4:
		d.src.Reset(src)
		if d.lz4 == nil {
			d.lz4 = lz4.NewReader(nil)
		}
		d.lz4.Reset(&d.src)
		return readAll(dst, d.lz4, limit)
	case CodecZstd:
		return d.decodeZstd(dst, src, limit)
	default:
		return nil, fmt.Errorf("unknown compression codec %d", c)
	}
}

func (d *decompressor) decodeZstd(dst, src []byte, limit int) ([]byte, error) {
	if d.zstd == nil || d.zstdAt != limit {
		if d.zstd != nil {
			d.zstd.Close()
		}
		var err error
		d.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(uint64(limit)))
		if err != nil {
			return nil, err
		}
		d.zstdAt = limit
	}
	dst, err := d.zstd.DecodeAll(src, dst)
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return nil, fmt.Errorf("%w: more than %d bytes decompressed", ErrTooLarge, limit)
	}
	return dst, err
}

// readAll appends the content of r to dst, growing by doubling up to limit.
func readAll(dst []byte, r io.Reader, limit int) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			if len(dst) > limit {
				return nil, fmt.Errorf("%w: more than %d bytes decompressed", ErrTooLarge, limit)
			}
			grown := make([]byte, len(dst), min(max(2*cap(dst), 4<<10), limit+1))
			copy(grown, dst)
			dst = grown
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if len(dst) > limit {
			return nil, fmt.Errorf("%w: more than %d bytes decompressed", ErrTooLarge, limit)
		}
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// xerial is the start of the framing that the Java library snappy-java puts around snappy
// blocks: this magic, two version numbers of 4 bytes, then blocks with a 4-byte length each.
// Java clients write it, others write one bare block; readers take both.
var xerial = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

const xerialHeader = 16

func decodeSnappy(dst, src []byte, limit int) ([]byte, error) {
	if !bytes.HasPrefix(src, xerial) {
		return appendSnappyBlock(dst, src, limit)
	}
	if len(src) < xerialHeader {
		return nil, errors.New("snappy framing cut off")
	}
	for src = src[xerialHeader:]; len(src) > 0; {
		if len(src) < 4 {
			return nil, errors.New("snappy block length cut off")
		}
		n := int64(binary.BigEndian.Uint32(src))
		src = src[4:]
		if n > int64(len(src)) {
			return nil, fmt.Errorf("snappy block of %d bytes, %d are left", n, len(src))
		}
		var err error
		if dst, err = appendSnappyBlock(dst, src[:n], limit); err != nil {
			return nil, err
		}
		src = src[n:]
	}
	return dst, nil
}

func appendSnappyBlock(dst, block []byte, limit int) ([]byte, error) {
	n, err := snappy.DecodedLen(block)
	if err != nil {
		return nil, err
	}
	if n > limit-len(dst) {
		return nil, fmt.Errorf("%w: more than %d bytes decompressed", ErrTooLarge, limit)
	}
	// A snappy element of 3 bytes copies at most 64: what claims more is not worth a buffer.
	if n > 32*len(block)+64 {
		return nil, errors.New("snappy block claims more than it can hold")
	}
	if cap(dst)-len(dst) < n {
		grown := make([]byte, len(dst), max(len(dst)+n, min(2*cap(dst), limit)))
		copy(grown, dst)
		dst = grown
	}
	out, err := snappy.Decode(dst[len(dst):len(dst)+n], block)
	if err != nil {
		return nil, err
	}
	return dst[:len(dst)+len(out)], nil
}

// The encoders are pooled: each holds tables of up to some MiB.
var (
	gzipPool = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}
	lz4Pool  = sync.Pool{New: func() any { return lz4.NewWriter(nil) }}
	zstdPool = sync.Pool{New: func() any {
		w, _ := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
		return w
	}}
)

// appendCompressed appends src to dst, compressed by c at its default level.
func appendCompressed(dst []byte, c Codec, src []byte) ([]byte, error) {
	switch c {
	case CodecNone:
		return append(dst, src...), nil
	case CodecGzip:
		w := gzipPool.Get().(*gzip.Writer)
		defer gzipPool.Put(w)
		return appendWritten(dst, src, w)
	case CodecSnappy:
		// One bare block, the form that every client reads.
		n := snappy.MaxEncodedLen(len(src))
		if n < 0 {
			return nil, fmt.Errorf("%w: %d bytes for one snappy block", ErrTooLarge, len(src))
		}
		if cap(dst)-len(dst) < n {
			grown := make([]byte, len(dst), len(dst)+n)
			copy(grown, dst)
			dst = grown
		}
		out := snappy.Encode(dst[len(dst):len(dst)+n], src)
		return dst[:len(dst)+len(out)], nil
	case CodecLZ4:
		w := lz4Pool.Get().(*lz4.Writer)
		defer lz4Pool.Put(w)
		return appendWritten(dst, src, w)
	case CodecZstd:
		w := zstdPool.Get().(*zstd.Encoder)
		defer zstdPool.Put(w)
		return w.EncodeAll(src, dst), nil
	default:
		return nil, fmt.Errorf("unknown compression codec %d", c)
	}
}

type resetWriter interface {
	io.WriteCloser
	Reset(io.Writer)
}

func appendWritten(dst, src []byte, w resetWriter) ([]byte, error) {
	buf := bytes.NewBuffer(dst)
	w.Reset(buf)
	if _, err := w.Write(src); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
