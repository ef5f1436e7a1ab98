package e2e

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"
	icebergrest "github.com/apache/iceberg-go/catalog/rest"
	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
	"github.com/tabletopic/tabletopic/worker"
)

var randomSeed = flag.Uint64("random.seed", 1, "first seed of the tests with random schemas; 0 is the time")

// firstSeed is the seed of the first of many topics; the others follow. A soak takes new ones each time.
func firstSeed() uint64 {
	if *randomSeed == 0 || os.Getenv("TABLETOPIC_SOAK") != "" {
		return uint64(time.Now().Unix())
	}
	return *randomSeed
}

// A randomTopic is records that a seed makes, in a table of their own. They count from 0.
type randomTopic struct {
	seed     uint64
	name     string
	settings []string
	schemas  []sr.Schema // of values
	indexes  []byte      // that a value has behind the id of its schema
	inHeader bool        // which names the schema, not the value
	unnamed  bool        // nothing names it
	// records calls fn with each: the version of the schema, what makes the payload behind its id, and
	// what makes the row that it must become, or the cause of its dead letter.
	records func(fn func(version int, payload func() []byte, becomes func() (row map[string]any, cause string)))
	table   func(*iceberg.Schema) error // is told what columns the table has, before rows are asked for; may be nil
	resolve func(want, got any) any     // of JSON text, see parquetiotest.Resolve
	// inferred are columns that there are when a value needs them.
	inferred bool
	key      randomKey
	// spark reads the table in place of DuckDB.
	spark bool
	// later is the first record that comes after the server has died and the records before are in the table; 0 if all
	// come at once. From then on those of a version that came before may be in a second partition.
	later int64

	ids     [][]byte // of the schemas
	keyID   []byte
	numbers map[place]int64 // of records that were produced
	cl      *kgo.Client
}

// partitions is how many the topic has.
func (x *randomTopic) partitions() int32 {
	if x.later > 0 {
		return 2
	}
	return 1
}

// A randomKey makes the keys of a topic.
type randomKey struct {
	settings []string
	schema   string // of Avro; "" for none
	unnamed  bool
	next     func(r *rand.Rand) (body []byte, column func() any) // column nil: there is none
	table    func(*iceberg.Schema)                               // of keys that are columns by their values: is told what columns the table has
	resolve  func(want, got any) any
}

// A randomRecord is one of a topic, and what must become of it.
type randomRecord struct {
	number    int64
	version   int
	key       []byte
	keyColumn func() any // nil for none
	value     func() []byte
	headers   []kgo.RecordHeader
	becomes   func() (row map[string]any, cause string) // a row that is nil has null in all columns
}

// each calls fn with the records in the order in which they are produced. Some have no value, some no key.
func (x *randomTopic) each(fn func(randomRecord)) {
	keys, nothing := rand.New(rand.NewPCG(x.seed, 6)), rand.New(rand.NewPCG(x.seed, 7))
	number := int64(0)
	x.records(func(version int, payload func() []byte, becomes func() (map[string]any, string)) {
		r := randomRecord{number: number, version: version, becomes: becomes}
		number++
		body, column := x.key.next(keys)
		switch {
		case nothing.IntN(10) == 0:
			if column != nil {
				r.keyColumn = func() any { return nil }
			}
		default:
			r.key, r.keyColumn = slices.Concat(x.keyID, body), column
			if r.key == nil {
				r.key = []byte{}
			}
		}
		if nothing.IntN(100) == 0 {
			r.value, r.becomes = func() []byte { return nil }, func() (map[string]any, string) { return nil, "" }
			fn(r)
			return
		}
		r.value = func() []byte {
			if x.unnamed || x.inHeader {
				return append([]byte{}, payload()...)
			}
			return slices.Concat(x.ids[version], x.indexes, payload())
		}
		if x.inHeader {
			r.headers = []kgo.RecordHeader{{Key: "__value_schema_id", Value: slices.Concat(x.ids[version], x.indexes)}}
		}
		fn(r)
	})
}

