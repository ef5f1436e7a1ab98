package partition

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/crc32c"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/record"
)

// What Kafka refuses is refused with an error that the broker can tell apart, nothing of it
// is in the log, and the next good batch gets the next offset.
func TestAppendRefuses(t *testing.T) {
	n := newCluster(t).start()
	p := n.create(t, "t", 1, map[string]string{"max.message.bytes": "2000", "message.timestamp.before.max.ms": "1000000"})
	keyed := n.create(t, "keyed", 1, map[string]string{"cleanup.policy": "compact"})
	now := time.Now().UnixMilli()
	good := produced{values: []string{"good"}}.bytes(t)
	edit := func(at int, b ...byte) []byte {
		out := bytes.Clone(good)
		copy(out[at:], b)
		binary.BigEndian.PutUint32(out[17:], crc32c.Checksum(out[21:]))
		return out
	}
	for _, test := range []struct {
		name string
		p    *Partition
		data []byte
		want error
	}{
		{"no bytes", p, nil, ErrCorrupt},
		{"cut off", p, good[:len(good)-1], ErrCorrupt},
		{"checksum", p, append(bytes.Clone(good[:len(good)-1]), 'x'), ErrCorrupt},
		{"message set", p, edit(16, 1), ErrInvalidRecord},
		{"two batches", p, append(bytes.Clone(good), good...), ErrInvalidRecord},
		{"bytes behind", p, append(bytes.Clone(good), 1, 2, 3), ErrInvalidRecord},
		{"too large", p, produced{values: []string{string(make([]byte, 2000))}}.bytes(t), ErrTooLarge},
		{"records less than offsets", p, edit(23, 0, 0, 0, 9), ErrInvalidRecord},
		{"delete horizon", p, edit(22, 0x40), ErrInvalidRecord},
		{"append time", p, produced{values: []string{"v"}, attr: func(o *record.BatchOptions) { o.LogAppendTime = true }}.bytes(t), ErrInvalidTimestamp},
		{"control", p, produced{values: []string{"v"}, attr: func(o *record.BatchOptions) { o.Control = true }}.bytes(t), ErrInvalidRecord},
		{"transaction of nobody", p, produced{values: []string{"v"}, attr: transactional}.bytes(t), ErrInvalidRecord},
		{"transaction not verified", p, produced{producer: 1, values: []string{"v"}, attr: transactional}.bytes(t), ErrInvalidTxnState},
		{"producer without sequence", p, produced{producer: 1, sequence: -1, values: []string{"v"}}.bytes(t), ErrInvalidRecord},
		{"producer without epoch", p, produced{producer: 1, epoch: -1, values: []string{"v"}}.bytes(t), ErrInvalidRecord},
		{"pretended dead letter", p, produced{producer: -1, sequence: deadLetterSequence, values: []string{"v"}}.bytes(t), ErrInvalidRecord},
		{"future", p, produced{records: []record.Record{{Timestamp: now}, {Timestamp: now + 3_700_000}}}.bytes(t), ErrInvalidTimestamp},
		{"past", p, produced{records: []record.Record{{Timestamp: now - 1_100_000}}}.bytes(t), ErrInvalidTimestamp},
		{"past all bounds", keyed, produced{records: []record.Record{{Timestamp: math.MinInt64, Key: []byte("k")}}}.bytes(t), ErrInvalidTimestamp},
		{"no key", keyed, produced{records: []record.Record{{Timestamp: now, Key: []byte("k")}, {Timestamp: now, Value: []byte("v")}}}.bytes(t), ErrInvalidRecord},
	} {
		err := test.p.Append(context.Background(), test.data, func(AppendResult, error) { t.Errorf("%s: done was called", test.name) })
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
	if base := mustAppend(t, p, produced{values: []string{"good"}}); base != 0 {
		t.Fatalf("base %d after refusals, want 0", base)
	}
	mustAppend(t, p, produced{records: []record.Record{{Timestamp: -1, Value: []byte("without time")}}})
	wantValues(t, p, 0, "good", "without time")
}

// A batch that inflates beyond the limit is refused, however small it comes.
func TestAppendRefusesBombs(t *testing.T) {
	c := newCluster(t)
	c.cfg.MaxDecompressedBytes = 1 << 20
	p := c.start().create(t, "t", 1, nil)
	for _, codec := range []record.Codec{record.CodecGzip, record.CodecSnappy, record.CodecLZ4, record.CodecZstd} {
		wantRefused(t, p, produced{codec: codec, records: []record.Record{{Timestamp: 1, Value: make([]byte, 2<<20)}}}, ErrTooLarge)
	}
}

// max.decompressed.message.bytes bounds each record of a compressed batch. What is stored is read whatever the limits
// have become, by time too.
func TestMaxDecompressedMessageBytes(t *testing.T) {
	c := newCluster(t)
	n := c.start()
	p := n.create(t, "t", 1, map[string]string{"max.decompressed.message.bytes": "1000"})
	at := func(size int) []record.Record {
		return []record.Record{{Timestamp: 1, Value: []byte("small")}, {Timestamp: 2, Value: make([]byte, size)}}
	}
	for _, codec := range []record.Codec{record.CodecGzip, record.CodecSnappy, record.CodecLZ4, record.CodecZstd} {
		wantRefused(t, p, produced{codec: codec, records: at(1000)}, ErrInvalidRecord)
		mustAppend(t, p, produced{codec: codec, records: at(900)})
	}
	mustAppend(t, p, produced{records: at(5000)}) // as it came: max.message.bytes has bounded it
	mustAppend(t, p, produced{codec: record.CodecZstd, records: []record.Record{{Timestamp: 50, Value: bytes.Repeat([]byte("v"), 900)}}})
	if _, err := n.AlterConfig(t.Context(), "t", map[string]string{"max.decompressed.message.bytes": "1"}, nil); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, p, produced{codec: record.CodecZstd, values: []string{"v"}}, ErrInvalidRecord)
	if offset, at, err := p.OffsetForTimestamp(t.Context(), 50); err != nil || offset != 10 || at != 50 {
		t.Errorf("the record of time 50: offset %d, time %d, %v, want 10", offset, at, err)
	}
}

