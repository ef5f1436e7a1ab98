package parquetio

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

// keyRig is a table of two writers, one of keys.
type keyRig struct {
	table      *iceberg.Schema
	builder    *Builder
	value, key *Decoder
}

func newKeyRig(t *testing.T, value, key *ValueSchema) *keyRig {
	t.Helper()
	mapping := Mapping{KafkaColumn: "_kafka", KeyColumn: "_key"}
	key = key.AsKey()
	table, err := mapping.TableSchema(value)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mapping.Compile(key, table); err == nil {
		t.Fatal("a decoder of keys for a table without their column")
	}
	r := &keyRig{}
	if r.table, _, err = mapping.Evolve(table, table.HighestFieldID(), key); err != nil {
		t.Fatal(err)
	}
	if r.value, err = mapping.Compile(value, r.table); err != nil {
		t.Fatal(err)
	}
	if r.key, err = mapping.Compile(key, r.table); err != nil {
		t.Fatal(err)
	}
	if r.builder, err = NewBuilder(r.table, "_kafka"); err != nil {
		t.Fatal(err)
	}
	return r
}

func parseAny(t *testing.T, schema any) *ValueSchema {
	t.Helper()
	text, err := json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	return mustParse(t, string(text))
}

// Random keys beside random values come back as they went in, also with tombstones, records
// without key, and damaged keys between them, which leave no trace.
func TestKeysRoundTrip(t *testing.T) {
	for seed := range uint64(rowSeeds) {
		r := rand.New(rand.NewPCG(seed, 2))
		names := &parquetiotest.Names{}
		value := names.Record(r, 2)
		key := names.Random(r, 2)
		rig := newKeyRig(t, parseAny(t, value.Schema), parseAny(t, key.Schema))
		var want []map[string]any
		for range 1 + r.IntN(60) {
			payload, row, _ := value.Value(r)
			m, keyed := RecordMeta{}, any(nil)
			if r.IntN(4) > 0 {
				m.KeyDecoder = rig.key
				m.KeyPayload, keyed, _ = key.Value(r)
				bad := m
				bad.KeyPayload = append(m.KeyPayload[:len(m.KeyPayload):len(m.KeyPayload)], 0)
				if err := rig.builder.Append(rig.value, payload, bad); !errors.As(err, new(*DecodeError)) {
					t.Fatalf("seed %d: a key with a byte too many: %v", seed, err)
				}
			}
			all := map[string]any{}
			if r.IntN(4) > 0 {
				for k, v := range parquetiotest.AsMap(row) {
					all[k] = v
				}
				if err := rig.builder.Append(rig.value, payload, m); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			} else if err := rig.builder.AppendNull(m); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			all["_key"] = keyed
			want = append(want, all)
		}
		got := readFile(t, writeFile(t, rig.table, WriterConfig{}, finish(t, rig.builder)))
		for i := range got {
			for name, v := range got[i] {
				if d := cmp.Diff(parquetiotest.Resolve(want[i][name], v), v); d != "" {
					t.Fatalf("seed %d, row %d, column %s: %s", seed, i, name, d)
				}
			}
		}
	}
}

// Text and bytes are the one column value, or a key, as they are; text that is not UTF-8 is
// refused.
func TestPlainValues(t *testing.T) {
	rig := newKeyRig(t, BytesValue(), StringValue())
	for _, m := range []RecordMeta{{KeyDecoder: rig.key, KeyPayload: []byte("käse")}, {KeyDecoder: rig.key}, {}} {
		if err := rig.builder.Append(rig.value, []byte{0, 0xff}, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := rig.builder.Append(rig.value, nil, RecordMeta{KeyDecoder: rig.key, KeyPayload: []byte{0xff}}); !errors.As(err, new(*DecodeError)) {
		t.Errorf("a key that is not UTF-8: %v", err)
	}
	got := readFile(t, writeFile(t, rig.table, WriterConfig{}, finish(t, rig.builder)))
	want := []map[string]any{{"value": "0x00ff", "_key": "käse"}, {"value": "0x00ff", "_key": ""}, {"value": "0x00ff", "_key": nil}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, _, err := withKafka.Evolve(rig.table, rig.table.HighestFieldID(), StringValue()); !errors.As(err, new(*IncompatibleError)) {
		t.Errorf("text in a column of bytes: %v", err)
	}
}

// A field of the name that the column of the key has is refused with what to do.
func TestFieldWithTheNameOfTheKey(t *testing.T) {
	v := parseAny(t, map[string]any{"type": "record", "name": "R", "fields": []any{map[string]any{"name": "_KEY", "type": "long"}}})
	if _, err := (Mapping{KeyColumn: "_key"}).TableSchema(v); err == nil || !strings.Contains(err.Error(), "table.topic.key.column") {
		t.Errorf("%v, want an error that names the setting", err)
	}
	if _, err := noKafka.TableSchema(v); err != nil {
		t.Errorf("without a column of the key: %v", err)
	}
}