// register makes the topic and the versions of its schemas.
func (x *randomTopic) register(t *testing.T, s *server) {
	x.key = randomKeys(t, x.seed)
	s.createTopic(x.name, x.partitions(), 2*time.Second, slices.Concat(x.settings, x.key.settings)...)
	setCompatibilityNone(t, s, x.name+"-value")
	for _, schema := range x.schemas {
		x.ids = append(x.ids, registerSchemaOf(t, s, x.name+"-value", schema))
	}
	if x.key.schema != "" {
		if x.keyID = registerSchema(t, s, x.name+"-key", x.key.schema); x.key.unnamed {
			x.keyID = nil
		}
	}
	x.numbers = map[place]int64{}
	x.cl = s.client(kgo.DefaultProduceTopic(x.name), kgo.MaxBufferedRecords(100_000), kgo.RecordPartitioner(kgo.ManualPartitioner()))
}

// produce sends the records from the first on until before the last, all if that is 0.
func (x *randomTopic) produce(t *testing.T, first, last int64) {
	known, next := 0, map[int32]int64{}
	x.each(func(r randomRecord) {
		if x.later > 0 && r.number < x.later {
			known = max(known, r.version)
		}
		at := place{}
		if x.later > 0 && r.number >= x.later && r.version <= known {
			at.partition = int32(r.number % 2)
		}
		at.offset = next[at.partition]
		next[at.partition]++
		if r.number < first || last > 0 && r.number >= last {
			return
		}
		x.numbers[at] = r.number
		x.cl.Produce(context.Background(), &kgo.Record{Partition: at.partition, Key: r.key, Value: r.value(), Headers: r.headers}, func(sent *kgo.Record, err error) {
			if got := (place{sent.Partition, sent.Offset}); err != nil || got != at {
				t.Errorf("%s: record %d is at %v, want %v: %v", x.name, r.number, got, at, err)
			}
		})
	})
	if err := x.cl.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// compare reports the first row of each engine that is not what was written, and the first dead letter.
func (x *randomTopic) compare(t *testing.T, read map[string][]map[string]any, letters map[int64]*kgo.Record) {
	again := fmt.Sprintf("again with -random.seed %d", x.seed)
	rows, failed := map[string]map[int64]map[string]any{}, map[string]bool{}
	for engine := range read {
		rows[engine] = map[int64]map[string]any{}
		for _, row := range read[engine] {
			source := row["_kafka"].(map[string]any)
			at := place{int32(source["partition"].(int64)), source["offset"].(int64)}
			number, ok := x.numbers[at]
			if _, twice := rows[engine][number]; !ok || twice {
				t.Errorf("%s: %s reads a row of %v twice, or of no record; %s", x.name, engine, at, again)
				continue
			}
			rows[engine][number] = row
		}
	}
	live, dead := 0, 0
	x.each(func(r randomRecord) {
		want, cause := r.becomes()
		if cause != "" {
			dead++
			if l := letters[r.number]; !failed[""] && (l == nil || headerOf(l, worker.HeaderCause) != cause || !bytes.Equal(l.Key, r.key) || !bytes.Equal(l.Value, r.value())) {
				t.Errorf("%s, record %d: dead letter %+v, want cause %s, key %q and value %q; %s:\n%v", x.name, r.number, l, cause, r.key, r.value(), again, x.schemas)
				failed[""] = true
			}
			return
		}
		live++
		for engine := range rows {
			if got := rows[engine][r.number]; !failed[engine] {
				if diff := x.differ(engine, r, want, got); diff != "" {
					t.Errorf("%s, record %d: %s differs; %s:\n%s\n%v", x.name, r.number, engine, again, diff, x.schemas)
					failed[engine] = true
				}
			}
		}
	})
	for engine, rows := range read {
		if live != len(rows) {
			t.Errorf("%s: %s reads %d rows, want %d; %s", x.name, engine, len(rows), live, again)
		}
	}
	if dead != len(letters) {
		t.Errorf("%s: %d dead letters, want %d; %s", x.name, len(letters), dead, again)
	}
}

// differ says how the row that an engine has of a record is not what it must be.
func (x *randomTopic) differ(engine string, r randomRecord, want, got map[string]any) string {
	if got == nil {
		return "there is none"
	}
	source, value := got["_kafka"].(map[string]any), maps.Clone(got)
	delete(value, "_kafka")
	key := any(nil)
	if r.key != nil {
		key = "0x" + hex.EncodeToString(r.key)
	}
	if source["key"] != key {
		return fmt.Sprintf("_kafka.key is %v, want %v", source["key"], key)
	}
	if r.keyColumn != nil {
		want, column := r.keyColumn(), got["_key"]
		if x.key.table != nil {
			want = parquetiotest.OrNull(want, column)
		}
		delete(value, "_key")
		if e := (equality{x.key.resolve, engine}); !e.same(want, column) {
			return "_key: " + cmp.Diff(x.key.resolve(want, column), column)
		}
	}
	if want == nil {
		want = map[string]any{}
		for column := range value {
			want[column] = nil
		}
	}
	if x.inferred {
		want = parquetiotest.AsMap(parquetiotest.OrNull(want, value))
	}
	if e := (equality{x.resolve, engine}); !e.same(want, value) {
		return cmp.Diff(x.resolve(any(want), any(value)), any(value))
	}
	return ""
}

func headerOf(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// An equality is what two values have in common that an engine gives back as they are.
type equality struct {
	resolve func(want, got any) any
	engine  string
}

func (e equality) same(want, got any) bool {
	switch w := want.(type) {
	case parquetiotest.InJSON:
		return e.resolve(w, got) == got
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for k, v := range w {
			if x, ok := g[k]; !ok || !e.same(v, x) {
				return false
			}
		}
		return true
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for i := range w {
			if !e.same(w[i], g[i]) {
				return false
			}
		}
		return true
	case float64:
		g, ok := got.(float64)
		// DuckDB 1.5 takes zeros for one when it writes a dictionary.
		return ok && w == g && (math.Signbit(w) == math.Signbit(g) || e.engine == "duckdb")
	case nil:
		// PyIceberg 0.12 reads a list or a map that is null as empty, if structs are inside.
		switch g := got.(type) {
		case map[string]any:
			return e.engine == "pyiceberg" && len(g) == 0
		case []any:
			return e.engine == "pyiceberg" && len(g) == 0
		}
	}
	return want == got
}

// A row that is one whatever comes.
func becomes(row func() map[string]any) func() (map[string]any, string) {
	return func() (map[string]any, string) { return row(), "" }
}

// randomAvro, randomProtobuf and randomJSON are topics of one version of a random schema.
func randomAvro(seed uint64, rows int) *randomTopic {
	r := rand.New(rand.NewPCG(seed, 1))
	names := &parquetiotest.Names{}
	root := names.Record(r, 4)
	for len(root.Schema.(map[string]any)["fields"].([]any)) == 0 {
		root = names.Record(r, 4)
	}
	text, _ := json.Marshal(root.Schema)
	return &randomTopic{seed: seed, name: fmt.Sprintf("avro-%d", seed), schemas: []sr.Schema{{Schema: string(text)}}, resolve: parquetiotest.Resolve,
		records: func(fn func(int, func() []byte, func() (map[string]any, string))) {
			r := rand.New(rand.NewPCG(seed, 2))
			for range rows {
				payload, row, _ := root.Value(r)
				fn(0, func() []byte { return payload }, becomes(func() map[string]any { return row.(map[string]any) }))
			}
		}}
}

func randomProtobuf(t *testing.T, seed uint64, rows int) *randomTopic {
	r := rand.New(rand.NewPCG(seed, 1))
	text := parquetiotest.RandomProtobuf(r)
	md := newMessage(t, text).Descriptor()
	for md.Fields().Len() == 0 {
		text = parquetiotest.RandomProtobuf(r)
		md = newMessage(t, text).Descriptor()
	}
	return &randomTopic{seed: seed, name: fmt.Sprintf("protobuf-%d", seed), schemas: []sr.Schema{{Schema: text, Type: sr.TypeProtobuf}}, indexes: []byte{0}, resolve: parquetiotest.Resolve,
		records: func(fn func(int, func() []byte, func() (map[string]any, string))) {
			r, order := rand.New(rand.NewPCG(seed, 2)), rand.New(rand.NewPCG(seed, 3)) // a map gives its entries in any
			for range rows {
				m := dynamicpb.NewMessage(md)
				parquetiotest.FillMessage(r, m, 4)
				fn(0, func() []byte { return parquetiotest.EncodeProtobuf(order, m) }, becomes(func() map[string]any { return parquetiotest.ProtobufRow(m) }))
			}
		}}
}

func randomJSON(t *testing.T, seed uint64, rows int) *randomTopic {
	shape := parquetiotest.RandomJSON(rand.New(rand.NewPCG(seed, 1)), 3)
	text, err := json.Marshal(shape.Schema())
	if err != nil {
		t.Fatal(err)
	}
	return &randomTopic{seed: seed, name: fmt.Sprintf("json-%d", seed), schemas: []sr.Schema{{Schema: string(text), Type: sr.TypeJSON}}, resolve: parquetiotest.ResolvePairs,
		records: func(fn func(int, func() []byte, func() (map[string]any, string))) {
			r := rand.New(rand.NewPCG(seed, 2))
			for n := 0; n < rows; {
				text := []byte(shape.Text(r, 0))
				v := mustParsePairs(t, text)
				if v == nil {
					v = parquetiotest.Pairs{}
				}
				if row, misfit := shape.Plain(v); misfit == nil {
					fn(0, func() []byte { return text }, becomes(func() map[string]any { return row.(map[string]any) }))
					n++
				}
			}
		}}
}

func mustParsePairs(t *testing.T, text []byte) any {
	t.Helper()
	v, err := parquetiotest.ParsePairs(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// randomSchemaless is a topic of JSON without a schema. What a column cannot hold is a dead letter, or goes to a
// column beside it.
func randomSchemaless(t *testing.T, seed uint64, rows int) *randomTopic {
	newColumns := seed/4%2 == 0
	shape := parquetiotest.RandomSchemaless(rand.New(rand.NewPCG(seed, 1)), 3)
	texts := func(fn func(text []byte)) {
		r := rand.New(rand.NewPCG(seed, 2))
		for range rows {
			if r.IntN(200) == 0 {
				fn(fmt.Appendf(nil, "[%d, null]", r.Int64()))
			} else {
				fn([]byte(shape.Text(r, 1000)))
			}
		}
	}
	table := parquetiotest.SchemalessTable{NewColumns: newColumns}
	x := &randomTopic{seed: seed, name: fmt.Sprintf("schemaless-%d", seed), unnamed: true, inferred: true, resolve: parquetiotest.ResolvePairs,
		settings: []string{"table.topic.value.format", "json", "table.topic.on.incompatible", map[bool]string{true: "new-column", false: "dlq"}[newColumns]},
		records: func(fn func(int, func() []byte, func() (map[string]any, string))) {
			texts(func(text []byte) {
				fn(0, func() []byte { return text }, func() (map[string]any, string) {
					row, err := table.Row(mustParsePairs(t, text))
					switch {
					case errors.Is(err, parquetiotest.ErrMisfit):
						return nil, worker.CauseUndecodable
					case err != nil:
						t.Errorf("schemaless-%d: %v: %s", seed, err, text)
					}
					return row, ""
				})
			})
		}}
	x.table = func(schema *iceberg.Schema) error {
		table.Columns = &iceberg.StructType{}
		for _, f := range schema.Fields() {
			if f.Name != "_kafka" && f.Name != "_key" {
				table.Columns.FieldList = append(table.Columns.FieldList, f)
			}
		}
		var all []any
		x.each(func(r randomRecord) {
			if v := r.value(); v != nil {
				all = append(all, mustParsePairs(t, v))
			}
		})
		if bad := table.Unexplained(all); bad != "" {
			return errors.New(bad)
		}
		return nil
	}
	return x
}

// randomText is a topic of text or bytes; what is not UTF-8 is no text.
func randomText(seed uint64, rows int, format string) *randomTopic {
	return &randomTopic{seed: seed, name: fmt.Sprintf("%s-%d", format, seed), unnamed: true, settings: []string{"table.topic.value.format", format}, resolve: parquetiotest.Resolve,
		records: func(fn func(int, func() []byte, func() (map[string]any, string))) {
			r := rand.New(rand.NewPCG(seed, 2))
			for range rows {
				v := []byte(parquetiotest.RandomText(r))
				if r.IntN(40) == 0 {
					v = parquetiotest.RandomBytes(r, r.IntN(20))
				}
				fn(0, func() []byte { return v }, func() (map[string]any, string) {
					switch {
					case format == "bytes":
						return map[string]any{"value": "0x" + hex.EncodeToString(v)}, ""
					case !utf8.Valid(v):
						return nil, worker.CauseUndecodable
					}
					return map[string]any{"value": string(v)}, ""
				})
			}
		}}
}

// randomKeys are of any format.
func randomKeys(t *testing.T, seed uint64) randomKey {
	r := rand.New(rand.NewPCG(seed, 8))
	k := randomKey{resolve: parquetiotest.Resolve}
	format := []string{"bytes", "string", "json", "schema-id", "latest"}[r.IntN(5)]
	k.settings, k.unnamed = []string{"table.topic.key.format", format}, format != "schema-id"
	switch format {
	case "bytes":
		k.next = func(r *rand.Rand) ([]byte, func() any) { return parquetiotest.RandomBytes(r, r.IntN(30)), nil }
	case "string":
		k.next = func(r *rand.Rand) ([]byte, func() any) {
			text := parquetiotest.RandomText(r)
			return []byte(text), func() any { return text }
		}
	case "json":
		shape := parquetiotest.RandomKind(r)
		var column iceberg.Type
		k.resolve = parquetiotest.ResolvePairs
		k.table = func(schema *iceberg.Schema) {
			f, _ := schema.FindFieldByName("_key")
			column = f.Type
		}
		k.next = func(r *rand.Rand) ([]byte, func() any) {
			text := []byte(shape.Text(r, 0))
			return text, func() any {
				v, err := parquetiotest.SchemalessTable{}.Value(column, mustParsePairs(t, text))
				if err != nil {
					t.Errorf("key %s in a column of type %s: %v", text, column, err)
				}
				return v
			}
		}
	default:
		names := &parquetiotest.Names{}
		root := names.Random(r, 2)
		for m, _ := root.Schema.(map[string]any); m["type"] == "record" && len(m["fields"].([]any)) == 0; m, _ = root.Schema.(map[string]any) {
			root = names.Random(r, 2)
		}
		text, _ := json.Marshal(root.Schema)
		k.schema = string(text)
		k.next = func(r *rand.Rand) ([]byte, func() any) {
			body, plain, _ := root.Value(r)
			return body, func() any { return plain }
		}
	}
	return k
}

// Random values of random schemas are, in two engines, what was written, or dead letters: 100 topics of 10,000
// rows each, in four formats, and two of text and of bytes. Keys are of all of them; what names the schema is in
// front of the value, in a header, or nothing does.
func TestRandomValuesInTwoEngines(t *testing.T) {
	t.Parallel()
	topics, rows := 100, 10_000
	if os.Getenv("TABLETOPIC_SOAK") != "" {
		topics = 1000
	}
	seed := firstSeed()
	for ; topics > 0; topics -= 100 { // as many as a server of this size holds well
		all := []*randomTopic{randomText(seed, rows, "string"), randomText(seed, rows, "bytes")}
		for range min(topics, 100) {
			switch seed % 4 {
			case 0:
				all = append(all, randomAvro(seed, rows))
			case 1:
				all = append(all, randomProtobuf(t, seed, rows))
			case 2:
				all = append(all, randomJSON(t, seed, rows))
			case 3:
				all = append(all, randomSchemaless(t, seed, rows))
			}
			seed++
		}
		for _, x := range all {
			if x.schemas == nil {
				continue
			}
			switch x.seed / 4 % 3 {
			case 1:
				x.inHeader = true
			case 2:
				x.unnamed, x.settings = true, []string{"table.topic.value.format", "latest"}
			}
		}
		inTwoEngines(t, all)
	}
}

// inTwoEngines produces the records of topics to a server, and compares what engines read, and the dead letters.
func inTwoEngines(t *testing.T, topics []*randomTopic) {
	t.Helper()
	s := newServer(t)
	s.start()
	defer s.stop()
	held := func(x *randomTopic) { waitForRecords(t, s, x.name, int64(len(x.numbers))) }
	var twice []*randomTopic
	for _, x := range topics {
		x.register(t, s)
	}
	for _, x := range topics {
		if x.produce(t, 0, x.later); x.later > 0 {
			twice = append(twice, x)
		}
	}
	if len(twice) > 0 {
		for _, x := range twice {
			held(x)
		}
		s.kill()
		s.start()
	}
	for _, x := range twice {
		x.produce(t, x.later, 0)
	}
	letters := map[string]map[int64]*kgo.Record{}
	for _, x := range topics {
		held(x)
		letters[x.name] = x.readLetters(t, s)
		x.learn(t, s)
	}
	files := map[*randomTopic]map[string]string{} // of the rows of each topic, by engine
	for _, engine := range []string{"duckdb", "spark", "pyiceberg"} {
		var env, tables []string
		dir := t.TempDir()
		for _, x := range topics {
			if engine != "pyiceberg" && x.spark != (engine == "spark") {
				continue
			}
			if files[x] == nil {
				files[x] = map[string]string{}
			}
			files[x][engine] = filepath.Join(dir, fmt.Sprintf("%d.parquet", len(tables)))
			tables = append(tables, "SELECT * FROM ice.default."+tableName(x.name))
		}
		if len(tables) == 0 {
			continue
		}
		if engine == "spark" {
			env = sharedEngines(t)
		}
		run(t, env, "lab/query", append([]string{engine, "--uri", s.catalogURL(), "--parquet", dir}, tables...)...)
	}
	for _, x := range topics {
		read := map[string][]map[string]any{}
		for engine, file := range files[x] {
			read[engine] = readParquet(t, file)
		}
		x.compare(t, read, letters[x.name])
	}
}

// waitForRecords waits until each of n records of a topic is a row or a dead letter.
func waitForRecords(t *testing.T, s *server, topic string, n int64) {
	t.Helper()
	admin := s.admin()
	eventually(t, 3*time.Minute, fmt.Sprintf("%d records of %s", n, topic), func() error {
		var status tableStatus
		if err := s.api("/api/tables/"+topic, &status); err != nil {
			return err
		}
		letters, err := countLetters(admin, topic)
		if err == nil && (status.Rows+letters != n || status.LagRecords != 0) {
			err = fmt.Errorf("%d rows, %d dead letters, lag %d records: %s", status.Rows, letters, status.LagRecords, status.Message)
		}
		return err
	})
}

// countLetters is how many dead letters a topic has.
func countLetters(admin *kadm.Client, topic string) (n int64, err error) {
	ends, err := admin.ListEndOffsets(context.Background(), topic+".dlq")
	if err != nil {
		return 0, err
	}
	for _, end := range ends[topic+".dlq"] {
		if err := end.Err; err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			return 0, err
		}
		n += max(end.Offset, 0)
	}
	return n, nil
}

// readLetters returns the dead letters, by the numbers of their records.
func (x *randomTopic) readLetters(t *testing.T, s *server) map[int64]*kgo.Record {
	t.Helper()
	n, err := countLetters(s.admin(), x.name)
	if err != nil {
		t.Fatal(err)
	}
	letters := map[int64]*kgo.Record{}
	if n == 0 {
		return letters
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	from := map[int32]kgo.Offset{}
	for p := range x.partitions() {
		from[p] = kgo.NewOffset().At(0)
	}
	cl := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{x.name + ".dlq": from}))
	defer cl.Close()
	for read := int64(0); read < n; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatalf("%d of %d dead letters of %s: %v", read, n, x.name, err)
		}
		for r := range fetches.RecordsAll() {
			read++
			at := sourceOf(t, r)
			number, ok := x.numbers[at]
			if !ok || letters[number] != nil {
				t.Errorf("dead letter of %s at %d-%d: its source %v is there twice, or no record", x.name, r.Partition, r.Offset, at)
			}
			letters[number] = r
		}
	}
	return letters
}

