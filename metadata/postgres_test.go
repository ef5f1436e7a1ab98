package metadata

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A server that ends all its connections, as a restart does, costs errors and no more: what
// was acknowledged is there, and the same store goes on.
func TestPostgresLosesConnections(t *testing.T) {
	d := newPostgres(t)
	s, other := openStore(t, d, nil), openStore(t, d, nil)
	node := register(t, s)
	stream := create(t, s, node, NewTopic{Name: "t", Partitions: 1}).Partitions[0].Log
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			// Its own connection among them: the answer may be an error.
			_, _ = other.readers.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		}
	}()
	var end int64
	failed := 0
	for end < 50 {
		id, err := s.PrepareObjects(ctx, node, 1, time.Hour)
		if err != nil {
			failed++
			continue
		}
		u := streamstore.Upload{WALEpoch: node.Epoch, Streams: []streamstore.StreamObject{{ID: id, Size: 1,
			Range: streamstore.StreamRange{Stream: stream, Start: end, End: end + 1}}}}
		for err = s.CommitUpload(ctx, node, u); err != nil; err = s.CommitUpload(ctx, node, u) {
			if errors.Is(err, streamstore.ErrConflict) || errors.Is(err, streamstore.ErrNodeFenced) {
				t.Fatalf("a lost connection looks like a refusal: %v", err)
			}
			failed++
		}
		end++
	}
	stop()
	<-ended
	found, err := s.StreamObjects(t.Context(), stream, 0, end, int(end)+1)
	if err != nil || int64(len(found)) != end {
		t.Fatalf("%d objects of %d, %v", len(found), end, err)
	}
	t.Logf("%d calls failed", failed)
}

// A process that stops in the middle of a change does not hold the others up for ever: the
// server ends its transaction.
func TestPostgresEndsStoppedTransactions(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a time limit of the server")
	}
	d := newPostgres(t)
	s := openStore(t, d, nil)
	stopped, err := openStore(t, d, nil).writer.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Rollback()
	if err := s.dialect.lock(t.Context(), stopped); err != nil {
		t.Fatal(err)
	}
	register(t, s)
	if err := stopped.Commit(); err == nil {
		t.Fatal("the stopped process committed after another had the lock")
	}
}

// A server that would lose acknowledged changes is refused.
func TestPostgresRefusesAsynchronousCommit(t *testing.T) {
	url := lab.Postgres(t)
	for _, setting := range []string{"synchronous_commit=off"} {
		_, err := Open(t.Context(), url+"&"+setting, nil)
		if err == nil || !strings.Contains(err.Error(), "synchronous_commit") {
			t.Errorf("with %s: %v", setting, err)
		}
	}
	if _, err := Open(t.Context(), strings.Replace(url, "postgres@", "nobody:secret@", 1), nil); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("unknown role: %v", err)
	}
}
