package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// compacted is the configuration of a topic that is cleaned whenever a test says so.
func compacted(more ...string) map[string]string {
	cfg := map[string]string{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1000"}
	for i := 0; i < len(more); i += 2 {
		cfg[more[i]] = more[i+1]
	}
	return cfg
}

// newCleanCluster leaves all cleaning to the test, and uploads each append by itself: the log cache may go on
// serving what was appended together with what may not be cleaned yet.
func newCleanCluster(t testing.TB) *cluster {
	c := newCluster(t)
	c.cfg.CleanerInterval = -1
	c.wal.UploadInterval, c.wal.UploadBytes, c.wal.LogCacheBytes = time.Millisecond, 1, 2
	return c
}

func keyed(kv ...string) (records []record.Record) {
	for i := 0; i < len(kv); i += 2 {
		r := record.Record{Timestamp: time.Now().UnixMilli(), Key: []byte(kv[i]), Value: []byte(kv[i+1])}
		if kv[i+1] == "" {
			r.Value = nil
		}
		records = append(records, r)
	}
	return records
}

// uploaded returns when the whole log lies in objects of its own.
func uploaded(t testing.TB, p *Partition) {
	t.Helper()
	ctx := context.Background()
	for deadline := time.Now().Add(time.Minute); ; {
		o := p.Offsets()
		if err := p.log.Separate(ctx, o.HighWatermark, math.MaxInt64); err != nil {
			t.Fatal(err)
		}
		end, err := p.log.Separated(ctx, o.LogStart, o.HighWatermark)
		if err != nil {
			t.Fatal(err)
		}
		if end == o.HighWatermark {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("only up to %d of %d is in objects after a minute", end, o.HighWatermark)
		}
		<-time.After(time.Millisecond)
	}
}

// cleanAt makes a pass at a time after now.
func cleanAt(t testing.TB, p *Partition, later time.Duration) {
	t.Helper()
	cleanWhen(t, p, time.Now().Add(later))
}

func cleanWhen(t testing.TB, p *Partition, now time.Time) {
	t.Helper()
	uploaded(t, p)
	if err := cleanAndSettle(p, now); err != nil {
		t.Fatal(err)
	}
}

func cleanAndSettle(p *Partition, now time.Time) error {
	outcome, err := p.clean(context.Background(), now)
	if err != nil || outcome != cleanDone {
		return err
	}
	return p.set.settleCleaned(context.Background(), []*Partition{p})
}

// show lists key=value of records, with their offsets.
func show(records []record.Record) (all []string) {
	for _, r := range records {
		v := string(r.Value)
		if r.Value == nil {
			v = "-"
		}
		all = append(all, fmt.Sprintf("%d:%s=%s", r.Offset, r.Key, v))
	}
	return all
}

func wantLog(t testing.TB, p *Partition, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, show(committed(t, p, p.Offsets().LogStart, 1<<20))); d != "" {
		t.Fatalf("want, got: %s", d)
	}
}

// markers counts the control batches, and all batches, of a log.
func markers(t testing.TB, p *Partition) (control, all int) {
	t.Helper()
	for from := p.Offsets().LogStart; ; {
		r, err := p.Read(context.Background(), from, 1<<20, ReadUncommitted)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Batches) == 0 {
			return control, all
		}
		for _, b := range r.Batches {
			if b.BaseOffset() > from || b.NextOffset() <= from {
				t.Fatalf("batch at %d follows %d", b.BaseOffset(), from)
			}
			from = b.NextOffset()
			all++
			if b.IsControl() {
				control++
			}
		}
	}
}

