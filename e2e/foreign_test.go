package e2e

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	icebergrest "github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
	"github.com/hamba/avro/v2"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/node"
)

// sharedEngines is the environment in which lab/query finds the engines that all tests share.
func sharedEngines(t testing.TB) []string {
	t.Helper()
	return []string{"TRINO_URL=" + lab.SharedTrino(t), "SPARK_URL=" + lab.SharedSpark(t, "lab/query")}
}

// A foreignWriter is somebody who changes a topic's table while the topic is being filled.
type foreignWriter struct {
	t       *testing.T
	s       *server
	l       *lake
	topic   string
	readers []string // the engines that compare

	theirs  map[int64]string // rows that others added: text by id, which is below zero
	changed map[int64]string // text of rows of ours that others changed, by id
	deleted map[int64]bool   // ids of rows of ours that others deleted
}

// A foreignStep is a statement, or a script, and what it makes of the rows.
type foreignStep struct {
	statement string
	effect    func(f *foreignWriter)
}

func adds(text string, ids ...int64) func(f *foreignWriter) {
	return func(f *foreignWriter) {
		for _, id := range ids {
			f.theirs[id] = text
		}
	}
}

func removes(ids ...int64) func(f *foreignWriter) {
	return func(f *foreignWriter) {
		for _, id := range ids {
			delete(f.theirs, id)
			if id >= 0 {
				f.deleted[id] = true
			}
		}
	}
}

func changes(text string, ids ...int64) func(f *foreignWriter) {
	return func(f *foreignWriter) {
		for _, id := range ids {
			if id < 0 {
				f.theirs[id] = text
			} else {
				f.changed[id] = text
			}
		}
	}
}

func both(effects ...func(f *foreignWriter)) func(f *foreignWriter) {
	return func(f *foreignWriter) {
		for _, e := range effects {
			e(f)
		}
	}
}

func nothing(*foreignWriter) {}

