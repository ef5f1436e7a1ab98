package worker

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

func jsonRecords(texts ...string) (records []record.Record) {
	for _, s := range texts {
		records = append(records, record.Record{Value: []byte(s)})
	}
	return records
}

// JSON without a schema makes its columns as it comes, and the record that first has a property is
// a row with its value. What has no value makes none; what does not fit is a dead letter.
func TestPlainJSONMakesItsColumns(t *testing.T) {
	p := newPath(t, 1)
	p.worker.Value.Format = partition.FormatJSON
	p.takes(jsonRecords(`{"a":null,"b":[],"c":{},"d":[null]}`, `{"a":1,"b":["x"],"c":{"k":1}}`, `{"a":2.5}`, `{"_kafka":1}`, `{"a":`), 2,
		`{"a":null,"b":null,"c":null}`, `{"a":1,"b":["x"],"c":{"k":1}}`, `{"a":2.5,"b":null,"c":null}`)
	p.logs[0].append(t, jsonRecords(`{"a":"1"}`, `{"c":{"k":2,"l":[true]},"e":"é"}`, `{"e":{"x": 1}}`)...)
	p.committed()
	p.exact(5, 3)
	want := []string{`{"a":null,"b":null,"c":null,"e":null}`, `{"a":1,"b":["x"],"c":{"k":1,"l":null},"e":null}`, `{"a":2.5,"b":null,"c":null,"e":null}`,
		`{"a":null,"b":null,"c":{"k":2,"l":[true]},"e":"é"}`, `{"a":null,"b":null,"c":null,"e":"{\"x\":1}"}`}
	if d := cmp.Diff(want, p.rows()); d != "" {
		t.Error(d)
	}
	var details []string
	for _, l := range p.letters.all(0) {
		if l.Cause != CauseUndecodable {
			t.Errorf("cause %s: %s", l.Cause, l.Detail)
		}
		details = append(details, fmt.Sprint(l.Record.Offset, " ", l.Detail))
	}
	for i, want := range []string{"3 decode record: field _kafka at byte 10: the name is taken", "4 decode record: field a at byte 5: ", "5 decode record: field a at byte 5: value is a string, and the column is double"} {
		if i >= len(details) || !strings.HasPrefix(details[i], want) {
			t.Errorf("dead letters %q, want %q as number %d", details, want, i)
		}
	}
}

// With new-column no record of plain JSON is a dead letter because another had a property of another
// kind before.
func TestPlainJSONGetsColumnsBeside(t *testing.T) {
	p := newPath(t, 1)
	p.worker.Value.Format, p.cfg.OnIncompatible = partition.FormatJSON, coordinator.IncompatibleNewColumn
	p.takes(jsonRecords(`{"x":1}`), 0, `{"x":1}`)
	p.logs[0].append(t, jsonRecords(`{"x":"a"}`, `{"x":2}`, `{"x":{"y":true}}`, `{"x":`)...)
	p.committed()
	p.exact(4, 1)
	if d := cmp.Diff([]string{`{"x":1,"x__v2":null}`, `{"x":null,"x__v2":"a"}`, `{"x":2,"x__v2":null}`, `{"x":null,"x__v2":"{\"y\":true}"}`}, p.rows()); d != "" {
		t.Error(d)
	}
}

// Records of which each has a property of its own take a few changes of the table, not one each,
// over partitions and restarts; each value is in its column.
func TestPlainJSONGrowsByTheChunk(t *testing.T) {
	p := newPath(t, 3)
	p.worker.Value.Format = partition.FormatJSON
	const rows = 200
	for i := range rows {
		p.logs[int32(i%3)].append(t, jsonRecords(fmt.Sprintf(`{"id":%d,"p%d":"%d"}`, i, i, i))...)
	}
	p.start()
	p.committed()
	p.exact(rows, 0)
	p.crash()
	p.start()
	p.logs[0].append(t, jsonRecords(`{"id":200,"late":true}`)...)
	p.committed()
	p.exact(rows+1, 0)
	seen := map[string]bool{}
	for _, r := range p.rows() {
		for part := range strings.SplitSeq(strings.Trim(r, "{}"), ",") {
			if !strings.HasSuffix(part, ":null") {
				seen[part] = true
			}
		}
	}
	for i := range rows {
		if !seen[fmt.Sprintf(`"p%d":"%d"`, i, i)] || !seen[fmt.Sprintf(`"id":%d`, i)] {
			t.Fatalf("the value of record %d is not in the table", i)
		}
	}
	tab, err := p.load()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(tab.Metadata().Schemas()); n > 12 {
		t.Errorf("%d schemas of the table, want a few", n)
	}
	if !seen[`"late":true`] {
		t.Error("the record after the restart is not in the table")
	}
}

// A record that needs more than a table may have is a dead letter by itself: its neighbours that
// need columns, too, get them.
func TestPlainJSONThatNeedsTooMuch(t *testing.T) {
	var wide strings.Builder
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 3000 {
		fmt.Fprintf(&wide, `"w%d_%d":1,`, i, r.IntN(1000))
	}
	p := newPath(t, 1)
	p.worker.Value.Format = partition.FormatJSON
	p.takes(jsonRecords(`{"":1,"b":1}`, `{"a":1}`, `{`+wide.String()+`"x":1}`, `{"A":1,"a":2}`), 3, `{"a":1}`)
	for _, l := range p.letters.all(0) {
		if l.Cause != CauseUndecodable {
			t.Errorf("cause %s: %s", l.Cause, l.Detail)
		}
	}
}

// What a worker asks for stays readable in a log, however much it is.
func TestLongWriterIsCut(t *testing.T) {
	w := control.Writer{Format: control.FormatJSON, Text: strings.Repeat("é", 1000)}
	if s := w.String(); len(s) > 250 || !strings.HasPrefix(s, "json éé") {
		t.Errorf("%q", s)
	}
}