// Of each key the last record stays, at its offset, in every codec; records that may not be cleaned
// yet stay all. A second pass over what is clean changes nothing.
func TestCleaningKeepsTheLastOfEachKey(t *testing.T) {
	c := newCleanCluster(t)
	n := c.start()
	p := n.create(t, "t", 1, compacted())
	for _, codec := range []record.Codec{record.CodecNone, record.CodecGzip, record.CodecSnappy, record.CodecLZ4, record.CodecZstd} {
		name := codec.String()
		mustAppend(t, p, produced{codec: codec, records: keyed("a", name, "b", name, name, "1", "a", name+"2")})
	}
	mustAppend(t, p, produced{records: keyed("b", "", "c", "x")})
	at := time.Now().Add(time.Hour) // of all passes, however long one takes: the tombstone stays
	cleanWhen(t, p, at)
	wantLog(t, p, "2:none=1", "6:gzip=1", "10:snappy=1", "14:lz4=1", "18:zstd=1", "19:a=zstd2", "20:b=-", "21:c=x")
	before := p.Size()
	cleanWhen(t, p, at)
	if p.Size() != before {
		t.Errorf("%d bytes became %d", before, p.Size())
	}
	mustAppend(t, p, produced{records: keyed("c", "y", "c", "z")})
	wantLog(t, p, "2:none=1", "6:gzip=1", "10:snappy=1", "14:lz4=1", "18:zstd=1", "19:a=zstd2", "20:b=-", "21:c=x", "22:c=y", "23:c=z")
	p = c.start().partition(t, "t", 0)
	wantLog(t, p, "2:none=1", "6:gzip=1", "10:snappy=1", "14:lz4=1", "18:zstd=1", "19:a=zstd2", "20:b=-", "21:c=x", "22:c=y", "23:c=z")
	cleanWhen(t, p, at)
	wantLog(t, p, "2:none=1", "6:gzip=1", "10:snappy=1", "14:lz4=1", "18:zstd=1", "19:a=zstd2", "20:b=-", "23:c=z")
	if offset, largest, err := p.MaxTimestamp(context.Background()); err != nil || offset != 23 {
		t.Errorf("largest time %d at %d, %v", largest, offset, err)
	}
}

// Tombstones and markers go by the delete horizon that the first pass gives them (KIP-534), markers only after the
// records of their transactions.
func TestTombstonesAndMarkersGoAfterTheDeleteHorizon(t *testing.T) {
	c := newCleanCluster(t)
	p := c.start().create(t, "t", 1, compacted())
	mustAppend(t, p, produced{records: keyed("a", "1", "b", "1")})
	mustAppend(t, p, produced{records: keyed("a", "")})
	inTransaction(t, p, produced{producer: 1, records: keyed("b", "aborted", "x", "aborted")})
	appendMarker(t, p, record.Marker{ProducerID: 1}, false)
	inTransaction(t, p, produced{producer: 1, sequence: 2, records: keyed("b", "2")})
	appendMarker(t, p, record.Marker{ProducerID: 1, Commit: true}, false)
	begin := time.Now().Add(time.Hour) // of all passes, however long one takes
	cleanAt := func(later time.Duration) {
		t.Helper()
		cleanWhen(t, p, begin.Add(later))
	}
	more := func(n int) { mustAppend(t, p, produced{records: keyed("dirty", fmt.Sprint(n))}) }

	cleanAt(0)
	wantLog(t, p, "2:a=-", "6:b=2")
	if n, _ := markers(t, p); n != 2 {
		t.Fatalf("%d markers after the first pass, want 2", n)
	}
	if got := values(readUncommitted(t, p)); got != "[ 2]" {
		t.Errorf("aborted records are left: %s", got)
	}
	more(1)
	cleanAt(500 * time.Millisecond) // the marker of the abort gets its horizon
	wantLog(t, p, "2:a=-", "6:b=2", "8:dirty=1")
	more(2)
	cleanAt(1400 * time.Millisecond)
	wantLog(t, p, "6:b=2", "9:dirty=2")
	if n, _ := markers(t, p); n != 2 {
		t.Fatalf("%d markers before the horizon, want 2", n)
	}
	more(3)
	cleanAt(1600 * time.Millisecond)
	if n, _ := markers(t, p); n != 1 {
		t.Fatalf("%d markers after the horizon, want that of the commit", n)
	}
	mustAppend(t, p, produced{records: keyed("b", "3")})
	for i := range 3 {
		cleanAt(time.Duration(i+1) * time.Hour)
		more(4 + i)
	}
	cleanAt(5 * time.Hour)
	if n, all := markers(t, p); n != 0 || all != 4 {
		t.Fatalf("%d markers in %d batches, want none in 4: b, what lies before and behind it, and dirty", n, all)
	}
	wantLog(t, p, "11:b=3", "14:dirty=6")
}

