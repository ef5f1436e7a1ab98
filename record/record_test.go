package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var codecs = []Codec{CodecNone, CodecGzip, CodecSnappy, CodecLZ4, CodecZstd}

// sameBytes compares whole slices, null apart from empty, instead of element by element.
var sameBytes = cmp.Comparer(func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) })

func randomRecords(r *rand.Rand, n int) []Record {
	maybe := func(limit int) []byte {
		switch r.IntN(5) {
		case 0:
			return nil
		case 1:
			return []byte{}
		}
		b := bytes.Repeat([]byte{byte(r.IntN(256))}, 1+r.IntN(limit))
		b[0] = byte(r.IntN(256))
		return b
	}
	records := make([]Record, n)
	for i := range records {
		records[i] = Record{Offset: 0, Timestamp: 1_700_000_000_000 + r.Int64N(1<<34) - 1<<33, Key: maybe(100), Value: maybe(20_000)}
		for range r.IntN(4) {
			records[i].Headers = append(records[i].Headers, Header{Key: strings.Repeat("h", r.IntN(3)), Value: maybe(10)})
		}
	}
	return records
}

// readBatch returns all records, copied out of the reader's buffers.
func readBatch(b Batch) ([]Record, error) {
	var r Reader
	if err := r.Reset(b); err != nil {
		return nil, err
	}
	var records []Record
	for {
		var rec Record
		ok, err := r.Next(&rec)
		if err != nil || !ok {
			return records, err
		}
		rec.Key, rec.Value = bytes.Clone(rec.Key), bytes.Clone(rec.Value)
		headers := rec.Headers
		rec.Headers = nil
		for _, h := range headers {
			rec.Headers = append(rec.Headers, Header{Key: strings.Clone(h.Key), Value: bytes.Clone(h.Value)})
		}
		records = append(records, rec)
	}
}

func clientRecords(t *testing.T, b Batch) []Record {
	t.Helper()
	part, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{KeepControlRecords: true, Offset: math.MinInt64},
		&kmsg.FetchResponseTopicPartition{HighWatermark: math.MaxInt64, RecordBatches: b}, kgo.DefaultDecompressor(), nil)
	if part.Err != nil {
		t.Fatalf("the client refuses the batch: %v", part.Err)
	}
	var records []Record
	for _, r := range part.Records {
		rec := Record{Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			rec.Headers = append(rec.Headers, Header{Key: h.Key, Value: h.Value})
		}
		records = append(records, rec)
	}
	return records
}

// What is built is read back the same by this package and by franz-go, for every codec.
func TestBuiltBatchIsReadBackByClients(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 0))
		want := randomRecords(r, 1+r.IntN(50))
		for _, c := range codecs {
			base := r.Int64N(1 << 40)
			data, err := AppendBatch([]byte("before"), BatchOptions{BaseOffset: base, LeaderEpoch: 3, Codec: c,
				Idempotent: true, ProducerID: 7, ProducerEpoch: 2, BaseSequence: math.MaxInt32}, want)
			if err != nil {
				t.Fatal(err)
			}
			b, rest, err := Split(data[len("before"):])
			if err != nil || len(rest) != 0 {
				t.Fatalf("seed %d %v: Split: %v, %d bytes left", seed, c, err, len(rest))
			}
			if err := b.Check(); err != nil {
				t.Fatalf("seed %d %v: %v", seed, c, err)
			}
			for i := range want {
				want[i].Offset = base + int64(i)
			}
			got, err := readBatch(b)
			if err != nil {
				t.Fatalf("seed %d %v: %v", seed, c, err)
			}
			if d := cmp.Diff(want, got, sameBytes); d != "" {
				t.Fatalf("seed %d %v: want, got: %s", seed, c, d)
			}
			if d := cmp.Diff(want, clientRecords(t, b), sameBytes); d != "" {
				t.Fatalf("seed %d %v: want, client: %s", seed, c, d)
			}
			if b.ProducerID() != 7 || b.ProducerEpoch() != 2 || b.BaseSequence() != math.MaxInt32 || b.LeaderEpoch() != 3 ||
				b.Codec() != c || b.NumRecords() != len(want) || int(b.Count()) != len(want) || b.NextOffset() != base+int64(len(want)) {
				t.Fatalf("seed %d %v: header reads back wrong: % x", seed, c, b[:HeaderSize])
			}
			if wraps := int32((math.MaxInt32 + int64(len(want)) - 1) & math.MaxInt32); b.LastSequence() != wraps {
				t.Fatalf("seed %d: last sequence %d, want %d", seed, b.LastSequence(), wraps)
			}
		}
	}
}

