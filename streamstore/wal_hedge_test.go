package streamstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
)

// slowPuts is a bucket whose creates take time; which of a key's requests is held, and how it
// ends, is up to the test.
type slowPuts struct {
	objectstore.Bucket
	took time.Duration

	mu        sync.Mutex
	tries     map[string]int                                                     // guarded by mu; creates of each key so far
	again     int                                                                // guarded by mu; creates under way that are not the first of their key …
	againMost int                                                                // guarded by mu; … at most
	spoil     func(key string, try int) (before, after time.Duration, err error) // guarded by mu
}

func newSlowPuts(b objectstore.Bucket, took time.Duration) *slowPuts {
	return &slowPuts{Bucket: b, took: took, tries: make(map[string]int)}
}

func (s *slowPuts) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	s.mu.Lock()
	try := s.tries[key]
	s.tries[key]++
	if try > 0 {
		s.again++
		s.againMost = max(s.againMost, s.again)
	}
	before, after, fail := s.took, time.Duration(0), error(nil)
	if s.spoil != nil {
		before, after, fail = s.spoil(key, try)
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if try > 0 {
			s.again--
		}
	}()
	if err := sleepFor(ctx, before); err != nil {
		return err
	}
	if fail != nil {
		return fail
	}
	err := s.Bucket.PutIfAbsent(ctx, key, body...)
	if late := sleepFor(ctx, after); late != nil {
		return late
	}
	return err
}

func sleepFor(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slowPuts) requests() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, tries := range s.tries {
		n += tries
	}
	return n
}

// warm appends until the store knows what a PUT of the size takes.
func warm(t *testing.T, st *Stream) []string {
	t.Helper()
	var all []string
	for i := range hedgeEnough {
		all = append(all, fmt.Sprint("warm-", i))
		appendAll(t, st, all[i])
	}
	return all
}

const (
	usualPut = 30 * time.Millisecond
	never    = 1000 * time.Hour
)

// hedging runs f on a store that knows its PUTs take usualPut.
func hedging(t *testing.T, change func(*Config), f func(t *testing.T, e *env, b *slowPuts, s *Store, st *Stream, sofar []string)) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		b := newSlowPuts(e.memory, usualPut)
		e.bucket = b
		cfg := Config{CleanInterval: -1, CompactionInterval: -1, MinorInterval: -1, MajorInterval: -1, CleanupInterval: -1, UploadInterval: 2 * never}
		if change != nil {
			change(&cfg)
		}
		s := e.open(cfg)
		st := e.create(s, 1, 1)[0]
		f(t, e, b, s, st, warm(t, st))
		s.abandon()
	})
}

