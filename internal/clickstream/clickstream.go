// Package clickstream makes the page views of a web shop that does not exist: the data of
// the demo, the examples and the benchmarks.
//
// A [Generator] gives the same events for the same seed, as values to compare a table
// with, and [AppendAvro] encodes them as producers would.
package clickstream

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Schema is the Avro schema of [Event]: 11 fields, of them a struct and a map.
const Schema = `{
  "type": "record", "name": "Click", "namespace": "com.example.shop", "fields": [
    {"name": "event_id", "type": "long"},
    {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "user_id", "type": "long"},
    {"name": "session_id", "type": "string"},
    {"name": "event_type", "type": {"type": "enum", "name": "EventType", "symbols": ["view", "search", "click", "cart", "purchase"]}},
    {"name": "url", "type": "string"},
    {"name": "referrer", "type": ["null", "string"], "default": null},
    {"name": "duration_ms", "type": "int"},
    {"name": "price", "type": ["null", "double"], "default": null},
    {"name": "device", "type": {"type": "record", "name": "Device", "fields": [
      {"name": "os", "type": "string"},
      {"name": "browser", "type": "string"},
      {"name": "mobile", "type": "boolean"}]}},
    {"name": "properties", "type": {"type": "map", "values": "string"}}
  ]
}`

// ProtobufSchema is the same in Protobuf: message Click, with event_time as a Timestamp.
const ProtobufSchema = `syntax = "proto3";
package com.example.shop;
import "google/protobuf/timestamp.proto";

message Click {
  int64 event_id = 1;
  google.protobuf.Timestamp event_time = 2;
  int64 user_id = 3;
  string session_id = 4;
  EventType event_type = 5;
  string url = 6;
  optional string referrer = 7;
  int32 duration_ms = 8;
  optional double price = 9;
  Device device = 10;
  map<string, string> properties = 11;
}

message Device {
  string os = 1;
  string browser = 2;
  bool mobile = 3;
}

enum EventType {
  view = 0;
  search = 1;
  click = 2;
  cart = 3;
  purchase = 4;
}
`

