package streamstore

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
)

// patience says how the store waits for what fails for a time, or is slow.
type patience struct {
	log    *slog.Logger
	jitter func() float64 // as Config.Jitter
	// starting makes a refusal of the object store final: whoever starts a node or asks for a
	// recovery is there to read it. A node that runs waits until the refusal is lifted.
	starting bool
}

// slowRequest is when the log says what is waited for, though nothing has failed.
const slowRequest = 10 * time.Second

// slow logs that what takes long, unless the timer that it returns is stopped before.
func (p patience) slow(what string) *time.Timer {
	return time.AfterFunc(slowRequest, func() { p.log.Warn("still waiting: " + what) })
}

// final reports whether trying again cannot help.
func (p patience) final(err error) bool {
	return permanent(err) || p.starting && errors.Is(err, objectstore.ErrRefused)
}

// backoff waits before try+1: up to 50 ms at first, up to 5 s later, and at least half of it.
func (p patience) backoff(ctx context.Context, try int) error {
	limit := min(50*time.Millisecond<<min(try, 10), 5*time.Second)
	t := time.NewTimer(limit/2 + time.Duration(p.jitter()*float64(limit/2)))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// retry calls f until it succeeds, fails for good, or ctx ends.
func retry[T any](ctx context.Context, p patience, what string, f func() (T, error)) (T, error) {
	for try := 0; ; try++ {
		slow := p.slow(what)
		v, err := f()
		slow.Stop()
		if err == nil || p.final(err) {
			return v, err
		}
		if ctx.Err() != nil {
			return v, err
		}
		p.log.Warn("trying again: "+what, "try", try+1, "error", err)
		if p.backoff(ctx, try) != nil {
			return v, err
		}
	}
}

// permanent reports whether err is an answer that will stay the same.
func permanent(err error) bool {
	for _, e := range []error{objectstore.ErrNotFound, ErrNodeFenced, ErrStreamFenced, ErrStreamNotExist, ErrConflict, ErrCorrupt, errNewer} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
