package e2e

import (
	"context"
	wire "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
)

// A shopEvent is a type of the records of one topic: how its schema is registered, and how a record of it is
// written.
type shopEvent struct {
	name, table string
	subject     string
	schema      sr.Schema
	indexes     []byte // that a payload has after the schema id
	body        func(id int64, text string) ([]byte, error)
	header      []byte
}

const (
	orderSchema   = `{"type": "record", "name": "Order", "namespace": "com.shop", "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]}`
	paymentSchema = `syntax = "proto3"; package com.shop; message Other { int64 x = 1; } message Payment { int64 id = 1; string text = 2; }`
	refundSchema  = `{"title": "Refund", "type": "object", "properties": {"id": {"type": "integer"}, "text": {"type": "string"}}}`
)

// shopEvents are of three formats, under the subjects of two strategies.
func shopEvents(t *testing.T, s *server) []*shopEvent {
	t.Helper()
	all := []*shopEvent{
		{name: "com.shop.Order", table: "orders", subject: "com.shop.Order", schema: sr.Schema{Schema: orderSchema}, body: func(id int64, text string) ([]byte, error) {
			return avro.Marshal(avro.MustParse(orderSchema), event{id, text})
		}},
		{name: "com.shop.Payment", table: "payments", subject: "shop-com.shop.Payment", schema: sr.Schema{Schema: paymentSchema, Type: sr.TypeProtobuf}, indexes: []byte{2, 2},
			body: func(id int64, text string) ([]byte, error) {
				out := wire.AppendUvarint([]byte{1 << 3}, uint64(id))
				out = wire.AppendUvarint(append(out, 2<<3|2), uint64(len(text)))
				return append(out, text...), nil
			}},
		{name: "Refund", table: "refunds", subject: "shop-Refund", schema: sr.Schema{Schema: refundSchema, Type: sr.TypeJSON}, body: func(id int64, text string) ([]byte, error) {
			return json.Marshal(map[string]any{"id": id, "text": text})
		}},
	}
	for _, e := range all {
		e.header = append(registerSchemaOf(t, s, e.subject, e.schema), e.indexes...)
	}
	return all
}

func (e *shopEvent) record(id int64) (*kgo.Record, error) {
	body, err := e.body(id, fmt.Sprintf("%s %d", e.table, id))
	return &kgo.Record{Value: append(slices.Clone(e.header), body...)}, err
}

// produceShop sends events of all types in turn until ctx ends, through restarts of the server: each is in the log
// once.
func produceShop(ctx context.Context, t *testing.T, s *server, events []*shopEvent, first int64) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.kafka), kgo.DefaultProduceTopic("shop"), kgo.MaxBufferedRecords(200), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		t.Error(err)
		return
	}
	defer cl.Close()
	for id := first; ctx.Err() == nil; id++ {
		r, err := events[id%int64(len(events))].record(id)
		if err != nil {
			t.Error(err)
			return
		}
		cl.Produce(context.Background(), r, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Errorf("record %d: %v", id, err)
			}
		})
	}
	wait, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := cl.Flush(wait); err != nil {
		t.Errorf("flush: %v", err)
	}
}

// ofLog returns the rows that a table of a type must have, by the log, without those of replays.
func (e *shopEvent) ofLog(t *testing.T, log map[place]string) (rows []string) {
	t.Helper()
	seen := map[string]bool{}
	for _, v := range log {
		rest, is := strings.CutPrefix(v, string(e.header))
		if !is || seen[v] {
			continue
		}
		seen[v] = true
		_, number, _ := strings.Cut(rest, e.table+" ")
		var id int64
		if _, err := fmt.Sscan(strings.TrimRight(number, `"}`), &id); err != nil {
			t.Fatalf("%q in the log: %v", v, err)
		}
		rows = append(rows, fmt.Sprintf("%d,%s %d", id, e.table, id))
	}
	slices.Sort(rows)
	return rows
}

// wantRows fails unless two engines read the rows of the log in the table of the type.
func (e *shopEvent) wantRows(t *testing.T, l *lake, s *server, log map[place]string) {
	t.Helper()
	want := e.ofLog(t, log)
	waitForTable(t, s, "shop:"+e.name, int64(len(want)), 3*time.Minute)
	for _, engine := range []string{"duckdb", "pyiceberg"} {
		lines := strings.Split(strings.TrimSpace(l.query(t, s, engine, "SELECT id, text FROM ice.default."+e.table)), "\n")
		got := slices.Clone(lines[1:])
		slices.Sort(got)
		if lines[0] != "id,text" || !slices.Equal(got, want) {
			t.Errorf("%s reads %d rows of %s, the log has %d: %s", engine, len(got), e.table, len(want), diffLines(strings.Join(want, "\n"), strings.Join(got, "\n")))
		}
	}
	if out, code := s.cli("", "table", "verify", "shop:"+e.name, "--deep"); code != 0 {
		t.Errorf("table verify %s: exit %d\n%s", e.name, code, out)
	}
}

