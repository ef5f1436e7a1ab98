package e2e

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// The server is killed at random moments while producers run and tables commit, and each
// time its metadata database is gone. Restored from the bucket, it has every acknowledged
// record and every table, exactly once, and goes on.
func TestRestoreLostMetadata(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		flags []string
	}{
		{"sqlite, file WAL", nil},
		{"sqlite, s3 WAL", []string{"--wal", "s3"}},
		{"postgres", []string{"--metadata", ""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			testRestore(t, test.flags)
		})
	}
}

func testRestore(t *testing.T, flags []string) {
	l := directoryLake(t)
	s := newServer(t)
	base := []string{"--upload-interval", "300ms"}
	cluster := len(flags) == 2 && flags[0] == "--metadata"
	configure := func() {
		if cluster {
			flags[1] = lab.Postgres(t) // a new, empty one
		}
		s.flags = append(slices.Clone(base), flags...)
	}
	configure()
	s.start()
	lose := func() {
		t.Helper()
		s.kill()
		configure()
		if !cluster {
			removeDatabase(t, s)
		}
		restoreMetadata(t, s, cluster, flags)
		s.start()
	}
	const partitions = 4
	s.createTopic("events", partitions, 500*time.Millisecond)
	header := registerSchema(t, s, "events-value", eventSchema)
	ctx, stop := context.WithCancel(context.Background())
	acked := &acks{places: map[place]string{}}
	var producers sync.WaitGroup
	for n := range 2 {
		producers.Go(func() { produceUntil(ctx, t, s, "events", header, n, 0, acked) })
	}
	rounds := 2
	if os.Getenv("TABLETOPIC_SOAK") != "" {
		rounds = 50
	}
	for round := range rounds {
		// Some rounds end long after the last regular snapshot, some soon.
		timer := time.NewTimer(time.Duration(2000+3000*round) * time.Millisecond)
		<-timer.C
		lose()
		// A topic that was acknowledged the moment before is there, too.
		s.createTopic("last", 1, time.Second)
		lose()
		if topics, err := s.admin().ListTopics(context.Background(), "last"); err != nil || topics["last"].Err != nil {
			t.Fatalf("topic last: %v, %v", err, topics["last"].Err)
		}
		if _, err := s.admin().DeleteTopics(context.Background(), "last"); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	producers.Wait()
	log := readLog(t, s, "events", partitions)
	for _, e := range acked.errs {
		t.Error(e)
	}
	for p, v := range acked.places {
		if log[p] != v {
			t.Errorf("acknowledged %q at %v, the log has %q", v, p, log[p])
		}
	}
	if len(acked.places) < 100 {
		t.Errorf("only %d records acknowledged", len(acked.places))
	}
	checkTable(t, l, s, "events", log)
	if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
		t.Errorf("verify: exit %d\n%s", code, out)
	}
	t.Logf("%d rounds, %d acknowledged, %d in the log", rounds, len(acked.places), len(log))
}

func removeDatabase(t testing.TB, s *server) {
	t.Helper()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(filepath.Join(s.data, "metadata.db"+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

func restoreMetadata(t testing.TB, s *server, cluster bool, flags []string) {
	t.Helper()
	args := []string{"metadata", "restore", "--data", s.data}
	if cluster {
		args = append(args, flags...)
	}
	out := run(t, nil, binary, args...)
	if !strings.Contains(out, "restored from snapshot") {
		t.Fatalf("restore says %q", out)
	}
}

// A server whose database is gone, and that begins with a new one, is told what to do.
func TestStartWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.createTopic("t", 1, time.Second)
	s.stop()
	removeDatabase(t, s)
	if err := s.launch(); err != nil {
		t.Fatal(err)
	}
	if code := s.exitCode(30 * time.Second); code != 1 {
		t.Errorf("exit %d, want 1", code)
	}
	s.cmd = nil
	if log := s.log.String(); !strings.Contains(log, "tabletopic metadata restore") {
		t.Errorf("the server does not say what to do:\n%s", tail([]byte(log), 2000))
	}
	removeDatabase(t, s)
	restoreMetadata(t, s, false, nil)
	s.start()
	if log := readLog(t, s, "t", 1); len(log) != 0 {
		t.Errorf("log %v", log)
	}
}