// With LogAppendTime the broker's time holds; a wrong largest time in a header is corrected.
func TestTimestampType(t *testing.T) {
	n := newCluster(t).start()
	p := n.create(t, "t", 1, map[string]string{"message.timestamp.type": "LogAppendTime"})
	before := time.Now().UnixMilli()
	ch, err := send(t, p, produced{records: []record.Record{{Timestamp: 5, Value: []byte("v")}}})
	if err != nil {
		t.Fatal(err)
	}
	a := <-ch
	if a.LogAppendTime < before || a.LogAppendTime > time.Now().UnixMilli() {
		t.Fatalf("append time %d, want now", a.LogAppendTime)
	}
	if got := readAll(t, p, 0)[0].Timestamp; got != a.LogAppendTime {
		t.Fatalf("record time %d, want %d", got, a.LogAppendTime)
	}
	p = n.create(t, "create-time", 1, nil)
	data := produced{records: []record.Record{{Timestamp: 5, Value: []byte("v")}}}.bytes(t)
	record.Batch(data).SetMaxTimestamp(math.MaxInt64)
	done := make(chan AppendResult, 1)
	if err := p.Append(context.Background(), data, func(r AppendResult, _ error) { done <- r }); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.LogAppendTime != -1 {
		t.Fatalf("append time %d, want −1", r.LogAppendTime)
	}
	r, err := p.Read(context.Background(), 0, 1, ReadUncommitted)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Batches[0].MaxTimestamp(); got != 5 {
		t.Fatalf("largest time %d, want 5", got)
	}
}