// Each engine writes to a table of ours while its topic is being filled: appends, row-level
// deletes and updates of both kinds, rewrites, expiry, columns, branches. After each nothing
// of theirs and nothing of ours is lost or twice, as two engines see it, and our commits go on.
func TestForeignWriters(t *testing.T) {
	t.Parallel() // mostly waits
	engines := sharedEngines(t)
	const table = "ice.default.events"
	insert := func(id int64, text string) string {
		return fmt.Sprintf("INSERT INTO %s (id, text) VALUES (%d, '%s')", table, id, text)
	}
	writers := []struct {
		engine  string
		readers []string
		steps   []foreignStep
	}{
		{"spark", []string{"duckdb", "trino"}, []foreignStep{
			{insert(-1, "spark"), adds("spark", -1)},
			{"DELETE FROM " + table + " WHERE id = 1", removes(1)}, // copies on write
			{"UPDATE " + table + " SET text = 'updated' WHERE id = 2", changes("updated", 2)},
			{"ALTER TABLE " + table + " SET TBLPROPERTIES ('write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read', 'write.merge.mode'='merge-on-read', " +
				"'write.merge.isolation-level'='snapshot')", nothing}, // serializable, the default, fails when anything was appended meanwhile
			{"DELETE FROM " + table + " WHERE id IN (3, 4)", removes(3, 4)}, // by position
			{"MERGE INTO " + table + " t USING (SELECT * FROM VALUES (5, 'merged'), (-2, 'merged') AS v(id, text)) s ON t.id = s.id " +
				"WHEN MATCHED THEN UPDATE SET text = s.text WHEN NOT MATCHED THEN INSERT (id, text) VALUES (s.id, s.text)",
				both(changes("merged", 5), adds("merged", -2))},
			{"CALL ice.system.rewrite_data_files(table => 'default.events', options => map('rewrite-all', 'true'))", nothing},
			{"CALL ice.system.rewrite_position_delete_files(table => 'default.events', options => map('rewrite-all', 'true'))", nothing},
			{"CALL ice.system.rewrite_manifests('default.events')", nothing},
			{"ALTER TABLE " + table + " ADD COLUMN region string", nothing},
			{"INSERT INTO " + table + " (id, text, region) VALUES (-3, 'region', 'CH')", adds("region", -3)},
			{"ALTER TABLE " + table + " CREATE TAG monday", nothing},
			{"ALTER TABLE " + table + " CREATE BRANCH audit", nothing},
			{"INSERT INTO " + table + ".branch_audit (id, text) VALUES (-99, 'branch')", nothing},
			{"CALL ice.system.expire_snapshots(table => 'default.events', older_than => timestamp '2100-01-01', retain_last => 1)", nothing},
		}},
		{"trino", []string{"duckdb", "spark"}, []foreignStep{
			{insert(-1, "trino"), adds("trino", -1)},
			{"DELETE FROM " + table + " WHERE id = 1", removes(1)},
			{"UPDATE " + table + " SET text = 'updated' WHERE id IN (2, -1)", changes("updated", 2, -1)},
			{"MERGE INTO " + table + " t USING (VALUES (3, 'x'), (-2, 'merged')) AS s(id, text) ON t.id = s.id " +
				"WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, text) VALUES (s.id, s.text)", both(removes(3), adds("merged", -2))},
			{"ALTER TABLE " + table + " EXECUTE optimize", nothing},
			{"ALTER TABLE " + table + " EXECUTE optimize_manifests", nothing},
			{"ALTER TABLE " + table + " ADD COLUMN region varchar", nothing},
			{"INSERT INTO " + table + " (id, text, region) VALUES (-3, 'region', 'CH')", adds("region", -3)},
		}},
		{"duckdb", []string{"trino", "spark"}, []foreignStep{
			{insert(-1, "duck"), adds("duck", -1)},
			{"DELETE FROM " + table + " WHERE id = 1", removes(1)},
			{"UPDATE " + table + " SET text = 'updated' WHERE id = 2", changes("updated", 2)},
		}},
		{"pyiceberg", []string{"duckdb", "spark"}, []foreignStep{
			{"t.append(rows(id=-1, text='py'))", adds("py", -1)},
			{"t.overwrite(rows(id=-2, text='over'), overwrite_filter='id == 1 or id == -1')", both(removes(1, -1), adds("over", -2))},
			{"t.delete('id == 2')", removes(2)},
			{"t.overwrite(rows(id=-2, text='again'), overwrite_filter='id == -2')", changes("again", -2)}, // its upsert wants all columns
			{"with t.update_schema() as u: u.add_column('region', StringType())", nothing},
			{"t.append(rows(id=-3, text='region', region='CH'))", adds("region", -3)},
			{"t.manage_snapshots().create_tag(t.current_snapshot().snapshot_id, 'monday').create_branch(t.current_snapshot().snapshot_id, 'audit').commit()", nothing},
			{"t.append(rows(id=-99, text='branch'), branch='audit')", nothing},
		}},
	}
	together(t, len(writers), len(writers), func(i int) string { return writers[i].engine }, func(t *testing.T, i int) {
		w := writers[i]
		l := directoryLake(t)
		l.queryEnv = engines
		f := &foreignWriter{t: t, l: l, s: l.server(t), topic: "events", readers: w.readers,
			theirs: map[int64]string{}, changed: map[int64]string{}, deleted: map[int64]bool{}}
		f.s.createTopic(f.topic, 2, 3*time.Second) // leaves them time between our commits
		header := registerSchema(t, f.s, f.topic+"-value", eventSchema)
		producing, stop := context.WithCancel(t.Context())
		acked := &acks{places: map[place]string{}}
		var producer sync.WaitGroup
		producer.Go(func() { produceUntil(producing, t, f.s, f.topic, header, 0, 10*time.Millisecond, acked) })
		defer producer.Wait()
		defer stop()
		acked.waitFor(t, 20)
		tableHolds(t, f.s, f.topic)
		for i, step := range w.steps {
			f.write(w.engine, step.statement)
			step.effect(f)
			if i == len(w.steps)/2 {
				f.s.kill()
				f.s.start()
			}
			f.check(tableHolds(t, f.s, f.topic))
			if t.Failed() {
				t.Fatalf("after %s", step.statement)
			}
		}
		stop()
		producer.Wait()
		f.check(tableHolds(t, f.s, f.topic))
	})
}

// waitFor returns when n records are acknowledged.
func (a *acks) waitFor(t *testing.T, n int) {
	t.Helper()
	eventually(t, time.Minute, fmt.Sprintf("%d records acknowledged", n), func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.places) < n {
			return fmt.Errorf("%d are", len(a.places))
		}
		return nil
	})
}

// write has an engine do it, again if our commit was faster.
func (f *foreignWriter) write(engine, statement string) {
	f.t.Helper()
	for attempt := 1; ; attempt++ {
		var err error
		if engine == "pyiceberg" {
			_, err = tryRun(nil, python(), "-c", fmt.Sprintf(pyicebergWriter, f.s.catalogURL(), f.topic, statement))
		} else {
			_, err = f.l.tryQuery(f.s, engine, statement)
		}
		if err == nil {
			return
		}
		if attempt == 20 || !tooLate(err) {
			f.t.Fatalf("%s: %v", engine, err)
		}
		f.t.Logf("%s, attempt %d: %v", engine, attempt, err)
	}
}

// tooLate reports whether an engine says that somebody else has changed the table meanwhile.
func tooLate(err error) bool {
	for _, says := range []string{"CommitFailed", "commit failed", "Failed to commit", "concurrently", "ValidationException", "Cannot commit"} {
		if strings.Contains(err.Error(), says) {
			return true
		}
	}
	return false
}

