package worker

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// rows returns the rows of the table as JSON, in the order of their offsets, without the Kafka
// column.
func (p *path) rows() (out []string) {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	_, batches, err := tab.Scan().ToArrowRecords(context.Background())
	if err != nil {
		p.t.Fatal(err)
	}
	type row struct {
		offset float64
		text   string
	}
	var rows []row
	for b, err := range batches {
		if err != nil {
			p.t.Fatal(err)
		}
		text, err := b.MarshalJSON()
		if err != nil {
			p.t.Fatal(err)
		}
		var list []map[string]any
		if err := json.Unmarshal(text, &list); err != nil {
			p.t.Fatal(err)
		}
		for _, r := range list {
			offset := r["_kafka"].(map[string]any)["offset"].(float64)
			delete(r, "_kafka")
			text, err := json.Marshal(r)
			if err != nil {
				p.t.Fatal(err)
			}
			rows = append(rows, row{offset, string(text)})
		}
		b.Release()
	}
	slices.SortFunc(rows, func(a, b row) int { return int(a.offset - b.offset) })
	for _, r := range rows {
		out = append(out, r.text)
	}
	return out
}

// takes produces records and fails unless the rows are want, with so many dead letters.
func (p *path) takes(records []record.Record, dead int64, want ...string) {
	p.t.Helper()
	p.start()
	p.logs[0].append(p.t, records...)
	p.committed()
	p.exact(int64(len(want)), dead)
	if d := cmp.Diff(want, p.rows()); d != "" {
		p.t.Error(d)
	}
}

// committedUpTo waits until the table holds everything below next.
func (p *path) committedUpTo(next map[int32]int64) {
	p.t.Helper()
	var at coordinator.Position
	p.wait(func() bool {
		tab, err := p.load()
		if err != nil {
			return false
		}
		if at, _, err = coordinator.ReadPosition(tab.Properties()); err != nil {
			p.t.Fatal(err)
		}
		for i, offset := range next {
			if at.Next[i] < offset {
				return false
			}
		}
		return true
	}, func() string { return "the table to hold what is asked" })
}

func TestTextAndBytesAreOneColumn(t *testing.T) {
	p := newPath(t, 1)
	p.worker.Value.Format = partition.FormatString
	p.takes([]record.Record{{Value: []byte("grüß")}, {Value: []byte{}}, {Value: []byte{0xff}}, {}}, 1,
		`{"value":"grüß"}`, `{"value":""}`, `{"value":null}`)
	if l := p.letters.all(0); len(l) != 1 || l[0].Record.Offset != 2 || l[0].Cause != CauseUndecodable {
		t.Errorf("dead letters %+v, want that of the text that is not UTF-8", l)
	}

	p = newPath(t, 1)
	p.worker.Value.Format = partition.FormatBytes
	p.takes([]record.Record{{Value: []byte{0, 0xff}}, {Value: []byte{}}}, 0, `{"value":"AP8="}`, `{"value":""}`)
}

// Text in a table that has another type in its column is a dead letter, and the rest goes on.
func TestTextInAColumnOfNumbers(t *testing.T) {
	p := newPath(t, 1)
	p.schemas[1] = `"long"`
	p.takes([]record.Record{{Value: []byte{0, 0, 0, 0, 1, 14}}}, 0, `{"value":7}`)
	p.crash()
	p.worker.Value.Format = partition.FormatString
	p.takes([]record.Record{{Value: []byte("seven")}}, 1, `{"value":7}`)
	if l := p.letters.all(0); len(l) != 1 || l[0].Cause != CauseIncompatible {
		t.Errorf("dead letters %+v", l)
	}
}

// A key becomes a column beside those of the value: of its own type, also for a record without
// value, and null for one without key. What is wrong with a key is told of the key.
func TestKeysBecomeAColumn(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.KeyColumn, p.worker.KeyColumn = "_key", "_key"
	p.worker.Key.Format = partition.FormatSchemaID
	const key = `{"type":"record","name":"K","fields":[{"name":"id","type":"long"}]}`
	p.schemas[2] = key
	with := func(r record.Record, key []byte) record.Record { r.Key = key; return r }
	k := encode(t, 2, key, map[string]any{"id": int64(7)}).Value
	p.takes([]record.Record{with(event(t, 1), k), with(event(t, 2), nil), {Key: k}, with(event(t, 3), []byte("plain")), with(event(t, 4), k[:5])}, 2,
		`{"_key":{"id":7},"id":1,"name":"name 1"}`, `{"_key":null,"id":2,"name":"name 2"}`, `{"_key":{"id":7},"id":null,"name":null}`)
	l := p.letters.all(0)
	if len(l) != 2 || l[0].Cause != CauseNoMagic || !strings.Contains(l[0].Detail, "table.topic.key.format") || l[1].Cause != CauseUndecodable || !strings.Contains(l[1].Detail, "_key") {
		t.Errorf("dead letters %+v", l)
	}

	p = newPath(t, 1)
	p.cfg.KeyColumn, p.worker.KeyColumn = "who", "who"
	p.worker.Key.Format, p.worker.Value.Format = partition.FormatString, partition.FormatString
	p.takes([]record.Record{{Key: []byte("ada"), Value: []byte("x")}, {Key: []byte{0xff}, Value: []byte("y")}, {Key: []byte{}, Value: []byte("z")}}, 1,
		`{"value":"x","who":"ada"}`, `{"value":"z","who":""}`)
}

