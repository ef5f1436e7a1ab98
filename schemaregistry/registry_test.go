package schemaregistry

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
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
	return New(openStore(t, filepath.Join(t.TempDir(), "metadata.db")), Config{}, slog.New(slog.DiscardHandler))
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
		registries = append(registries, New(openStore(t, path), Config{}, slog.New(slog.DiscardHandler)))
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
				if err := r.store.SetCompatibility(t.Context(), subject, "NONE"); err != nil {
					t.Error(err)
					return
				}
				v, err := r.Register(t.Context(), subject, Request{Schema: text}, false)
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