func readUncommitted(t testing.TB, p *Partition) (all []record.Record) {
	t.Helper()
	var rd record.Reader
	for from := p.Offsets().LogStart; ; {
		r, err := p.Read(context.Background(), from, 1<<20, ReadUncommitted)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Batches) == 0 {
			return all
		}
		for _, b := range r.Batches {
			from = b.NextOffset()
			if b.IsControl() {
				continue
			}
			if err := rd.Reset(b); err != nil {
				t.Fatal(err)
			}
			var rec record.Record
			for ok, err := rd.Next(&rec); ok; ok, err = rd.Next(&rec) {
				if err != nil {
					t.Fatal(err)
				}
				rec.Key, rec.Value, rec.Headers = bytes.Clone(rec.Key), bytes.Clone(rec.Value), nil
				all = append(all, rec)
			}
		}
	}
}

// What a transaction may still abort replaces nothing, and nothing behind its begin is cleaned.
func TestCleaningStopsAtOpenTransactions(t *testing.T) {
	c := newCleanCluster(t)
	p := c.start().create(t, "t", 1, compacted())
	mustAppend(t, p, produced{records: keyed("a", "1")})
	inTransaction(t, p, produced{producer: 1, records: keyed("a", "2")})
	mustAppend(t, p, produced{records: keyed("b", "1", "b", "2")})
	cleanAt(t, p, 0)
	appendMarker(t, p, record.Marker{ProducerID: 1}, false)
	wantLog(t, p, "0:a=1", "2:b=1", "3:b=2")
	cleanAt(t, p, 0)
	wantLog(t, p, "0:a=1", "3:b=2")
}

// What the topic's table does not have is not cleaned.
func TestCleaningStopsAtTheTable(t *testing.T) {
	c := newCleanCluster(t)
	p := c.start().create(t, "t", 1, compacted("table.topic.enable", "true"))
	mustAppend(t, p, produced{records: keyed("a", "1", "a", "2", "a", "3", "b", "1")})
	mustAppend(t, p, produced{records: keyed("a", "4")})
	cleanAt(t, p, 0)
	wantLog(t, p, "0:a=1", "1:a=2", "2:a=3", "3:b=1", "4:a=4")
	p.Hold(uuid.Nil, 4)
	cleanAt(t, p, 0)
	wantLog(t, p, "2:a=3", "3:b=1", "4:a=4")
	p.Release(uuid.Nil)
	cleanAt(t, p, 0)
	wantLog(t, p, "3:b=1", "4:a=4")
}

// A batch that was cleaned away, and is sent again after a crash, is known.
func TestCleanedBatchIsNotTakenTwice(t *testing.T) {
	c := newCleanCluster(t)
	p := c.start().create(t, "t", 1, compacted())
	b := produced{producer: 7, records: keyed("a", "1")}
	mustAppend(t, p, b)
	mustAppend(t, p, produced{records: keyed("a", "2")})
	cleanAt(t, p, 0)
	wantLog(t, p, "1:a=2")
	p = c.start().partition(t, "t", 0)
	if at := mustAppend(t, p, b); at != 0 {
		t.Errorf("the repeat got offset %d, want 0", at)
	}
	mustAppend(t, p, produced{producer: 7, sequence: 1, records: keyed("a", "3")})
	wantLog(t, p, "1:a=2", "2:a=3")
}

// Nothing counts as cleaned that the loss of the metadata database could bring back.
func TestCleaningCountsOnceItIsSettled(t *testing.T) {
	c := newCleanCluster(t)
	var lost atomic.Bool
	away := errors.New("no snapshot")
	c.wal.Settled = func(context.Context) error {
		if lost.Load() {
			return away
		}
		return nil
	}
	p := c.start().create(t, "t", 1, compacted())
	inTransaction(t, p, produced{producer: 1, records: keyed("a", "aborted")})
	appendMarker(t, p, record.Marker{ProducerID: 1}, false)
	mustAppend(t, p, produced{records: keyed("a", "1", "a", "2")})
	uploaded(t, p)
	lost.Store(true)
	if err := cleanAndSettle(p, time.Now()); !errors.Is(err, away) {
		t.Errorf("cleaned with %v, want %v", err, away)
	}
	if p.state.cleaned != 0 || len(p.state.aborted) != 1 {
		t.Fatalf("cleaned up to %d, %d aborted transactions are known", p.state.cleaned, len(p.state.aborted))
	}
	lost.Store(false)
	cleanAt(t, p, 0)
	if p.state.cleaned != 4 || len(p.state.aborted) != 0 {
		t.Fatalf("cleaned up to %d, %d aborted transactions are known", p.state.cleaned, len(p.state.aborted))
	}
	wantLog(t, p, "3:a=2")
}