func (s *slowPuts) set(spoil func(key string, try int) (before, after time.Duration, err error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoil = spoil
}

// A PUT that hangs is sent again once it takes longer than usual, and the append is answered by the
// second: after the 99th percentile, or the floor if that is later.
func TestHungPutIsHedged(t *testing.T) {
	for floor, want := range map[time.Duration]time.Duration{time.Millisecond: usualPut, 0: 100 * time.Millisecond, 300 * time.Millisecond: 300 * time.Millisecond} {
		hedging(t, func(c *Config) { c.WALHedgeMin = floor }, func(t *testing.T, e *env, b *slowPuts, s *Store, st *Stream, sofar []string) {
			b.set(func(_ string, try int) (time.Duration, time.Duration, error) {
				if try == 0 {
					return never, 0, nil
				}
				return usualPut, 0, nil
			})
			<-time.After(time.Second)
			began, before := time.Now(), b.requests()
			appendAll(t, st, "hung")
			if took := time.Since(began); took != s.cfg.WALIdleLinger+want+usualPut {
				t.Errorf("floor %v: answered after %v, want %v and the PUT", floor, took-s.cfg.WALIdleLinger, want)
			}
			if n, sent, won := b.requests()-before, s.hedges.sent.Load(), s.hedges.won.Load(); n != 2 || sent != 1 || won != 1 {
				t.Errorf("floor %v: %d requests, %d hedges of which %d won, want 2, 1 and 1", floor, n, sent, won)
			}
			s.abandon()
			if _, got := e.takeOver(st, 2); !slices.Equal(got, append(sofar, "hung")) {
				t.Errorf("floor %v: %d records, want %d", floor, len(got), len(sofar)+1)
			}
		})
	}
}

// The usual PUT is not hedged, nor is one of a size that is not known yet.
func TestUsualPutIsNotHedged(t *testing.T) {
	hedging(t, func(c *Config) { c.WALHedgeMin = time.Millisecond }, func(t *testing.T, e *env, b *slowPuts, s *Store, st *Stream, _ []string) {
		b.set(func(string, int) (time.Duration, time.Duration, error) { return usualPut - time.Millisecond, 0, nil })
		for range hedgeWindow - hedgeEnough {
			appendAll(t, st, "usual")
		}
		b.set(func(string, int) (time.Duration, time.Duration, error) { return 10 * time.Second, 0, nil })
		appendAll(t, st, strings.Repeat("large", 100_000))
		if n := s.hedges.sent.Load(); n != 0 {
			t.Errorf("%d hedges, want none", n)
		}
	})
}

// However the two requests for one object end, there is one object with one content, and the
// append succeeds, once: the second meets the first's object, or is refused as a concurrent
// write, or the first is.
func TestHedgeMakesNoSecondObject(t *testing.T) {
	refused := errors.New("409 conflict: a concurrent write of this object is under way")
	for name, spoil := range map[string]func(key string, try int) (before, after time.Duration, err error){
		"the first has landed, its answer is late": func(_ string, try int) (time.Duration, time.Duration, error) {
			if try == 0 {
				return usualPut, never, nil
			}
			return usualPut, 0, nil
		},
		"both land at the same time": func(_ string, try int) (time.Duration, time.Duration, error) {
			if try == 0 {
				return 200 * time.Millisecond, 0, nil
			}
			return 100 * time.Millisecond, 0, nil
		},
		"the second is refused as concurrent": func(_ string, try int) (time.Duration, time.Duration, error) {
			if try == 0 {
				return time.Second, 0, nil
			}
			return usualPut, 0, refused
		},
		"the first is refused as concurrent": func(_ string, try int) (time.Duration, time.Duration, error) {
			if try == 0 {
				return 110 * time.Millisecond, 0, refused
			}
			return usualPut, 0, nil
		},
		"each refuses the other": func(_ string, try int) (time.Duration, time.Duration, error) {
			if try < 2 {
				return time.Second, 0, refused
			}
			return usualPut, 0, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			hedging(t, nil, func(t *testing.T, e *env, b *slowPuts, s *Store, st *Stream, sofar []string) {
				before, _ := e.walObjects(s.Node())
				b.set(spoil)
				began := time.Now()
				appendAll(t, st, "x")
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("the append took %v", took)
				}
				b.set(nil)
				synctest.Wait()
				if after, fences := e.walObjects(s.Node()); len(after) != len(before)+1 || len(fences) != 0 {
					t.Errorf("%d objects before, %d after and %d fences, want one more", len(before), len(after), len(fences))
				}
				appendAll(t, st, "y")
				s.abandon()
				if _, got := e.takeOver(st, 2); !slices.Equal(got, append(sofar, "x", "y")) {
					t.Errorf("%d records, want %d, each once", len(got), len(sofar)+2)
				}
			})
		})
	}
}

