package share

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// memoryStore keeps states, and takes none while held.
type memoryStore struct {
	mu    sync.Mutex
	saved map[Key]Saved // guarded by mu
	epoch int32         // guarded by mu; of all states
	fail  error         // guarded by mu; of the next Save
	held  chan struct{} // guarded by mu; nil, or closed when Save goes on
}

func (m *memoryStore) Load(_ context.Context, k Key, _ int32) (Loaded, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.saved[k]
	return Loaded{Saved: s, Found: ok, StateEpoch: m.epoch}, nil
}

func (m *memoryStore) Save(ctx context.Context, k Key, _, _ int32, s Saved) error {
	m.mu.Lock()
	held := m.held
	m.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail == nil {
		m.saved[k] = s
	}
	return m.fail
}

func (m *memoryStore) hold() (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := make(chan struct{})
	m.held = held
	return func() {
		m.mu.Lock()
		m.held = nil
		m.mu.Unlock()
		close(held)
	}
}

func openManager() (*Manager, *memoryStore) {
	store := &memoryStore{saved: map[Key]Saved{}}
	m := Open(store)
	return m, store
}

var (
	testKey    = Key{Group: "g"}
	testLimits = Limits{Lock: 30 * time.Second, Deliveries: 2, InFlight: 100}
	testLog    = []Batch{{First: 0, Last: 9}}
)

func use(t *testing.T, m *Manager) *Partition {
	t.Helper()
	p := m.Use(testKey, 1, testLimits, func() (int64, error) { return 0, nil })
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

func mustAcquire(t *testing.T, p *Partition, owner Owner, want int) {
	t.Helper()
	from, _, err := p.Next(testLimits, 0)
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Acquire(from, testLog, Demand{Owner: owner, Records: 100})
	n := 0
	for _, a := range got {
		n += int(a.Last - a.First + 1)
	}
	if err != nil || n != want {
		t.Fatalf("%d acquires %d records, %v, want %d", owner, n, err, want)
	}
}

// Nobody is told that a record is accepted before the store has it; meanwhile nobody else gets it, and
// many acknowledgements are one save.
func TestAcknowledgedIsSavedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, store := openManager()
		p := use(t, m)
		mustAcquire(t, p, 1, 10)
		release := store.hold()
		told := make(chan error, 2)
		for _, a := range []Acknowledgement{{0, 3, []AckType{Accept}}, {4, 9, []AckType{Reject}}} {
			wait, err := p.Acknowledge(1, []Acknowledgement{a})
			if err != nil {
				t.Fatal(err)
			}
			go func() { told <- wait(t.Context()) }()
		}
		synctest.Wait()
		if len(told) > 0 {
			t.Fatal("told before it was saved")
		}
		release()
		for range 2 {
			if err := <-told; err != nil {
				t.Error(err)
			}
		}
		if diff := cmp.Diff(Saved{Start: 10}, store.saved[testKey]); diff != "" {
			t.Error(diff)
		}
		p.Leave()
		m.Close(t.Context())
	})
}

// What is not acknowledged in time goes to somebody else, who is told of it; after the last delivery
// to nobody. A member that leaves gives up what it has at once.
func TestRecordsComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, store := openManager()
		p := use(t, m)
		wake := make(chan struct{}, 1)
		defer p.Notify(wake)()
		mustAcquire(t, p, 1, 10)
		before := time.Now()
		<-wake
		if d := time.Since(before); d != testLimits.Lock {
			t.Errorf("the records came back after %v, want %v", d, testLimits.Lock)
		}
		mustAcquire(t, p, 2, 10)
		if _, err := p.Acknowledge(2, []Acknowledgement{{0, 0, []AckType{Accept}}}); err != nil {
			t.Fatal(err)
		}
		p.Release(2)
		synctest.Wait()
		if diff := cmp.Diff(Saved{Start: 10}, store.saved[testKey]); diff != "" {
			t.Errorf("all were delivered as often as is allowed:\n%s", diff)
		}
		p.Leave()
		m.Close(t.Context())
	})
}

// A store that refuses ends the share-partition: who waits is told so, and who uses it next has what
// the store has.
func TestRefusedSaveEndsThePartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, store := openManager()
		p := use(t, m)
		mustAcquire(t, p, 1, 10)
		fenced := errors.New("fenced")
		store.mu.Lock()
		store.fail = fenced
		store.mu.Unlock()
		wait, err := p.Acknowledge(1, []Acknowledgement{{0, 9, []AckType{Accept}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := wait(t.Context()); !errors.Is(err, fenced) {
			t.Fatalf("told %v, want %v", err, fenced)
		}
		if _, _, err := p.Next(testLimits, 0); !errors.Is(err, fenced) {
			t.Errorf("it goes on: %v", err)
		}
		store.mu.Lock()
		store.fail = nil
		store.mu.Unlock()
		p.Leave()
		again := use(t, m)
		mustAcquire(t, again, 2, 10)
		again.Leave()
		m.Close(t.Context())
	})
}

// A state that was replaced in the store is not what those get who come after that, though others use
// the former one.
func TestReplacedStateIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, store := openManager()
		p := use(t, m)
		mustAcquire(t, p, 1, 10)
		if err := p.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		store.mu.Lock()
		store.saved[testKey], store.epoch = Saved{Start: 4}, 1
		store.mu.Unlock()
		second := use(t, m)
		if err := second.Check(t.Context()); !errors.Is(err, ErrClosed) {
			t.Fatalf("the former state goes on: %v", err)
		}
		third := use(t, m)
		if err := third.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustAcquire(t, third, 2, 6)
		for _, u := range []*Partition{p, second, third} {
			u.Leave()
		}
		m.Close(t.Context())
	})
}

// What the members of a session that has ended had is saved, also if nobody uses it any more; a later
// leader of the partition gets it, and the former use ends.
func TestLaterUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := openManager()
		p := use(t, m)
		mustAcquire(t, p, 1, 10)
		p.Release(1)
		p.Leave()
		synctest.Wait()
		if err := p.Err(); !errors.Is(err, ErrClosed) {
			t.Fatalf("nobody uses it, and it goes on: %v", err)
		}
		second := use(t, m)
		later := m.Use(testKey, 2, testLimits, nil)
		if err := later.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := second.Err(); !errors.Is(err, ErrClosed) {
			t.Errorf("another epoch leads, and it goes on: %v", err)
		}
		mustAcquire(t, later, 3, 10)
		later.Release(3)
		mustAcquire(t, later, 4, 0) // two deliveries are the limit
		second.Leave()
		later.Leave()
		m.Close(t.Context())
	})
}
