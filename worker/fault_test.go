package worker

import (
	"bytes"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/limitlog"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
)

// A decoder that panics makes its record a dead letter, and the log says which record of which schema it was, with the stack:
// it is a fault of the program, which somebody is to mend. A record that cannot be decoded is no such fault.
func TestADecoderThatPanicsIsInTheLog(t *testing.T) {
	p := newPath(t, 1)
	p.produce(1)
	p.start()
	p.committed()
	p.crash() // from here on the worker does nothing by itself
	w := p.running
	w.cfg.Tolerance = partition.TolerateSkip
	var logged bytes.Buffer
	w.faults = limitlog.New(slog.New(slog.NewTextHandler(&logged, nil)))
	record := func(decoders map[control.Writer]*parquetio.Decoder, value func([]byte) []byte) {
		t.Helper()
		l, err := w.newLane()
		if err != nil {
			t.Fatal(err)
		}
		task := &task{w: w, p: w.parts[0], l: l, table: w.table, reading: w.reading(), decoders: decoders}
		rec := event(t, 7)
		rec.Offset, rec.Value = 4711, value(rec.Value)
		if !task.record(t.Context(), &rec, parquetio.RecordMeta{}) || task.err != nil || task.died != 1 || task.rows != 0 {
			t.Fatalf("%d rows and %d dead letters, %v; want one dead letter", task.rows, task.died, task.err)
		}
	}
	record(map[control.Writer]*parquetio.Decoder{}, func(v []byte) []byte { return v[:len(v)-1] })
	if logged.Len() > 0 {
		t.Errorf("the log has of a record that is cut off:\n%s", &logged)
	}
	broken := map[control.Writer]*parquetio.Decoder{}
	w.table.decoders.Range(func(writer, d any) bool {
		b := *d.(*parquetio.Decoder)
		program := reflect.ValueOf(&b).Elem().FieldByName("program")
		reflect.NewAt(program.Type(), unsafe.Pointer(program.UnsafeAddr())).Elem().SetZero() // its first call panics
		broken[writer.(control.Writer)] = &b
		return true
	})
	record(broken, func(v []byte) []byte { return v })
	for _, part := range []string{"a decoder fails", "partition=0", "offset=4711", "schema=1", "parquetio.(*Builder).Append"} {
		if !strings.Contains(logged.String(), part) {
			t.Errorf("the log lacks %q:\n%s", part, &logged)
		}
	}
}
