package objectstore

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// ErrInjected is in every error that a Faulty makes up. It is an ErrUnavailable.
var ErrInjected = fmt.Errorf("injected fault: %w", ErrUnavailable)

// Faults says how often a Faulty misbehaves. Shares are probabilities from 0 to 1.
type Faults struct {
	// Seed decides, together with the kind, the key and how often they came before, what
	// happens to a request: the same requests meet the same faults in any interleaving.
	Seed uint64
	// Latency is the longest wait before the effect, and once more after it.
	Latency time.Duration
	// Unavailable is the share of requests that fail without effect, as a 503 does.
	Unavailable float64
	// Lost is the share of requests that take effect and yet fail: the answer is lost.
	Lost float64
	// Torn is the share of Gets that fail in the middle: half of the bytes come with the error.
	Torn float64
	// Flipped is the share of Gets that succeed with one bit wrong, as a bad disk does.
	Flipped float64
}

// Faulty is a Bucket for tests that misbehaves on request: at random by [Faults], or exactly
// where a test wants it by [Faulty.Hold].
//
// Each call goes through: cut off? → Hold before → latency → Unavailable → the effect →
// Hold after → latency → Lost. It waits on channels and timers alone and so works within a
// testing/synctest bubble. A zombie or a crashed node is a Faulty of its own over the
// store that all share: Cut it, and the others never notice.
type Faulty struct {
	b Bucket

	mu     sync.Mutex
	faults Faults           // guarded by mu
	holds  []*Hold          // guarded by mu
	cut    bool             // guarded by mu
	seen   map[opKey]uint64 // guarded by mu; requests so far
}

type opKey struct {
	op  Op
	key string
}

// NewFaulty wraps b. Faults may be zero.
func NewFaulty(b Bucket, faults Faults) *Faulty {
	return &Faulty{b: b, faults: faults, seen: make(map[opKey]uint64)}
}

// SetFaults changes what happens to requests from now on.
func (f *Faulty) SetFaults(faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = faults
}

// Cut fails every request from now on. One that is under way may still take effect, and
// fails too. Cut(false) connects again.
func (f *Faulty) Cut(off bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = off
}

// A Stage is where a Hold stops a request.
type Stage int

const (
	Before Stage = iota // before the effect
	After               // after it, before the answer
)

// A Hold stops the requests that it matches until it is released.
type Hold struct {
	match   func(op Op, key string) bool
	stage   Stage
	reached chan struct{}
	once    sync.Once
	release chan struct{}
	err     error // written before release is closed
}

