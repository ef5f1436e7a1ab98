package schemaregistry

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tabletopic/tabletopic/metadata"
)

func openStore(t testing.TB, path string) *metadata.Store {
	t.Helper()
	s, err := metadata.Open(t.Context(), "sqlite:"+path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func newRegistry(t testing.TB) *Registry {
	t.Helper()
	return New(openStore(t, filepath.Join(t.TempDir(), "metadata.db")), nil, Config{}, slog.New(slog.DiscardHandler))
}

func serve(t testing.TB, r *Registry) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(r.Handler())
	t.Cleanup(s.Close)
	return s
}

// However many register at once, on two stores of one database, a schema has one id, an id
// one schema, and ids are dense from 1; versions of a subject are dense too.
func TestRegisterConcurrently(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metadata.db")
	var registries []*Registry
	for range 2 {
		registries = append(registries, New(openStore(t, path), nil, Config{}, slog.New(slog.DiscardHandler)))
	}
	const goroutines, schemas = 100, 20
	type result struct {
		text string
		id   int
	}
	results := make(chan result, goroutines*2)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			r := registries[g%2]
			for _, subject := range []string{"shared", fmt.Sprintf("own-%d", g%10)} {
				text := fmt.Sprintf(`{"type":"enum","name":"E%d","symbols":["A"]}`, g%schemas)
				if err := r.store.ChangeSubjectConfig(t.Context(), subject, func(c *metadata.SubjectConfig) { c.Compatibility = "NONE" }); err != nil {
					t.Error(err)
					return
				}
				v, _, err := r.Register(t.Context(), subject, Request{Schema: text}, false)
				if err != nil {
					t.Error(err)
					return
				}
				results <- result{text, v.Schema.ID}
			}
		})
	}
	wg.Wait()
	close(results)
	ids, texts := map[string]int{}, map[int]string{}
	for got := range results {
		if id, ok := ids[got.text]; ok && id != got.id {
			t.Fatalf("%s has ids %d and %d", got.text, id, got.id)
		}
		if text, ok := texts[got.id]; ok && text != got.text {
			t.Fatalf("id %d is %s and %s", got.id, text, got.text)
		}
		ids[got.text], texts[got.id] = got.id, got.text
	}
	for id := 1; id <= schemas; id++ {
		if texts[id] == "" {
			t.Fatalf("no schema has id %d: %v", id, texts)
		}
		for _, r := range registries {
			if s, err := r.Schema(t.Context(), id); err != nil || s.Text != texts[id] {
				t.Fatalf("schema %d: got %s, %v, want %s", id, s.Text, err, texts[id])
			}
		}
	}
	shared, err := registries[0].store.Subject(t.Context(), "shared")
	if err != nil || len(shared.Versions) != schemas {
		t.Fatalf("shared has %d versions, %v, want %d", len(shared.Versions), err, schemas)
	}
	for i, v := range shared.Versions {
		if v.Version != i+1 {
			t.Fatalf("version %d at place %d", v.Version, i)
		}
	}
}

// The worker's view: a schema with its dependencies in order, found as soon as another
// process registered it; not there and not known now are different errors.
func TestSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metadata.db")
	log := slog.New(slog.DiscardHandler)
	store := openStore(t, path)
	mine, other := New(store, nil, Config{}, log), New(openStore(t, path), nil, Config{}, log)
	if _, err := mine.Schema(t.Context(), 3); !errors.Is(err, metadata.ErrSchemaNotExist) {
		t.Fatalf("not registered: got %v", err)
	}
	for _, q := range []struct {
		subject string
		Request
	}{
		{"a", Request{Schema: `{"type":"fixed","name":"A","size":1}`}},
		{"b", Request{Schema: `{"type":"record","name":"B","fields":[{"name":"a","type":"A"}]}`, References: []metadata.SchemaReference{{Name: "A", Subject: "a", Version: 1}}}},
		{"c", Request{Schema: `["A","B"]`, References: []metadata.SchemaReference{{Name: "B", Subject: "b", Version: 1}, {Name: "A", Subject: "a", Version: 1}}}},
	} {
		if _, _, err := other.Register(t.Context(), q.subject, q.Request, false); err != nil {
			t.Fatal(err)
		}
	}
	s, err := mine.Schema(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	want := []Dependency{{"A", `{"type":"fixed","name":"A","size":1}`}, {"B", `{"type":"record","name":"B","fields":[{"name":"a","type":"A"}]}`}}
	if s.Text != `["A","B"]` || !slices.Equal(s.Dependencies, want) {
		t.Fatalf("got %+v, want the dependencies %v", s, want)
	}
	store.Close()
	if again, err := mine.Schema(t.Context(), 3); err != nil || again.Text != s.Text {
		t.Fatalf("from the cache: %+v, %v", again, err)
	}
	if _, err := mine.Schema(t.Context(), 4); err == nil || errors.Is(err, metadata.ErrSchemaNotExist) {
		t.Fatalf("database away: got %v, want an error that may go away", err)
	}
}

