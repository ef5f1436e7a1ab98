package parquetio

import (
	"fmt"
	"testing"

	"github.com/apache/iceberg-go"
)

// Columns inside of structs have bounds in manifests, those inside of lists and maps have none.
func TestBoundsInsideOfStructs(t *testing.T) {
	r := newRig(t, one(`{"type":"record","name":"S","fields":[{"name":"a","type":{"type":"record","name":"T","fields":[{"name":"b","type":"long"}]}},
		{"name":"l","type":{"type":"array","items":"long"}},{"name":"m","type":{"type":"map","values":"long"}}]}`))
	r.append(append(long(7), 2, 10, 0, 0), append(long(-7), 0, 0))
	entry, err := writeFile(t, r.table, WriterConfig{}, finish(t, r.builder)).DataFile(*iceberg.UnpartitionedSpec, "mem:///f")
	if err != nil {
		t.Fatal(err)
	}
	bound := func(column string, bounds map[int][]byte) string {
		f, ok := r.table.FindFieldByName(column)
		if !ok {
			t.Fatalf("no column %s in %s", column, r.table)
		}
		b, ok := bounds[f.ID]
		if !ok {
			return "none"
		}
		l, err := iceberg.LiteralFromBytes(f.Type, b)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(l)
	}
	for column, want := range map[string]string{"x.a.b": "-7 7", "_kafka.offset": "0 1", "x.l.element": "none none", "x.m.value": "none none"} {
		if got := bound(column, entry.LowerBoundValues()) + " " + bound(column, entry.UpperBoundValues()); got != want {
			t.Errorf("%s has bounds %s, want %s", column, got, want)
		}
	}
	f, _ := r.table.FindFieldByName("x.l.element")
	if entry.ValueCounts()[f.ID] != 2 {
		t.Errorf("the list counts %d values, want 2 with the place of the empty one", entry.ValueCounts()[f.ID])
	}
}