// compression.type stores batches in its codec, whatever they came in.
func TestCompressionType(t *testing.T) {
	n := newCluster(t).start()
	p := n.create(t, "t", 1, map[string]string{"compression.type": "zstd"})
	for i, codec := range []record.Codec{record.CodecNone, record.CodecGzip, record.CodecZstd} {
		mustAppend(t, p, produced{codec: codec, values: []string{fmt.Sprint(i)}})
	}
	r, err := p.Read(context.Background(), 0, 1<<20, ReadUncommitted)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range r.Batches {
		if b.Codec() != record.CodecZstd {
			t.Errorf("batch at %d is %v, want zstd", b.BaseOffset(), b.Codec())
		}
	}
	wantValues(t, p, 0, "0", "1", "2")
}

// What compression.type makes of a batch is within max.message.bytes too, as in Kafka: it bounds what consumers get.
func TestMaxMessageBytesHoldsAfterCompressionType(t *testing.T) {
	n := newCluster(t).start()
	config := map[string]string{"max.message.bytes": "1000"}
	p := n.create(t, "producer", 1, config)
	config["compression.type"] = "uncompressed"
	inflated := n.create(t, "inflated", 1, config)
	large := produced{codec: record.CodecZstd, records: []record.Record{{Timestamp: 1, Value: make([]byte, 2000)}}}
	mustAppend(t, p, large)
	wantRefused(t, inflated, large, ErrTooLarge)
	large.records[0].Value = make([]byte, 800)
	mustAppend(t, inflated, large)
}

// A repeat of a batch gets the offsets of the first attempt and adds nothing; also after a
// crash, and after a crash that follows a checkpoint.
func TestProducerRepeat(t *testing.T) {
	c := newCluster(t)
	n := c.start()
	p := n.create(t, "t", 1, nil)
	batch := func(i int32) produced { return produced{producer: 9, sequence: i, values: []string{fmt.Sprint(i)}} }
	for i := range int32(3) {
		mustAppend(t, p, batch(i))
	}
	check := func() {
		t.Helper()
		for i := range int32(3) {
			if base := mustAppend(t, p, batch(i)); base != int64(i) {
				t.Fatalf("repeat of %d got offset %d", i, base)
			}
		}
	}
	check()
	p = c.start().partition(t, "t", 0)
	check()
	if err := p.checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	p = c.start().partition(t, "t", 0)
	check()
	wantValues(t, p, 0, "0", "1", "2")
}

// A number that skips, or repeats more than the last five batches, is out of order.
func TestProducerSequence(t *testing.T) {
	p := newCluster(t).start().create(t, "t", 1, nil)
	batch := func(sequence int32, values ...string) produced {
		return produced{producer: 9, sequence: sequence, values: values}
	}
	mustAppend(t, p, batch(math.MaxInt32-1, "a", "b", "c")) // an unknown producer may start anywhere (KIP-360)
	mustAppend(t, p, batch(1, "d"))                         // the numbers wrapped
	wantRefused(t, p, batch(3, "gap"), ErrOutOfOrderSequence)
	wantRefused(t, p, batch(1, "other", "length"), ErrOutOfOrderSequence)
	for i := range int32(5) {
		mustAppend(t, p, batch(2+i, "e"))
	}
	wantRefused(t, p, batch(1, "d"), ErrOutOfOrderSequence)
	if base := mustAppend(t, p, batch(2, "e")); base != 4 {
		t.Fatalf("the fifth last batch repeats at %d, want 4", base)
	}
}

// A producer that raises its epoch starts at 0, and its old epoch is fenced.
func TestProducerEpoch(t *testing.T) {
	p := newCluster(t).start().create(t, "t", 1, nil)
	mustAppend(t, p, produced{producer: 9, epoch: 1, sequence: 0, values: []string{"a"}})
	wantRefused(t, p, produced{producer: 9, epoch: 2, sequence: 1, values: []string{"b"}}, ErrOutOfOrderSequence)
	mustAppend(t, p, produced{producer: 9, epoch: 2, sequence: 0, values: []string{"b"}})
	wantRefused(t, p, produced{producer: 9, epoch: 1, sequence: 1, values: []string{"zombie"}}, ErrInvalidProducerEpoch)
	wantValues(t, p, 0, "a", "b")
}

