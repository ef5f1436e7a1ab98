package e2e

import (
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	icebergrest "github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
	"github.com/twmb/franz-go/pkg/kgo"
)

const visitSchema = `{"type":"record","name":"Visit","fields":[{"name":"id","type":"long"},{"name":"text","type":"string"},{"name":"moment","type":{"type":"long","logicalType":"timestamp-micros"}}]}`

// visitOf is the record of an id, so that a row can be compared without a list of what was sent.
func visitOf(id int64) (text string, moment time.Time) {
	moments := []time.Time{
		time.Date(1969, 12, 31, 23, 59, 59, 999_000_000, time.UTC),
		time.Date(2026, 1, 31, 23, 59, 59, 999_999_000, time.UTC),
		time.Unix(0, 0).UTC(),
		time.Date(1969, 11, 30, 0, 0, 0, 0, time.UTC),
		time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC),
	}
	return fmt.Sprintf("%c%d", 'a'+rune(id%3), id), moments[id%int64(len(moments))]
}

// A repartitioning is a table whose partitions Spark changes while its topic is being filled.
type repartitioning struct {
	t      *testing.T
	s      *server
	l      *lake
	sent   atomic.Int64 // ids below are acknowledged
	fields []specField  // that the table has ever had
	phases []phase
}

// A specField is a partition field by its name, and how Spark works out its value.
type specField struct{ name, value string }

// A phase is what holds from one change of the partitions to the next.
type phase struct {
	spec     int
	fields   []string
	from     int64 // rows from this id on have the spec
	earliest int64 // and no row below this id
}

