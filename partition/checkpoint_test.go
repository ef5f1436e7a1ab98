package partition

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/crc32c"
	"github.com/tabletopic/tabletopic/streamstore"
)

// exampleState has something in every field of a checkpoint.
func exampleState() *state {
	s := newState(10, 1_000_000)
	s.next, s.maxTimestamp, s.maxTimestampAt = 1234, 1_700_000_000_123, 1200
	s.epochs = []epochStart{{0, 0}, {3, 700}}
	s.sizes = sizeIndex{marks: []sizeMark{{0, 0}, {600, 70_000}}, total: 123_456, step: 65_536}
	s.producers[7] = &producer{epoch: 2, seen: 1_700_000_000_000, coordinator: -1, begun: -1, begunAt: -1, ended: -1, batches: []producedBatch{
		{first: 2147483646, last: 1, base: 1000, appendTime: -1}, {first: 2, last: 5, base: 1004, appendTime: 1_700_000_000_001}}}
	s.producers[1<<40] = &producer{seen: -5, coordinator: -1, begun: -1, begunAt: -1, ended: -1, batches: []producedBatch{{base: 3, appendTime: -1}}}
	s.letters[letterSource{uuid.MustParse("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"), 2}] = 99
	s.letters[letterSource{uuid.MustParse("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"), 1}] = 0
	return s
}

// transactionalState is exampleState with what version 2 added.
func transactionalState() *state {
	s := exampleState()
	s.producers[8] = &producer{epoch: 4, seen: 1_700_000_000_002, coordinator: 3, begun: 1230, begunAt: 1_700_000_000_001, ended: -1,
		batches: []producedBatch{{first: 0, last: 1, base: 1230, appendTime: -1}}}
	s.producers[9] = &producer{epoch: 1, seen: 1_700_000_000_003, coordinator: 0, begun: -1, begunAt: -1, ended: -1}
	s.producers[10] = &producer{epoch: 0, seen: 1_700_000_000_003, coordinator: -1, begun: 1100, begunAt: 1_700_000_000_000, ended: -1,
		batches: []producedBatch{{first: 0, last: 0, base: 1100, appendTime: -1}}}
	s.open = []openTransaction{{10, 1100}, {8, 1230}}
	s.aborted = []abortedTransaction{{producer: 9, first: 800, last: 900, stable: 850}, {producer: 8, first: 850, last: 901, stable: 902}}
	return s
}

// Version 1 is read and shown as the fixture says, for ever.
func TestFormatV1(t *testing.T) {
	s := newState(10, 1_000_000)
	checkFixture(t, "v1", s)
	want := exampleState()
	if d := cmp.Diff(want, s, stateOptions...); d != "" {
		t.Fatalf("want, got: %s", d)
	}
}

// cleanedState is transactionalState with what version 3 added.
func cleanedState() *state {
	s := transactionalState()
	s.cleaned = 1050
	return s
}

// Version 2 is read and shown as the fixture says, for ever.
func TestFormatV2(t *testing.T) {
	s := newState(10, 1_000_000)
	checkFixture(t, "v2", s)
	if d := cmp.Diff(transactionalState(), s, stateOptions...); d != "" {
		t.Fatalf("want, got: %s", d)
	}
}

// Version 3 is read, written and shown as the fixture says, for ever.
func TestFormatV3(t *testing.T) {
	data := checkFixture(t, "v3", newState(10, 1_000_000))
	if !bytes.Equal(appendCheckpoint(nil, cleanedState()), data) {
		t.Error("the example is not written as in the fixture")
	}
}

// checkFixture shows a fixture, and reads it into s.
func checkFixture(t *testing.T, version string, s *state) []byte {
	t.Helper()
	bin, txt := filepath.Join("testdata", "format", version, "checkpoint.bin"), filepath.Join("testdata", "format", version, "checkpoint.txt")
	data, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(txt)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := DumpCheckpoint(&got, data); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got.String()); d != "" {
		t.Errorf("%s, want, got: %s", txt, d)
	}
	if err := parseCheckpoint(s, data); err != nil {
		t.Fatal(err)
	}
	return data
}

var stateOptions = []cmp.Option{
	cmp.AllowUnexported(state{}, producer{}, producedBatch{}, epochStart{}, letterSource{}, sizeIndex{}, sizeMark{}, openTransaction{}, abortedTransaction{}),
	cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".reader" }, cmp.Ignore()),
}

// A flip of any bit is noticed, and a newer version is named.
func TestCheckpointIsChecked(t *testing.T) {
	data := appendCheckpoint(nil, cleanedState())
	for bit := range len(data) * 8 {
		flipped := bytes.Clone(data)
		flipped[bit/8] ^= 1 << (bit % 8)
		if err := parseCheckpoint(newState(1, 1_000_000), flipped); err == nil {
			t.Fatalf("bit %d flipped and not noticed", bit)
		}
	}
	for n := range data {
		if err := parseCheckpoint(newState(1, 1_000_000), data[:n]); err == nil {
			t.Fatalf("cut to %d bytes and not noticed", n)
		}
	}
	data[4] = 4
	if err := parseCheckpoint(newState(1, 1_000_000), data); !errors.Is(err, errCheckpointVersion) {
		t.Fatalf("version 4: %v, want errCheckpointVersion", err)
	}
}