const pyicebergWriter = `
import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.types import StringType
t = load_catalog("c", type="rest", uri=%q).load_table("default.%s")
types = {"id": pa.int64(), "text": pa.string(), "region": pa.string()}
def rows(**columns):
    return pa.table({k: pa.array([v], types[k]) for k, v in columns.items()}, pa.schema([pa.field(k, types[k], k == "region") for k in columns]))
%s
`

// tableHolds waits until the table of topic holds what is in the log now, and returns where
// that ends.
func tableHolds(t *testing.T, s *server, topic string) (ends map[int32]int64) {
	t.Helper()
	listed, err := s.admin().ListEndOffsets(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	ends = map[int32]int64{}
	for p, o := range listed[topic] {
		ends[p] = o.Offset
	}
	eventually(t, 2*time.Minute, "our commits go on", func() error {
		var status node.TableStatus
		if err := s.api("/api/tables/"+topic, &status); err != nil {
			return err
		}
		reached := map[int32]int64{}
		for _, p := range status.Partitions {
			reached[p.Partition] = p.TableNext
		}
		for p, end := range ends {
			if end > 0 && reached[p] < end {
				return fmt.Errorf("partition %d: the table has %d of %d, error %q", p, reached[p], end, status.Message)
			}
		}
		return nil
	})
	return ends
}

// check compares the table, which holds the log up to ends at least, as the engines read it.
func (f *foreignWriter) check(ends map[int32]int64) {
	f.t.Helper()
	results := make([]string, len(f.readers))
	errs := make([]error, len(f.readers))
	var reading sync.WaitGroup
	for i, engine := range f.readers {
		reading.Go(func() {
			results[i], errs[i] = f.l.tryQuery(f.s, engine, "SELECT id, text, _kafka.partition AS p, _kafka.offset AS o FROM ice.default."+f.topic)
		})
	}
	reading.Wait()
	log := readLog(f.t, f.s, f.topic, int32(len(ends)))
	for i, engine := range f.readers {
		if errs[i] != nil {
			f.t.Error(errs[i])
			continue
		}
		f.compare(engine, results[i], log, ends)
	}
	f.verify()
}

func (f *foreignWriter) compare(engine, rows string, log map[place]string, ends map[int32]int64) {
	f.t.Helper()
	records, err := csv.NewReader(strings.NewReader(rows)).ReadAll()
	if err != nil {
		f.t.Fatal(err)
	}
	theirs, ours := map[int64]string{}, map[place]bool{}
	for _, r := range records[1:] {
		id, err := strconv.ParseInt(r[0], 10, 64)
		if err != nil {
			f.t.Fatal(err)
		}
		if id < 0 {
			if _, twice := theirs[id]; twice {
				f.t.Errorf("%s: row %v is there twice", engine, r)
			}
			theirs[id] = r[1]
			continue
		}
		p, err1 := strconv.ParseInt(r[2], 10, 32)
		o, err2 := strconv.ParseInt(r[3], 10, 64)
		at := place{int32(p), o}
		want, ok := f.wanted(log[at])
		if err1 != nil || err2 != nil || !ok || ours[at] || want != (event{id, r[1]}) {
			f.t.Errorf("%s: row %v, want %v once", engine, r, want)
		}
		ours[at] = true
	}
	if !maps.Equal(theirs, f.theirs) {
		f.t.Errorf("%s: rows of other writers %v, want %v", engine, theirs, f.theirs)
	}
	missing := 0
	for at, value := range log {
		if _, ok := f.wanted(value); ok && at.offset < ends[at.partition] && !ours[at] {
			missing++
			if missing <= 3 {
				f.t.Errorf("%s: record at %v is not in the table", engine, at)
			}
		}
	}
	if missing > 0 {
		f.t.Errorf("%s: %d records of %d are missing", engine, missing, len(log))
	}
}

// wanted returns the row of a record, after what others did to it.
func (f *foreignWriter) wanted(value string) (e event, ok bool) {
	if len(value) < 5 || strings.HasPrefix(value, "garbage") || avro.Unmarshal(avro.MustParse(eventSchema), []byte(value[5:]), &e) != nil {
		return e, false
	}
	if text, changed := f.changed[e.ID]; changed {
		e.Text = text
	}
	return e, !f.deleted[e.ID]
}

// verify checks that `table verify` tells apart what others added and deleted.
func (f *foreignWriter) verify() {
	f.t.Helper()
	out, code := f.s.cli("", "table", "verify", f.topic, "--deep", "--output", "json")
	var report struct {
		Others     int `json:"foreign_rows"`
		Partitions []struct{ Deleted int }
	}
	err := json.Unmarshal([]byte(out), &report)
	deleted := 0
	for _, p := range report.Partitions {
		deleted += p.Deleted
	}
	if err != nil || code != 0 || report.Others != len(f.theirs) || deleted != len(f.deleted) {
		f.t.Errorf("table verify: exit %d, %v, want %d rows of other writers and %d deleted\n%s", code, err, len(f.theirs), len(f.deleted), out)
	}
}

// deleteEqual deletes the rows of a table that have one of the ids, by an equality delete, as writers of
// streams do that do not look for them.
func deleteEqual(t testing.TB, s *server, topic string, ids ...int64) {
	t.Helper()
	ctx := context.Background()
	cat, err := icebergrest.NewCatalog(ctx, "ours", s.catalogURL())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "an equality delete", func() error { // our commit may be faster
		tab, err := cat.LoadTable(ctx, []string{"default", topic})
		if err != nil {
			return err
		}
		id, _ := tab.Schema().FindFieldByName("id")
		keys, err := table.SchemaToArrowSchema(iceberg.NewSchema(0, iceberg.NestedField{ID: id.ID, Name: id.Name, Type: id.Type}), nil, true, false)
		if err != nil {
			return err
		}
		b := array.NewRecordBuilder(memory.DefaultAllocator, keys)
		defer b.Release()
		b.Field(0).(*array.Int64Builder).AppendValues(ids, nil)
		batch := b.NewRecordBatch()
		defer batch.Release()
		tx := tab.NewTransaction()
		if err := tx.CommitEqualityDeletes(ctx, []int{id.ID}, func(yield func(arrow.RecordBatch, error) bool) { yield(batch, nil) }, nil); err != nil {
			return err
		}
		_, err = tx.Commit(ctx)
		return err
	})
}

