package metadata

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/streamstore"
)

// crashPath names the database for the process that TestSurvivesKill kills.
const crashPath = "TABLETOPIC_TEST_CRASH_DB"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashPath); path != "" {
		fmt.Fprintln(os.Stderr, commitForever(path))
		os.Exit(1)
	}
	os.Exit(lab.Main(m))
}

// commitForever appends to one stream and prints every end offset when it is acknowledged.
func commitForever(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, "sqlite:"+path, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	node, _, err := s.RegisterNode(ctx, 1, streamstore.WALObject)
	if err != nil {
		return err
	}
	states, err := s.Streams(ctx, 1)
	if err != nil {
		return err
	}
	if len(states) == 0 {
		if _, err := s.CreateTopic(ctx, node, NewTopic{Name: "t", Partitions: 1}); err != nil {
			return err
		}
		if states, err = s.Streams(ctx, 1); err != nil {
			return err
		}
	}
	log := states[1]
	for {
		id, err := s.PrepareObjects(ctx, node, 1, time.Hour)
		if err != nil {
			return err
		}
		if err := s.CommitUpload(ctx, node, streamstore.Upload{
			StreamSet: &streamstore.StreamSetObject{ID: id, Size: 1, Ranges: []streamstore.StreamRange{{Stream: log.ID, Epoch: log.Epoch, Start: log.End, End: log.End + 1}}},
			WALEpoch:  node.Epoch, WALMark: uint64(log.End + 1),
		}); err != nil {
			return err
		}
		log.End++
		fmt.Println(log.End)
	}
}

// Whatever was acknowledged before a kill -9 is there after it, in one piece.
func TestSurvivesKill(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	path := filepath.Join(t.TempDir(), "metadata.db")
	for round := range 8 {
		acked := killAfter(t, path, 20+7*round)
		s := openStore(t, sqliteDatabase(path, false), nil)
		states, err := s.Streams(t.Context(), 1)
		if err != nil || len(states) != 2 {
			t.Fatalf("round %d: streams %v, %v", round, states, err)
		}
		end := states[1].End
		if end < acked || end > acked+1 {
			t.Fatalf("round %d: the stream ends at %d, acknowledged was %d", round, end, acked)
		}
		found, err := s.StreamObjects(t.Context(), states[1].ID, 0, end, int(end)+1)
		if err != nil || int64(len(found)) != end {
			t.Fatalf("round %d: %d objects, %v, want %d", round, len(found), err, end)
		}
		var state string
		if err := s.readers.QueryRow(`PRAGMA integrity_check`).Scan(&state); err != nil || state != "ok" {
			t.Fatalf("round %d: integrity %s, %v", round, state, err)
		}
		s.Close()
	}
}

// killAfter runs commitForever, kills it after n commits and returns the last end offset
// that it printed.
func killAfter(t *testing.T, path string, n int) int64 {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), crashPath+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var last int64
	lines := bufio.NewScanner(out)
	for i := 0; lines.Scan(); i++ {
		if _, err := fmt.Sscan(lines.Text(), &last); err != nil {
			t.Fatal(err)
		}
		if i == n {
			cmd.Process.Kill()
		}
	}
	cmd.Wait() // it was killed
	if last == 0 {
		t.Fatal("the process committed nothing")
	}
	return last
}