// To be safe from the loss of the metadata database takes a while: all partitions that were cleaned in a turn wait
// for it together.
func TestPassesOfATurnAreSettledTogether(t *testing.T) {
	c := newCleanCluster(t)
	const n = 5
	var all []*Partition
	var turn atomic.Bool
	var cleaner context.Context // others wait, too
	var passes []int            // at each time that the turn waits
	c.wal.Settled = func(ctx context.Context) error {
		if !turn.Load() || ctx != cleaner {
			return nil
		}
		made := 0
		for _, p := range all {
			if p.turn.pass.end == 2 {
				made++
			}
		}
		passes = append(passes, made)
		return nil
	}
	on := c.start()
	on.create(t, "t", n, compacted())
	for i := range int32(n) {
		p := on.partition(t, "t", i)
		mustAppend(t, p, produced{records: keyed("a", "1", "a", "2")})
		uploaded(t, p)
		all = append(all, p)
	}
	cleaner = on.ctx
	turn.Store(true)
	on.cleanTurn()
	turn.Store(false)
	if !slices.Equal(passes, []int{n}) {
		t.Errorf("waited after %v passes, want once, after %d", passes, n)
	}
	for _, p := range all {
		if p.state.cleaned != 2 {
			t.Errorf("%s is cleaned up to %d", p, p.state.cleaned)
		}
		wantLog(t, p, "1:a=2")
	}
}

// A pass that cannot be settled is made again, and counted once: what both removed, and the bytes that were
// there before the first.
func TestPassThatIsMadeAgainIsCountedOnce(t *testing.T) {
	c := newCleanCluster(t)
	var fails atomic.Bool
	c.wal.Settled = func(context.Context) error {
		if fails.Load() {
			return errors.New("metadata is away")
		}
		return nil
	}
	on := c.start()
	on.create(t, "t", 1, compacted())
	p := on.partition(t, "t", 0)
	mustAppend(t, p, produced{records: keyed("a", "1", "a", "2")})
	uploaded(t, p)
	counted := func(m prometheus.Metric) float64 {
		t.Helper()
		var v dto.Metric
		if err := m.Write(&v); err != nil {
			t.Fatal(err)
		}
		return v.Counter.GetValue() + float64(v.Histogram.GetSampleCount())
	}
	before, after := on.metrics.cleanBytes.WithLabelValues("before"), on.metrics.cleanBytes.WithLabelValues("after")
	fails.Store(true)
	on.cleanTurn()
	if n := counted(on.metrics.cleanSeconds); n != 0 {
		t.Errorf("%v passes are counted, and none was settled", n)
	}
	whole := p.turn.unsettled.before
	fails.Store(false)
	p.turn.at = time.Time{}
	on.cleanTurn()
	wantLog(t, p, "1:a=2")
	if n, removed := counted(on.metrics.cleanSeconds), counted(on.metrics.cleanRemoved); n != 1 || removed != 1 {
		t.Errorf("%v passes are counted, which removed %v records, want one of each", n, removed)
	}
	if was, is := counted(before), counted(after); was != float64(whole) || is >= was {
		t.Errorf("%v bytes before and %v after, want %d before and less after", was, is, whole)
	}
}

// While readers are told of an aborted transaction, they need its marker: what its producer wrote later
// would count as aborted, too.
func TestMarkersStayWhileReadersNeedThem(t *testing.T) {
	marker, err := record.AppendMarker(nil, record.Marker{ProducerID: 1}, 5)
	if err != nil {
		t.Fatal(err)
	}
	record.Batch(marker).SetBaseOffset(9)
	in := []streamstore.RecordBatch{{BaseOffset: 9, Count: 1, Payload: marker}}
	for _, listed := range []bool{true, false} {
		batches := in
		for range 2 { // the first gives it a horizon that has come at once
			var aborted []abortedTransaction
			if listed {
				aborted = []abortedTransaction{{producer: 1, first: 3, last: 9}}
			}
			var err error
			if batches, _, err = newCleaning(10, 1000, 0, 1, aborted, &record.Reader{}).clean(batches); err != nil {
				t.Fatal(err)
			}
		}
		if stays := record.Batch(batches[0].Payload).NumRecords() == 1; stays != listed {
			t.Errorf("readers are told of it %v, and it stays %v", listed, stays)
		}
	}
}