// Three types of records of one topic, of three formats, go to the tables of two of them through kill -9 of
// the server, value for value; those of the third, which has no table, and garbage are dead letters once, counted and
// listed with their cause. When the third gets a table, a replay brings its letters into it once.
func TestTypesOfOneTopicInTheirTables(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	const partitions = 2
	s.createTopic("shop", partitions, 300*time.Millisecond, "table.topic.fan.out", "com.shop.Order:orders, com.shop.Payment:payments")
	events := shopEvents(t, s)
	for want, args := range map[string][]string{
		`is that of topic "shop:com.shop.Order"`: {"topic", "create", "other", "--table", "--config", "table.topic.name=orders"},
		`of "shop" and of "shop:com.shop.X"`:     {"topic", "alter", "shop", "--config", "table.topic.fan.out=com.shop.X:shop"},
		"want RECORD:TABLE":                      {"topic", "alter", "shop", "--config", "table.topic.fan.out=com.shop.X"},
		"has no table for records of type X":     {"table", "verify", "shop:X"},
	} {
		if out, code := s.cli("", args...); code != 1 || !strings.Contains(out, want) {
			t.Errorf("%v: exit %d, want %q in\n%s", args, code, want, out)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	var producers sync.WaitGroup
	for n := range int64(2) {
		producers.Go(func() { produceShop(ctx, t, s, events, n*1_000_000_000) })
	}
	for range 4 {
		timer := time.NewTimer(900 * time.Millisecond)
		<-timer.C
		s.kill()
		s.start()
	}
	stop()
	producers.Wait()
	produceAll(t, s, "shop", []byte("garbage"))
	refund, err := events[2].record(999)
	if err != nil {
		t.Fatal(err)
	}
	produceAll(t, s, "shop", refund.Value) // counted by the server that runs now

	log := readLog(t, s, "shop", partitions)
	events[0].wantRows(t, l, s, log)
	events[1].wantRows(t, l, s, log)
	if out, code := s.cli("", "topic", "alter", "shop", "--config", "table.topic.partition.by=absent"); code != 1 || !strings.Contains(out, "absent") {
		t.Errorf("a column that no table has: exit %d\n%s", code, out)
	}
	refunds := events[2].ofLog(t, log)
	if len(refunds) < 10 {
		t.Errorf("only %d records of each type were produced", len(refunds))
	}
	var letters []listedLetter
	eventually(t, 3*time.Minute, "dead letters", func() error {
		if letters = dlqList(t, s, "shop"); len(letters) < len(refunds)+1 {
			return fmt.Errorf("%d, want %d", len(letters), len(refunds)+1)
		}
		return nil
	})
	places := map[place]bool{}
	for _, x := range letters {
		at := place{x.SourcePartition, x.SourceOffset}
		want := "no-table"
		if log[at] == "garbage" {
			want = "no-magic-byte"
		}
		if places[at] || x.Cause != want || want == "no-table" && !strings.HasPrefix(log[at], string(events[2].header)) {
			t.Errorf("letter %+v of %.30q", x, log[at])
		}
		places[at] = true
	}
	if got := dlqList(t, s, "shop:Refund"); len(got) != len(refunds) || len(letters) != len(refunds)+1 {
		t.Errorf("%d letters of refunds and %d in all, want %d and one more", len(got), len(letters), len(refunds))
	}
	if out, code := s.cli("", "dlq", "list", "shop", "--limit", "1", "--cause", "no-table"); code != 0 || !strings.Contains(out, "no table takes records of type Refund: add it to table.topic.fan.out") {
		t.Errorf("dlq list: exit %d\n%s", code, out)
	}
	eventually(t, time.Minute, "the count of dead letters", func() error {
		if _, text := fetched(t, s, "/metrics"); !strings.Contains(text, `tabletopic_worker_dead_letters_total{cause="no-table",topic="shop"} `) ||
			strings.Contains(text, `tabletopic_worker_dead_letters_total{cause="no-table",topic="shop"} 0`) {
			return errors.New("none is counted")
		}
		return nil
	})
	out, code := s.cli("", "table", "status", "shop")
	for _, want := range []string{"shop:com.shop.Order", "default.orders", "shop:com.shop.Payment", "default.payments", "no-table"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("table status: exit %d, want %q in\n%s", code, want, out)
		}
	}
	if out, code := s.cli("", "table", "verify", "shop", "--deep"); code != 0 {
		t.Errorf("table verify of the topic's own table: exit %d\n%s", code, out)
	}

	if out, code := s.cli("", "topic", "alter", "shop", "--config", "table.topic.fan.out=com.shop.Order:orders,com.shop.Payment:payments,Refund:refunds"); code != 0 {
		t.Fatalf("topic alter: exit %d\n%s", code, out)
	}
	waitForTable(t, s, "shop:Refund", 0, 3*time.Minute)
	if out, code := s.cli("", "dlq", "replay", "shop:Refund"); code != 0 || !strings.Contains(out, fmt.Sprintf("replayed %d dead letters to shop", len(refunds))) {
		t.Errorf("dlq replay: exit %d\n%s", code, out)
	}
	if out, code := s.cli("", "dlq", "replay", "shop:Refund"); code != 0 || !strings.Contains(out, "replayed 0 dead letters") {
		t.Errorf("a second dlq replay: exit %d\n%s", code, out)
	}
	for _, e := range events {
		e.wantRows(t, l, s, log)
	}
	if out, code := s.cli("", "table", "verify", "shop", "--deep"); code != 0 {
		t.Errorf("table verify of the topic's own table: exit %d\n%s", code, out)
	}
}