// Producers send, repeat, and reorder at random while nodes crash: each record is in the log
// once, in the producer's order, and an acknowledged one is there for good. The oracle is
// the list of what each producer had acknowledged.
func TestIdempotenceModel(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := newCluster(t)
		c.cfg.CheckpointBytes = 1 + r.Int64N(2000)
		c.faults = objectstore.Faults{Seed: seed << 32, Unavailable: 0.02, Lost: 0.02}
		n := c.start()
		p := n.create(t, "t", 1, nil)
		const producers = 3
		var acked, sent [producers]int32 // batches; the sequence is the number of the batch
		var offsets [producers][]int64
		for range 80 {
			k := r.IntN(producers)
			switch {
			case r.IntN(15) == 0:
				if r.IntN(2) == 0 {
					n.stop()
				}
				n = c.start()
				p = n.partition(t, "t", 0)
			case r.IntN(4) == 0 && acked[k] > 0: // repeat one of the last five
				i := acked[k] - 1 - r.Int32N(min(5, acked[k]))
				if base := mustAppend(t, p, modelBatch(k, i)); base != offsets[k][i] {
					t.Fatalf("seed %d: producer %d repeats %d at %d, want %d", seed, k, i, base, offsets[k][i])
				}
			case r.IntN(6) == 0 && acked[k] > 0: // one too early
				wantRefused(t, p, modelBatch(k, acked[k]+1), ErrOutOfOrderSequence)
			default: // up to 5 in flight, answered in order
				first := acked[k]
				var answers []<-chan answer
				for range 1 + r.IntN(5) {
					ch, err := send(t, p, modelBatch(k, first+int32(len(answers))))
					if err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					answers = append(answers, ch)
				}
				sent[k] = first + int32(len(answers))
				if r.IntN(6) == 0 { // crash with answers outstanding: send all again
					n = c.start()
					p = n.partition(t, "t", 0)
					for i := range answers {
						answers[i], _ = send(t, p, modelBatch(k, first+int32(i)))
					}
				}
				for _, ch := range answers {
					a := <-ch
					if a.err != nil {
						t.Fatalf("seed %d: %v", seed, a.err)
					}
					offsets[k] = append(offsets[k], a.BaseOffset)
					acked[k]++
				}
			}
		}
		c.now.SetFaults(objectstore.Faults{})
		var next [producers]int32
		for _, rec := range readAll(t, p, 0) {
			var k int
			var i int32
			fmt.Sscanf(string(rec.Value), "%d/%d", &k, &i)
			if i != next[k] || offsets[k][i] != rec.Offset {
				t.Fatalf("seed %d: offset %d holds %d/%d, want %d/%d acknowledged at %d", seed, rec.Offset, k, i, k, next[k], offsets[k][i])
			}
			next[k]++
		}
		if next != acked {
			t.Fatalf("seed %d: %v batches in the log, %v acknowledged", seed, next, acked)
		}
		n.stop()
	}
}

func modelBatch(producer int, i int32) produced {
	return produced{producer: int64(producer + 1), sequence: i, values: []string{fmt.Sprintf("%d/%d", producer, i)}}
}

// Answers come in the order of appends, repeats among them, while others append.
func TestAnswersInOrder(t *testing.T) {
	p := newCluster(t).start().create(t, "t", 1, nil)
	var wg sync.WaitGroup
	for producer := range int64(4) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var answered atomic.Int64
			var last sync.WaitGroup
			for i := range int64(200) {
				last.Add(1)
				// Every third batch is sent twice.
				b := produced{producer: producer + 1, sequence: int32(i - i/3), values: []string{"v"}}
				if i%3 == 2 {
					b.sequence = int32(i-i/3) - 1
				}
				if err := p.Append(context.Background(), b.bytes(t), func(_ AppendResult, err error) {
					if got := answered.Add(1) - 1; got != i || err != nil {
						t.Errorf("producer %d: answer %d as number %d, %v", producer, i, got, err)
					}
					last.Done()
				}); err != nil {
					t.Errorf("producer %d batch %d: %v", producer, i, err)
					return
				}
			}
			last.Wait()
		}()
	}
	wg.Wait()
}

