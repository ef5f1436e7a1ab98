package streamstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// upper makes every payload upper case, and one batch of each pair of adjacent ones of the even and the odd offset.
func upper(batches []RecordBatch) (out []RecordBatch, changed bool, err error) {
	for _, b := range batches {
		if p := strings.ToUpper(string(b.Payload)); p != string(b.Payload) {
			b.Payload, changed = []byte(p), true
		}
		if n := len(out); n > 0 && b.BaseOffset%2 == 1 && b.Count == 1 && out[n-1].Count == 1 {
			out[n-1].Count, changed = 2, true
			out[n-1].Payload = slices.Concat(out[n-1].Payload, []byte("+"), b.Payload)
			continue
		}
		out = append(out, b)
	}
	return out, changed, nil
}

func scanned(t testing.TB, st *Stream, start, end int64) (all []string) {
	t.Helper()
	next := int64(-1)
	err := st.Scan(context.Background(), start, end, func(batches []RecordBatch) error {
		for _, b := range batches {
			if next >= 0 && b.BaseOffset != next || b.End() <= start || b.BaseOffset >= end {
				t.Errorf("scan of %d to %d has offset %d after %d", start, end, b.BaseOffset, next)
			}
			next = b.End()
			all = append(all, string(b.Payload))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What lies in stream objects and composites is rewritten in place: the same offsets, for readers that
// know the old objects too once they are told, and after a restart. Other streams do not notice.
func TestRewriteReplacesBatches(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t)
	cfg := e.compacting()
	s := e.open(cfg)
	streams := e.create(s, 3, 1)
	st, other := streams[0], streams[1]
	var want, others []string
	for round := range 6 {
		if round < 4 { // the last are not in objects of the stream's own
			more := numbered(fmt.Sprint("r", round), 10, 1000)
			appendAll(t, st, more...)
			want = append(want, more...)
			upload(t, s)
			if round == 2 {
				compact(t, s)
			}
			continue
		}
		more := numbered(fmt.Sprint("r", round), 2, 10)
		appendAll(t, st, more...)
		want = append(want, more...)
		more = numbered(fmt.Sprint("o", round), 2, 10)
		appendAll(t, other, more...)
		others = append(others, more...)
		appendAll(t, streams[2], "third")
		upload(t, s)
	}
	if got := kinds(e.objectsOf(st)); !slices.Equal(got, []ObjectKind{KindComposite, KindStream, KindStreamSet, KindStreamSet}) {
		t.Fatalf("kinds %v", got)
	}
	if end, err := st.Separated(ctx, 0, st.ConfirmOffset()); err != nil || end != 40 {
		t.Fatalf("separated up to %d, %v, want 40", end, err)
	}
	if err := st.Separate(ctx, st.ConfirmOffset(), 100); err != nil {
		t.Fatal(err)
	}
	if end, err := st.Separated(ctx, 0, st.ConfirmOffset()); err != nil || end != 40 {
		t.Fatalf("separated up to %d, %v, though the sets are larger than the budget", end, err)
	}
	if err := st.Separate(ctx, 42, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	if end, err := st.Separated(ctx, 0, st.ConfirmOffset()); err != nil || end != 42 {
		t.Fatalf("separated up to %d, %v, want 42", end, err)
	}
	if got := kinds(e.objectsOf(other)); !slices.Equal(got, []ObjectKind{KindStreamSet, KindStreamSet}) {
		t.Fatalf("kinds of the other stream %v", got)
	}
	if got := scanned(t, st, 5, 42); !slices.Equal(got, want[5:42]) {
		t.Fatalf("scanned %d batches", len(got))
	}

	if got := readAll(t, st); !slices.Equal(got, want) { // a session knows the objects now
		t.Fatalf("%d batches", len(got))
	}
	if err := st.Rewrite(ctx, 0, 42, upper); err != nil {
		t.Fatal(err)
	}
	if from := st.Refresh(42); from != math.MaxInt64 {
		t.Fatalf("the log cache begins at %d", from)
	}
	var rewritten []string
	for i := 0; i < 42; i += 2 {
		rewritten = append(rewritten, strings.ToUpper(want[i]+"+"+want[i+1]))
	}
	want = append(rewritten, want[42:]...)
	if got := readAll(t, st); !slices.Equal(got, want) {
		t.Fatalf("read %.300q, want %.300q", got, want)
	}
	if got := readAll(t, other); !slices.Equal(got, others) {
		t.Fatalf("the other stream has %q", got)
	}
	before := e.objectsOf(st)
	if err := st.Rewrite(ctx, 0, 42, upper); err != nil {
		t.Fatal(err)
	}
	if got := e.objectsOf(st); !slices.Equal(got, before) {
		t.Fatalf("nothing changed, and objects %v became %v", before, got)
	}
	compact(t, s)
	s.abandon()
	s = e.open(cfg)
	if got := readAll(t, e.reopen(s, OpenRequest{st.id, 2})[0]); !slices.Equal(got, want) {
		t.Fatalf("%d batches after a restart", len(got))
	}
}

// A rewrite that fails leaves what it replaced, and the rest as it was.
func TestFailedRewriteLosesNothing(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t)
	s := e.open(e.compacting())
	st := e.create(s, 1, 1)[0]
	want := numbered("a", 150, 1000) // two windows
	for part := range slices.Chunk(want, 50) {
		appendAll(t, st, part...)
		upload(t, s)
	}
	s.cfg.CompactionBytes = 200 << 10
	broken, calls := errors.New("broken"), 0
	err := st.Rewrite(ctx, 0, 150, func(batches []RecordBatch) ([]RecordBatch, bool, error) {
		if calls++; calls > 1 {
			return nil, false, broken
		}
		for i := range batches {
			batches[i].Payload = []byte(strings.ToUpper(string(batches[i].Payload)))
		}
		return batches, true, nil
	})
	if !errors.Is(err, broken) {
		t.Fatalf("rewrite: %v", err)
	}
	st.Refresh(150)
	got := readAll(t, st)
	n := slices.IndexFunc(got, func(p string) bool { return p != strings.ToUpper(p) })
	if n < 1 || n == len(got) {
		t.Fatalf("%d of %d batches are rewritten", n, len(got))
	}
	for i, p := range got {
		if w := want[i]; i >= n && p != w || i < n && p != strings.ToUpper(w) {
			t.Fatalf("batch %d is %.40q", i, p)
		}
	}
}
