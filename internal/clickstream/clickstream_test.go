package clickstream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/hamba/avro/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/tabletopic/tabletopic/internal/protofile"
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

// What AppendProtobuf writes is what an independent decoder reads under ProtobufSchema.
func TestAppendProtobufMatchesSchema(t *testing.T) {
	file, err := protofile.Compile(ProtobufSchema, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := dynamicpb.NewMessage(file.Messages().ByName("Click"))
	var read func(m protoreflect.Message) map[string]any
	read = func(m protoreflect.Message) map[string]any {
		out := map[string]any{}
		for i := range m.Descriptor().Fields().Len() {
			f := m.Descriptor().Fields().Get(i)
			switch v := m.Get(f); {
			case f.IsMap():
				properties := map[string]any{}
				v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
					properties[k.String()] = v.String()
					return true
				})
				out[string(f.Name())] = properties
			case f.HasPresence() && !m.Has(f):
			case f.Message() != nil:
				out[string(f.Name())] = read(v.Message())
			default:
				out[string(f.Name())] = v.Interface()
			}
		}
		return out
	}
	g := NewGenerator(1, start)
	var e Event
	for range 5000 {
		g.Next(&e)
		if err := proto.Unmarshal(AppendProtobuf(nil, &e), m); err != nil || len(m.GetUnknown()) > 0 {
			t.Fatalf("error %v, unknown fields %x", err, m.GetUnknown())
		}
		properties := map[string]any{}
		for _, p := range e.Properties {
			properties[p.Key] = p.Value
		}
		want := map[string]any{
			"event_id": e.EventID, "event_time": map[string]any{"seconds": e.EventTime.Unix(), "nanos": int32(e.EventTime.Nanosecond())},
			"user_id": e.UserID, "session_id": e.SessionID, "event_type": protoreflect.EnumNumber(e.EventType), "url": e.URL, "duration_ms": e.DurationMS,
			"device": map[string]any{"os": e.OS, "browser": e.Browser, "mobile": e.Mobile}, "properties": properties,
		}
		if e.Referrer != "" {
			want["referrer"] = e.Referrer
		}
		if e.Price >= 0 {
			want["price"] = e.Price
		}
		if got := read(m); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	}
}

// What AppendJSON writes is what encoding/json reads.
func TestAppendJSON(t *testing.T) {
	g := NewGenerator(1, start)
	var e Event
	for range 5000 {
		g.Next(&e)
		var got map[string]any
		if err := json.Unmarshal(AppendJSON(nil, &e), &got); err != nil {
			t.Fatal(err)
		}
		properties := map[string]any{}
		for _, p := range e.Properties {
			properties[p.Key] = p.Value
		}
		want := map[string]any{
			"event_id": float64(e.EventID), "event_time": e.EventTime.Format(time.RFC3339Nano), "user_id": float64(e.UserID), "session_id": e.SessionID,
			"event_type": EventTypes[e.EventType], "url": e.URL, "referrer": nil, "duration_ms": float64(e.DurationMS),
			"device": map[string]any{"os": e.OS, "browser": e.Browser, "mobile": e.Mobile}, "properties": properties,
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
