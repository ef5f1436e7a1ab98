package worker

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/hamba/avro/v2"

	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// What a dead letter becomes is what another implementation of Avro reads by the schema; what is no
// letter keeps key, value and headers.
func TestLetterRow(t *testing.T) {
	schema := avro.MustParse(control.LetterSchema)
	id := uuid.New()
	h := func(key, value string) record.Header { return record.Header{Key: key, Value: []byte(value)} }
	origin := []record.Header{h(partition.HeaderSourceTopicID, id.String()), h(partition.HeaderSourcePartition, "3"), h(partition.HeaderSourceOffset, "4711"),
		h(HeaderCause, CauseUndecodable), h(HeaderDetail, "it \xff ends"), h(HeaderTopic, "clicks"), h(HeaderTimestamp, "1700000000123")}
	own := []record.Header{h("a", "b"), {Key: "c"}}
	ownRows := []any{map[string]any{"key": "a", "value": []byte("b")}, map[string]any{"key": "c", "value": nil}}
	from := func(more map[string]any) map[string]any {
		m := map[string]any{"cause": "undecodable", "detail": "it \uFFFD ends", "schema_id": nil, "source_topic": "clicks", "source_topic_id": id.String(), "source_partition": 3,
			"source_offset": int64(4711), "source_timestamp": time.UnixMilli(1700000000123).UTC(), "key": []byte("k"), "value": []byte{0, 1}, "headers": ownRows}
		for k, v := range more {
			m[k] = v
		}
		return m
	}
	none := map[string]any{"cause": nil, "detail": nil, "schema_id": nil, "source_topic": nil, "source_topic_id": nil, "source_partition": nil, "source_offset": nil, "source_timestamp": nil,
		"key": nil, "value": []byte("{}"), "headers": []any{map[string]any{"key": "tabletopic.replay", "value": []byte("begun")}}}
	for name, test := range map[string]struct {
		rec  record.Record
		want map[string]any
	}{
		"letter":         {record.Record{Key: []byte("k"), Value: []byte{0, 1}, Headers: append(origin[:7:7], own...)}, from(nil)},
		"with a schema":  {record.Record{Key: []byte("k"), Value: []byte{0, 1}, Headers: append(append(origin[:7:7], h(HeaderSchemaID, "99")), own...)}, from(map[string]any{"schema_id": 99})},
		"empty and null": {record.Record{Key: []byte{}, Headers: origin}, from(map[string]any{"key": []byte{}, "value": nil, "headers": []any{}})},
		"marker":         {record.Record{Value: []byte("{}"), Headers: []record.Header{h("tabletopic.replay", "begun")}}, none},
	} {
		row := appendLetterRow(nil, &test.rec)
		got := map[string]any{}
		if err := avro.Unmarshal(schema, row, &got); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for k, v := range got { // hamba gives branches of logical types and bytes by their name
			if m, ok := v.(map[string]any); ok && len(m) == 1 {
				for _, inner := range m {
					got[k] = inner
				}
			}
		}
		if d := cmp.Diff(test.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	broken := append(origin[:2:2], h(partition.HeaderSourceOffset, "x"))
	if _, rest, ok := parseOrigin(append(broken, origin[3:]...)); ok || len(rest) != 7 {
		t.Errorf("a letter whose offset is no number is one, with %d headers of its own", len(rest))
	}
}