// A read that has begun before the log was cleaned reads again, for it may have aborted records that
// are not known as such any more.
func TestReadDuringCleaningReadsAgain(t *testing.T) {
	c := newCleanCluster(t)
	p := c.start().create(t, "t", 1, compacted())
	inTransaction(t, p, produced{producer: 1, records: keyed("a", "aborted")})
	appendMarker(t, p, record.Marker{ProducerID: 1}, false)
	uploaded(t, p)
	calls := 0
	r, err := p.read(0, ReadCommitted, func(bound int64) ([]streamstore.RecordBatch, error) {
		batches, err := p.log.Fetch(context.Background(), 0, bound, 1<<20)
		if calls++; calls == 1 {
			cleanAt(t, p, 0)
		}
		return batches, err
	})
	if err != nil || calls != 2 || r.Batches[0].NumRecords() != 0 || len(r.Aborted) != 0 {
		t.Errorf("%d fetches, %d records, %d aborted transactions, %v", calls, r.Batches[0].NumRecords(), len(r.Aborted), err)
	}
}

// More keys than there is room for take several passes.
func TestKeysThatDoNotFitTakeMorePasses(t *testing.T) {
	c := newCleanCluster(t)
	c.cfg.CleanerDedupeBytes = 32 * 10
	p := c.start().create(t, "t", 1, compacted())
	var kv []string
	for i := range 40 {
		kv = append(kv, fmt.Sprint("k", i%20), fmt.Sprint(i))
	}
	mustAppend(t, p, produced{records: keyed(kv...)})
	mustAppend(t, p, produced{records: keyed("last", "")})
	for passes := 1; p.state.cleaned < p.Offsets().HighWatermark; passes++ {
		if cleanAt(t, p, 0); passes > 10 {
			t.Fatalf("after %d passes cleaned up to %d", passes, p.state.cleaned)
		}
	}
	var want []string
	for i := 20; i < 40; i++ {
		want = append(want, fmt.Sprintf("%d:k%d=%d", i, i%20, i))
	}
	wantLog(t, p, append(want, "40:last=-")...)
}

// The settings say when a pass begins, and what it leaves.
func TestWhenCleaningBegins(t *testing.T) {
	for _, k := range []struct {
		name   string
		cfg    []string
		later  time.Duration
		before bool // a pass goes before what makes it dirty
		want   bool
	}{
		{"all is dirty", nil, 0, false, true},
		{"little is dirty", []string{"min.cleanable.dirty.ratio", "0.5"}, 0, true, false},
		{"little is dirty, and old", []string{"min.cleanable.dirty.ratio", "0.5", "max.compaction.lag.ms", "60000"}, 2 * time.Minute, true, true},
		{"little is dirty, and young", []string{"min.cleanable.dirty.ratio", "0.5", "max.compaction.lag.ms", "60000"}, 0, true, false},
		{"it is too young", []string{"min.compaction.lag.ms", "60000"}, 0, false, false},
		{"it is old enough", []string{"min.compaction.lag.ms", "60000"}, 2 * time.Minute, false, true},
		{"it is not compacted", []string{"cleanup.policy", "delete"}, 0, false, false},
	} {
		t.Run(k.name, func(t *testing.T) {
			p := newCleanCluster(t).start().create(t, "t", 1, compacted(k.cfg...))
			if k.before {
				for i := range 30 {
					mustAppend(t, p, produced{records: keyed(fmt.Sprint("k", i), string(make([]byte, 1000)))})
				}
				cleanAt(t, p, 0)
				if k.cfg[0] != "min.compaction.lag.ms" && p.state.cleaned != 30 {
					t.Fatalf("cleaned up to %d", p.state.cleaned)
				}
			}
			mustAppend(t, p, produced{records: keyed("a", "1", "a", "2")})
			cleanAt(t, p, k.later)
			end := p.Offsets().HighWatermark
			if got := p.state.cleaned == end; got != k.want {
				t.Errorf("cleaned up to %d of %d, want %v", p.state.cleaned, end, k.want)
			}
		})
	}
}

