package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/record"
)

// A read at an offset inside a batch returns the whole batch, at the end nothing, and
// outside an error with the offsets.
func TestRead(t *testing.T) {
	ctx := context.Background()
	p := newCluster(t).start().create(t, "t", 1, nil)
	mustAppend(t, p, produced{values: []string{"a", "b", "c"}})
	mustAppend(t, p, produced{values: []string{"d", "e"}})
	for from, want := range []int64{0, 0, 0, 3, 3} {
		r, err := p.Read(ctx, int64(from), 1, ReadUncommitted)
		if err != nil || len(r.Batches) != 1 || r.Batches[0].BaseOffset() != want {
			t.Fatalf("from %d: %d batches, %v; want the one at %d", from, len(r.Batches), err, want)
		}
		if r.HighWatermark != 5 || r.LastStableOffset != 5 || r.LogStartOffset != 0 {
			t.Fatalf("from %d: offsets %+v", from, r)
		}
	}
	if r, err := p.Read(ctx, 0, 1<<20, ReadCommitted); err != nil || len(r.Batches) != 2 {
		t.Fatalf("%d batches, %v, want 2", len(r.Batches), err)
	}
	if r, err := p.Read(ctx, 5, 1<<20, ReadCommitted); err != nil || len(r.Batches) != 0 {
		t.Fatalf("at the end: %d batches, %v", len(r.Batches), err)
	}
	for _, from := range []int64{-1, 6} {
		if r, err := p.Read(ctx, from, 1, ReadUncommitted); !errors.Is(err, ErrOffsetOutOfRange) || r.HighWatermark != 5 {
			t.Fatalf("from %d: %v, high watermark %d", from, err, r.HighWatermark)
		}
	}
}

// Searches by time agree with a walk over all records, before and after records are deleted
// and the node starts again. Some records have no time, which is −1; in the last log none has.
func TestTimestamps(t *testing.T) {
	ctx := context.Background()
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 2))
		timeless := func() bool { return seed == 4 || r.IntN(4) == 0 }
		c := newCluster(t)
		p := c.start().create(t, "t", 1, nil)
		if o, ts, err := p.MaxTimestamp(ctx); o != -1 || ts != -1 || err != nil {
			t.Fatalf("empty: %d, %d, %v", o, ts, err)
		}
		codecs := []record.Codec{record.CodecNone, record.CodecSnappy, record.CodecGzip}
		for range 30 {
			var records []record.Record
			for range 1 + r.IntN(5) {
				rec := record.Record{Timestamp: 1000 + r.Int64N(1000), Value: []byte("v")}
				if timeless() {
					rec.Timestamp = -1
				}
				records = append(records, rec)
			}
			mustAppend(t, p, produced{records: records, codec: codecs[r.IntN(3)]})
		}
		check := func() {
			t.Helper()
			all := readAll(t, p, p.Offsets().LogStart)
			var maxAt, maxTime int64 = -1, -1
			for _, rec := range all {
				if maxAt < 0 || rec.Timestamp > maxTime {
					maxAt, maxTime = rec.Offset, rec.Timestamp
				}
			}
			if o, ts, err := p.MaxTimestamp(ctx); o != maxAt || ts != maxTime || err != nil {
				t.Fatalf("seed %d: max %d at %d, %v, want %d at %d", seed, ts, o, err, maxTime, maxAt)
			}
			for range 50 {
				ts := 990 + r.Int64N(1020)
				var wantAt, wantTime int64 = -1, -1
				for _, rec := range all {
					if rec.Timestamp >= ts {
						wantAt, wantTime = rec.Offset, rec.Timestamp
						break
					}
				}
				if o, got, err := p.OffsetForTimestamp(ctx, ts); o != wantAt || got != wantTime || err != nil {
					t.Fatalf("seed %d: first at or after %d: %d at %d, %v, want %d at %d", seed, ts, got, o, err, wantTime, wantAt)
				}
			}
		}
		for range 4 {
			check()
			o := p.Offsets()
			if start, err := p.DeleteRecords(ctx, o.LogStart+r.Int64N(o.HighWatermark-o.LogStart)); err != nil || start != p.Offsets().LogStart {
				t.Fatalf("seed %d: %d, %v", seed, start, err)
			}
			check()
			p = c.start().partition(t, "t", 0)
		}
	}
}

