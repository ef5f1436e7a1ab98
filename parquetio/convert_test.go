package parquetio

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/internal/clickstream"
)

// Every value of the clickstream is in the file as the generator made it, null where it
// is null, over several batches and row groups.
func TestClickstreamRoundTrip(t *testing.T) {
	r := newRig(t, clickstream.Schema)
	w, err := NewWriter(r.table, WriterConfig{RowGroupBytes: 100_000, PageBytes: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	g, e := clickstream.NewGenerator(3, benchStart), clickstream.Event{}
	var want []map[string]any
	for range 5 {
		for range 3000 {
			g.Next(&e)
			if err := r.builder.Append(r.decoder, clickstream.AppendAvro(nil, &e), RecordMeta{Offset: int64(len(want))}); err != nil {
				t.Fatal(err)
			}
			properties := map[string]any{}
			for _, p := range e.Properties {
				properties[p.Key] = p.Value
			}
			row := map[string]any{
				"event_id": e.EventID, "event_time": e.EventTime.UnixMicro(), "user_id": e.UserID, "session_id": e.SessionID,
				"event_type": clickstream.EventTypes[e.EventType], "url": e.URL, "referrer": nil, "duration_ms": int64(e.DurationMS), "price": nil,
				"device": map[string]any{"os": e.OS, "browser": e.Browser, "mobile": e.Mobile}, "properties": properties,
			}
			if e.Referrer != "" {
				row["referrer"] = e.Referrer
			}
			if e.Price >= 0 {
				row["price"] = e.Price
			}
			want = append(want, row)
		}
		batch := finish(t, r.builder)
		if err := w.Write(batch); err != nil {
			t.Fatal(err)
		}
		batch.Release()
	}
	f, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if f.meta.NumRowGroups() < 2 {
		t.Errorf("%d row groups, want several", f.meta.NumRowGroups())
	}
	if diff := cmp.Diff(want, readFile(t, f)); diff != "" {
		t.Error(diff)
	}
}
