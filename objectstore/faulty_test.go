package objectstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The same requests meet the same faults, whatever their order; another seed gives others.
func TestFaultyIsSeeded(t *testing.T) {
	run := func(seed uint64, parallel bool) map[string]string {
		f := NewFaulty(NewMemory(), Faults{Seed: seed, Unavailable: 0.2, Lost: 0.2, Torn: 0.2})
		got := make(map[string]string)
		var mu sync.Mutex
		var wg sync.WaitGroup
		for k := range 30 {
			do := func() {
				key := fmt.Sprintf("k%d", k)
				for i := range 4 {
					put := f.Put(t.Context(), key, []byte("abcdef"))
					_, get := f.Get(t.Context(), key, 0, -1)
					mu.Lock()
					got[fmt.Sprintf("%s %d", key, i)] = fmt.Sprint(put, get)
					mu.Unlock()
				}
			}
			if parallel {
				wg.Go(do)
			} else {
				do()
			}
		}
		wg.Wait()
		return got
	}
	if diff := cmp.Diff(run(1, false), run(1, true)); diff != "" {
		t.Errorf("same seed (-one by one +together):\n%s", diff)
	}
	if cmp.Equal(run(1, false), run(2, false)) {
		t.Error("two seeds gave the same faults")
	}
}

// Every kind of fault is what it says: with or without effect, with or without an error.
func TestFaultyEffects(t *testing.T) {
	ctx := t.Context()
	m := NewMemory()
	f := NewFaulty(m, Faults{Unavailable: 1})
	if err := f.Put(ctx, "a", []byte("x")); !errors.Is(err, ErrInjected) {
		t.Errorf("unavailable put: %v, want %v", err, ErrInjected)
	}
	if _, err := m.Get(ctx, "a", 0, -1); !errors.Is(err, ErrNotFound) {
		t.Errorf("unavailable put had an effect: %v", err)
	}
	f.SetFaults(Faults{Lost: 1})
	if err := f.PutIfAbsent(ctx, "a", []byte("abcdef")); !errors.Is(err, ErrInjected) || errors.Is(err, ErrExists) {
		t.Errorf("lost create: %v, want %v", err, ErrInjected)
	}
	if err := m.PutIfAbsent(ctx, "a", nil); !errors.Is(err, ErrExists) {
		t.Errorf("lost create had no effect: %v", err)
	}
	f.SetFaults(Faults{Torn: 1})
	if got, err := f.Get(ctx, "a", 0, -1); !errors.Is(err, ErrInjected) || string(got) != "abc" {
		t.Errorf("torn get: %q, %v, want half and %v", got, err, ErrInjected)
	}
	f.SetFaults(Faults{Flipped: 1})
	got, err := f.Get(ctx, "a", 0, -1)
	if err != nil || len(got) != 6 {
		t.Fatalf("flipped get: %q, %v", got, err)
	}
	flipped := 0
	for i, c := range []byte("abcdef") {
		flipped += bits.OnesCount8(c ^ got[i])
	}
	if flipped != 1 {
		t.Errorf("%d bits flipped, want 1", flipped)
	}
	if got, _ := m.Get(ctx, "a", 0, -1); !bytes.Equal(got, []byte("abcdef")) {
		t.Errorf("the flip reached the store: %q", got)
	}
	f.Cut(true)
	if err := f.Delete(ctx, "a", "b"); !errors.Is(err, ErrInjected) {
		t.Errorf("delete when cut off: %v, want %v", err, ErrInjected)
	}
	f.Cut(false)
	f.SetFaults(Faults{})
	if err := f.Delete(ctx, "a", "b"); err != nil {
		t.Errorf("delete: %v", err)
	}
}

// A hold stops exactly what it matches, before or after the effect, within virtual time.
func TestFaultyHold(t *testing.T) {
	for _, stage := range []Stage{Before, After} {
		synctest.Test(t, func(t *testing.T) {
			m := NewMemory()
			f := NewFaulty(m, Faults{Latency: time.Hour})
			h := f.Hold(stage, func(op Op, key string) bool { return op == OpPutIfAbsent && key == "b" })
			done := make(chan error, 1)
			go func() { done <- f.PutIfAbsent(t.Context(), "b", []byte("x")) }()
			<-h.Reached()
			synctest.Wait()
			if _, err := m.Get(t.Context(), "b", 0, -1); (err == nil) != (stage == After) {
				t.Errorf("stage %d: get while held: %v", stage, err)
			}
			if err := f.PutIfAbsent(t.Context(), "a", []byte("x")); err != nil {
				t.Errorf("a key that is not held: %v", err)
			}
			cause := errors.New("cause")
			h.Release(cause)
			if err := <-done; !errors.Is(err, cause) || !errors.Is(err, ErrInjected) {
				t.Errorf("released: %v, want %v", err, cause)
			}
			if err := f.PutIfAbsent(t.Context(), "b", []byte("x")); (err == nil) != (stage == Before) {
				t.Errorf("stage %d: create after release: %v", stage, err)
			}
		})
	}
}

func TestCounterCounts(t *testing.T) {
	c := &Counter{}
	p, err := Prefix(NewMemory(), "p")
	if err != nil {
		t.Fatal(err)
	}
	b := Observe(p, c)
	ctx := t.Context()
	b.Put(ctx, "a", []byte("123"), []byte("45"))
	b.PutIfAbsent(ctx, "a", []byte("x"))
	b.Get(ctx, "a", 1, 2)
	b.List(ctx, "", "")
	keys := make([]string, 2001)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	b.Delete(ctx, keys...)
	got := []int64{c.Count(OpPut), c.Count(OpPutIfAbsent), c.Count(OpGet), c.Count(OpList), c.Count(OpDelete), c.Requests(), c.Sent(), c.Received(), c.Failed()}
	if diff := cmp.Diff([]int64{1, 1, 1, 1, 3, 7, 6, 2, 1}, got); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}