// Batches that a client compressed are read, xerial snappy of Java included.
func TestReaderTakesClientCompression(t *testing.T) {
	want := randomRecords(rand.New(rand.NewPCG(1, 1)), 200)
	plain, err := AppendBatch(nil, BatchOptions{}, want)
	if err != nil {
		t.Fatal(err)
	}
	for i := range want {
		want[i].Offset = int64(i)
	}
	body := plain[HeaderSize:]
	for codec, kc := range map[Codec]kgo.CompressionCodec{CodecGzip: kgo.GzipCompression(), CodecSnappy: kgo.SnappyCompression(),
		CodecLZ4: kgo.Lz4Compression(), CodecZstd: kgo.ZstdCompression()} {
		compressor, err := kgo.DefaultCompressor(kc)
		if err != nil {
			t.Fatal(err)
		}
		compressed, _ := compressor.Compress(new(bytes.Buffer), body)
		assertReads(t, codec.String(), withBody(t, plain, codec, compressed), want)
	}
	framed := append([]byte{}, xerial...)
	framed = append(framed, 0, 0, 0, 1, 0, 0, 0, 1)
	for rest := body; len(rest) > 0; {
		n := min(len(rest), 32<<10)
		block, err := appendCompressed(nil, CodecSnappy, rest[:n])
		if err != nil {
			t.Fatal(err)
		}
		framed = binary.BigEndian.AppendUint32(framed, uint32(len(block)))
		framed = append(framed, block...)
		rest = rest[n:]
	}
	assertReads(t, "xerial", withBody(t, plain, CodecSnappy, framed), want)
	for cut := 1; cut < 40; cut++ {
		if _, err := readBatch(withBody(t, plain, CodecSnappy, framed[:len(framed)-cut])); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("xerial cut by %d: %v, want ErrCorrupt", cut, err)
		}
	}
}

