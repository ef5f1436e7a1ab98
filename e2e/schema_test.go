package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The commands about schemas: what a version does to a table is told before it is registered, by file
// and by standard input, and a whole registry moves to another server by a file and by a topic.
func TestSchemaCommands(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	number := file("number.avsc", `{"type":"record","name":"Order","fields":[{"name":"id","type":"int"}]}`)
	const long = `{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"note","type":["null","string"],"default":null}]}`
	text := file("text.avsc", `{"type":"record","name":"Order","fields":[{"name":"id","type":"string"}]}`)
	command := func(want int, stdin string, args ...string) string {
		t.Helper()
		out, code := s.cli(stdin, args...)
		if code != want {
			t.Fatalf("tabletopic %s: exit %d, want %d:\n%s", strings.Join(args, " "), code, want, out)
		}
		return out
	}
	s.createTopic("orders", 1, 100*time.Millisecond)
	if out := command(0, "", "schema", "check", "orders-value", number); !strings.Contains(out, "creates: ") {
		t.Errorf("before there is a table: %s", out)
	}
	command(0, "", "schema", "register", "orders-value", number)
	if err := s.client().ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte{0, 0, 0, 0, 1, 2}}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "a table", func() error { return s.api("/api/tables/orders", &struct{}{}) })
	eventually(t, time.Minute, "the column of the table", func() error {
		if out := command(0, long, "schema", "check", "orders-value", "-"); !strings.Contains(out, "evolves: id becomes long (it is int); note string is added") {
			return os.ErrNotExist
		}
		return nil
	})
	command(0, "", "schema", "compatibility", "orders-value", "NONE")
	if out := command(1, "", "schema", "check", "orders-value", text, "--output", "json"); !strings.Contains(out, `"outcome": "refuses"`) || !strings.Contains(out, "column id is int, the writer has string") {
		t.Errorf("refused: %s", out)
	}
	command(0, "", "schema", "register", "orders-value", text)
	command(0, "", "schema", "delete", "orders-value")

	first, second := filepath.Join(dir, "first.jsonl"), filepath.Join(dir, "second.jsonl")
	command(0, "", "schema", "export", first)
	policy := "compact"
	if _, err := s.admin().CreateTopic(t.Context(), 1, 1, map[string]*string{"cleanup.policy": &policy}, "_schemas"); err != nil {
		t.Fatal(err)
	}
	command(0, "", "schema", "export", "--topic", "_schemas")
	if out := command(0, "", "schema", "import", "--topic", "_schemas"); !strings.HasPrefix(out, "0 records added, 3 were there") {
		t.Errorf("import of what is there: %s", out)
	}
	exported, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	s = startServer(t)
	if out := command(0, string(exported), "schema", "import", "-"); !strings.HasPrefix(out, "3 records added, 0 were there") {
		t.Errorf("import: %s", out)
	}
	command(0, "", "schema", "export", second)
	if again, err := os.ReadFile(second); err != nil || string(again) != string(exported) {
		t.Errorf("export of the import, %v:\n%s\nwant\n%s", err, again, exported)
	}
	command(0, "", "schema", "register", "orders-value", number)
	command(1, strings.Replace(string(exported), `"id":1`, `"id":9`, 1), "schema", "import", "-")
}