// A waiting reader hears of new records, of a moved log start, and of the end.
func TestNotify(t *testing.T) {
	ctx := context.Background()
	n := newCluster(t).start()
	p := n.create(t, "t", 1, nil)
	ch := make(chan struct{}, 1)
	stop := p.Notify(ch)
	mustAppend(t, p, produced{values: []string{"a"}})
	<-ch
	if _, err := p.DeleteRecords(ctx, -1); err != nil {
		t.Fatal(err)
	}
	<-ch
	stop()
	mustAppend(t, p, produced{values: []string{"b"}})
	select {
	case <-ch:
		t.Fatal("told after stop")
	default:
	}
	defer p.Notify(ch)()
	if err := n.DeleteTopic(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	<-ch
}

// Leader epochs end where the next begins, and trimmed ones are forgotten.
func TestEndOffsetForLeaderEpoch(t *testing.T) {
	s := newState(1, 1_000_000)
	for _, e := range []epochStart{{0, 0}, {2, 10}, {3, 10}, {5, 20}} {
		s.startEpoch(e.epoch, e.start)
	}
	for epoch, want := range map[int32][2]int64{-1: {-1, -1}, 0: {0, 10}, 1: {0, 10}, 2: {0, 10}, 3: {3, 20}, 4: {3, 20}, 5: {5, 33}, 6: {-1, -1}} {
		if e, end := s.endOffset(epoch, 33); int64(e) != want[0] || end != want[1] {
			t.Errorf("epoch %d ends as %d at %d, want %d at %d", epoch, e, end, want[0], want[1])
		}
	}
	s.trim(15)
	if e, end := s.endOffset(0, 33); e != 0 || end != 15 {
		t.Errorf("trimmed epoch 0 ends as %d at %d, want 0 at 15", e, end)
	}
}

// Deleted records are gone, also across a restart, and what producers did is not forgotten
// with them, although their batches were never in a checkpoint before.
func TestDeleteRecords(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t)
	p := c.start().create(t, "t", 1, nil)
	mustAppend(t, p, produced{producer: 4, sequence: 0, values: []string{"a", "b", "c"}})
	mustAppend(t, p, produced{values: []string{"d"}})
	for _, before := range []int64{5, -2} {
		if _, err := p.DeleteRecords(ctx, before); !errors.Is(err, ErrOffsetOutOfRange) {
			t.Fatalf("before %d: %v, want ErrOffsetOutOfRange", before, err)
		}
	}
	if start, err := p.DeleteRecords(ctx, 1); err != nil || start != 1 {
		t.Fatalf("%d, %v, want 1", start, err)
	}
	wantValues(t, p, 1, "b", "c", "d")
	if start, err := p.DeleteRecords(ctx, 0); err != nil || start != 1 {
		t.Fatalf("backwards: %d, %v, want 1", start, err)
	}
	if start, err := p.DeleteRecords(ctx, -1); err != nil || start != 4 {
		t.Fatalf("%d, %v, want 4", start, err)
	}
	for range 2 {
		p = c.start().partition(t, "t", 0)
		if o := p.Offsets(); o.LogStart != 4 || o.HighWatermark != 4 {
			t.Fatalf("offsets %+v, want 4 to 4", o)
		}
		if _, err := p.Read(ctx, 3, 1, ReadUncommitted); !errors.Is(err, ErrOffsetOutOfRange) {
			t.Fatalf("read below the start: %v", err)
		}
		if base := mustAppend(t, p, produced{producer: 4, sequence: 0, values: []string{"a", "b", "c"}}); base != 0 {
			t.Fatalf("the repeat of a deleted batch got offset %d, want that of the first attempt, 0", base)
		}
	}
	if base := mustAppend(t, p, produced{values: []string{"e"}}); base != 4 {
		t.Fatalf("base %d, want 4", base)
	}
}

