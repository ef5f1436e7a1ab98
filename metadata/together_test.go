package metadata

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Changes of one transaction stand for themselves: one that fails leaves nothing behind, and those before
// and after it are there. One that is given up while it waits is not done.
func TestChangesTogether(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		subjects := make([]Subject, 8)
		for i := range subjects {
			subjects[i] = subject(t, s, fmt.Sprintf("s%d", i))
		}
		subjects[2].Revision = 7          // is not what it was
		subjects[5].Own.Mode = "READONLY" // neither
		ctx, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		s.queue.leader <- struct{}{} // all wait for each other
		type outcome struct {
			i   int
			v   SubjectVersion
			err error
		}
		done := make(chan outcome, len(subjects))
		for i, u := range subjects {
			ctx := ctx
			if i != 4 {
				ctx = t.Context()
			}
			go func() {
				v, err := s.RegisterSchema(ctx, u, 0, Schema{Type: "AVRO", Text: fmt.Sprintf(`"t%d"`, i)})
				done <- outcome{i, v, err}
			}()
		}
		waitQueued := func(n int) {
			t.Helper()
			deadline := time.After(invariant.Patience(time.Minute))
			for {
				s.queue.mu.Lock()
				waiting := len(s.queue.waiting)
				s.queue.mu.Unlock()
				if waiting == n {
					return
				}
				select {
				case <-deadline:
					t.Fatalf("%d changes wait, want %d", waiting, n)
				case <-time.After(time.Millisecond):
				}
			}
		}
		waitQueued(len(subjects))
		giveUp()
		if o := <-done; o.i != 4 || !errors.Is(o.err, context.Canceled) {
			t.Fatalf("given up: %+v", o)
		}
		<-s.queue.leader
		ids := map[int]bool{}
		for range len(subjects) - 1 {
			o := <-done
			conflict := o.i == 2 || o.i == 5
			if errors.Is(o.err, streamstore.ErrConflict) != conflict || (o.err == nil) == conflict {
				t.Errorf("subject s%d: %v, a conflict: %t", o.i, o.err, conflict)
			}
			if o.err == nil {
				ids[o.v.Schema.ID] = true
			}
		}
		for i := range subjects {
			want := 1
			if i == 2 || i == 4 || i == 5 {
				want = 0
			}
			if n := len(subject(t, s, fmt.Sprintf("s%d", i)).Versions); n != want {
				t.Errorf("subject s%d has %d versions, want %d", i, n, want)
			}
		}
		for id := range 5 {
			if !ids[id+1] {
				t.Errorf("ids are %v, want 1 to 5", ids)
			}
		}
	})
}

// A statement that cannot be prepared says why, and not that its transaction is given up; changes that
// share the transaction are done.
func TestBadStatementSaysWhy(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		change := func(query string) *queuedChange {
			return &queuedChange{what: query, done: make(chan error, 1), fn: func(t *tx) error {
				var n int
				return t.QueryRowContext(t.ctx, query).Scan(&n)
			}}
		}
		batch := []*queuedChange{change(`SELECT 1`), change(`SELECT n FROM nowhere`), change(`SELECT 2`)}
		s.runTogether(t.Context(), batch)
		for i, c := range batch {
			err := <-c.done
			if i != 1 && err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
			if i == 1 && (err == nil || strings.Count(err.Error(), "nowhere") < 2) { // one of which names the change
				t.Errorf("got %v, want that there is no table nowhere", err)
			}
		}
	})
}
