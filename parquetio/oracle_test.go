package parquetio

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hamba/avro/v2"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

// Random values of random schemas come back from the file as they went in, through small
// pages and row groups, and an independent decoder agrees that the bytes are Avro. A
// truncated copy of each record between them leaves no trace.
func TestRandomSchemasRoundTrip(t *testing.T) {
	for seed := range uint64(rowSeeds) {
		r := rand.New(rand.NewPCG(seed, 1))
		names := &parquetiotest.Names{}
		root := names.Record(r, 4)
		for len(root.Schema.(map[string]any)["fields"].([]any)) == 0 {
			root = names.Record(r, 4)
		}
		schema, err := json.Marshal(root.Schema)
		if err != nil {
			t.Fatal(err)
		}
		reference := avro.MustParse(string(schema))
		rig := newRig(t, string(schema))
		w, err := NewWriter(rig.table, WriterConfig{Codec: []string{"", "gzip", "snappy", "brotli", "uncompressed"}[r.IntN(5)], PageBytes: 1 + int64(r.IntN(2000)), RowGroupBytes: 1 + int64(r.IntN(5000)), DictionaryBytes: 1 + int64(r.IntN(500))})
		if err != nil {
			t.Fatal(err)
		}
		var want []any
		for range 1 + r.IntN(4) {
			for range 1 + r.IntN(60) {
				payload, row, _ := root.Value(r)
				if len(payload) > 0 {
					if err := rig.builder.Append(rig.decoder, payload[:r.IntN(len(payload))], RecordMeta{}); err == nil {
						t.Fatalf("seed %d: truncated record was accepted", seed)
					}
				}
				if err := rig.builder.Append(rig.decoder, payload, RecordMeta{}); err != nil {
					t.Fatalf("seed %d: %v\n%s", seed, err, schema)
				}
				var ignored any
				if err := avro.Unmarshal(reference, payload, &ignored); err != nil && !strings.Contains(err.Error(), "decimal") {
					t.Fatalf("seed %d: reference decoder: %v\n%s", seed, err, schema)
				}
				want = append(want, row)
			}
			batch := finish(t, rig.builder)
			if err := w.Write(batch); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			batch.Release()
		}
		f, err := w.Close()
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got := readFile(t, f)
		if len(got) != len(want) {
			t.Fatalf("seed %d: %d rows, want %d", seed, len(got), len(want))
		}
		for i := range got {
			if diff := cmp.Diff(parquetiotest.Resolve(want[i], any(got[i])), any(got[i])); diff != "" {
				t.Fatalf("seed %d, row %d: %s\n%s", seed, i, diff, schema)
			}
		}
	}
}
