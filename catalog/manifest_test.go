package catalog_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/hamba/avro/v2"

	"github.com/tabletopic/tabletopic/catalog"
)

// files returns how many data files a scan of the table finds.
func (m *memory) files(t *testing.T) int {
	t.Helper()
	tasks, err := m.tbl.Scan().PlanFiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}

// rewriteList puts another manifest list in the place of the current one.
func (m *memory) rewriteList(t *testing.T, body []byte) {
	t.Helper()
	key := strings.TrimPrefix(m.tbl.CurrentSnapshot().ManifestList, m.store.Prefix)
	if err := m.store.Bucket.Put(t.Context(), key, body); err != nil {
		t.Fatal(err)
	}
}

func (m *memory) manifests(t *testing.T) []iceberg.ManifestFile {
	t.Helper()
	all, err := m.tbl.CurrentSnapshot().Manifests(catalog.NewIO(t.Context(), m.store))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Manifests whose writer counted nothing may hold files all the same: our commits keep them.
func TestUncountedManifestsStay(t *testing.T) {
	m := newMemory(t, nil)
	m.commit(t, catalog.Commit{Files: dataFile(t, m, 0)})
	was, s := m.manifests(t)[0], m.tbl.CurrentSnapshot()
	var body bytes.Buffer
	uncounted := iceberg.NewManifestFile(2, was.FilePath(), was.Length(), 0, s.SnapshotID).SequenceNum(s.SequenceNumber, s.SequenceNumber).Build()
	if err := iceberg.WriteManifestList(2, &body, s.SnapshotID, nil, &s.SequenceNumber, 0, []iceberg.ManifestFile{uncounted}); err != nil {
		t.Fatal(err)
	}
	m.rewriteList(t, body.Bytes())
	for i := range 12 { // as many as are merged
		m.commit(t, catalog.Commit{Files: dataFile(t, m, 1+i)})
		if !slices.ContainsFunc(m.manifests(t), func(f iceberg.ManifestFile) bool { return f.FilePath() == was.FilePath() }) {
			t.Fatalf("the manifest is gone after %d commits", 1+i)
		}
	}
}

// A partition that is the empty text has bounds in manifest lists, which are not null: Trino
// and Spark would pass the manifest over, and all other rows in it.
func TestEmptyTextIsAPartitionBound(t *testing.T) {
	for _, version := range []string{"2", "3"} {
		t.Run("v"+version, func(t *testing.T) { emptyPartitionBound(t, version) })
	}
}

func emptyPartitionBound(t *testing.T, version string) {
	m := newMemory(t, iceberg.Properties{"format-version": version})
	field, ok := m.tbl.Schema().FindFieldByName("name")
	if !ok {
		t.Fatal("no column name")
	}
	spec := iceberg.NewPartitionSpecID(1, iceberg.PartitionField{SourceIDs: []int{field.ID}, FieldID: 1000, Name: "name", Transform: iceberg.IdentityTransform{}})
	m.commit(t, catalog.Commit{Spec: &spec})
	for i, values := range [][]string{{"", "z"}, {""}, {"a"}} { // each carries what was before
		var files []iceberg.DataFile
		for _, v := range values {
			b, err := iceberg.NewDataFileBuilder(m.tbl.Spec(), iceberg.EntryContentData, catalog.DataLocation(m.tbl, fmt.Sprintf("%d%s.parquet", i, v)),
				iceberg.ParquetFile, map[int]any{1000: v}, nil, nil, 10, 1000)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, b.Build())
		}
		m.commit(t, catalog.Commit{Files: files})
	}
	var got []string
	for _, f := range m.manifests(t) {
		s := f.Partitions()[0]
		if s.LowerBound == nil || s.UpperBound == nil {
			t.Fatalf("bounds of %s are null", f.FilePath())
		}
		got = append(got, fmt.Sprintf("%q to %q", *s.LowerBound, *s.UpperBound))
	}
	if want := `["a" to "a" "" to "" "" to "z"]`; fmt.Sprint(got) != want {
		t.Errorf("bounds %s, want %s", got, want)
	}
}

// oldList is the schema of manifest lists before Iceberg renamed their counts.
const oldList = `{"type":"record","name":"manifest_file","fields":[
	{"name":"manifest_path","type":"string","field-id":500},{"name":"manifest_length","type":"long","field-id":501},
	{"name":"partition_spec_id","type":"int","field-id":502},{"name":"content","type":"int","field-id":517},
	{"name":"sequence_number","type":"long","field-id":515},{"name":"min_sequence_number","type":"long","field-id":516},
	{"name":"added_snapshot_id","type":"long","field-id":503},{"name":"added_data_files_count","type":"int","field-id":504},
	{"name":"existing_data_files_count","type":"int","field-id":505},{"name":"deleted_data_files_count","type":"int","field-id":506},
	{"name":"added_rows_count","type":"long","field-id":512},{"name":"existing_rows_count","type":"long","field-id":513},
	{"name":"deleted_rows_count","type":"long","field-id":514}]}`