// A table whose topic begins to make a column of its keys gets that column.
func TestKeyColumnComesLater(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.logs[0].append(t, event(t, 1))
	p.committed()
	p.crash()
	p.cfg.KeyColumn, p.worker.KeyColumn, p.worker.Key.Format = "_key", "_key", partition.FormatString
	p.takes([]record.Record{event(t, 2)}, 0, `{"_key":null,"id":1,"name":"name 1"}`, `{"_key":"k","id":2,"name":"name 2"}`)
}

// A header that names the schema, as newer serializers write it, counts before the payload; the
// last of that name does.
func TestHeaderNamesTheSchema(t *testing.T) {
	p := newPath(t, 1)
	header := func(r record.Record, value ...byte) record.Record {
		r.Headers = append(r.Headers, record.Header{Key: headerValueSchema, Value: value})
		return r
	}
	bare := func(id int64) record.Record { r := event(t, id); r.Value = r.Value[wireID:]; return r }
	known := uuid.New()
	p.guids = map[uuid.UUID]int32{known: 1}
	guid := func(id int64, g uuid.UUID) record.Record { return header(bare(id), append([]byte{1}, g[:]...)...) }
	p.takes([]record.Record{header(bare(1), 0, 0, 0, 0, 1), event(t, 2), header(header(bare(3), 9), 0, 0, 0, 0, 1), guid(8, known), guid(4, uuid.New()), header(bare(5), 0, 0), header(bare(6)), header(bare(7), 0, 0, 0, 0, 9)}, 4,
		`{"id":1,"name":"name 1"}`, `{"id":2,"name":"name 2"}`, `{"id":3,"name":"name 3"}`, `{"id":8,"name":"name 8"}`)
	causes := map[string]int{}
	for _, l := range p.letters.all(0) {
		causes[l.Cause]++
	}
	if d := cmp.Diff(map[string]int{CauseBadHeader: 2, CauseUnknownSchema: 2}, causes); d != "" {
		t.Error(d)
	}
}

// With skip, what cannot become a row is in neither table nor dead letters, and the verification
// knows; so are records without value.
func TestSkippedRecordsAreCounted(t *testing.T) {
	p := newPath(t, 1)
	p.worker.Tolerance, p.worker.SkipTombstones = partition.TolerateSkip, true
	p.start()
	p.logs[0].append(t, event(t, 1), record.Record{Value: []byte("bad")}, record.Record{Key: []byte("k")}, event(t, 2))
	p.committed()
	if l := p.letters.all(0); len(l) > 0 {
		t.Errorf("%d dead letters", len(l))
	}
	r, one := p.verifyAs(coordinator.Verification{Deep: true, Strict: true, LeavesOut: true})
	if !r.OK || one.Rows != 2 || one.LeftOut != 2 {
		t.Errorf("report %+v", one)
	}
	if r, one := p.verifyAs(coordinator.Verification{}); !r.OK || one.Rows != 2 || one.Dead != 2 {
		t.Errorf("report by the commits %+v", one)
	}
	if got := p.running.DeadLetters(); got[CauseNoMagic] != 1 || got[CauseTombstone] != 1 {
		t.Errorf("counted %v", got)
	}
}

// With pause, a partition waits at a record that cannot become a row and says why, the others go
// on, and it goes on when the record can.
func TestPartitionPausesAtABadRecord(t *testing.T) {
	p := newPath(t, 2)
	p.worker.Tolerance = partition.ToleratePause
	p.start()
	later := encode(t, 5, eventSchema, map[string]any{"id": int64(9), "name": "late"})
	p.logs[0].append(t, event(t, 1), later, event(t, 2))
	p.logs[1].append(t, event(t, 3))
	position := func() map[int32]int64 {
		tab, err := p.load()
		if err != nil {
			return nil
		}
		at, _, err := coordinator.ReadPosition(tab.Properties())
		if err != nil {
			t.Fatal(err)
		}
		return at.Next
	}
	p.wait(func() bool {
		trouble := ""
		for _, l := range p.running.Lag(time.Now()) {
			trouble += l.Trouble
		}
		at := position()
		return at[0] == 1 && at[1] == 1 && strings.Contains(trouble, CauseUnknownSchema) && strings.Contains(trouble, "table.topic.errors.tolerance")
	}, func() string { return "partition 0 to wait and 1 to go on" })
	p.mu.Lock()
	p.schemas[5] = eventSchema
	p.mu.Unlock()
	p.committed()
	p.exact(4, 0)
}