// A topic can be deleted, and the set closed, while others append: each append gets one answer.
func TestDeleteWhileAppending(t *testing.T) {
	n := newCluster(t).start()
	p := n.create(t, "t", 1, nil)
	started := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; ; i++ {
				ch, err := send(t, p, produced{values: []string{"v"}})
				if err == nil {
					err = (<-ch).err
				}
				if err != nil {
					if !errors.Is(err, ErrNotLeader) {
						t.Error(err)
					}
					return
				}
				if i == 10 {
					started <- struct{}{}
				}
			}
		}()
	}
	for range 4 {
		<-started
	}
	if err := n.DeleteTopic(context.Background(), "t"); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if _, err := p.Read(context.Background(), 0, 1, ReadUncommitted); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("read of a deleted topic: %v, want ErrNotLeader", err)
	}
}

// AppendRecords gives internal users durable offsets.
func TestAppendRecords(t *testing.T) {
	p := newCluster(t).start().create(t, "t", 1, map[string]string{"cleanup.policy": "compact"})
	for want := int64(0); want < 4; want += 2 {
		base, err := p.AppendRecords(context.Background(), []record.Record{{Key: []byte("k"), Value: []byte("1")}, {Key: []byte("k")}})
		if err != nil || base != want {
			t.Fatalf("base %d, %v, want %d", base, err, want)
		}
	}
	if o := p.Offsets(); o.HighWatermark != 4 || o.LastStable != 4 {
		t.Fatalf("offsets %+v, want an end of 4", o)
	}
}

func BenchmarkAppend(b *testing.B) {
	p := newCluster(b).start().create(b, "t", 1, nil)
	values := make([]string, 1000)
	for i := range values {
		values[i] = string(make([]byte, 170))
	}
	for _, codec := range []record.Codec{record.CodecNone, record.CodecLZ4, record.CodecZstd} {
		b.Run(codec.String(), func(b *testing.B) {
			data := produced{values: values, codec: codec}.bytes(b)
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			var wg sync.WaitGroup
			for b.Loop() {
				wg.Add(1)
				if err := p.Append(context.Background(), data, func(_ AppendResult, err error) {
					if err != nil {
						b.Error(err)
					}
					wg.Done()
				}); err != nil {
					b.Fatal(err)
				}
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds()/1e6, "Mrecords/s")
		})
	}
}

// Batches so large that their checksum goes into those of the log are read after a crash and from objects, whatever
// the append changed of them.
func TestLargeBatchesAreReadBack(t *testing.T) {
	c := newCluster(t)
	n := c.start()
	large := func(i int) string { return strings.Repeat(fmt.Sprint(i), 10*crc32c.WorthCombining) }
	configs := map[string]map[string]string{
		"as-it-comes": nil,
		"append-time": {"message.timestamp.type": "LogAppendTime"},
		"recompress":  {"compression.type": "lz4"},
		"inflate":     {"compression.type": "uncompressed"},
	}
	for topic, config := range configs {
		p := n.create(t, topic, 1, config)
		mustAppend(t, p, produced{producer: 7, values: []string{large(0), "small"}})
		mustAppend(t, p, produced{codec: record.CodecGzip, values: []string{large(1)}})
		data := produced{values: []string{large(2)}}.bytes(t)
		record.Batch(data).SetMaxTimestamp(math.MaxInt64) // is corrected
		done := make(chan error, 1)
		if err := p.Append(t.Context(), data, func(_ AppendResult, err error) { done <- err }); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // what was in the WAL is in objects then
		n = c.start()
		for topic := range configs {
			wantValues(t, n.partition(t, topic, 0), 0, large(0), "small", large(1), large(2))
		}
	}
}