// What Spark makes of the partitions of a topic's own table, through a restart too, holds for the files that follow, soon and in
// the order of offsets, while the topic goes on: fields that are added, replaced, dropped, and that come back. Each
// file is of the partition that Spark's own functions give its rows, before 1970 too, and engines that skip files by it find the rows
// of every spec.
func TestPartitionsThatSparkChangesAreFollowed(t *testing.T) {
	t.Parallel() // mostly waits
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	r := &repartitioning{t: t, l: l, s: l.server(t)}
	r.s.createTopic("visits", 2, time.Second, "table.topic.compact.enabled", "false")
	producing, stop := context.WithCancel(t.Context())
	var producer sync.WaitGroup
	header := registerSchema(t, r.s, "visits-value", visitSchema)
	producer.Go(func() { r.produce(producing, header) })
	defer producer.Wait()
	defer stop()
	r.await(20)
	tableHolds(t, r.s, "visits")
	r.phases = []phase{{spec: r.load().Metadata().DefaultPartitionSpec()}}
	for i, step := range []struct {
		alter  string
		added  []specField
		fields []string
	}{
		{"ADD PARTITION FIELD bucket(4, id) AS shard", []specField{{"shard", "ice.system.bucket(4, id)"}}, []string{"shard"}},
		{"ADD PARTITION FIELD days(moment) AS day", []specField{{"day", "ice.system.days(moment)"}}, []string{"shard", "day"}},
		{"REPLACE PARTITION FIELD day WITH months(moment) AS month", []specField{{"month", "ice.system.months(moment)"}}, []string{"shard", "month"}},
		{"DROP PARTITION FIELD shard", nil, []string{"month"}},
		{"REPLACE PARTITION FIELD month WITH truncate(1, text) AS initial", []specField{{"initial", "ice.system.truncate(1, text)"}}, []string{"initial"}},
		{"ADD PARTITION FIELD days(moment) AS day", nil, []string{"initial", "day"}},
		{"DROP PARTITION FIELD initial", nil, []string{"day"}},
		{"DROP PARTITION FIELD day", nil, nil},
	} {
		r.fields = append(r.fields, step.added...)
		r.change("ALTER TABLE ice.default.visits "+step.alter, step.fields, i%3 == 2)
	}
	stop()
	producer.Wait()
	tableHolds(t, r.s, "visits")
	r.check(r.sent.Load())
	r.findWithoutTheOtherFiles(r.phases[1].from + 5) // first: Trino keeps in memory what it has read of files
	r.find()
	if out, code := r.s.cli("", "table", "verify", "visits", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
}

// A field that Spark dropped from the partitions of a table of format version 1 stays there as void. Made a table of version 2 and
// filled by a topic, its rows are of the partitions of the fields that remain, before 1970 too, and engines find them.
func TestTableWithAVoidPartitionFieldIsFilled(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	r := &repartitioning{t: t, l: l, s: l.server(t)}
	makeTable(t, r.s, "") // the namespace
	text, moment := visitOf(0)
	for _, sql := range []string{
		"CREATE TABLE ice.default.visits (id bigint, text string, moment timestamp) USING iceberg PARTITIONED BY (bucket(4, id), days(moment)) TBLPROPERTIES ('format-version'='1')",
		fmt.Sprintf("INSERT INTO ice.default.visits VALUES (0, '%s', timestamp '%s')", text, moment.Format("2006-01-02 15:04:05.000000")),
		"ALTER TABLE ice.default.visits DROP PARTITION FIELD bucket(4, id)",
		"ALTER TABLE ice.default.visits SET TBLPROPERTIES ('format-version'='2')",
	} {
		l.query(t, r.s, "spark", sql)
	}
	spec := r.load().Spec()
	if _, void := spec.Field(0).Transform.(iceberg.VoidTransform); !void {
		t.Fatalf("the table has partitions %s, want a void field", spec)
	}
	r.s.createTopic("visits", 1, 300*time.Millisecond)
	r.fill(1, 30)
	r.find()
	for _, row := range r.rows("spark", "SELECT id, _partition.moment_day AS has, ice.system.days(moment) AS want FROM ice.default.visits") {
		if row[1] != row[2] {
			t.Errorf("row %s: the file has day %s, want %s", row[0], row[1], row[2])
		}
	}
	if out, code := r.s.cli("", "table", "verify", "visits", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
}

// A topic may ask for void fields, beside others and alone: they are null in every file, as Spark reads them, and four
// engines find the rows. Where one takes the place of another field the table goes on.
func TestVoidPartitionFieldsOfATopic(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	r := &repartitioning{t: t, l: l, s: l.server(t)}
	r.s.createTopic("visits", 1, 300*time.Millisecond, "table.topic.partition.by", "void(id), day(moment)")
	r.fill(0, 20)
	r.find()
	if out, code := r.s.cli("", "topic", "alter", "visits", "--config", "table.topic.partition.by=void(id), void(moment)"); code != 0 {
		t.Fatalf("topic alter: exit %d\n%s", code, out)
	}
	r.fill(20, 30)
	r.find()
	specs := map[string]int{}
	for _, row := range r.rows("spark", "SELECT _partition.id_void, _partition.moment_void, _partition.moment_day IS NULL OR _partition.moment_day = ice.system.days(moment), _spec_id FROM ice.default.visits") {
		if row[0] != "NULL" || row[1] != "NULL" || row[2] != "true" {
			t.Errorf("row %s: want null in void fields, and the day", row)
		}
		specs[row[3]]++
	}
	if len(specs) != 2 {
		t.Errorf("rows by spec %v, want some of both", specs)
	}
	if out, code := r.s.cli("", "table", "verify", "visits", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
}

// fill produces the records of ids from the first until before the end, and waits until the table has them.
func (r *repartitioning) fill(first, end int64) {
	r.t.Helper()
	header := registerSchema(r.t, r.s, "visits-value", visitSchema)
	var values [][]byte
	for id := first; id < end; id++ {
		text, moment := visitOf(id)
		values = append(values, encoded(r.t, header, visitSchema, obj{"id": id, "text": text, "moment": moment}))
	}
	produceAll(r.t, r.s, "visits", values...)
	r.sent.Store(end)
	waitForTable(r.t, r.s, "visits", end, time.Minute)
}

// produce sends a record every 10 ms until ctx ends.
func (r *repartitioning) produce(ctx context.Context, header []byte) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.s.kafka), kgo.DefaultProduceTopic("visits"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	if err != nil {
		r.t.Error(err)
		return
	}
	defer cl.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for id := int64(0); ctx.Err() == nil; id++ {
		<-tick.C
		text, moment := visitOf(id)
		value := encoded(r.t, header, visitSchema, obj{"id": id, "text": text, "moment": moment})
		if err := cl.ProduceSync(context.Background(), &kgo.Record{Value: value}).FirstErr(); err != nil {
			r.t.Errorf("record %d: %v", id, err)
			return
		}
		r.sent.Store(id + 1)
	}
}

// await returns when ids below n are acknowledged.
func (r *repartitioning) await(n int64) {
	r.t.Helper()
	eventually(r.t, 2*time.Minute, fmt.Sprintf("%d records acknowledged", n), func() error {
		if sent := r.sent.Load(); sent < n {
			return fmt.Errorf("%d are", sent)
		}
		return nil
	})
}

func (r *repartitioning) load() *table.Table {
	r.t.Helper()
	cat, err := icebergrest.NewCatalog(r.t.Context(), "ours", r.s.catalogURL())
	if err != nil {
		r.t.Fatal(err)
	}
	tab, err := cat.LoadTable(r.t.Context(), []string{"default", "visits"})
	if err != nil {
		r.t.Fatal(err)
	}
	return tab
}

// manifests are those of the table's current snapshot.
func (r *repartitioning) manifests(tab *table.Table) []iceberg.ManifestFile {
	r.t.Helper()
	fs, err := tab.FS(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	list, err := tab.CurrentSnapshot().Manifests(fs)
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// change has Spark change the partitions, when the table has what came before, and returns when records came after the
// first file of the new spec.
func (r *repartitioning) change(statement string, fields []string, restart bool) {
	r.t.Helper()
	p := phase{fields: fields, earliest: r.sent.Load()}
	tableHolds(r.t, r.s, "visits")
	for attempt := 1; ; attempt++ {
		_, err := r.l.tryQuery(r.s, "spark", statement)
		if err == nil {
			break
		}
		if attempt == 20 || !tooLate(err) {
			r.t.Fatal(err)
		}
	}
	if restart {
		r.s.kill()
		r.s.start()
	}
	tab := r.load()
	p.spec = tab.Metadata().DefaultPartitionSpec()
	var names []string
	spec := tab.Spec()
	for i := range spec.NumFields() {
		names = append(names, spec.Field(i).Name)
	}
	if !slices.Equal(names, fields) {
		r.t.Fatalf("%s: the table has partition fields %v, want %v", statement, names, fields)
	}
	before := tab.Metadata().LastSequenceNumber()
	eventually(r.t, 2*time.Minute, "a file of the new spec", func() error {
		for _, m := range r.manifests(r.load()) {
			if int(m.PartitionSpecID()) == p.spec && m.MinSequenceNum() > before {
				return nil
			}
		}
		return fmt.Errorf("no manifest of spec %d since sequence number %d", p.spec, before)
	})
	p.from = r.sent.Load() + 1 // one may be on its way
	r.phases = append(r.phases, p)
	r.await(p.from + 50)
}

// check compares the rows, their specs and their partitions as Spark reads them: those of ids below held are there.
func (r *repartitioning) check(held int64) {
	r.t.Helper()
	columns := "id, text, moment, _kafka.partition AS p, _kafka.offset AS o, _spec_id AS spec"
	for _, f := range r.fields {
		columns += fmt.Sprintf(", _partition.%s AS has_%[1]s, %s AS want_%[1]s", f.name, f.value)
	}
	rows := r.rows("spark", "SELECT "+columns+" FROM ice.default.visits")
	r.compare("spark", rows, held)
	type at struct {
		p, o  int64
		phase int
	}
	var order []at
	for _, row := range rows {
		id, spec := number(r.t, row[0]), int(number(r.t, row[5]))
		i := r.phaseOf(id, spec)
		if i < 0 {
			r.t.Errorf("row %v has spec %d, which was not that of the table then: %+v", row, spec, r.phases)
			continue
		}
		order = append(order, at{number(r.t, row[3]), number(r.t, row[4]), i})
		for j, f := range r.fields {
			want := "NULL"
			if slices.Contains(r.phases[i].fields, f.name) {
				want = row[7+2*j]
			}
			if row[6+2*j] != want {
				r.t.Errorf("row %v: the file has %s %s, want %s", row, f.name, row[6+2*j], want)
			}
		}
	}
	slices.SortFunc(order, func(a, b at) int { return int(2*min(1, max(-1, a.p-b.p)) + min(1, max(-1, a.o-b.o))) })
	for i := 1; i < len(order); i++ {
		if a, b := order[i-1], order[i]; a.p == b.p && a.phase > b.phase {
			r.t.Errorf("partition %d: offset %d has a later spec than offset %d", a.p, a.o, b.o)
		}
	}
}

// phaseOf returns the phase in which a row of an id may have got a spec, -1 if there is none.
func (r *repartitioning) phaseOf(id int64, spec int) int {
	for i, p := range r.phases {
		if p.spec == spec && id >= p.earliest && (i+1 == len(r.phases) || id < r.phases[i+1].from) {
			return i
		}
	}
	return -1
}

func (r *repartitioning) rows(engine, sql string) [][]string {
	r.t.Helper()
	rows, err := csv.NewReader(strings.NewReader(r.l.query(r.t, r.s, engine, sql))).ReadAll()
	if err != nil {
		r.t.Fatal(err)
	}
	return rows[1:]
}

func number(t testing.TB, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// compare compares id, text and moment of rows with the records.
func (r *repartitioning) compare(engine string, rows [][]string, held int64) {
	r.t.Helper()
	seen := map[int64]bool{}
	for _, row := range rows {
		id := number(r.t, row[0])
		text, moment := visitOf(id)
		if want := moment.Format("2006-01-02T15:04:05.000000"); seen[id] || row[1] != text || row[2] != want {
			r.t.Errorf("%s: row %v, want %s, %s once", engine, row, text, want)
		}
		seen[id] = true
	}
	for id := range held {
		if !seen[id] {
			r.t.Errorf("%s: record %d is not in the table", engine, id)
		}
	}
}

// find looks for rows of all specs in each engine, whole and by columns that partitions are made of.
func (r *repartitioning) find() {
	r.t.Helper()
	all := r.sent.Load()
	before := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	var early, ofA int64
	for id := range all {
		text, moment := visitOf(id)
		if moment.Before(before) {
			early++
		}
		if text < "b" {
			ofA++
		}
	}
	for _, engine := range engines {
		r.compare(engine, r.rows(engine, "SELECT id, text, moment FROM ice.default.visits"), all)
		if n := int64(len(r.rows(engine, "SELECT id, text, moment FROM ice.default.visits WHERE text < 'b'"))); n != ofA {
			r.t.Errorf("%s finds %d texts below b, want %d", engine, n, ofA)
		}
		literal := map[string]string{"spark": "timestamp '1970-01-01 00:00:00'", "trino": "TIMESTAMP '1970-01-01 00:00:00 UTC'", "pyiceberg": "'1970-01-01T00:00:00+00:00'"}[engine]
		if literal == "" {
			continue // DuckDB 1.5.5 rounds days before 1970 up where it prunes
		}
		if n := int64(len(r.rows(engine, "SELECT id, text, moment FROM ice.default.visits WHERE moment < "+literal))); n != early {
			r.t.Errorf("%s finds %d moments before 1970, want %d", engine, n, early)
		}
	}
}

// findWithoutTheOtherFiles has engines look for an id while the files of other buckets are away: they open them only if they do not
// go by the partition.
func (r *repartitioning) findWithoutTheOtherFiles(id int64) {
	r.t.Helper()
	tab := r.load()
	fs, err := tab.FS(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	bucket := iceberg.BucketTransform{NumBuckets: 4}.Apply(iceberg.Optional[iceberg.Literal]{Valid: true, Val: iceberg.NewLiteral(id)}).Val.Any()
	specs := tab.Metadata().PartitionSpecs()
	column, _ := tab.Schema().FindFieldByName("id")
	var aside []string
	within := 0 // files that hold lower and higher ids
	for _, m := range r.manifests(tab) {
		shard := -1
		for _, s := range specs {
			for i := range s.NumFields() {
				if s.ID() == int(m.PartitionSpecID()) && s.Field(i).Name == "shard" {
					shard = s.Field(i).FieldID
				}
			}
		}
		if shard < 0 {
			continue
		}
		for e, err := range m.Entries(fs, true) {
			if err != nil {
				r.t.Fatal(err)
			}
			f := e.DataFile()
			if f.Partition()[shard] == bucket {
				continue
			}
			lower, err1 := iceberg.LiteralFromBytes(iceberg.PrimitiveTypes.Int64, f.LowerBoundValues()[column.ID])
			upper, err2 := iceberg.LiteralFromBytes(iceberg.PrimitiveTypes.Int64, f.UpperBoundValues()[column.ID])
			if err1 != nil || err2 != nil {
				r.t.Fatal(err1, err2)
			}
			if lower.Any().(int64) < id && id < upper.Any().(int64) {
				within++
			}
			aside = append(aside, strings.TrimPrefix(f.FilePath(), "file://"))
		}
	}
	if within == 0 {
		r.t.Fatalf("bounds tell all %d files of other buckets than %v apart, too", len(aside), bucket)
	}
	for _, path := range aside {
		if err := os.Rename(path, path+".aside"); err != nil {
			r.t.Fatal(err)
		}
	}
	text, _ := visitOf(id)
	for _, engine := range []string{"spark", "trino", "pyiceberg"} {
		if got, want := r.l.query(r.t, r.s, engine, fmt.Sprintf("SELECT id, text FROM ice.default.visits WHERE id = %d", id)), fmt.Sprintf("id,text\n%d,%s\n", id, text); got != want {
			r.t.Errorf("%s finds %q, want %q", engine, got, want)
		}
		if got, err := r.l.tryQuery(r.s, engine, "SELECT id, text FROM ice.default.visits"); err == nil {
			r.t.Errorf("%s reads all rows though files are away: %d bytes", engine, len(got))
		}
	}
	for _, path := range aside {
		if err := os.Rename(path+".aside", path); err != nil {
			r.t.Fatal(err)
		}
	}
}
