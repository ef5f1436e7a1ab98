// Package objectstoretest is the conformance suite of objectstore.Bucket: one claim per
// subtest, run against every implementation and against real servers.
package objectstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tabletopic/tabletopic/objectstore"
)

// Run runs the suite. open returns an empty store, which the suite may fill with some
// 2,500 small objects.
func Run(t *testing.T, open func(t *testing.T) objectstore.Bucket) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, b objectstore.Bucket)
	}{
		{"PutReplaces", putReplaces},
		{"PutJoinsParts", putJoinsParts},
		{"PutIfAbsentRefusesTaken", putIfAbsentRefusesTaken},
		{"PutIfAbsentHasOneWinner", putIfAbsentHasOneWinner},
		{"CreateAfterDelete", createAfterDelete},
		{"GetRanges", getRanges},
		{"GetParts", getParts},
		{"GetOfEmpty", getOfEmpty},
		{"GetMissing", getMissing},
		{"GetIsACopy", getIsACopy},
		{"ListPages", listPages},
		{"ListOrder", listOrder},
		{"ListPrefixAndAfter", listPrefixAndAfter},
		{"ListTellsSizeAndTime", listTellsSizeAndTime},
		{"DeleteMany", deleteMany},
		{"OddKeys", oddKeys},
		{"BadKeys", badKeys},
		{"DirectoryIsNoObject", directoryIsNoObject},
		{"PrefixIsABucket", prefixIsABucket},
		{"EndedContext", endedContext},
		{"Probe", probe},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

func put(t *testing.T, b objectstore.Bucket, key string, body ...string) {
	t.Helper()
	parts := make([][]byte, len(body))
	for i, p := range body {
		parts[i] = []byte(p)
	}
	if err := b.Put(t.Context(), key, parts...); err != nil {
		t.Fatal(err)
	}
}

func wantObject(t *testing.T, b objectstore.Bucket, key, want string) {
	t.Helper()
	got, err := b.Get(t.Context(), key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Fatalf("%s holds %.60q, want %.60q", key, got, want)
	}
}

// keys lists all there is below prefix, behind after.
func keys(t *testing.T, b objectstore.Bucket, prefix, after string) []string {
	t.Helper()
	var all []string
	for {
		page, err := b.List(t.Context(), prefix, after)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			return all
		}
		if len(page) > objectstore.PageKeys {
			t.Fatalf("page of %d objects, want at most %d", len(page), objectstore.PageKeys)
		}
		for _, o := range page {
			if o.Key <= after {
				t.Fatalf("listed %q behind %q", o.Key, after)
			}
			after = o.Key
			all = append(all, o.Key)
		}
	}
}

