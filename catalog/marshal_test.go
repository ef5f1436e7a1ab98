package catalog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"unicode"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/go-cmp/cmp"
)

// The text of metadata is that of encoding/json, field by field, whatever is in it: versions,
// refs, statistics, keys, summaries with text that needs escapes.
func TestMarshalMetadata(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		meta := randomMetadata(t, r)
		got, err := MarshalMetadata(meta)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		want, err := json.Marshal(meta)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if diff := cmp.Diff(decoded(t, want), decoded(t, got)); diff != "" {
			t.Fatalf("seed %d, version %d: -want +got\n%s", seed, meta.Version(), diff)
		}
		back, err := ParseMetadata(got)
		if err != nil || !back.Equals(meta) {
			t.Fatalf("seed %d: read again: %v", seed, err)
		}
	}
}

func decoded(t *testing.T, text []byte) (v map[string]any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

func randomMetadata(t *testing.T, r *rand.Rand) table.Metadata {
	t.Helper()
	version := 1 + r.IntN(3)
	schema := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: randomText(r), Type: iceberg.PrimitiveTypes.Int64})
	meta, err := NewMetadata(schema, "file:///w/"+randomText(r), iceberg.Properties{"format-version": fmt.Sprint(version), randomText(r): randomText(r)})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(updates ...table.Update) {
		t.Helper()
		if meta, err = table.UpdateTableMetadata(meta, updates, "file:///w/"+randomText(r)+"-00001.metadata.json"); err != nil {
			t.Fatal(err)
		}
	}
	for i := range r.IntN(5) {
		s := table.Snapshot{SnapshotID: r.Int64(), SequenceNumber: int64(i + 1), TimestampMs: meta.LastUpdatedMillis() + int64(i), ManifestList: "file:///w/" + randomText(r)}
		if parent := meta.CurrentSnapshot(); parent != nil {
			s.ParentSnapshotID = &parent.SnapshotID
		}
		if version == 1 {
			s.SequenceNumber = 0
		}
		if version == 3 {
			first, rows := meta.NextRowID(), r.Int64N(100)
			s.FirstRowID, s.AddedRows = &first, &rows
		}
		if r.IntN(2) == 0 {
			s.SchemaID = new(int)
		}
		if r.IntN(4) > 0 || version == 3 {
			s.Summary = &table.Summary{Operation: table.OpAppend, Properties: iceberg.Properties{}}
			for range r.IntN(4) {
				s.Summary.Properties[randomText(r)] = randomText(r)
			}
		}
		apply(table.NewAddSnapshotUpdate(&s), table.NewSetSnapshotRefUpdate(table.MainBranch, s.SnapshotID, table.BranchRef, int64(r.IntN(2)), 0, r.IntN(2)))
		if r.IntN(3) == 0 {
			apply(table.NewSetSnapshotRefUpdate("tag "+randomText(r), s.SnapshotID, table.TagRef, 0, 0, 0))
		}
		if r.IntN(3) == 0 {
			apply(table.NewSetStatisticsUpdate(table.StatisticsFile{SnapshotID: s.SnapshotID, StatisticsPath: randomText(r), FileSizeInBytes: 1, BlobMetadata: []table.BlobMetadata{}}))
		}
	}
	return meta
}

func randomText(r *rand.Rand) string {
	var out []rune
	for range 1 + r.IntN(8) {
		c := rune(r.IntN(0x250))
		if r.IntN(3) > 0 || !unicode.IsGraphic(c) && r.IntN(4) > 0 {
			c = 'a' + rune(r.IntN(26))
		}
		out = append(out, c)
	}
	return string(out)
}