// JSONSchema is the same in JSON Schema.
const JSONSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {
    "event_id": {"type": "integer"},
    "event_time": {"type": "string", "format": "date-time"},
    "user_id": {"type": "integer"},
    "session_id": {"type": "string"},
    "event_type": {"enum": ["view", "search", "click", "cart", "purchase"]},
    "url": {"type": "string"},
    "referrer": {"type": ["string", "null"]},
    "duration_ms": {"type": "integer", "connect.type": "int32"},
    "price": {"type": ["number", "null"]},
    "device": {"type": "object", "properties": {
      "os": {"type": "string"},
      "browser": {"type": "string"},
      "mobile": {"type": "boolean"}}},
    "properties": {"type": "object", "additionalProperties": {"type": "string"}}
  }
}`

// EventTypes are the symbols of event_type, in the order of the schema.
var EventTypes = [...]string{"view", "search", "click", "cart", "purchase"}

// An Event is one row.
type Event struct {
	EventID    int64
	EventTime  time.Time // whole microseconds, UTC
	UserID     int64
	SessionID  string
	EventType  int    // index into EventTypes
	URL        string //
	Referrer   string // null if empty
	DurationMS int32
	Price      float64 // null if negative
	OS         string
	Browser    string
	Mobile     bool
	Properties []Property
}

// A Property is one entry of the map. Keys of an event are distinct.
type Property struct{ Key, Value string }

var (
	referrers = [...]string{"", "", "", "https://www.google.com/", "https://www.bing.com/", "https://news.ycombinator.com/item", "https://t.example/x"}
	systems   = [...]string{"Windows 11", "macOS 15", "Linux", "iOS 19", "Android 16"}
	browsers  = [...]string{"Chrome", "Safari", "Firefox", "Edge"}
	campaigns = [...]string{"spring-sale", "newsletter-17", "retargeting", "brand"}
	variants  = [...]string{"A", "B"}
	countries = [...]string{"DE", "US", "FR", "JP", "BR", "IN", "GB", "ZA"}
	sections  = [...]string{"products", "category", "search", "help", "account"}
)

const (
	openSessions = 2048
	pages        = 5000
	meanStep     = 250 * time.Microsecond
)

type session struct {
	id      string
	user    int64
	os      int
	browser int
	country int
	events  int
}

// A Generator makes events without end. It is not safe for concurrent use.
type Generator struct {
	rand     *rand.Rand
	id       int64
	micros   int64
	urls     []string
	sessions []session
}

// NewGenerator returns the generator of a seed. Its first event is at start.
func NewGenerator(seed uint64, start time.Time) *Generator {
	g := &Generator{rand: rand.New(rand.NewPCG(seed, 0x636c69636b)), micros: start.UnixMicro()}
	g.urls = make([]string, pages)
	for i := range g.urls {
		g.urls[i] = fmt.Sprintf("https://shop.example.com/en/%s/%05d/details?page=%d", sections[g.rand.IntN(len(sections))], g.rand.IntN(100000), 1+g.rand.IntN(9))
	}
	g.sessions = make([]session, openSessions)
	for i := range g.sessions {
		g.open(&g.sessions[i])
	}
	return g
}

func (g *Generator) open(s *session) {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:], g.rand.Uint64())
	binary.BigEndian.PutUint64(id[8:], g.rand.Uint64())
	*s = session{
		id: fmt.Sprintf("%x", id), user: 1 + g.rand.Int64N(1_000_000), events: 5 + g.rand.IntN(40),
		os: g.rand.IntN(len(systems)), browser: g.rand.IntN(len(browsers)), country: g.rand.IntN(len(countries)),
	}
}

// Next fills e with the next event. It keeps the capacity of e.Properties.
func (g *Generator) Next(e *Event) {
	a, b := g.rand.Uint64(), g.rand.Uint64()
	// Each choice takes its own bits of the two numbers.
	take := func(from *uint64, n int) int {
		v := int(*from & 0xffff * uint64(n) >> 16)
		*from >>= 16
		return v
	}
	s := &g.sessions[take(&a, openSessions)]
	if s.events--; s.events < 0 {
		g.open(s)
	}
	g.id++
	g.micros += 1 + int64(take(&a, int(2*meanStep.Microseconds())))
	e.EventID, e.EventTime = g.id, time.UnixMicro(g.micros).UTC()
	e.UserID, e.SessionID = s.user, s.id
	e.EventType = [16]int{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4}[take(&a, 16)]
	page := take(&a, pages)
	e.URL = g.urls[page*page/pages] // some pages are more popular
	e.Referrer = referrers[take(&b, len(referrers))]
	e.DurationMS = int32(20 + take(&b, 30000))
	e.Price = -1
	if e.EventType >= 3 {
		e.Price = float64(99+take(&b, 50000)) / 100
	} else {
		take(&b, 1)
	}
	e.OS, e.Browser, e.Mobile = systems[s.os], browsers[s.browser], s.os >= 3
	e.Properties = append(e.Properties[:0], Property{"country", countries[s.country]})
	switch b & 3 {
	case 0:
		e.Properties = append(e.Properties, Property{"campaign", campaigns[b>>2&3]})
	case 1:
		e.Properties = append(e.Properties, Property{"variant", variants[b>>2&1]}, Property{"campaign", campaigns[b>>3&3]})
	}
}

// AppendAvro appends e in the binary encoding of Avro, without a header.
func AppendAvro(dst []byte, e *Event) []byte {
	dst = binary.AppendVarint(dst, e.EventID)
	dst = binary.AppendVarint(dst, e.EventTime.UnixMicro())
	dst = binary.AppendVarint(dst, e.UserID)
	dst = appendString(dst, e.SessionID)
	dst = binary.AppendVarint(dst, int64(e.EventType))
	dst = appendString(dst, e.URL)
	if e.Referrer == "" {
		dst = append(dst, 0)
	} else {
		dst = appendString(append(dst, 2), e.Referrer)
	}
	dst = binary.AppendVarint(dst, int64(e.DurationMS))
	if e.Price < 0 {
		dst = append(dst, 0)
	} else {
		dst = binary.LittleEndian.AppendUint64(append(dst, 2), math.Float64bits(e.Price))
	}
	dst = appendString(dst, e.OS)
	dst = appendString(dst, e.Browser)
	if e.Mobile {
		dst = append(dst, 1)
	} else {
		dst = append(dst, 0)
	}
	if len(e.Properties) > 0 {
		dst = binary.AppendVarint(dst, int64(len(e.Properties)))
		for _, p := range e.Properties {
			dst = appendString(appendString(dst, p.Key), p.Value)
		}
	}
	return append(dst, 0)
}

// AppendProtobuf appends e as a message Click, without a header.
func AppendProtobuf(dst []byte, e *Event) []byte {
	number := func(dst []byte, field protowire.Number, v uint64) []byte {
		if v == 0 {
			return dst
		}
		return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), v)
	}
	text := func(dst []byte, field protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(dst, field, protowire.BytesType), s)
	}
	// message appends what write appends, behind its length, which takes one byte here.
	message := func(dst []byte, field protowire.Number, write func(dst []byte) []byte) []byte {
		dst = append(protowire.AppendTag(dst, field, protowire.BytesType), 0)
		at := len(dst)
		dst = write(dst)
		dst[at-1] = byte(len(dst) - at)
		return dst
	}
	dst = number(dst, 1, uint64(e.EventID))
	dst = message(dst, 2, func(dst []byte) []byte {
		return number(number(dst, 1, uint64(e.EventTime.Unix())), 2, uint64(e.EventTime.Nanosecond()))
	})
	dst = number(dst, 3, uint64(e.UserID))
	dst = text(dst, 4, e.SessionID)
	dst = number(dst, 5, uint64(e.EventType))
	dst = text(dst, 6, e.URL)
	if e.Referrer != "" {
		dst = text(dst, 7, e.Referrer)
	}
	dst = number(dst, 8, uint64(e.DurationMS))
	if e.Price >= 0 {
		dst = protowire.AppendFixed64(protowire.AppendTag(dst, 9, protowire.Fixed64Type), math.Float64bits(e.Price))
	}
	dst = message(dst, 10, func(dst []byte) []byte {
		return number(text(text(dst, 1, e.OS), 2, e.Browser), 3, protowire.EncodeBool(e.Mobile))
	})
	for _, p := range e.Properties {
		dst = message(dst, 11, func(dst []byte) []byte { return text(text(dst, 1, p.Key), 2, p.Value) })
	}
	return dst
}

// AppendJSON appends e as JSON text, without a header. No text of an event needs an escape.
func AppendJSON(dst []byte, e *Event) []byte {
	dst = append(strconv.AppendInt(append(dst, `{"event_id":`...), e.EventID, 10), `,"event_time":"`...)
	dst = append(e.EventTime.AppendFormat(dst, time.RFC3339Nano), `","user_id":`...)
	dst = append(strconv.AppendInt(dst, e.UserID, 10), `,"session_id":"`...)
	dst = append(append(dst, e.SessionID...), `","event_type":"`...)
	dst = append(append(dst, EventTypes[e.EventType]...), `","url":"`...)
	dst = append(append(dst, e.URL...), `","referrer":`...)
	if e.Referrer == "" {
		dst = append(dst, "null"...)
	} else {
		dst = append(append(append(dst, '"'), e.Referrer...), '"')
	}
	dst = strconv.AppendInt(append(dst, `,"duration_ms":`...), int64(e.DurationMS), 10)
	if e.Price >= 0 {
		dst = strconv.AppendFloat(append(dst, `,"price":`...), e.Price, 'f', -1, 64)
	}
	dst = append(append(dst, `,"device":{"os":"`...), e.OS...)
	dst = append(append(dst, `","browser":"`...), e.Browser...)
	dst = append(strconv.AppendBool(append(dst, `","mobile":`...), e.Mobile), `},"properties":{`...)
	for i, p := range e.Properties {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, '"'), p.Key...), `":"`...)
		dst = append(append(dst, p.Value...), '"')
	}
	return append(dst, "}}"...)
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendVarint(dst, int64(len(s))), s...)
}