// withBody replaces the records of b by a body that is compressed already.
func withBody(t testing.TB, b Batch, c Codec, body []byte) Batch {
	t.Helper()
	out := append([]byte{}, b[:HeaderSize]...)
	binary.BigEndian.PutUint16(out[attributesAt:], uint16(b.Attributes()&^codecMask|int16(c)))
	out, err := finish(append(out, body...), 0)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func assertReads(t *testing.T, name string, b Batch, want []Record) {
	t.Helper()
	if err := b.Check(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	got, err := readBatch(b)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if d := cmp.Diff(want, got, sameBytes); d != "" {
		t.Fatalf("%s: want, got: %s", name, d)
	}
}

// A change of codec keeps the records and the header fields of the producer.
func TestRecompressKeepsRecords(t *testing.T) {
	want := randomRecords(rand.New(rand.NewPCG(2, 2)), 20)
	for _, from := range codecs {
		data, err := AppendBatch(nil, BatchOptions{Codec: from, Idempotent: true, ProducerID: 5, BaseSequence: 9}, want)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			want[i].Offset = int64(i)
		}
		for _, to := range codecs {
			var r Reader
			if err := r.Reset(data); err != nil {
				t.Fatal(err)
			}
			out, err := AppendRecompressed(nil, data, r.Body(), to)
			if err != nil {
				t.Fatal(err)
			}
			b := Batch(out)
			if b.Codec() != to || b.ProducerID() != 5 || b.BaseSequence() != 9 {
				t.Fatalf("%v to %v: header % x", from, to, b[:HeaderSize])
			}
			assertReads(t, fmt.Sprintf("%v to %v", from, to), b, want)
		}
	}
}

// Rewriting offset and epoch keeps the checksum good; a new append time renews it and
// holds for all records.
func TestRewriteInPlace(t *testing.T) {
	data, err := AppendBatch(nil, BatchOptions{}, []Record{{Timestamp: 5, Value: []byte("a")}, {Timestamp: 9, Value: []byte("b")}})
	if err != nil {
		t.Fatal(err)
	}
	b := Batch(data)
	b.SetBaseOffset(1000)
	b.SetLeaderEpoch(12)
	if err := b.Check(); err != nil {
		t.Fatal(err)
	}
	if b.MaxTimestamp() != 9 || b.BaseTimestamp() != 5 {
		t.Fatalf("timestamps %d to %d, want 5 to 9", b.BaseTimestamp(), b.MaxTimestamp())
	}
	b.SetLogAppendTime(77)
	if err := b.Check(); err != nil {
		t.Fatal(err)
	}
	for _, rec := range clientRecords(t, b) {
		if rec.Timestamp != 77 {
			t.Fatalf("timestamp %d, want the append time 77", rec.Timestamp)
		}
	}
	assertReads(t, "append time", b, []Record{{Offset: 1000, Timestamp: 77, Value: []byte("a")}, {Offset: 1001, Timestamp: 77, Value: []byte("b")}})
	b.SetCreateTime()
	if err := b.Check(); err != nil || b.LogAppendTime() {
		t.Fatalf("create time: %v, log append time %v", err, b.LogAppendTime())
	}
}

// No flip of a bit behind the checksum goes unseen.
func TestCheckSeesEveryBitFlip(t *testing.T) {
	data, err := AppendBatch(nil, BatchOptions{}, []Record{{Key: []byte("k"), Value: []byte("value")}})
	if err != nil {
		t.Fatal(err)
	}
	for bit := lengthAt * 8; bit < len(data)*8; bit++ {
		if at := bit / 8; at >= leaderEpochAt && at < magicAt {
			continue
		}
		flipped := bytes.Clone(data)
		flipped[bit/8] ^= 1 << (bit % 8)
		if err := Batch(flipped).Check(); err == nil {
			t.Fatalf("bit %d flipped and not noticed", bit)
		}
	}
}

// Split cuts batch after batch and says what is wrong with the rest.
func TestSplit(t *testing.T) {
	one, err := AppendBatch(nil, BatchOptions{}, []Record{{Value: []byte("1")}})
	if err != nil {
		t.Fatal(err)
	}
	two := append(bytes.Clone(one), one...)
	first, rest, err := Split(two)
	if err != nil || !bytes.Equal(first, one) || !bytes.Equal(rest, one) {
		t.Fatalf("Split: %v, %d and %d bytes", err, len(first), len(rest))
	}
	if cap(first) != len(first) {
		t.Fatal("an append to the first batch would write into the second")
	}
	for n := range len(one) {
		if _, _, err := Split(one[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d bytes of %d: %v, want ErrCorrupt", n, len(one), err)
		}
	}
	old := bytes.Clone(one)
	old[magicAt] = 1
	if _, _, err := Split(old); !errors.Is(err, ErrMagic) {
		t.Fatalf("magic 1: %v, want ErrMagic", err)
	}
	negative := bytes.Clone(one)
	binary.BigEndian.PutUint32(negative[lengthAt:], 1<<31)
	if _, _, err := Split(negative); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("negative length: %v, want ErrCorrupt", err)
	}
}

// Counts and lengths that lie are refused before anything is allocated for them, although
// the checksum is right.
func TestReaderRefusesLies(t *testing.T) {
	valid, err := AppendBatch(nil, BatchOptions{}, []Record{{Key: []byte("k"), Value: []byte("v"), Headers: []Header{{"h", []byte("x")}}}})
	if err != nil {
		t.Fatal(err)
	}
	body := func(b ...byte) func(Batch) Batch {
		return func(v Batch) Batch { return withBody(t, v, CodecNone, b) }
	}
	overflow := bytes.Repeat([]byte{0xff}, 10)
	for name, lie := range map[string]func(Batch) Batch{
		"count above the offsets": func(b Batch) Batch { binary.BigEndian.PutUint32(b[countAt:], 2); return b },
		"count of 2³¹−1": func(b Batch) Batch {
			binary.BigEndian.PutUint32(b[countAt:], math.MaxInt32)
			binary.BigEndian.PutUint32(b[lastOffsetDeltaAt:], math.MaxInt32-1)
			return b
		},
		"negative count":        func(b Batch) Batch { binary.BigEndian.PutUint32(b[countAt:], 1<<31); return b },
		"delta of 2³¹−1":        func(b Batch) Batch { binary.BigEndian.PutUint32(b[lastOffsetDeltaAt:], math.MaxInt32); return b },
		"negative delta":        func(b Batch) Batch { binary.BigEndian.PutUint32(b[lastOffsetDeltaAt:], 1<<31); return b },
		"count of 0":            func(b Batch) Batch { binary.BigEndian.PutUint32(b[countAt:], 0); return b },
		"codec 7":               func(b Batch) Batch { binary.BigEndian.PutUint16(b[attributesAt:], 7); return b },
		"no body":               body(),
		"record length −1":      body(1, 0, 0, 0, 1, 1, 0, 0),
		"record longer than it": body(200, 1, 0, 0, 0, 1, 1, 0),
		"varint of 11 bytes":    body(append(bytes.Clone(overflow), 1, 0, 0, 0)...),
		"varint cut off":        body(overflow[:7]...),
		"key length −2":         body(12, 0, 0, 0, 3, 1, 0),
		"key beyond the record": body(12, 0, 0, 0, 60, 1, 0),
		"value beyond":          body(12, 0, 0, 0, 1, 60, 0),
		"header count 2³⁰":      body(20, 0, 0, 0, 1, 1, 0x80, 0x80, 0x80, 0x80, 0x08),
		"header count −1":       body(12, 0, 0, 0, 1, 1, 1),
		"null header key":       body(16, 0, 0, 0, 1, 1, 2, 1, 1),
		"bytes after headers":   body(16, 0, 0, 0, 1, 1, 0, 0, 0),
		"bytes after records":   body(12, 0, 0, 0, 1, 1, 0, 9),
		"offset beyond the end": body(12, 0, 0, 2, 1, 1, 0),
		"negative offset":       body(12, 0, 0, 1, 1, 1, 0),
	} {
		b := Batch(lie(bytes.Clone(valid)))
		b.setCRC()
		err := b.Check()
		if err == nil {
			_, err = readBatch(b)
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
}

// A bomb in any codec costs no more than the limit.
func TestReaderLimitsDecompression(t *testing.T) {
	const limit = 1 << 20
	plain, err := AppendBatch(nil, BatchOptions{}, []Record{{Value: []byte("v")}})
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 64<<20)
	for _, c := range codecs[1:] {
		body, err := appendCompressed(nil, c, zeros)
		if err != nil {
			t.Fatal(err)
		}
		r := Reader{Limit: limit}
		b := withBody(t, plain, c, body)
		if err := r.Reset(b); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%v: %v, want ErrTooLarge", c, err)
		}
		if cap(r.dec.buf) > 2*limit {
			t.Errorf("%v: the reader holds %d bytes", c, cap(r.dec.buf))
		}
		// Just at the limit is fine, and one byte more is not.
		for size, want := range map[int]error{limit: ErrCorrupt, limit + 1: ErrTooLarge} {
			body, err := appendCompressed(nil, c, zeros[:size])
			if err != nil {
				t.Fatal(err)
			}
			err = r.Reset(withBody(t, plain, c, body))
			if err == nil {
				_, err = r.Next(new(Record))
			}
			if !errors.Is(err, want) {
				t.Errorf("%v, %d bytes: %v, want %v", c, size, err, want)
			}
		}
	}
}

// Reading allocates nothing per record once the buffers are there.
func TestReaderDoesNotAllocate(t *testing.T) {
	records := make([]Record, 1000)
	for i := range records {
		records[i] = Record{Key: []byte("key"), Value: []byte("value"), Headers: []Header{{"h", []byte("v")}}}
	}
	for _, c := range codecs {
		data, err := AppendBatch(nil, BatchOptions{Codec: c}, records)
		if err != nil {
			t.Fatal(err)
		}
		var r Reader
		var rec Record
		allocs := testing.AllocsPerRun(20, func() {
			if err := r.Reset(data); err != nil {
				t.Fatal(err)
			}
			for {
				ok, err := r.Next(&rec)
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
			}
		})
		if allocs > 10 {
			t.Errorf("%v: %.0f allocations for 1000 records", c, allocs)
		}
	}
}

func TestParseCodec(t *testing.T) {
	for _, c := range codecs {
		if got, err := ParseCodec(c.String()); err != nil || got != c {
			t.Errorf("ParseCodec(%q) = %v, %v", c, got, err)
		}
	}
	if _, err := ParseCodec("brotli"); err == nil {
		t.Error("brotli is taken for a codec")
	}
}

// Whatever the bytes, nothing panics, and a batch that is read whole is built the same again.
func FuzzReader(f *testing.F) {
	for _, c := range codecs {
		data, err := AppendBatch(nil, BatchOptions{Codec: c}, randomRecords(rand.New(rand.NewPCG(3, uint64(c))), 5))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b, _, err := Split(data)
		if err != nil {
			return
		}
		if len(b) >= HeaderSize {
			b = bytes.Clone(b)
			b.setCRC()
		}
		if b.Check() != nil {
			return
		}
		r := Reader{Limit: 1 << 20}
		if r.Reset(b) != nil {
			return
		}
		var records []Record
		for {
			var rec Record
			ok, err := r.Next(&rec)
			if err != nil {
				return
			}
			if !ok {
				break
			}
			records = append(records, rec)
		}
		if len(records) == 0 || len(records) != int(b.Count()) || b.LogAppendTime() || records[0].Timestamp != b.BaseTimestamp() {
			return
		}
		again, err := AppendBatch(nil, BatchOptions{}, records)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readBatch(again)
		if err != nil {
			t.Fatal(err)
		}
		for i := range records {
			records[i].Offset = int64(i)
		}
		if d := cmp.Diff(records, got, sameBytes); d != "" {
			t.Fatal(d)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	value := bytes.Repeat([]byte("clickstream "), 14)
	records := make([]Record, 1000)
	for i := range records {
		records[i] = Record{Timestamp: int64(i), Key: []byte("user-0001"), Value: value}
	}
	for _, c := range codecs {
		b.Run(c.String(), func(b *testing.B) {
			data, err := AppendBatch(nil, BatchOptions{Codec: c}, records)
			if err != nil {
				b.Fatal(err)
			}
			var r Reader
			var rec Record
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if err := r.Reset(data); err != nil {
					b.Fatal(err)
				}
				for {
					ok, err := r.Next(&rec)
					if err != nil {
						b.Fatal(err)
					}
					if !ok {
						break
					}
					n++
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds()/1e6, "Mrecords/s")
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	records := make([]Record, 1000)
	for i := range records {
		records[i].Value = make([]byte, 170)
	}
	data, err := AppendBatch(nil, BatchOptions{}, records)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if err := Batch(data).Check(); err != nil {
			b.Fatal(err)
		}
	}
}
