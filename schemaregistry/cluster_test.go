package schemaregistry

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/metadata"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// processes are registries of several processes on one database.
func processes(t *testing.T, url string, n int) (all []*Registry) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	for range n {
		store, err := metadata.Open(t.Context(), url, log)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		all = append(all, New(store, nil, Config{}, log))
	}
	return all
}

// Two processes on one PostgreSQL register at once: a schema has one id and an id one schema, what
// one has registered the other reads as soon as it is answered, and no delete, import or restart
// gives an id another meaning.
func TestIDsOfACluster(t *testing.T) {
	url := lab.Postgres(t)
	both := processes(t, url, 2)
	const writers, each = 8, 16
	text := func(i int) string { return fmt.Sprintf(`{"type":"enum","name":"E%d","symbols":["A"]}`, i) }
	var mu sync.Mutex
	ids, texts := map[string]int{}, map[int]string{}
	learn := func(text string, id int) {
		mu.Lock()
		defer mu.Unlock()
		if was, ok := ids[text]; ok && was != id {
			t.Errorf("%s has the ids %d and %d", text, was, id)
		}
		if was, ok := texts[id]; ok && was != text {
			t.Errorf("id %d is %s and %s", id, was, text)
		}
		ids[text], texts[id] = id, text
	}
	register := func(r, other *Registry, subject, text string) {
		v, _, err := r.Register(t.Context(), subject, Request{Schema: text}, false)
		if err != nil {
			t.Error(err)
			return
		}
		learn(text, v.Schema.ID)
		if s, err := other.Schema(t.Context(), v.Schema.ID); err != nil || s.Text != text {
			t.Errorf("id %d on the other node: %s, %v, want %s", v.Schema.ID, s.Text, err, text)
		}
		if held, err := other.Holds(t.Context(), subject, int32(v.Schema.ID)); err != nil || !held {
			t.Errorf("id %d is in %s on the other node: %t, %v", v.Schema.ID, subject, held, err)
		}
	}
	if got := send(http.MethodPut, "/config", `{"compatibility":"NONE"}`, both[0].Handler()); !strings.HasPrefix(got, "200 ") {
		t.Fatal(got)
	}
	run := func(from int) {
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				for i := range each { // half of them are those of another writer too
					register(both[w%2], both[1-w%2], fmt.Sprintf("s-%d-%d", w, i), text(from+i+(w/2)*each/2))
				}
			})
		}
		all.Wait()
	}
	run(0)
	h := both[0].Handler()
	for w := range writers {
		for i := range each {
			if path := fmt.Sprintf("/subjects/s-%d-%d", w, i); (w+i)%3 == 0 {
				for _, query := range []string{"", "?permanent=true"} {
					if got := send(http.MethodDelete, path+query, "", h); !strings.HasPrefix(got, "200 ") {
						t.Fatalf("delete %s%s: %s", path, query, got)
					}
				}
			}
		}
	}
	send(http.MethodPut, "/mode/imported?force=true", `{"mode":"IMPORT"}`, h)
	const far = 5000
	if got := send(http.MethodPost, "/subjects/imported/versions", fmt.Sprintf(`{"schema":%q,"id":%d,"version":7}`, text(far), far), h); !strings.HasPrefix(got, "200 ") {
		t.Fatalf("import: %s", got)
	}
	learn(text(far), far)
	both = processes(t, url, 2)
	for id, text := range texts {
		s, err := both[0].Schema(t.Context(), id)
		if errors.Is(err, metadata.ErrSchemaNotExist) { // it was removed with its last version
			mu.Lock()
			delete(ids, text) // and may come again, with a new id
			mu.Unlock()
		} else if err != nil || s.Text != text {
			t.Errorf("id %d after a restart: %s, %v, want %s", id, s.Text, err, text)
		}
	}
	run(each)
	for text, id := range ids {
		if id > far+len(ids) || id > 5*each && id < far {
			t.Errorf("%s has the id %d", text, id)
		}
	}
}

// Once READONLY is answered no version appears, whoever registers at that moment, in any process.
func TestNoVersionAfterReadOnly(t *testing.T) {
	both := processes(t, "sqlite:"+filepath.Join(t.TempDir(), "metadata.db"), 2)
	h := both[0].Handler()
	count := func() (n int) {
		t.Helper()
		subjects, err := both[1].store.Subjects(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range subjects {
			subject, err := both[1].store.Subject(t.Context(), s.Name)
			if err != nil {
				t.Fatal(err)
			}
			n += len(subject.Versions)
		}
		return n
	}
	for round := range 8 {
		path := []string{"/mode", "/mode/s0"}[round%2]
		begun := make(chan struct{}, 100)
		var all sync.WaitGroup
		for w := range 8 {
			subject := fmt.Sprintf("s%d", w)
			if round%2 == 1 {
				subject = "s0"
			}
			all.Go(func() {
				for i := 0; ; i++ {
					_, _, err := both[w%2].Register(t.Context(), subject, Request{Schema: fmt.Sprintf(`{"type":"record","name":"R","doc":"%d %d %d","fields":[]}`, round, w, i)}, false)
					var refused *apiError
					if errors.As(err, &refused) && refused.code == 42205 {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
					select {
					case begun <- struct{}{}:
					default:
					}
				}
			})
		}
		for range 10 {
			<-begun
		}
		if got := send(http.MethodPut, path, `{"mode":"READONLY"}`, h); !strings.HasPrefix(got, "200 ") {
			t.Fatal(got)
		}
		then := count()
		all.Wait()
		if now := count(); now != then {
			t.Fatalf("round %d: %d versions, there were %d when %s was read only", round, now, then, path)
		}
		if got := send(http.MethodDelete, path, "", h); !strings.HasPrefix(got, "200 ") {
			t.Fatal(got)
		}
	}
}