// Retention by time removes batches whose records are all too old, by size what is not among
// the last bytes; both stop at what the table does not have, for a bounded time.
func TestRetention(t *testing.T) {
	ctx := context.Background()
	hour := time.Hour.Milliseconds()
	now := time.Now()
	at := func(age int64) produced {
		return produced{records: []record.Record{{Timestamp: now.UnixMilli() - age*hour, Value: []byte(fmt.Sprint(age))}}}
	}
	for _, test := range []struct {
		name   string
		config map[string]string
		hold   int64 // none if −1
		want   int64
	}{
		{"default keeps a week", nil, -1, 0},
		{"by time", map[string]string{"retention.ms": fmt.Sprint(25 * hour)}, -1, 2},
		{"by time, all", map[string]string{"retention.ms": "0"}, -1, 4},
		{"for ever", map[string]string{"retention.ms": "-1"}, -1, 0},
		{"compacted", map[string]string{"retention.ms": "0", "cleanup.policy": "compact"}, -1, 0},
		{"held by the table", map[string]string{"retention.ms": fmt.Sprint(25 * hour)}, 1, 1},
		{"the table is ahead", map[string]string{"retention.ms": fmt.Sprint(25 * hour)}, 3, 2},
		{"a table that has not said where it is", map[string]string{"retention.ms": "0", "table.topic.enable": "true"}, -1, 0},
		{"held too long", map[string]string{"retention.ms": fmt.Sprint(hour), "table.topic.hold.max.ms": fmt.Sprint(40 * hour)}, 0, 1},
		{"held without end", map[string]string{"retention.ms": "0", "table.topic.hold.max.ms": "-1"}, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newCluster(t).start()
			p := n.create(t, "t", 1, nil)
			for _, age := range []int64{50, 30, 20, 10} {
				mustAppend(t, p, at(age))
			}
			config := map[string]string{"retention.ms": fmt.Sprint(100 * hour)}
			for k, v := range test.config {
				config[k] = v
			}
			if _, err := n.AlterConfig(ctx, "t", config, nil); err != nil {
				t.Fatal(err)
			}
			if test.hold >= 0 {
				p.Hold(uuid.Nil, test.hold)
			}
			for range 2 {
				if err := p.retain(ctx, now); err != nil {
					t.Fatal(err)
				}
			}
			if got := p.Offsets().LogStart; got != test.want {
				t.Fatalf("log start %d, want %d", got, test.want)
			}
		})
	}
}

// The table's hold is what keeps retention from records that are not in the table.
func TestRetentionStopsAtHold(t *testing.T) {
	ctx := context.Background()
	n := newCluster(t).start()
	p := n.create(t, "t", 1, map[string]string{"retention.ms": "0", "table.topic.enable": "true", "cleanup.policy": "compact,delete"})
	mustAppend(t, p, produced{values: []string{"a"}})
	mustAppend(t, p, produced{values: []string{"b"}})
	p.Hold(uuid.Nil, 1)
	if err := p.retain(ctx, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	wantValues(t, p, p.Offsets().LogStart, "b")
	p.Release(uuid.Nil)
	if err := p.retain(ctx, time.Now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	wantValues(t, p, p.Offsets().LogStart)
}

// Retention by bytes leaves at least that much and not much more, across restarts.
func TestRetentionByBytes(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t)
	n := c.start()
	const keep = 2 << 20
	p := n.create(t, "t", 1, map[string]string{"retention.bytes": fmt.Sprint(keep), "retention.ms": "-1"})
	value := string(make([]byte, 20<<10))
	for range 3 {
		for range 150 {
			mustAppend(t, p, produced{values: []string{value}})
		}
		if err := p.retain(ctx, time.Now()); err != nil {
			t.Fatal(err)
		}
		var size int
		for _, r := range readAll(t, p, p.Offsets().LogStart) {
			size += len(r.Value)
		}
		if size < keep-keep/10 || size > keep+keep/4 {
			t.Fatalf("%d bytes are kept, want about %d", size, keep)
		}
		if got := p.Size(); got < int64(size) || got > int64(size)+keep/8 {
			t.Fatalf("Size is %d, the log has %d", got, size)
		}
		p = c.start().partition(t, "t", 0)
	}
}

// The index of sizes stays small and good to a small part, whatever is appended and trimmed.
func TestSizeIndex(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		var x sizeIndex
		var sizes []int64
		start := 0
		for i := range 3000 {
			n := r.Int64N(1 << r.IntN(24))
			x.add(int64(i), n)
			sizes = append(sizes, n)
			if r.IntN(100) == 0 {
				start += r.IntN(i + 1 - start)
				x.trim(int64(start))
			}
			if len(x.marks) > maxSizeMarks {
				t.Fatalf("seed %d: %d marks", seed, len(x.marks))
			}
			want := r.Int64N(1 << 30)
			if offset, ok := x.keep(want); ok {
				var kept int64
				for _, n := range sizes[offset:] {
					kept += n
				}
				if kept < want {
					t.Fatalf("seed %d: keep(%d) leaves %d bytes", seed, want, kept)
				}
			}
		}
	}
}
