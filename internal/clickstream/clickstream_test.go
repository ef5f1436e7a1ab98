package clickstream

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/hamba/avro/v2"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// What AppendAvro writes is what an independent decoder reads under Schema.
func TestAppendAvroMatchesSchema(t *testing.T) {
	schema := avro.MustParse(Schema)
	g := NewGenerator(1, start)
	var e Event
	var size int
	const events = 5000
	for range events {
		g.Next(&e)
		data := AppendAvro(nil, &e)
		size += len(data)
		var got map[string]any
		if err := avro.Unmarshal(schema, data, &got); err != nil {
			t.Fatal(err)
		}
		properties := map[string]any{}
		for _, p := range e.Properties {
			properties[p.Key] = p.Value
		}
		want := map[string]any{
			"event_id": e.EventID, "event_time": e.EventTime, "user_id": e.UserID, "session_id": e.SessionID,
			"event_type": EventTypes[e.EventType], "url": e.URL, "referrer": any(nil), "duration_ms": int(e.DurationMS), "price": any(nil),
			"device":     map[string]any{"os": e.OS, "browser": e.Browser, "mobile": e.Mobile},
			"properties": properties,
		}
		if e.Referrer != "" {
			want["referrer"] = e.Referrer
		}
		if e.Price >= 0 {
			want["price"] = e.Price
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	}
	if mean := size / events; mean < 150 || mean > 190 {
		t.Errorf("events have %d bytes on average, want about 170", mean)
	}
}

// The same seed gives the same bytes, another seed gives others.
func TestGeneratorIsDeterministic(t *testing.T) {
	make := func(seed uint64) []byte {
		g, e, out := NewGenerator(seed, start), Event{}, []byte(nil)
		for range 1000 {
			g.Next(&e)
			out = AppendAvro(out, &e)
		}
		return out
	}
	if !bytes.Equal(make(7), make(7)) {
		t.Error("one seed gave two streams")
	}
	if bytes.Equal(make(7), make(8)) {
		t.Error("two seeds gave one stream")
	}
}

func BenchmarkGenerator(b *testing.B) {
	g, e, buf := NewGenerator(1, start), Event{}, []byte(nil)
	b.ReportAllocs()
	for b.Loop() {
		g.Next(&e)
		buf = AppendAvro(buf[:0], &e)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
