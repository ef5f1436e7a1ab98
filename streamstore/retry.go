package streamstore

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
)

// patience says how the store waits for what fails for a time.
type patience struct {
	log    *slog.Logger
	jitter func() float64 // as Config.Jitter
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
		v, err := f()
		if err == nil || permanent(err) {
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

// permanent reports whether trying again cannot help.
func permanent(err error) bool {
	for _, e := range []error{objectstore.ErrNotFound, ErrNodeFenced, ErrStreamFenced, ErrStreamNotExist, ErrConflict, ErrCorrupt} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
