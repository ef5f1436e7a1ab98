package metadata

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// maxTogether bounds the changes of one transaction: they hold the lock of changes as long as all of
// them take.
const maxTogether = 32

// A queue has changes that wait for a transaction. What takes the time of a small one is its commit, so
// those that come while one is under way share the next.
type queue struct {
	mu      sync.Mutex
	waiting []*queuedChange // guarded by mu; bounded by the callers, each of which waits for its own
	leader  chan struct{}   // holds a token while one of them runs a transaction
}

type queuedChange struct {
	what string
	fn   func(*tx) error
	done chan error // has room for the outcome
}

func newQueue() *queue { return &queue{leader: make(chan struct{}, 1)} }

// take returns the changes that are next.
func (q *queue) take() []*queuedChange {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), maxTogether)
	batch := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	return batch
}

// withdraw takes a change back, unless a transaction has it already.
func (q *queue) withdraw(c *queuedChange) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, w := range q.waiting {
		if w == c {
			q.waiting = append(q.waiting[:i:i], q.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// updateTogether is update that may share its transaction with others of its kind: each is done or not
// by itself, and all are committed at once. An error of the commit, whose outcome is unknown, is that of
// each. Once it has begun, ctx does not end it.
func (s *Store) updateTogether(ctx context.Context, what string, fn func(*tx) error) error {
	c := &queuedChange{what: what, fn: fn, done: make(chan error, 1)}
	s.queue.mu.Lock()
	s.queue.waiting = append(s.queue.waiting, c)
	s.queue.mu.Unlock()
	for {
		select {
		case err := <-c.done:
			return err
		case s.queue.leader <- struct{}{}:
			s.lead(context.WithoutCancel(ctx))
		case <-ctx.Done():
			if s.queue.withdraw(c) {
				return fmt.Errorf("%s: %w", what, ctx.Err())
			}
			return <-c.done
		}
	}
}

// lead runs the next changes, whose token the caller holds, and gives it back.
func (s *Store) lead(ctx context.Context) {
	defer func() { <-s.queue.leader }()
	switch batch := s.queue.take(); len(batch) {
	case 0:
	case 1:
		err := errPanicked
		defer func() { batch[0].done <- err }()
		err = s.update(ctx, batch[0].what, batch[0].fn)
	default:
		s.runTogether(ctx, batch)
	}
}

var errPanicked = errors.New("the transaction panicked")

// runTogether runs changes in one transaction, in their order, each in a savepoint.
func (s *Store) runTogether(ctx context.Context, batch []*queuedChange) {
	outcomes, err := make([]error, len(batch)), errPanicked
	defer func() {
		for i, c := range batch {
			if outcomes[i] != nil {
				c.done <- fmt.Errorf("%s: %w", c.what, outcomes[i])
			} else {
				c.done <- err
			}
		}
	}()
	err = s.update(ctx, fmt.Sprintf("%d changes at once, one of them: %s", len(batch), batch[0].what), func(t *tx) error {
		for i, c := range batch {
			if _, err := t.exec(`SAVEPOINT change`); err != nil {
				return err
			}
			if outcomes[i] = c.fn(t); outcomes[i] != nil {
				if _, err := t.exec(`ROLLBACK TO SAVEPOINT change`); err != nil {
					return err
				}
			}
			if _, err := t.exec(`RELEASE SAVEPOINT change`); err != nil {
				return err
			}
		}
		return nil
	})
}