// Hold stops every request that match accepts (for a Delete: any of its keys) at the stage:
//
//	h := f.Hold(objectstore.After, func(op objectstore.Op, key string) bool { return key == "wal/1/7" })
//	go store.Append(…)
//	<-h.Reached()    // the object is there, its writer does not know
//	…
//	h.Release(nil)   // or an error: the answer is lost, or with Before: no effect
func (f *Faulty) Hold(stage Stage, match func(op Op, key string) bool) *Hold {
	h := &Hold{match: match, stage: stage, reached: make(chan struct{}), release: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holds = append(f.holds, h)
	return h
}

// Reached is closed once a request is stopped here.
func (h *Hold) Reached() <-chan struct{} { return h.reached }

// Release ends the hold, once: stopped and later requests go on, those that are stopped
// with err if it is not nil (wrapped, with ErrInjected).
func (h *Hold) Release(err error) {
	h.err = err
	close(h.release)
}

func (f *Faulty) stop(ctx context.Context, stage Stage, op Op, keys ...string) error {
	f.mu.Lock()
	cut, holds := f.cut, f.holds
	f.mu.Unlock()
	if cut {
		return fmt.Errorf("%w: cut off", ErrInjected)
	}
	for _, h := range holds {
		if h.stage != stage || !matches(h, op, keys) {
			continue
		}
		select {
		case <-h.release: // released before we came
			continue
		default:
		}
		h.once.Do(func() { close(h.reached) })
		select {
		case <-h.release:
		case <-ctx.Done():
			return ctx.Err()
		}
		if h.err != nil {
			return fmt.Errorf("%w: %w", ErrInjected, h.err)
		}
	}
	return nil
}

func matches(h *Hold, op Op, keys []string) bool {
	for _, key := range keys {
		if h.match(op, key) {
			return true
		}
	}
	return false
}

// do runs effect between the faults. What it returns next to an error has happened.
func (f *Faulty) do(ctx context.Context, op Op, keys []string, effect func(*rand.Rand, Faults) error) error {
	if len(keys) == 0 {
		return nil
	}
	f.mu.Lock()
	faults, id := f.faults, opKey{op, keys[0]}
	n := f.seen[id]
	f.seen[id]++
	f.mu.Unlock()
	hash := fnv.New64a()
	io.WriteString(hash, string(op)+" "+keys[0])
	r := rand.New(rand.NewPCG(faults.Seed^hash.Sum64(), n))

	if err := f.stop(ctx, Before, op, keys...); err != nil {
		return fmt.Errorf("%s %s: %w", op, keys[0], err)
	}
	if err := wait(ctx, r, faults.Latency); err != nil {
		return fmt.Errorf("%s %s: %w", op, keys[0], err)
	}
	if r.Float64() < faults.Unavailable {
		return fmt.Errorf("%s %s: %w: 503 SlowDown", op, keys[0], ErrInjected)
	}
	err := effect(r, faults)
	if err := f.stop(ctx, After, op, keys...); err != nil {
		return fmt.Errorf("%s %s: %w", op, keys[0], err)
	}
	if err := wait(ctx, r, faults.Latency); err != nil {
		return fmt.Errorf("%s %s: %w", op, keys[0], err)
	}
	if r.Float64() < faults.Lost {
		return fmt.Errorf("%s %s: %w: answer lost", op, keys[0], ErrInjected)
	}
	return err
}

func wait(ctx context.Context, r *rand.Rand, longest time.Duration) error {
	if longest <= 0 {
		return ctx.Err()
	}
	return sleep(ctx, time.Duration(r.Int64N(int64(longest))))
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Put implements Bucket.
func (f *Faulty) Put(ctx context.Context, key string, body ...[]byte) error {
	return f.do(ctx, OpPut, []string{key}, func(*rand.Rand, Faults) error { return f.b.Put(ctx, key, body...) })
}

// PutIfAbsent implements Bucket.
func (f *Faulty) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	return f.do(ctx, OpPutIfAbsent, []string{key}, func(*rand.Rand, Faults) error {
		return f.b.PutIfAbsent(ctx, key, body...)
	})
}

// Get implements Bucket.
func (f *Faulty) Get(ctx context.Context, key string, off, n int64) (data []byte, err error) {
	torn := false
	err = f.do(ctx, OpGet, []string{key}, func(r *rand.Rand, faults Faults) error {
		var err error
		data, err = f.b.Get(ctx, key, off, n)
		if err != nil || len(data) == 0 {
			return err
		}
		if r.Float64() < faults.Torn {
			torn = true
			data = data[:len(data)/2]
			return fmt.Errorf("get %s: %w: %w", key, ErrInjected, io.ErrUnexpectedEOF)
		}
		if r.Float64() < faults.Flipped {
			data[r.IntN(len(data))] ^= 1 << r.IntN(8)
		}
		return nil
	})
	if err != nil && !torn {
		return nil, err
	}
	return data, err
}

// List implements Bucket.
func (f *Faulty) List(ctx context.Context, prefix, after string) (page []Object, err error) {
	err = f.do(ctx, OpList, []string{prefix}, func(*rand.Rand, Faults) error {
		var err error
		page, err = f.b.List(ctx, prefix, after)
		return err
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// Delete implements Bucket.
func (f *Faulty) Delete(ctx context.Context, keys ...string) error {
	err := f.do(ctx, OpDelete, keys, func(*rand.Rand, Faults) error { return f.b.Delete(ctx, keys...) })
	if _, ok := errors.AsType[*DeleteError](err); err != nil && !ok && checkKeys(keys) == nil {
		return &DeleteError{Keys: slices.Clone(keys), Err: err}
	}
	return err
}

// Location is that of the store below.
func (f *Faulty) Location(key string) string { return Location(f.b, key) }