// A second request that was given up, and has its effect when the object is trimmed already,
// leaves an object that nobody reads. The sweep after the next start removes it.
func TestLateHedgeIsSweptUp(t *testing.T) {
	hedging(t, nil, func(t *testing.T, e *env, b *slowPuts, s *Store, st *Stream, sofar []string) {
		key := ""
		b.set(func(k string, try int) (time.Duration, time.Duration, error) {
			key = k
			if try == 0 {
				return time.Second, 0, nil
			}
			return never, 0, nil
		})
		appendAll(t, st, "x")
		if sent := s.hedges.sent.Load(); sent != 1 {
			t.Fatalf("%d hedges, want 1", sent)
		}
		b.set(nil)
		object, err := e.memory.Get(t.Context(), key, 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.upload.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // for the trim
		if err := e.memory.PutIfAbsent(t.Context(), key, object); err != nil {
			t.Fatalf("the hedge lands late: %v, want it to meet nothing", err)
		}
		node := s.Node()
		s.abandon()
		next, got := e.takeOver(st, 2)
		if !slices.Equal(got, append(sofar, "x")) {
			t.Errorf("%d records, want %d, each once", len(got), len(sofar)+1)
		}
		if err := next.sweepWALs(t.Context()); err != nil {
			t.Fatal(err)
		}
		if data, fences := e.walObjects(node); len(data) != 0 || len(fences) != 1 {
			t.Errorf("left: data %v and fences %v, want one fence", data, fences)
		}
		next.abandon()
	})
}

// A fence that is put up between the two requests fences, though the first was sent before.
func TestFenceBetweenPutAndHedge(t *testing.T) {
	hedging(t, nil, func(t *testing.T, e *env, b *slowPuts, s *Store, st *Stream, sofar []string) {
		sent := make(chan struct{})
		b.set(func(_ string, try int) (time.Duration, time.Duration, error) {
			if try == 0 {
				close(sent)
				return never, 0, nil
			}
			return usualPut, 0, nil
		})
		late := start(t, st, "late")
		<-sent
		if _, got := e.takeOver(st, 2); !slices.Equal(got, sofar) {
			t.Errorf("taken over %d records, want %d", len(got), len(sofar))
		}
		if err := <-late; !errors.Is(err, ErrNodeFenced) {
			t.Errorf("append: %v, want it fenced", err)
		}
	})
}

// When all of the store has become slow, hedges stay a few percent of the PUTs, and few are
// under way at a time.
func TestHedgesAreBounded(t *testing.T) {
	for _, inflight := range []int{2, 50} {
		testHedgesAreBounded(t, inflight)
	}
}

func testHedgesAreBounded(t *testing.T, inflight int) {
	const puts = 400
	hedging(t, func(c *Config) { c.WALInflight, c.WALHedgeInflight, c.WALBytes = 50, inflight, 4<<10 },
		func(t *testing.T, e *env, b *slowPuts, s *Store, st *Stream, _ []string) {
			b.set(func(string, int) (time.Duration, time.Duration, error) { return time.Second, 0, nil })
			before := b.requests()
			var done []<-chan error
			for range puts { // 5 KiB each: a bulk of its own
				done = append(done, start(t, st, strings.Repeat("x", 5<<10)))
			}
			for _, c := range done {
				if err := <-c; err != nil {
					t.Fatal(err)
				}
			}
			hedges := s.hedges.sent.Load()
			if n := b.requests() - before; int64(n) != puts+hedges {
				t.Errorf("%d requests for %d objects and %d hedges", n, puts, hedges)
			}
			if limit := int64(puts*s.cfg.WALHedgePercent/100 + hedgeBurst + 1); hedges == 0 || hedges > limit {
				t.Errorf("%d hedges for %d slow PUTs, want 1 to %d", hedges, puts, limit)
			}
			if b.againMost > inflight {
				t.Errorf("%d hedges at a time, want at most %d", b.againMost, inflight)
			}
		})
}

// Without hedges a slow PUT is waited for.
func TestHedgesCanBeSwitchedOff(t *testing.T) {
	hedging(t, func(c *Config) { c.WALHedgeMin = -1 }, func(t *testing.T, e *env, b *slowPuts, s *Store, st *Stream, _ []string) {
		b.set(func(string, int) (time.Duration, time.Duration, error) { return time.Hour, 0, nil })
		appendAll(t, st, "slow")
		if n := s.hedges.sent.Load(); n != 0 {
			t.Errorf("%d hedges, want none", n)
		}
	})
}
