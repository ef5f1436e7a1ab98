package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/record"
)

// counters is a map of names to numbers; a record sets one.
type counters struct {
	values map[string]int64
	wake   time.Time
	ticks  int
}

func newCounters() *counters { return &counters{values: map[string]int64{}} }

func (c *counters) Replay(r Record) error {
	if len(r.Value) != 8 {
		return fmt.Errorf("value of %d bytes", len(r.Value))
	}
	c.values[string(r.Key)] = int64(binary.BigEndian.Uint64(r.Value))
	return nil
}

func (c *counters) Snapshot() []Record {
	var out []Record
	for _, k := range slices.Sorted(maps.Keys(c.values)) {
		out = append(out, set(k, c.values[k]))
	}
	return out
}

func (c *counters) Tick(time.Time) Step {
	c.ticks++
	c.wake = time.Time{}
	return Step{Records: []Record{set("ticks", int64(c.ticks))}}
}

func (c *counters) Wake() time.Time { return c.wake }

func set(key string, v int64) Record {
	return Record{Record: record.Record{Key: []byte(key), Value: binary.BigEndian.AppendUint64(nil, uint64(v))}}
}

// increment answers with the new value.
func increment(key string) func(*counters, time.Time, Ticket) Step {
	return func(c *counters, _ time.Time, t Ticket) Step {
		v := c.values[key] + 1
		return Step{Records: []Record{set(key, v)}, Answers: []Answer{{t, v}}}
	}
}

func get(key string) func(*counters, time.Time, Ticket) Step {
	return func(c *counters, _ time.Time, t Ticket) Step {
		return Step{Answers: []Answer{{t, c.values[key]}}}
	}
}

// memoryLog acknowledges at once, or when release is called if held.
type memoryLog struct {
	mu      sync.Mutex
	batches []record.Batch
	start   int64
	end     int64
	held    bool
	waiting []func()
	fail    error
}

func (l *memoryLog) Append(_ context.Context, b []byte, done func(int64, error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	batch := record.Batch(b)
	base := l.end
	batch.SetBaseOffset(base)
	l.batches = append(l.batches, batch)
	l.end = batch.NextOffset()
	fail := l.fail
	ack := func() { done(base, fail) }
	if l.held {
		l.waiting = append(l.waiting, ack)
	} else {
		ack()
	}
	return nil
}

func (l *memoryLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ack := range l.waiting {
		ack()
	}
	l.waiting, l.held = nil, false
}

func (l *memoryLog) Read(_ context.Context, from int64, _ int) ([]record.Batch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, b := range l.batches {
		if b.NextOffset() > from {
			return l.batches[i : i+1], nil
		}
	}
	return nil, nil
}

func (l *memoryLog) Offsets() (int64, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start, l.end
}

func (l *memoryLog) Trim(_ context.Context, before int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start = before
	l.batches = slices.DeleteFunc(l.batches, func(b record.Batch) bool { return b.NextOffset() <= before })
	return nil
}

func open(t *testing.T, l *memoryLog, cfg Config) *Shard[*counters] {
	t.Helper()
	s, err := Open(t.Context(), l, newCounters(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Nobody learns of a state that the log may still lose: an answer waits for every append before it.
func TestAnswersWaitForEarlierAppends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &memoryLog{held: true}
		s := open(t, l, Config{})
		var got []any
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, handle := range []func(*counters, time.Time, Ticket) Step{increment("a"), get("a"), increment("a")} {
			wg.Go(func() {
				v, err := s.Do(t.Context(), handle)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				got = append(got, v)
			})
			synctest.Wait()
		}
		if len(got) > 0 {
			t.Fatalf("answered %v before anything was durable", got)
		}
		l.release()
		wg.Wait()
		slices.SortFunc(got, func(a, b any) int { return int(a.(int64) - b.(int64)) })
		if diff := cmp.Diff([]any{int64(1), int64(1), int64(2)}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestReopenReplays(t *testing.T) {
	l := &memoryLog{}
	s := open(t, l, Config{})
	for range 5 {
		if _, err := s.Do(t.Context(), increment("a")); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	if _, err := s.Do(t.Context(), get("a")); !errors.Is(err, ErrClosed) {
		t.Errorf("closed shard answered: %v", err)
	}
	v, err := open(t, l, Config{}).Do(t.Context(), get("a"))
	if err != nil || v != int64(5) {
		t.Errorf("after reopening: %v, %v, want 5", v, err)
	}
}

// A failed append ends the shard: what was told stays true, what was not is unknown.
func TestFailedAppendEndsTheShard(t *testing.T) {
	l := &memoryLog{}
	s := open(t, l, Config{})
	if _, err := s.Do(t.Context(), increment("a")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("fenced")
	l.mu.Lock()
	l.fail = broken
	l.mu.Unlock()
	if _, err := s.Do(t.Context(), increment("a")); !errors.Is(err, ErrClosed) || !errors.Is(err, broken) {
		t.Errorf("got %v, want the reason", err)
	}
	<-s.Done()
}

// The log stays about as long as the state, however many changes there were, and a reopen
// between any two steps sees the same.
func TestSnapshotTrimsTheLog(t *testing.T) {
	l := &memoryLog{}
	cfg := Config{SnapshotBytes: 2000, BatchBytes: 100}
	s := open(t, l, cfg)
	want := map[string]int64{}
	for i := range 500 {
		key := fmt.Sprint("k", i%7)
		want[key]++
		if _, err := s.Do(t.Context(), increment(key)); err != nil {
			t.Fatal(err)
		}
		if i%50 == 49 {
			s.Close()
			s = open(t, l, cfg)
		}
	}
	for key, n := range want {
		if v, err := s.Do(t.Context(), get(key)); err != nil || v != n {
			t.Errorf("%s = %v, %v, want %d", key, v, err, n)
		}
	}
	if start, end := l.Offsets(); start == 0 || end-start > 200 {
		t.Errorf("log is %d to %d: not trimmed", start, end)
	}
}

func TestTickComesWhenAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, &memoryLog{}, Config{})
		_, err := s.Do(t.Context(), func(c *counters, now time.Time, t Ticket) Step {
			c.wake = now.Add(time.Minute)
			return Step{Answers: []Answer{{t, nil}}}
		})
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(61 * time.Second)
		if v, err := s.Do(t.Context(), get("ticks")); err != nil || v != int64(1) {
			t.Errorf("ticks = %v, %v, want 1", v, err)
		}
	})
}