// learn tells the topic which columns its table has.
func (x *randomTopic) learn(t *testing.T, s *server) {
	t.Helper()
	if x.table == nil && x.key.table == nil {
		return
	}
	cat, err := icebergrest.NewCatalog(context.Background(), "ours", s.catalogURL())
	if err != nil {
		t.Fatal(err)
	}
	tab, err := cat.LoadTable(context.Background(), []string{"default", tableName(x.name)})
	if err != nil {
		t.Fatal(err)
	}
	if x.key.table != nil {
		x.key.table(tab.Schema())
	}
	if x.table == nil {
		return
	}
	if err := x.table(tab.Schema()); err != nil {
		t.Errorf("%s: %v; again with -random.seed %d", x.name, err, x.seed)
	}
}

// readParquet returns the rows of a file in the order of their offsets.
func readParquet(t *testing.T, path string) []map[string]any {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := file.NewParquetReader(bytes.NewReader(body), file.WithReadProps(parquet.NewReaderProperties(memory.DefaultAllocator)))
	if err != nil {
		t.Fatal(err)
	}
	arrowReader, err := pqarrow.NewFileReader(reader, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	table, err := arrowReader.ReadTable(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer table.Release()
	rows := make([]map[string]any, table.NumRows())
	for c := range int(table.NumCols()) {
		column, at := table.Column(c), 0
		for _, chunk := range column.Data().Chunks() {
			for i := range chunk.Len() {
				if rows[at] == nil {
					rows[at] = map[string]any{}
				}
				rows[at][column.Name()] = parquetiotest.Plain(chunk, i)
				at++
			}
		}
	}
	offset := func(row map[string]any) int64 { return row["_kafka"].(map[string]any)["offset"].(int64) }
	slices.SortFunc(rows, func(a, b map[string]any) int { return int(offset(a) - offset(b)) })
	return rows
}
