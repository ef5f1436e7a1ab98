package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

var randomSeed = flag.Uint64("random.seed", 1, "first seed of the tests with random schemas; 0 is the time")

// firstSeed is the seed of the first of many topics; the others follow. A soak takes new ones each time.
func firstSeed() uint64 {
	if *randomSeed == 0 || os.Getenv("TABLETOPIC_SOAK") != "" {
		return uint64(time.Now().Unix())
	}
	return *randomSeed
}

// A randomTopic is records that a seed makes, in a table of their own.
type randomTopic struct {
	seed    uint64
	name    string
	schemas []sr.Schema
	// records calls fn with each: the version of the schema, what makes the payload behind its id, and
	// what makes the row that it must become.
	records func(fn func(version int, payload func() []byte, row func() map[string]any))
	resolve func(want, got any) any // of JSON text, see parquetiotest.Resolve
}

func (x randomTopic) produce(t *testing.T, s *server) (n int64) {
	var headers [][]byte
	setCompatibilityNone(t, s, x.name+"-value")
	for _, schema := range x.schemas {
		headers = append(headers, registerSchemaOf(t, s, x.name+"-value", schema))
	}
	cl := s.client(kgo.DefaultProduceTopic(x.name), kgo.MaxBufferedRecords(100_000))
	x.records(func(version int, payload func() []byte, _ func() map[string]any) {
		n++
		cl.Produce(context.Background(), &kgo.Record{Value: slices.Concat(headers[version], payload())}, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Errorf("%s: %v", x.name, err)
			}
		})
	})
	if err := cl.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	return n
}

// compare reports the first row of each engine that is not what was written.
func (x randomTopic) compare(t *testing.T, read map[string][]map[string]any) {
	at, failed := 0, map[string]bool{}
	x.records(func(_ int, _ func() []byte, want func() map[string]any) {
		row := want()
		for engine, rows := range read {
			if failed[engine] || at >= len(rows) {
				continue
			}
			got := rows[at]
			delete(got, "_kafka")
			if e := (equality{x.resolve, engine}); !e.same(row, got) {
				t.Errorf("%s, row %d: %s differs; again with -random.seed %d:\n%s\n%v", x.name, at, engine, x.seed, cmp.Diff(x.resolve(any(row), any(got)), any(got)), x.schemas)
				failed[engine] = true
			}
		}
		at++
	})
	for engine, rows := range read {
		if at != len(rows) {
			t.Errorf("%s: %s reads %d rows, want %d; again with -random.seed %d", x.name, engine, len(rows), at, x.seed)
		}
	}
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

// randomAvro, randomProtobuf and randomJSON are topics of one version of a random schema.
func randomAvro(seed uint64, rows int) randomTopic {
	r := rand.New(rand.NewPCG(seed, 1))
	names := &parquetiotest.Names{}
	root := names.Record(r, 4)
	for len(root.Schema.(map[string]any)["fields"].([]any)) == 0 {
		root = names.Record(r, 4)
	}
	text, _ := json.Marshal(root.Schema)
	return randomTopic{seed, fmt.Sprintf("avro-%d", seed), []sr.Schema{{Schema: string(text)}}, func(fn func(int, func() []byte, func() map[string]any)) {
		r := rand.New(rand.NewPCG(seed, 2))
		for range rows {
			payload, row, _ := root.Value(r)
			fn(0, func() []byte { return payload }, func() map[string]any { return row.(map[string]any) })
		}
	}, parquetiotest.Resolve}
}

func randomProtobuf(t *testing.T, seed uint64, rows int) randomTopic {
	r := rand.New(rand.NewPCG(seed, 1))
	text := parquetiotest.RandomProtobuf(r)
	md := newMessage(t, text).Descriptor()
	for md.Fields().Len() == 0 {
		text = parquetiotest.RandomProtobuf(r)
		md = newMessage(t, text).Descriptor()
	}
	return randomTopic{seed, fmt.Sprintf("protobuf-%d", seed), []sr.Schema{{Schema: text, Type: sr.TypeProtobuf}}, func(fn func(int, func() []byte, func() map[string]any)) {
		r, order := rand.New(rand.NewPCG(seed, 2)), rand.New(rand.NewPCG(seed, 3)) // a map gives its entries in any
		for range rows {
			m := dynamicpb.NewMessage(md)
			parquetiotest.FillMessage(r, m, 4)
			fn(0, func() []byte { return slices.Concat([]byte{0}, parquetiotest.EncodeProtobuf(order, m)) },
				func() map[string]any { return parquetiotest.ProtobufRow(m) })
		}
	}, parquetiotest.Resolve}
}

func randomJSON(t *testing.T, seed uint64, rows int) randomTopic {
	shape := parquetiotest.RandomJSON(rand.New(rand.NewPCG(seed, 1)), 3)
	text, err := json.Marshal(shape.Schema())
	if err != nil {
		t.Fatal(err)
	}
	return randomTopic{seed, fmt.Sprintf("json-%d", seed), []sr.Schema{{Schema: string(text), Type: sr.TypeJSON}}, func(fn func(int, func() []byte, func() map[string]any)) {
		r := rand.New(rand.NewPCG(seed, 2))
		for n := 0; n < rows; {
			text := []byte(shape.Text(r, 0))
			v, err := parquetiotest.ParsePairs(text)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if v == nil {
				v = parquetiotest.Pairs{}
			}
			if row, misfit := shape.Plain(v); misfit == nil {
				fn(0, func() []byte { return text }, func() map[string]any { return row.(map[string]any) })
				n++
			}
		}
	}, parquetiotest.ResolvePairs}
}

// Random values of random schemas are, in two engines, what was written: 100 topics of 10,000 rows
// each, in three formats.
func TestRandomValuesInTwoEngines(t *testing.T) {
	t.Parallel()
	topics, rows := 100, 10_000
	if os.Getenv("TABLETOPIC_SOAK") != "" {
		topics = 1000
	}
	seed := firstSeed()
	for ; topics > 0; topics -= 100 { // as many as a server of this size holds well
		var all []randomTopic
		for range min(topics, 100) {
			switch seed % 3 {
			case 0:
				all = append(all, randomAvro(seed, rows))
			case 1:
				all = append(all, randomProtobuf(t, seed, rows))
			case 2:
				all = append(all, randomJSON(t, seed, rows))
			}
			seed++
		}
		inTwoEngines(t, all)
	}
}

// inTwoEngines produces the records of topics to a server, and compares what engines read.
func inTwoEngines(t *testing.T, topics []randomTopic) {
	t.Helper()
	s := newServer(t)
	s.start()
	defer s.stop()
	rows := map[string]int64{}
	for _, x := range topics {
		s.createTopic(x.name, 1, 2*time.Second)
		rows[x.name] = x.produce(t, s)
	}
	var tables []string
	for _, x := range topics {
		waitForTable(t, s, x.name, rows[x.name], 3*time.Minute)
		tables = append(tables, "SELECT * FROM ice.default."+tableName(x.name))
	}
	dirs := map[string]string{"duckdb": t.TempDir(), "pyiceberg": t.TempDir()}
	for engine, dir := range dirs {
		run(t, nil, "lab/query", append([]string{engine, "--uri", s.catalogURL(), "--parquet", dir}, tables...)...)
	}
	for i, x := range topics {
		read := map[string][]map[string]any{}
		for engine, dir := range dirs {
			read[engine] = readParquet(t, filepath.Join(dir, fmt.Sprintf("%d.parquet", i)))
		}
		x.compare(t, read)
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