// Whatever is appended, plain, idempotent or in transactions, aborted and cleaned, through crashes and
// starts: whoever reads it all ends with the last value of each key, as if nothing had been cleaned; offsets ascend,
// each record is what was appended there, nothing that is aborted is read, and what is
// cleaned holds each key once.
func TestCleanedLogModel(t *testing.T) {
	type entry struct {
		key, value string // "" is a tombstone
		kept       bool
	}
	type client struct {
		id       int64
		sequence int32
		open     []int64
		last     produced // that an idempotent one sent
		lastAt   int64
	}
	passes, removed := 0, 0
	for seed := range uint64(cleanedSeeds) {
		r := rand.New(rand.NewPCG(seed, 0))
		c := newCleanCluster(t)
		p := c.start().create(t, "t", 1, compacted("cleanup.policy", "compact,delete"))
		log := map[int64]entry{}
		var clients []*client
		for i := range 4 {
			clients = append(clients, &client{id: int64(i + 1)})
		}
		later, cleaned := time.Duration(0), int64(0) // up to where a pass went, which a crash may forget
		random := func(step int) (records []record.Record) {
			for i := range 1 + r.IntN(4) {
				value := fmt.Sprintf("%d.%d", step, i)
				if r.IntN(4) == 0 {
					value = ""
				}
				records = append(records, keyed(fmt.Sprint("k", r.IntN(12)), value)...)
			}
			return records
		}
		note := func(base int64, records []record.Record, kept bool) (offsets []int64) {
			for i, rec := range records {
				log[base+int64(i)] = entry{string(rec.Key), string(rec.Value), kept}
				offsets = append(offsets, base+int64(i))
			}
			return offsets
		}
		check := func(step int) {
			t.Helper()
			o := p.Offsets()
			want, got := map[string]string{}, map[string]string{}
			for at := o.LogStart; at < o.LastStable; at++ {
				if e, ok := log[at]; ok && e.kept {
					want[e.key] = e.value
				}
			}
			seen, last := map[int64]bool{}, o.LogStart-1
			below := map[string]int64{}
			for _, rec := range committed(t, p, o.LogStart, 1+r.IntN(2000)) {
				e := log[rec.Offset]
				if rec.Offset <= last || !e.kept || e.key != string(rec.Key) || e.value != string(rec.Value) || (e.value == "") != (rec.Value == nil) {
					t.Fatalf("seed %d step %d: offset %d after %d is %s=%s, want %+v", seed, step, rec.Offset, last, rec.Key, rec.Value, e)
				}
				last, seen[rec.Offset] = rec.Offset, true
				got[e.key] = e.value
				if other, twice := below[e.key]; twice && rec.Offset < p.state.cleaned {
					t.Fatalf("seed %d step %d: offsets %d and %d are both %s, cleaned up to %d", seed, step, other, rec.Offset, e.key, p.state.cleaned)
				}
				below[e.key] = rec.Offset
			}
			for at := max(o.LogStart, cleaned); at < o.LastStable; at++ {
				if e, ok := log[at]; ok && e.kept && !seen[at] {
					t.Fatalf("seed %d step %d: offset %d is missing, cleaned up to %d", seed, step, at, cleaned)
				}
			}
			for _, state := range []map[string]string{want, got} {
				for k, v := range state {
					if v == "" {
						delete(state, k)
					}
				}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("seed %d step %d: want, got: %s", seed, step, d)
			}
		}
		for step := range 120 {
			k := clients[r.IntN(len(clients))]
			records := random(step)
			switch what := r.IntN(24); {
			case what < 6:
				note(mustAppend(t, p, produced{records: records, codec: record.Codec(r.IntN(5))}), records, true)
			case what < 9 && k.id == 1: // idempotent, and no transactions
				k.last = produced{producer: k.id, sequence: k.sequence, records: records}
				k.lastAt = mustAppend(t, p, k.last)
				note(k.lastAt, records, true)
				k.sequence += int32(len(records))
			case what < 14 && k.id > 1:
				k.open = append(k.open, note(inTransaction(t, p, produced{producer: k.id, sequence: k.sequence, records: records}), records, false)...)
				k.sequence += int32(len(records))
			case what < 18 && k.id > 1:
				commit := r.IntN(2) == 0
				appendMarker(t, p, record.Marker{ProducerID: k.id, Commit: commit}, false)
				for _, at := range k.open {
					e := log[at]
					e.kept = commit
					log[at] = e
				}
				k.open = nil
			case what < 21:
				later += time.Duration(r.IntN(900)) * time.Millisecond
				before := p.state.cleaned
				cleanAt(t, p, later)
				if p.state.cleaned > before {
					passes++
				}
				cleaned = max(cleaned, p.state.cleaned)
			case what == 21:
				p = c.start().partition(t, "t", 0)
				if k := clients[0]; k.sequence > 0 {
					if at := mustAppend(t, p, k.last); at != k.lastAt {
						t.Fatalf("seed %d step %d: the repeat of offset %d got %d", seed, step, k.lastAt, at)
					}
				}
			case what == 22 && step%3 == 0:
				o := p.Offsets()
				if _, err := p.DeleteRecords(context.Background(), o.LogStart+r.Int64N(1+(o.HighWatermark-o.LogStart)/4)); err != nil {
					t.Fatal(err)
				}
			}
			if step%6 == 0 || step == 119 {
				check(step)
			}
		}
		o := p.Offsets()
		for at := range log {
			if at < o.LogStart {
				delete(log, at)
			}
		}
		removed += len(log) - len(readUncommitted(t, p))
	}
	if passes < 5*cleanedSeeds || removed < 40*cleanedSeeds {
		t.Errorf("%d passes removed %d records: the test tests little", passes, removed)
	}
}

