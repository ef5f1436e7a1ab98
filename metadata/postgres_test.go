package metadata

import (
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
	ctx := t.Context()
	var end int64
	failed := 0
	try := func(call func() error) { // again until it succeeds; the first while the server ends the connections
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			// Its own connection among them: the answer may be an error.
			_, _ = other.readers.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		}()
		for err := call(); err != nil; err = call() {
			if errors.Is(err, streamstore.ErrConflict) || errors.Is(err, streamstore.ErrNodeFenced) {
				t.Fatalf("a lost connection looks like a refusal: %v", err)
			}
			if failed++; failed > 1000 {
				t.Fatalf("no call succeeds any more: %v", err)
			}
		}
		<-ended
	}
	for end < 50 {
		var id streamstore.ObjectID
		try(func() (err error) {
			id, err = s.PrepareObjects(ctx, node, 1, time.Hour)
			return err
		})
		u := streamstore.Upload{WALEpoch: node.Epoch, Streams: []streamstore.StreamObject{{ID: id, Size: 1,
			Range: streamstore.StreamRange{Stream: stream, Start: end, End: end + 1}}}}
		try(func() error { return s.CommitUpload(ctx, node, u) })
		end++
	}
	var found []streamstore.ObjectRange
	try(func() (err error) {
		found, err = s.StreamObjects(ctx, stream, 0, end, int(end)+1)
		return err
	})
	if int64(len(found)) != end {
		t.Fatalf("%d objects of %d", len(found), end)
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