// container is an Avro object container file with one record (Avro spec, "Object Container
// Files").
func container(schema string, record []byte) []byte {
	out := append([]byte("Obj\x01"), binary.AppendVarint(nil, 2)...)
	for _, s := range []string{"avro.schema", schema, "avro.codec", "null"} {
		out = append(binary.AppendVarint(out, int64(len(s))), s...)
	}
	sync := "0123456789abcdef"
	out = append(append(out, 0), sync...)
	out = binary.AppendVarint(binary.AppendVarint(out, 1), int64(len(record)))
	return append(append(out, record...), sync...)
}

// schemaOf returns the schema of an Avro object container file.
func schemaOf(t *testing.T, body []byte) []byte {
	t.Helper()
	_, rest, ok := bytes.Cut(body, []byte("avro.schema"))
	n, used := binary.Varint(rest)
	if !ok || used <= 0 || n > int64(len(rest)-used) {
		t.Fatalf("no schema in %.200q", body)
	}
	return rest[used : int64(used)+n]
}

// Manifest lists with the old names of the counts are read, and our commits go on top.
func TestOldManifestListsAreRead(t *testing.T) {
	m := newMemory(t, nil)
	m.commit(t, catalog.Commit{Files: dataFile(t, m, 0)})
	was, s := m.manifests(t)[0], m.tbl.CurrentSnapshot()
	entry, err := avro.Marshal(avro.MustParse(oldList), map[string]any{"manifest_path": was.FilePath(), "manifest_length": was.Length(), "partition_spec_id": 0, "content": 0,
		"sequence_number": s.SequenceNumber, "min_sequence_number": s.SequenceNumber, "added_snapshot_id": s.SnapshotID,
		"added_data_files_count": 1, "existing_data_files_count": 0, "deleted_data_files_count": 0,
		"added_rows_count": int64(10), "existing_rows_count": int64(0), "deleted_rows_count": int64(0)})
	if err != nil {
		t.Fatal(err)
	}
	m.rewriteList(t, container(oldList, entry))
	if all := m.manifests(t); len(all) != 1 || all[0].AddedDataFiles() != 1 {
		t.Errorf("read %v", all)
	}
	for i := range 12 {
		m.commit(t, catalog.Commit{Files: dataFile(t, m, 1+i)})
	}
	if n := m.files(t); n != 13 {
		t.Errorf("%d files, want 13", n)
	}
}

// Each field of the Avro schemas of our manifests and manifest lists has its id, and each list
// that of its elements: Spark and PyIceberg refuse them otherwise. The names of the
// counts are those of the specification.
func TestAvroSchemasHaveFieldIDs(t *testing.T) {
	for _, version := range []string{"1", "2", "3"} {
		m := newMemory(t, iceberg.Properties{"format-version": version})
		spec := iceberg.NewPartitionSpecID(1, iceberg.PartitionField{SourceIDs: []int{1}, FieldID: 1000, Name: "id_bucket_4", Transform: iceberg.BucketTransform{NumBuckets: 4}})
		m.commit(t, catalog.Commit{Spec: &spec})
		m.commit(t, catalog.Commit{Files: dataFile(t, m, 0)})
		fs := catalog.NewIO(t.Context(), m.store)
		for _, location := range []string{m.tbl.CurrentSnapshot().ManifestList, m.manifests(t)[0].FilePath()} {
			body, err := fs.ReadFile(location)
			if err != nil {
				t.Fatal(err)
			}
			text := schemaOf(t, body)
			var schema any
			if err := json.Unmarshal(text, &schema); err != nil {
				t.Fatal(err)
			}
			if n := checkIDs(t, schema, location); n < 10 {
				t.Errorf("%s: %d fields", location, n)
			}
			if location == m.tbl.CurrentSnapshot().ManifestList {
				for _, name := range []string{"added_files_count", "existing_files_count", "deleted_files_count"} {
					if !strings.Contains(string(text), fmt.Sprintf("%q", name)) {
						t.Errorf("version %s: no %s in %s", version, name, text)
					}
				}
			}
		}
	}
}

// checkIDs counts the fields of an Avro schema, and fails the test where an id is missing.
func checkIDs(t *testing.T, schema any, path string) (n int) {
	switch s := schema.(type) {
	case []any:
		for _, branch := range s {
			n += checkIDs(t, branch, path)
		}
	case map[string]any:
		switch s["type"] {
		case "record":
			for _, f := range s["fields"].([]any) {
				field := f.(map[string]any)
				name := fmt.Sprint(path, ".", field["name"])
				if _, ok := field["field-id"].(float64); !ok {
					t.Errorf("%s has no field-id", name)
				}
				n += 1 + checkIDs(t, field["type"], name)
			}
		case "array":
			items, _ := s["items"].(map[string]any)
			if _, ok := s["element-id"].(float64); !ok && s["logicalType"] != "map" {
				t.Errorf("%s has no element-id", path)
			}
			n += checkIDs(t, items, path)
		default:
			n += checkIDs(t, s["type"], path)
		}
	}
	return n
}
