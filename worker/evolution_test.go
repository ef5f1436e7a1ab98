package worker

import (
	"context"
	"slices"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/record"
)

const (
	textIDSchema  = `{"type":"record","name":"Event","fields":[{"name":"id","type":"string"},{"name":"name","type":["null","string"],"default":null}]}`
	widerSchema   = `{"type":"record","name":"Event","fields":[{"name":"id","type":"long"},{"name":"name","type":["null","string"],"default":null},{"name":"more","type":"long","default":0}]}`
	renamedSchema = `{"type":"record","name":"Event","fields":[{"name":"id","type":"long"},{"name":"title","aliases":["name"],"type":["null","string"],"default":null}]}`
)

// foreignSchema changes the columns of the table as ALTER TABLE does.
func (p *path) foreignSchema(change func([]iceberg.NestedField) []iceberg.NestedField) {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	next := iceberg.NewSchema(tab.Schema().ID+1, change(slices.Clone(tab.Schema().Fields()))...)
	if _, err := p.catalog.Catalog.Commit(context.Background(), tab, catalog.Commit{Schema: next}); err != nil {
		p.t.Fatal(err)
	}
}

// columns returns the names of the value's columns.
func (p *path) columns() (names []string) {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range tab.Schema().Fields() {
		if f.Name != p.cfg.KafkaColumn {
			names = append(names, f.Name)
		}
	}
	return names
}

// With new-column, versions whose types exclude each other share a table, old and new ones at
// once, and none of their records is a dead letter.
func TestIncompatibleSchemaGetsANewColumn(t *testing.T) {
	p := newPath(t, 2)
	p.cfg.OnIncompatible = coordinator.IncompatibleNewColumn
	p.schemas[2] = textIDSchema
	for _, l := range p.logs {
		for range 5 {
			l.append(t, event(t, 1))
			l.append(t, encode(t, 2, textIDSchema, map[string]any{"id": "x", "name": nil}))
		}
	}
	p.start()
	p.committed()
	p.crash()
	p.produce(5)
	p.start()
	p.committed()
	if got := p.columns(); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"id", "id__v2", "name"}) {
		t.Errorf("columns %v", got)
	}
	p.exact(30, 0)
}

// Old and new writers that take turns record by record cost no more than one of them does: a decoder
// of each schema for the table as it is, however many records, rounds and restarts come, and one
// file a commit, with both in it.
func TestWritersThatTakeTurnsRebindNothing(t *testing.T) {
	const turns = 3000
	p := newPath(t, 1)
	p.schemas[2] = widerSchema
	p.worker.ChunkBytes = 16 << 10 // many tasks
	registry := prometheus.NewRegistry()
	p.shared = NewShared(0, 0, NewMetrics(registry))
	decoders := func() int { return gathered(t, registry, "tabletopic_worker_decoders_total") }
	take := func(turns int) {
		batch := make([]record.Record, 0, 2*turns)
		for i := range turns {
			batch = append(batch, event(t, int64(i)), encode(t, 2, widerSchema, map[string]any{"id": int64(i), "name": "x", "more": int64(-i)}))
		}
		for len(batch) > 0 {
			n := min(100, len(batch))
			p.logs[0].append(t, batch[:n]...)
			batch = batch[n:]
		}
	}
	take(1)
	p.start()
	p.committed()
	take(1)
	before := p.committed()
	settled := decoders()
	if settled < 2 || settled > 3 { // the first schema for the table as it was made, then both for the table with the second's column
		t.Errorf("%d decoders for two schemas and a table that changed once", settled)
	}
	for range 3 {
		take(turns)
		p.committed()
	}
	if n := decoders() - settled; n != 0 {
		t.Errorf("%d more decoders for %d records of the same schemas, want none", n, 6*turns)
	}
	p.crash()
	take(turns)
	settled = decoders()
	p.start()
	after := p.committed()
	if n := decoders() - settled; n != 2 {
		t.Errorf("%d decoders after a restart, want one of each schema", n)
	}
	p.exact(4+8*turns, 0)
	commits := 0
	for _, s := range after.Metadata().Snapshots() {
		if s.SequenceNumber <= before.CurrentSnapshot().SequenceNumber {
			continue
		}
		commits++
		if n := s.Summary.Properties["added-data-files"]; n != "1" {
			t.Errorf("snapshot %d of %s records added %s files, want 1", s.SnapshotID, s.Summary.Properties["added-records"], n)
		}
	}
	if commits == 0 {
		t.Error("no snapshot added the records")
	}
}