// together runs n calls of f at the same time.
func together(n int, f func(i int)) {
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

func putReplaces(t *testing.T, b objectstore.Bucket) {
	put(t, b, "a/b/c", "one and more")
	put(t, b, "a/b/c", "two")
	wantObject(t, b, "a/b/c", "two")
}

func putJoinsParts(t *testing.T, b objectstore.Bucket) {
	put(t, b, "parts", "", "a", "", "", "bc", strings.Repeat("d", 100_000), "e", "")
	wantObject(t, b, "parts", "abc"+strings.Repeat("d", 100_000)+"e")
	many := make([]string, 5000) // more than a system call takes
	for i := range many {
		many[i] = strings.Repeat(string(rune('a'+i%26)), i%7*(i%311))
	}
	put(t, b, "many", many...)
	wantObject(t, b, "many", strings.Join(many, ""))
	for _, size := range []int{1<<20 - 1, 1 << 20, 3<<20 + 4095, 4<<20 + 4096} { // such as do not go through the page cache
		large, parts := strings.Repeat("0123456789abcdefg", size/17+1)[:size], []string(nil)
		for at, n := 0, 1; at < size; at, n = at+n, n*3%100_003 {
			parts = append(parts, large[at:min(at+n, size)])
		}
		put(t, b, "large", parts...)
		wantObject(t, b, "large", large)
	}
	put(t, b, "none")
	wantObject(t, b, "none", "")
	if err := b.PutIfAbsent(t.Context(), "created", []byte("x"), []byte("y")); err != nil {
		t.Fatal(err)
	}
	wantObject(t, b, "created", "xy")
}

func putIfAbsentRefusesTaken(t *testing.T, b objectstore.Bucket) {
	if err := b.PutIfAbsent(t.Context(), "wal/1", []byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := b.PutIfAbsent(t.Context(), "wal/1", []byte("second")); !errors.Is(err, objectstore.ErrExists) {
		t.Fatalf("second create: %v, want %v", err, objectstore.ErrExists)
	}
	wantObject(t, b, "wal/1", "first")
	put(t, b, "wal/2", "put")
	if err := b.PutIfAbsent(t.Context(), "wal/2", []byte("second")); !errors.Is(err, objectstore.ErrExists) {
		t.Fatalf("create over put: %v, want %v", err, objectstore.ErrExists)
	}
	wantObject(t, b, "wal/2", "put")
}

func putIfAbsentHasOneWinner(t *testing.T, b objectstore.Bucket) {
	const racers = 32
	for round := range 8 {
		key := fmt.Sprintf("race/%d/key", round)
		var errs [racers]error
		together(racers, func(i int) {
			// Sizes differ so that a mix of two bodies would show.
			errs[i] = b.PutIfAbsent(t.Context(), key, bytes.Repeat([]byte{byte('A' + i)}, 1+i*1000))
		})
		winner := -1
		for i, err := range errs {
			switch {
			case err == nil && winner >= 0:
				t.Fatalf("racers %d and %d both created %s", winner, i, key)
			case err == nil:
				winner = i
			case !errors.Is(err, objectstore.ErrExists):
				t.Fatalf("racer %d: %v, want %v", i, err, objectstore.ErrExists)
			}
		}
		if winner < 0 {
			t.Fatalf("nobody created %s", key)
		}
		wantObject(t, b, key, strings.Repeat(string(rune('A'+winner)), 1+winner*1000))
	}
}

func createAfterDelete(t *testing.T, b objectstore.Bucket) {
	for range 3 {
		if err := b.PutIfAbsent(t.Context(), "d/e/f", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := b.Delete(t.Context(), "d/e/f"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Get(t.Context(), "d/e/f", 0, -1); !errors.Is(err, objectstore.ErrNotFound) {
			t.Fatalf("get after delete: %v, want %v", err, objectstore.ErrNotFound)
		}
	}
	// The path can change from directory to object and back.
	put(t, b, "d/e", "object")
	if err := b.Delete(t.Context(), "d/e"); err != nil {
		t.Fatal(err)
	}
	put(t, b, "d/e/f", "again")
	wantObject(t, b, "d/e/f", "again")
}

func getRanges(t *testing.T, b objectstore.Bucket) {
	put(t, b, "r", "0123456789")
	for _, c := range []struct {
		off, n int64
		want   string
	}{
		{0, -1, "0123456789"}, {0, 10, "0123456789"}, {0, 3, "012"}, {4, 2, "45"}, {9, 1, "9"},
		{8, 100, "89"}, {3, -1, "3456789"}, {10, 5, ""}, {10, -1, ""}, {1000, 1, ""}, {5, 0, ""}, {0, 0, ""},
		{-3, 0, "789"}, {-3, -1, "789"}, {-3, 1, "789"}, {-10, 0, "0123456789"}, {-100, 0, "0123456789"},
	} {
		got, err := b.Get(t.Context(), "r", c.off, c.n)
		if err != nil {
			t.Errorf("Get(%d, %d): %v", c.off, c.n, err)
		} else if string(got) != c.want {
			t.Errorf("Get(%d, %d) = %q, want %q", c.off, c.n, got, c.want)
		}
	}
}

// GetParts reads parts of an object into memory of their own, or says that there is not so much.
func getParts(t *testing.T, b objectstore.Bucket) {
	put(t, b, "k", "0123456789")
	parts := func(room func(size int) int, at ...[2]int) (got []string, err error) {
		parts := make([]objectstore.Part, len(at))
		for i, p := range at {
			parts[i] = objectstore.Part{Off: int64(p[0]), Size: p[1], Memory: make([]byte, room(p[1]))}
		}
		err = objectstore.GetParts(t.Context(), b, "k", parts)
		for _, p := range parts {
			got = append(got, string(p.Data))
		}
		return got, err
	}
	for _, room := range []func(int) int{func(size int) int { return size }, objectstore.PartMemory} {
		for _, c := range []struct {
			at   [][2]int
			want []string
		}{
			{[][2]int{{0, 10}}, []string{"0123456789"}},
			{[][2]int{{2, 3}, {5, 1}, {6, 2}}, []string{"234", "5", "67"}},
			{[][2]int{{0, 2}, {4, 1}, {8, 2}}, []string{"01", "4", "89"}},
			{[][2]int{{9, 1}}, []string{"9"}},
		} {
			if got, err := parts(room, c.at...); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("parts %v: %q, %v, want %q", c.at, got, err, c.want)
			}
		}
		for _, off := range []int{5, 10, 20} {
			if _, err := parts(room, [2]int{off, 4}, [2]int{off + 4, 2}); !errors.Is(err, objectstore.ErrShort) {
				t.Errorf("6 bytes from %d on: %v, want %v", off, err, objectstore.ErrShort)
			}
		}
	}
	one := []objectstore.Part{{Size: 1, Memory: make([]byte, 1)}}
	if err := objectstore.GetParts(t.Context(), b, "missing", one); !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("of a missing object: %v", err)
	}
	if err := objectstore.GetParts(t.Context(), b, "bad//key", one); err == nil || errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("of a bad key: %v", err)
	}
}

func getOfEmpty(t *testing.T, b objectstore.Bucket) {
	put(t, b, "empty")
	for _, c := range [][2]int64{{0, -1}, {0, 5}, {3, 5}, {-8, 0}, {0, 0}} {
		if got, err := b.Get(t.Context(), "empty", c[0], c[1]); err != nil || len(got) != 0 {
			t.Errorf("Get(%d, %d) = %q, %v, want nothing", c[0], c[1], got, err)
		}
	}
}

func getMissing(t *testing.T, b objectstore.Bucket) {
	put(t, b, "there/a", "x")
	for _, key := range []string{"missing", "there", "there/b", "there/a/below", "no/such/dir"} {
		for _, off := range []int64{0, 7, -7} {
			if _, err := b.Get(t.Context(), key, off, 3); !errors.Is(err, objectstore.ErrNotFound) {
				t.Errorf("get %s from %d: %v, want %v", key, off, err, objectstore.ErrNotFound)
			}
		}
	}
}

func getIsACopy(t *testing.T, b objectstore.Bucket) {
	body := []byte("constant")
	if err := b.Put(t.Context(), "k", body); err != nil {
		t.Fatal(err)
	}
	if string(body) != "constant" {
		t.Fatalf("Put changed its body to %q", body)
	}
	body[0] = 'X'
	got, err := b.Get(t.Context(), "k", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	got[1] = 'X'
	wantObject(t, b, "k", "constant")
}

func listPages(t *testing.T, b objectstore.Bucket) {
	const n = 2300
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("flat/%05d", i))
	}
	var wg sync.WaitGroup
	for part := range slices.Chunk(want, (n+15)/16) {
		wg.Go(func() {
			for _, key := range part {
				if err := b.Put(t.Context(), key, []byte("x")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(want, keys(t, b, "flat/", "")); diff != "" {
		t.Fatalf("list (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[1500:], keys(t, b, "flat/", "flat/01499")); diff != "" {
		t.Fatalf("list from the middle (-want +got):\n%s", diff)
	}
	if err := b.Delete(t.Context(), want...); err != nil {
		t.Fatal(err)
	}
	if left := keys(t, b, "", ""); len(left) > 0 {
		t.Fatalf("%d objects left after Delete, first %s", len(left), left[0])
	}
}

// Key order is that of the bytes of the whole key, in which "a-b" and "a.b" come before "a/".
func listOrder(t *testing.T, b objectstore.Bucket) {
	want := []string{"a b", "a!", "a-b/x", "a.b", "a/b", "a/b-c", "a/c/d/e", "a/c/f", "a0", "aa", "b/z", "é/ü", "日本"}
	slices.Sort(want)
	for _, key := range slices.Backward(want) {
		put(t, b, key, "x")
	}
	if diff := cmp.Diff(want, keys(t, b, "", "")); diff != "" {
		t.Fatalf("list (-want +got):\n%s", diff)
	}
	for i, after := range want { // every place to go on from
		if diff := cmp.Diff(want[i+1:], append([]string{}, keys(t, b, "", after)...)); diff != "" {
			t.Fatalf("list after %q (-want +got):\n%s", after, diff)
		}
	}
}

func listPrefixAndAfter(t *testing.T, b objectstore.Bucket) {
	for _, key := range []string{"p/1", "p/2", "p/20", "p/2x/3", "p/3", "pq/1", "q"} {
		put(t, b, key, "x")
	}
	for _, c := range []struct {
		prefix, after string
		want          []string
	}{
		{"p", "", []string{"p/1", "p/2", "p/20", "p/2x/3", "p/3", "pq/1"}},
		{"p/", "", []string{"p/1", "p/2", "p/20", "p/2x/3", "p/3"}},
		{"p/2", "", []string{"p/2", "p/20", "p/2x/3"}},
		{"p/2", "p/2", []string{"p/20", "p/2x/3"}},
		{"p/2x/", "", []string{"p/2x/3"}},
		{"p/", "p/25", []string{"p/2x/3", "p/3"}},
		{"p/", "p", []string{"p/1", "p/2", "p/20", "p/2x/3", "p/3"}},
		{"p/", "a", []string{"p/1", "p/2", "p/20", "p/2x/3", "p/3"}},
		{"p/", "q", nil},
		{"p/3/", "", nil},
		{"none/", "", nil},
		{"q/", "", nil},
		{"q", "", []string{"q"}},
		{"", "p/3", []string{"pq/1", "q"}},
	} {
		if diff := cmp.Diff(c.want, keys(t, b, c.prefix, c.after)); diff != "" {
			t.Errorf("list %q after %q (-want +got):\n%s", c.prefix, c.after, diff)
		}
	}
}

func listTellsSizeAndTime(t *testing.T, b objectstore.Bucket) {
	put(t, b, "sized", strings.Repeat("x", 12345))
	page, err := b.List(t.Context(), "sized", "")
	if err != nil || len(page) != 1 {
		t.Fatalf("list: %d objects, %v, want 1", len(page), err)
	}
	if page[0].Size != 12345 {
		t.Errorf("size %d, want 12345", page[0].Size)
	}
	if age := time.Since(page[0].Modified); age < -time.Minute || age > time.Minute {
		t.Errorf("modified %v, want now", page[0].Modified)
	}
}

func deleteMany(t *testing.T, b objectstore.Bucket) {
	if err := b.Delete(t.Context()); err != nil {
		t.Fatalf("delete of nothing: %v", err)
	}
	put(t, b, "keep/a", "x")
	var all []string
	for i := range 1100 { // more than one request, most of them missing
		all = append(all, fmt.Sprintf("gone/%d/x", i))
	}
	for i := 0; i < len(all); i += 100 {
		put(t, b, all[i], "x")
	}
	if err := b.Delete(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(t.Context(), "keep"); err != nil { // a directory at most
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"keep/a"}, keys(t, b, "", "")); diff != "" {
		t.Fatalf("left (-want +got):\n%s", diff)
	}
}

var oddNames = []string{
	"with space", " leading", "trailing ", "day=2026-11-29", "a%20b", "a%2Fb", "100%", "plus+plus", "q?x=1&y=2", "hash#tag",
	"ünïcödé", "日本語", "emoji-🙂", "quote'\"", "semi;colon:", "star*", "<xml>&amp;", "~tilde", "(par)[br]{ace}", "back\\slash",
	"comma,dollar$", "...", ".hidden", strings.Repeat("n", 200),
}

func oddKeys(t *testing.T, b objectstore.Bucket) {
	var want []string
	for i, name := range oddNames {
		want = append(want, "odd/"+name, "odd-dirs/"+name+"/k")
		for _, key := range want[2*i:] {
			if err := b.PutIfAbsent(t.Context(), key, []byte(key)); err != nil {
				t.Fatal(err)
			}
			wantObject(t, b, key, key)
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, keys(t, b, "odd", "")); diff != "" {
		t.Fatalf("list (-want +got):\n%s", diff)
	}
	for _, name := range oddNames {
		if diff := cmp.Diff([]string{"odd-dirs/" + name + "/k"}, keys(t, b, "odd-dirs/"+name+"/", "")); diff != "" {
			t.Fatalf("list of a directory (-want +got):\n%s", diff)
		}
	}
	if err := b.Delete(t.Context(), want...); err != nil {
		t.Fatal(err)
	}
	if left := keys(t, b, "odd", ""); len(left) > 0 {
		t.Fatalf("left after delete: %q", left)
	}
}

func badKeys(t *testing.T, b objectstore.Bucket) {
	put(t, b, "good", "x")
	for _, key := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a/.", "bad\xff", "nul\x00", "line\nfeed",
		strings.Repeat("k", 256), strings.Repeat("dir/", 250) + "x", ".tabletopic-tmp/x", "a/.tabletopic-tmp-1",
	} {
		if err := b.Put(t.Context(), key, []byte("x")); err == nil {
			t.Errorf("Put accepted the key %.40q", key)
		}
		if err := b.PutIfAbsent(t.Context(), key, []byte("x")); err == nil || errors.Is(err, objectstore.ErrExists) {
			t.Errorf("PutIfAbsent of the key %.40q: %v", key, err)
		}
		if _, err := b.Get(t.Context(), key, 0, -1); err == nil {
			t.Errorf("Get accepted the key %.40q", key)
		}
		if err := b.Delete(t.Context(), "good", key); err == nil {
			t.Errorf("Delete accepted the key %.40q", key)
		}
	}
	if diff := cmp.Diff([]string{"good"}, keys(t, b, "", "")); diff != "" {
		t.Fatalf("left (-want +got):\n%s", diff)
	}
}

// A directory store cannot hold "a" and "a/b": the second is refused, and not as existing.
func directoryIsNoObject(t *testing.T, b objectstore.Bucket) {
	put(t, b, "x/y/z", "1")
	put(t, b, "o", "2")
	for _, key := range []string{"x/y", "x", "o/below", "o/be/low"} {
		if err := b.Put(t.Context(), key, []byte("no")); err == nil || errors.Is(err, objectstore.ErrExists) {
			t.Errorf("Put %s: %v, want an error that says why not", key, err)
		}
		if err := b.PutIfAbsent(t.Context(), key, []byte("no")); err == nil || errors.Is(err, objectstore.ErrExists) {
			t.Errorf("PutIfAbsent %s: %v, want an error that says why not", key, err)
		}
	}
	wantObject(t, b, "x/y/z", "1")
	wantObject(t, b, "o", "2")
}

func prefixIsABucket(t *testing.T, b objectstore.Bucket) {
	p, err := objectstore.Prefix(b, "in/side")
	if err != nil {
		t.Fatal(err)
	}
	put(t, b, "in/other", "x")
	put(t, b, "in/side-by-side", "x")
	put(t, p, "k/1", "one")
	put(t, p, "k/2", "two")
	if err := p.PutIfAbsent(t.Context(), "k/1", []byte("x")); !errors.Is(err, objectstore.ErrExists) {
		t.Errorf("create: %v, want %v", err, objectstore.ErrExists)
	}
	wantObject(t, b, "in/side/k/1", "one")
	wantObject(t, p, "k/2", "two")
	if diff := cmp.Diff([]string{"k/1", "k/2"}, keys(t, p, "", "")); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"k/2"}, keys(t, p, "k/", "k/1")); diff != "" {
		t.Errorf("list after (-want +got):\n%s", diff)
	}
	if err := p.Delete(t.Context(), "k/1"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"in/other", "in/side-by-side", "in/side/k/2"}, keys(t, b, "", "")); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if got, want := objectstore.Location(p, "k/2"), objectstore.Location(b, "in/side/k/2"); got != want {
		t.Errorf("location %q, want %q", got, want)
	}
}

func endedContext(t *testing.T, b objectstore.Bucket) {
	put(t, b, "k", "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, getErr := b.Get(ctx, "k", 0, -1)
	_, listErr := b.List(ctx, "", "")
	for name, err := range map[string]error{
		"put": b.Put(ctx, "l", []byte("x")), "create": b.PutIfAbsent(ctx, "m", []byte("x")),
		"get": getErr, "list": listErr, "delete": b.Delete(ctx, "k"),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want %v", name, err, context.Canceled)
		}
	}
	if e, ok := errors.AsType[*objectstore.DeleteError](b.Delete(ctx, "k", "l")); !ok || len(e.Keys) != 2 {
		t.Errorf("delete names %v, want both keys", e)
	}
	wantObject(t, b, "k", "x")
}

func probe(t *testing.T, b objectstore.Bucket) {
	if err := objectstore.Probe(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if left := keys(t, b, "", ""); len(left) > 0 {
		t.Errorf("probe left %q", left)
	}
}