// The cache keeps what was used last and stays under its limit.
func TestCache(t *testing.T) {
	one := Schema{Schema: metadata.Schema{Text: strings.Repeat("x", 1000)}}
	c := newCache[int](3*one.size(), Schema.size)
	for id := range 10 {
		one.ID = id
		c.put(id, one)
		c.put(id, one)
		if _, ok := c.get(0); !ok {
			t.Fatalf("after %d: the one used last is gone", id)
		}
		if c.used > c.limit || c.used != len(c.byKey)*one.size() {
			t.Fatalf("after %d: %d bytes in %d schemas, limit %d", id, c.used, len(c.byKey), c.limit)
		}
	}
	if _, ok := c.get(9); !ok || len(c.byKey) != 3 {
		t.Fatalf("%d schemas, the last among them %t", len(c.byKey), ok)
	}
	c.put(9, Schema{Schema: metadata.Schema{Text: strings.Repeat("x", 10_000)}})
	if _, ok := c.get(9); ok || len(c.byKey) != 2 {
		t.Fatalf("%d schemas, and one larger than all of the cache: %t", len(c.byKey), ok)
	}
	c.clear()
	if c.used != 0 || c.order.Len() != 0 {
		t.Fatalf("%d bytes after clear", c.used)
	}
}

func BenchmarkSchema(b *testing.B) {
	r := newRegistry(b)
	if _, _, err := r.Register(b.Context(), "s", Request{Schema: `"string"`}, false); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Schema(b.Context(), 1); err != nil {
			b.Fatal(err)
		}
	}
}

// The versions before a schema are found in each subject that has it, deleted ones and none after it.
func TestEarlierVersions(t *testing.T) {
	store := openStore(t, filepath.Join(t.TempDir(), "metadata.db"))
	r := New(store, nil, Config{}, slog.New(slog.DiscardHandler))
	register := func(subject, schema string) int32 {
		v, _, err := r.Register(t.Context(), subject, Request{Schema: schema}, false)
		if err != nil {
			t.Fatal(err)
		}
		return int32(v.Schema.ID)
	}
	record := func(defaults string) string {
		return `{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":` + defaults + `}]}`
	}
	one, two, three := register("s", record("1")), register("s", record("2")), register("s", record("3"))
	four := register("other", record("4"))
	if id := register("other", record("2")); id != two {
		t.Fatalf("id %d, want %d", id, two)
	}
	subject, err := store.Subject(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := store.DeleteVersions(t.Context(), subject, []int{1}, false); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[int32][]int32{one: nil, three: {two, one}, four: nil} {
		if got, err := r.Earlier(t.Context(), id, 10); err != nil || !slices.Equal(got, want) {
			t.Errorf("before %d: %v, error %v, want %v", id, got, err, want)
		}
	}
	got, err := r.Earlier(t.Context(), two, 10)
	if slices.Sort(got); err != nil || !slices.Equal(got, []int32{one, four}) {
		t.Errorf("before %d: %v, error %v, want %d and %d", two, got, err, one, four)
	}
	if got, err := r.Earlier(t.Context(), three, 1); err != nil || !slices.Equal(got, []int32{two}) {
		t.Errorf("before %d, at most one: %v, error %v", three, got, err)
	}
}