// With pause, records of a schema that the table cannot hold wait, and their partition with them;
// the other goes on, the state says why, and they land once somebody changes the table.
func TestIncompatibleSchemaPauses(t *testing.T) {
	p := newPath(t, 2)
	p.cfg.OnIncompatible = coordinator.IncompatiblePause
	p.schemas[2] = textIDSchema
	p.start()
	p.produce(5)
	p.committed()
	p.logs[0].append(t, encode(t, 2, textIDSchema, map[string]any{"id": "x", "name": nil}))
	p.awaitState(coordinator.TablePaused, "records of schema 2 wait: table cannot hold the schema: schema does not fit the table: column id is long, the writer has string")
	p.logs[1].append(t, event(t, 1))
	p.wait(func() bool { return p.verify().Partitions[1].Rows == 6 }, func() string { return "the row of the other partition" })
	p.exact(11, 0)
	p.foreignSchema(func(fields []iceberg.NestedField) []iceberg.NestedField {
		return slices.DeleteFunc(fields, func(f iceberg.NestedField) bool { return f.Name == "id" })
	})
	p.committed()
	p.awaitState(coordinator.TableOK, "")
	p.exact(12, 0)
}

// A column renamed by an alias, or by others in the table, is still the one that both the old
// and the new writers write; a restart forgets none of it.
func TestRenamedColumnsAreFollowed(t *testing.T) {
	p := newPath(t, 2)
	p.schemas[2] = renamedSchema
	p.start()
	p.produce(3)
	p.committed()
	title := encode(t, 2, renamedSchema, map[string]any{"id": int64(1), "title": "x"})
	for _, l := range p.logs {
		l.append(t, title)
		l.append(t, event(t, 2))
	}
	p.committed()
	p.foreignSchema(func(fields []iceberg.NestedField) []iceberg.NestedField {
		for i := range fields {
			if fields[i].Name == "id" {
				fields[i].Name = "key"
			}
		}
		return fields
	})
	for range 2 {
		for _, l := range p.logs {
			l.append(t, title)
			l.append(t, event(t, 2))
		}
		p.committed()
		p.crash()
		p.start()
	}
	if got := p.columns(); !slices.Equal(got, []string{"key", "title"}) {
		t.Errorf("columns %v, want key and title", got)
	}
	p.exact(18, 0)
}

// A Protobuf field that a later version calls otherwise keeps its column by its number, and records
// of both versions fill it.
func TestRenamedProtobufFieldsAreFollowed(t *testing.T) {
	p := newPath(t, 2)
	files := map[int32]string{
		1: `syntax = "proto3"; message M { int64 id = 1; string user = 2; }`,
		2: `syntax = "proto3"; message M { int64 id = 1; string account = 2; }`,
	}
	p.lookup = func(_ context.Context, id int32) (control.RegisteredSchema, error) {
		if text, ok := files[id]; ok {
			return control.RegisteredSchema{Type: "PROTOBUF", Text: text}, nil
		}
		return control.RegisteredSchema{}, metadata.ErrSchemaNotExist
	}
	produce := func(schema byte) {
		for _, l := range p.logs {
			l.append(t, record.Record{Value: []byte{0, 0, 0, 0, schema, 0, 1 << 3, 7, 2<<3 | 2, 1, 'x'}})
		}
	}
	p.start()
	produce(1)
	p.committed()
	for range 2 {
		produce(2)
		produce(1)
		p.committed()
		p.crash()
		p.start()
	}
	if got := p.columns(); !slices.Equal(got, []string{"id", "account"}) {
		t.Errorf("columns %v, want id and account", got)
	}
	p.exact(10, 0)
}
