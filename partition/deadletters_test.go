package partition

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/record"
)

func letters(offsets ...int64) []DeadLetter {
	var out []DeadLetter
	for _, o := range offsets {
		out = append(out, DeadLetter{SourceOffset: o, Record: record.Record{Value: []byte(fmt.Sprint(o)), Headers: []record.Header{{Key: "cause", Value: []byte("x")}}}})
	}
	return out
}

// A letter that is repeated, by the same worker or another, after a crash, or after its batch
// was trimmed, is in the dead letters once.
func TestDeadLettersOnce(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t)
	p := c.start().create(t, "t.dlq", 1, nil)
	a, b := uuid.New(), uuid.New()
	add := func(topic uuid.UUID, partition int32, offsets ...int64) {
		t.Helper()
		if err := p.AppendDeadLetters(ctx, topic, partition, letters(offsets...)); err != nil {
			t.Fatal(err)
		}
	}
	add(a, 0, 0, 3, 5)
	add(a, 0, 0, 3, 5)
	add(a, 0, 3, 5, 8)
	add(a, 1, 3)
	add(b, 0, 3)
	wantValues(t, p, 0, "0", "3", "5", "8", "3", "3")
	p = c.start().partition(t, "t.dlq", 0) // crash, replay from the log
	add(a, 0, 8, 9)
	wantValues(t, p, 6, "9")
	if _, err := p.DeleteRecords(ctx, -1); err != nil { // the log is gone, the state is not
		t.Fatal(err)
	}
	p = c.start().partition(t, "t.dlq", 0)
	add(a, 0, 5, 9)
	add(b, 0, 3)
	wantValues(t, p, 7)
	add(a, 0, 10)
	got := readAll(t, p, 7)
	if len(got) != 1 || len(got[0].Headers) != 4 || got[0].Headers[3].Key != "cause" {
		t.Fatalf("letters %+v, want one with the source and its own header", got)
	}
	source, offset, err := letterOrigin(got[0])
	if err != nil || source != (letterSource{a, 0}) || offset != 10 {
		t.Fatalf("origin %v %d, %v", source, offset, err)
	}
	if err := p.AppendDeadLetters(ctx, a, 0, letters(12, 11)); err == nil {
		t.Fatal("letters that do not ascend were taken")
	}
}

// Workers that race with the same letters add each once.
func TestDeadLettersRace(t *testing.T) {
	p := newCluster(t).start().create(t, "t.dlq", 1, nil)
	topic := uuid.New()
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for o := range int64(20) {
				if err := p.AppendDeadLetters(context.Background(), topic, 0, letters(o, o+1)); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	var want []string
	for o := range 21 {
		want = append(want, fmt.Sprint(o))
	}
	wantValues(t, p, 0, want...)
}

// Many large letters are split into batches.
func TestDeadLettersSplit(t *testing.T) {
	p := newCluster(t).start().create(t, "t.dlq", 1, nil)
	var many []DeadLetter
	for o := range int64(20) {
		many = append(many, DeadLetter{SourceOffset: o, Record: record.Record{Value: make([]byte, 300<<10)}})
	}
	if err := p.AppendDeadLetters(context.Background(), uuid.New(), 0, many); err != nil {
		t.Fatal(err)
	}
	r, err := p.Read(context.Background(), 0, 100<<20, ReadCommitted)
	if err != nil || len(r.Batches) != 5 {
		t.Fatalf("%d batches, %v, want 5", len(r.Batches), err)
	}
}