func FuzzCheckpoint(f *testing.F) {
	f.Add(appendCheckpoint(nil, exampleState()))
	f.Add(appendCheckpoint(nil, cleanedState()))
	f.Add(appendCheckpoint(nil, newState(1, 1_000_000)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 9 { // let the content through to the parser
			data = append(bytes.Clone(data[:len(data)-4]), 0, 0, 0, 0)
			data = append(data[:len(data)-4], sum(data[:len(data)-4])...)
		}
		s := newState(1, 1_000_000)
		if parseCheckpoint(s, data) != nil {
			return
		}
		again := newState(1, 1_000_000)
		if err := parseCheckpoint(again, appendCheckpoint(nil, s)); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(s, again, stateOptions...); d != "" {
			t.Fatal(d)
		}
		if err := DumpCheckpoint(new(bytes.Buffer), data); err != nil {
			t.Fatal(err)
		}
	})
}

// A checkpoint that knows more than the log is not believed: the batch that it remembers was
// never acknowledged, and the producer's repeat must be stored.
func TestCheckpointAheadOfLog(t *testing.T) {
	c := newCluster(t)
	p := c.start().create(t, "t", 1, nil)
	mustAppend(t, p, produced{producer: 4, sequence: 0, values: []string{"a"}})
	if err := p.checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	ahead := newState(10, 1_000_000)
	ahead.next = 2
	ahead.producers[4] = &producer{coordinator: -1, begun: -1, ended: -1, batches: []producedBatch{{first: 0, last: 0, base: 0, appendTime: -1}, {first: 1, last: 1, base: 1, appendTime: -1}}}
	done := make(chan error, 1)
	if _, err := p.meta.Append(context.Background(), streamstore.RecordBatch{Count: 1, MaxTimestamp: -1, Payload: appendCheckpoint(nil, ahead)},
		func(err error) { done <- err }); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p = c.start().partition(t, "t", 0)
	if base := mustAppend(t, p, produced{producer: 4, sequence: 1, values: []string{"b"}}); base != 1 {
		t.Fatalf("base %d, want 1", base)
	}
	wantValues(t, p, 0, "a", "b")
}

// A start reads the last checkpoint and no log before it, and old checkpoints are trimmed.
func TestCheckpointsAreFew(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t)
	n := c.start()
	p := n.create(t, "t", 1, nil)
	for range maxMetaCheckpoints + 10 {
		mustAppend(t, p, produced{values: []string{"v"}})
		if err := p.checkpoint(ctx); err != nil {
			t.Fatal(err)
		}
		if err := p.checkpoint(ctx); err != nil { // nothing new: no second one
			t.Fatal(err)
		}
	}
	if n := p.meta.ConfirmOffset() - p.meta.StartOffset(); n > maxMetaCheckpoints {
		t.Fatalf("the meta stream has %d checkpoints, want at most %d", n, maxMetaCheckpoints)
	}
	if got, want := p.meta.ConfirmOffset(), int64(maxMetaCheckpoints+10); got != want {
		t.Fatalf("%d checkpoints were written, want %d", got, want)
	}
	p = c.start().partition(t, "t", 0)
	if p.checkpointed != p.Offsets().HighWatermark || p.uncheckpoint != 0 {
		t.Fatalf("the start replayed %d bytes behind %d", p.uncheckpoint, p.checkpointed)
	}
}

// Checkpoints are written on their own as the log grows.
func TestCheckpointsByBytes(t *testing.T) {
	c := newCluster(t)
	c.cfg.CheckpointBytes = 1000
	p := c.start().create(t, "t", 1, nil)
	for range 50 {
		mustAppend(t, p, produced{values: []string{string(make([]byte, 300))}})
	}
	deadline := time.Now().Add(time.Minute)
	for p.meta.ConfirmOffset() == 0 {
		if time.Now().After(deadline) {
			t.Fatal("no checkpoint was written")
		}
		mustAppend(t, p, produced{values: []string{string(make([]byte, 300))}})
	}
}

// Producers that are silent for a day are forgotten, and never more than the bound are known.
func TestProducersAreBounded(t *testing.T) {
	s := newState(100, 1_000_000)
	for id := range int64(1000) {
		data := produced{producer: id + 1, values: []string{"v"}}.bytes(t)
		if err := s.apply(data, id); err != nil {
			t.Fatal(err)
		}
		if len(s.producers) > 100 {
			t.Fatalf("%d producers", len(s.producers))
		}
	}
	if s.producers[1000] == nil || s.producers[950] == nil {
		t.Fatal("the latest producers are forgotten")
	}
	s.expire(990)
	if len(s.producers) != 10 {
		t.Fatalf("%d producers, want the 10 that were seen since", len(s.producers))
	}
}

func sum(b []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32c.Checksum(b))
}