// Equality deletes that another writer adds between our commits hide the rows from before them and none
// from later, whatever the schema and whatever our compaction makes of the files: a key that is deleted
// and comes again is one row, in each engine.
func TestEqualityDeletesHideWhatCameBefore(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	s := l.server(t)
	const topic = "states"
	s.createTopic(topic, 1, 200*time.Millisecond, "table.topic.compact.min.files", "2")
	const wider = `{"type": "record", "name": "Event", "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}, {"name": "note", "type": ["null", "string"], "default": null}]}`
	old, young := registerSchema(t, s, topic+"-value", eventSchema), registerSchema(t, s, topic+"-value", wider)
	put := func(text string, ids ...int64) {
		t.Helper()
		for i, id := range ids { // both schemas in one round of commits
			header, schema, row := old, eventSchema, obj{"id": id, "text": text}
			if i%2 == 1 {
				header, schema, row = young, wider, obj{"id": id, "text": text, "note": in("string", "n"+text)}
			}
			produceAll(t, s, topic, encoded(t, header, schema, row))
		}
		tableHolds(t, s, topic)
	}
	check := func(want string) {
		t.Helper()
		for _, engine := range []string{"spark", "trino", "duckdb"} { // PyIceberg 0.12 reads no equality deletes
			if got := l.query(t, s, engine, "SELECT id, text, note FROM ice.default."+topic); got != want {
				t.Errorf("%s reads\n%swant\n%s", engine, got, want)
			}
		}
	}
	put("a", 1, 2, 3, 4)
	deleteEqual(t, s, topic, 1, 2)
	put("b", 2, 1)
	deleteEqual(t, s, topic, 1)
	deleteEqual(t, s, topic, 4)
	put("c", 1)
	check("id,text,note\n1,c,NULL\n2,b,NULL\n3,a,NULL\n")
	s.kill()
	s.start()
	put("d", 5, 6)
	deleteEqual(t, s, topic, 5)
	put("e", 7, 5)
	put("f", 8) // there is something to compact, too
	for range 2 {
		if out, code := s.cli("", "table", "compact", topic); code != 0 {
			t.Fatalf("table compact: exit %d\n%s", code, out)
		}
		check("id,text,note\n1,c,NULL\n2,b,NULL\n3,a,NULL\n5,e,ne\n6,d,nd\n7,e,NULL\n8,f,NULL\n")
	}
	var status node.TableStatus
	if err := s.api("/api/tables/"+topic, &status); err != nil || status.Compacted == nil {
		t.Errorf("no compaction came to anything: %v", err)
	}
	// partition, start, next, end, rows, dead, lost, duplicates, beyond, ahead, deleted, gaps
	out, code := s.cli("", "table", "verify", topic, "--deep")
	if lines := strings.Split(out, "\n"); code != 0 || len(lines) < 2 || !slices.Equal(strings.Fields(lines[1]), strings.Fields("0 0 12 12 7 0 0 0 0 0 5 0")) {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
}
