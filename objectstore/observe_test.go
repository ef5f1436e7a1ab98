package objectstore

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
)

type observerFunc func(Request)

func (f observerFunc) ObserveRequest(r Request) { f(r) }

// Every request tells what it was for, and the innermost word counts.
func TestObserverLearnsPurpose(t *testing.T) {
	prefixed, err := Prefix(NewMemory(), "p")
	if err != nil {
		t.Fatal(err)
	}
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer(http.StatusForbidden, "AccessDenied")(nil, w, r)
	}))
	defer refusing.Close()
	s3, err := NewS3(t.Context(), S3Config{Bucket: "b", Endpoint: refusing.URL, PathStyle: true, Credentials: staticCredentials("a", "s")})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]Bucket{"prefixed": prefixed, "S3": s3} {
		t.Run(name, func(t *testing.T) { testPurpose(t, b) })
	}
}

// A default purpose is for those who say none.
func TestWithPurpose(t *testing.T) {
	var got []Purpose
	b := WithPurpose(Observe(NewMemory(), observerFunc(func(r Request) { got = append(got, r.Purpose) })), ForTable)
	for _, ctx := range []context.Context{t.Context(), For(t.Context(), ForRead)} {
		b.Put(ctx, "a")
		b.PutIfAbsent(ctx, "a")
		b.Get(ctx, "a", 0, -1)
		b.List(ctx, "", "")
		b.Delete(ctx, "a")
	}
	if want := append(slices.Repeat([]Purpose{ForTable}, 5), slices.Repeat([]Purpose{ForRead}, 5)...); !slices.Equal(got, want) {
		t.Errorf("purposes %q, want %q", got, want)
	}
	if got := Location(b, "x"); got != "mem:///x" {
		t.Errorf("location %s", got)
	}
}

func testPurpose(t *testing.T, b Bucket) {
	var got []Purpose
	b = Observe(b, observerFunc(func(r Request) { got = append(got, r.Purpose) }))
	for _, test := range []struct {
		ctx  context.Context
		want Purpose
	}{
		{t.Context(), ""},
		{For(t.Context(), ForRead), ForRead},
		{For(For(t.Context(), ForRead), ForIndex), ForIndex},
	} {
		got = nil
		b.Put(test.ctx, "a")
		b.PutIfAbsent(test.ctx, "a")
		b.Get(test.ctx, "a", 0, -1)
		b.List(test.ctx, "", "")
		b.Delete(test.ctx, "a")
		if len(got) != 5 {
			t.Fatalf("%d requests, want 5", len(got))
		}
		for i, p := range got {
			if p != test.want {
				t.Errorf("request %d is for %q, want %q", i, p, test.want)
			}
		}
	}
}