// A dead letter has the headers of its record, whatever is read after it.
func TestDeadLettersKeepTheirHeaders(t *testing.T) {
	p := newPath(t, 1)
	p.logs[0].codec = record.CodecLZ4
	var want []string
	for i := range 5 {
		name := strings.Repeat(string(rune('a'+i)), 5-i)
		p.logs[0].append(t, record.Record{Value: []byte("bad"), Headers: []record.Header{{Key: name, Value: []byte(name)}}})
		want = append(want, name+"="+name)
	}
	p.start()
	p.committed()
	var got []string
	for _, l := range p.letters.all(0) {
		got = append(got, l.Record.Headers[0].Key+"="+string(l.Record.Headers[0].Value))
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Records that name no schema are of the latest version of their subject: they wait until there is
// one, and a version that is registered while they come is that of the first record after it.
func TestLatestSchemaOfASubject(t *testing.T) {
	p := newPath(t, 1)
	p.worker.Value = partition.Payload{Format: partition.FormatLatest, Subject: "events-value"}
	p.start()
	bare := func(r record.Record) record.Record { r.Value = r.Value[wireID:]; return r }
	p.logs[0].append(t, bare(event(t, 1)))
	p.wait(func() bool {
		return strings.Contains(p.running.Lag(time.Now())[0].Trouble, "events-value")
	}, func() string { return "the partition to wait for the subject" })
	register := func(id int32) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.latest = map[string]int32{"events-value": id}
	}
	register(1)
	p.committed()
	const v2 = `{"type":"record","name":"Event","fields":[{"name":"id","type":"long"},{"name":"name","type":["null","string"],"default":null},{"name":"more","type":"long","default":0}]}`
	p.mu.Lock()
	p.schemas[2] = v2
	p.mu.Unlock()
	register(2)
	p.logs[0].append(t, bare(encode(t, 2, v2, map[string]any{"id": int64(2), "name": "b", "more": int64(7)})), record.Record{Value: []byte{0xff}})
	p.committed()
	p.exact(2, 1)
	if d := cmp.Diff([]string{`{"id":1,"more":null,"name":"name 1"}`, `{"id":2,"more":7,"name":"b"}`}, p.rows()); d != "" {
		t.Error(d)
	}
}

// Of a Protobuf schema, the indexes in front of the payload, or behind the id in a header, say
// which message it is; without them a setting does.
func TestProtobufMessages(t *testing.T) {
	const schema = "syntax = \"proto3\"; message A { int64 id = 1; } message B { int64 other = 1; }"
	p := newPath(t, 1)
	p.typ, p.schemas[1] = "PROTOBUF", schema
	body := []byte{8, 7} // field 1 is 7
	wire := func(indexes ...byte) record.Record {
		return record.Record{Value: append(append([]byte{0, 0, 0, 0, 1}, indexes...), body...)}
	}
	header := record.Record{Value: body, Headers: []record.Header{{Key: headerValueSchema, Value: []byte{0, 0, 0, 0, 1, 2, 2}}}}
	p.takes([]record.Record{wire(0), wire(2, 2), wire(2, 0), header, wire(0xff)}, 1,
		`{"id":7,"other":null}`, `{"id":null,"other":7}`, `{"id":7,"other":null}`, `{"id":null,"other":7}`)

	p = newPath(t, 1)
	p.typ, p.schemas[1], p.latest = "PROTOBUF", schema, map[string]int32{"b": 1}
	p.worker.Value = partition.Payload{Format: partition.FormatLatest, Subject: "b", Message: "B"}
	p.takes([]record.Record{{Value: body}}, 0, `{"other":7}`)
}

// A table begins where table.topic.start says, also behind the end of the log, and on every life until
// it has begun; what is before is recorded, and the verification accounts for it.
func TestTableBeginsAtItsStart(t *testing.T) {
	p := newPath(t, 3)
	starts := []int64{6, 12, 0}
	p.worker.Start = func(_ context.Context, i int32) (int64, error) { return starts[i], nil }
	p.produceTo(10, 0, 1)
	p.start()
	p.committedUpTo(map[int32]int64{0: 10})
	p.crash()
	p.start()
	p.produce(5)
	p.committed()
	p.exact(9+3+5, 0)
	for _, in := range []coordinator.Verification{{}, {Deep: true, Strict: true}} {
		r, _ := p.verifyAs(in)
		if !r.OK {
			t.Errorf("report %+v", r)
		}
		var got []coordinator.LostSpan
		for _, x := range r.Partitions {
			got = append(got, x.GapRanges...)
		}
		want := []coordinator.LostSpan{{Partition: 0, Start: 0, End: 6, Reason: coordinator.LostStart}, {Partition: 1, Start: 0, End: 12, Reason: coordinator.LostStart}}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	p.crash()
	p.logs[0].trim(15) // nothing is lost: the table has it
	p.logs[1].append(t, event(t, 1))
	p.logs[1].trim(16) // this is lost
	p.start()
	p.produce(1)
	p.committed()
	if r, _ := p.verifyAs(coordinator.Verification{}); !r.OK || len(r.Partitions[1].GapRanges) != 2 || r.Partitions[1].GapRanges[1].Reason != coordinator.LostRetention {
		t.Errorf("report %+v", r)
	}
}

// With no record at or after the start there is no table yet, and nothing that it lacks.
func TestNothingAfterTheStart(t *testing.T) {
	p := newPath(t, 1)
	p.worker.Start = func(context.Context, int32) (int64, error) { return 10, nil }
	p.produce(10)
	p.start()
	p.wait(func() bool { l := p.running.Lag(time.Now())[0]; return l.Records == 0 }, func() string { return "no lag" })
	if _, err := p.load(); err == nil {
		t.Error("there is a table")
	}
	p.produce(1)
	p.committed()
	p.exact(1, 0)
}

// With pause, a topic that was made again adds nothing to the rows of the earlier one until the
// setting says so.
func TestRecreatedTopicPauses(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(3)
	before := p.committed()
	p.crash()
	p.topic, p.epoch, p.logs[0], p.cfg.OnRecreate = uuid.New(), 0, &memoryLog{}, coordinator.RecreatePause
	p.produce(2)
	p.start()
	p.wait(func() bool {
		err := p.commits.Trouble()
		return err != nil && strings.Contains(err.Error(), "table.topic.on.recreate")
	}, func() string { return "the table to pause" })
	if now, err := p.load(); err != nil || now.MetadataLocation() != before.MetadataLocation() {
		t.Errorf("the table changed: %v", err)
	}
	p.crash()
	p.cfg.OnRecreate = coordinator.RecreateContinue
	p.start()
	tab := p.committed()
	if got := tab.CurrentSnapshot().Summary.Properties["total-records"]; got != "5" {
		t.Errorf("%s rows, want 5", got)
	}
}

// Keys that are plain JSON make their column as they come: the record that first has something is a row
// with its key, null is none, and what does not fit is a dead letter.
func TestPlainJSONKeysMakeTheirColumn(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.KeyColumn, p.worker.KeyColumn = "_key", "_key"
	p.worker.Key.Format, p.worker.Value.Format = partition.FormatJSON, partition.FormatJSON
	with := func(key, value string) record.Record {
		r := record.Record{Value: []byte(value)}
		if key != "" {
			r.Key = []byte(key)
		}
		return r
	}
	p.takes([]record.Record{with("", `{"a":1}`), with(`null`, `{"a":2}`), with(`{"id":1}`, `{"a":3,"b":true}`)}, 0,
		`{"_key":null,"a":1,"b":null}`, `{"_key":null,"a":2,"b":null}`, `{"_key":{"id":1},"a":3,"b":true}`)
	p.logs[0].append(t, with(`{"id":2,"region":"eu"}`, `{"a":4}`), with(`"id"`, `{"a":5}`), with(`{"id":`, `{"a":6}`), with(`{}`, `{"a":7}`))
	p.committed()
	p.exact(5, 2)
	want := []string{`{"_key":null,"a":1,"b":null}`, `{"_key":null,"a":2,"b":null}`, `{"_key":{"id":1,"region":null},"a":3,"b":true}`,
		`{"_key":{"id":2,"region":"eu"},"a":4,"b":null}`, `{"_key":{"id":null,"region":null},"a":7,"b":null}`}
	if d := cmp.Diff(want, p.rows()); d != "" {
		t.Error(d)
	}
	for _, l := range p.letters.all(0) {
		if l.Cause != CauseUndecodable {
			t.Errorf("offset %d: cause %s: %s", l.Record.Offset, l.Cause, l.Detail)
		}
	}
}

// A key that is a number, a text or a list is a column of that type, beside values with a schema.
func TestPlainJSONKeysOfOneValue(t *testing.T) {
	for key, want := range map[string]string{`17`: `17`, `"k"`: `"k"`, `[1,2]`: `[1,2]`, `true`: `true`, `1.5`: `1.5`} {
		p := newPath(t, 1)
		p.cfg.KeyColumn, p.worker.KeyColumn, p.worker.Key.Format = "_key", "_key", partition.FormatJSON
		r := event(t, 1)
		r.Key = []byte(key)
		p.takes([]record.Record{r}, 0, `{"_key":`+want+`,"id":1,"name":"name 1"}`)
	}
}