// The largest offsets of keys, up to as many keys as there is room for.
func TestKeyMap(t *testing.T) {
	m := newKeyMap(100)
	r := rand.New(rand.NewPCG(1, 1))
	want := map[string]int64{}
	for offset := range int64(2000) {
		key := fmt.Sprint(r.IntN(300))
		_, known := want[key]
		if got := m.put([]byte(key), offset); got != (known || len(want) < 100) {
			t.Fatalf("key number %d taken: %v", len(want), got)
		} else if got {
			want[key] = offset
		}
	}
	for i := range 300 {
		offset, known := m.get([]byte(fmt.Sprint(i)))
		if w, ok := want[fmt.Sprint(i)]; known != ok || ok && offset != w {
			t.Fatalf("key %d: %d, %v, want %d, %v", i, offset, known, w, ok)
		}
	}
	if _, known := m.get(nil); known {
		t.Error("no key is a key")
	}
}

// However little the dirty end of a log is: what it is of the whole decides. (It was none once, if it was less than
// the distance of two marks of the sizes.)
func TestSmallLogsAreCleaned(t *testing.T) {
	c := newCleanCluster(t)
	p := c.start().create(t, "t", 1, compacted("min.cleanable.dirty.ratio", "0.5"))
	mustAppend(t, p, produced{records: keyed("a", "1", "b", "1", "c", "1")})
	cleanAt(t, p, 0)
	mustAppend(t, p, produced{records: keyed("a", "2")})
	cleanAt(t, p, 0)
	if p.state.cleaned != 3 {
		t.Fatalf("a quarter is dirty, and it is clean up to %d", p.state.cleaned)
	}
	mustAppend(t, p, produced{records: keyed("a", "3", "b", "3", "c", "3")})
	cleanAt(t, p, 0)
	wantLog(t, p, "4:a=3", "5:b=3", "6:c=3")
}

// Sizes stay about right when what is below an offset shrinks.
func TestSizesAfterCleaning(t *testing.T) {
	var x, left sizeIndex
	for i := range int64(1000) {
		x.add(i, 1000)
	}
	for i := range int64(500) {
		left.add(i, 100)
	}
	x.replace(500, left, 500_000)
	if got := x.size(); got != 550_000 {
		t.Errorf("%d bytes, want 550000", got)
	}
	if got := x.behind(500, 1000); got < 490_000 || got > 510_000 {
		t.Errorf("%d bytes from 500 on, want 500000", got)
	}
	for _, offset := range []int64{900, 990, 999, 1000} { // closer together than marks
		want := 1000 * (1000 - offset)
		if got := x.behind(offset, 1000); got < want-want/20 || got > want+want/20 {
			t.Errorf("%d bytes from %d on, want about %d", got, offset, want)
		}
	}
	if !slices.IsSortedFunc(x.marks, func(a, b sizeMark) int { return int(a.before - b.before) }) || len(x.marks) > maxSizeMarks/2 {
		t.Errorf("marks %v", x.marks)
	}
}
