package e2e

import (
	"context"
	wire "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/tabletopic/tabletopic/internal/lab"
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

// rowsOf returns what an engine reads of a table of shop events, sorted.
func rowsOf(t *testing.T, engine, uri, table string) []string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(run(t, nil, "lab/query", engine, "--uri", uri, "SELECT id, text FROM ice.default."+table)), "\n")
	if lines[0] != "id,text" {
		t.Fatalf("%s reads columns %s of %s", engine, lines[0], table)
	}
	rows := lines[1:]
	slices.Sort(rows)
	return rows
}

// Types of records of one topic, which two servers lead, have their tables in the catalog of somebody else. Partitions
// move to and fro, a server is killed, recovered and comes back, and meanwhile a schema is registered that records have
// named all the time. Each record is a row of the table of its type, or a dead letter, once, as two engines read them.
func TestTypesOfOneTopicOnTwoServers(t *testing.T) {
	t.Parallel() // mostly waits
	uri := lab.IcebergREST(t, "file://"+t.TempDir(), "")
	shared := []string{"--metadata", lab.Postgres(t), "--object-store", "file://" + t.TempDir(), "--upload-interval", "500ms", "--catalog-uri", uri}
	one := startServer(t, append([]string{"--node-id", "1"}, shared...)...)
	two := startServer(t, append([]string{"--node-id", "2"}, shared...)...)
	const partitions = 4
	one.createTopic("shop", partitions, 500*time.Millisecond, "table.topic.fan.out", "com.shop.Order:orders,com.shop.Payment:payments")
	events := shopEvents(t, two)
	late := &shopEvent{name: "com.shop.Order", table: "orders", body: events[0].body, header: slices.Clone(events[2].header)}
	late.header[4]++ // the id that the registry gives next
	events = append(events, late)

	ctx, stop := context.WithCancel(t.Context())
	var producers sync.WaitGroup
	for n := range int64(2) {
		producers.Go(func() { produceShop(ctx, t, two, events, n*1_000_000_000) })
	}
	defer producers.Wait()
	defer stop()
	ends := func() (n int64) {
		offsets, err := two.admin().ListEndOffsets(context.Background(), "shop")
		if err != nil {
			t.Fatal(err)
		}
		offsets.Each(func(o kadm.ListedOffset) { n += o.Offset })
		return n
	}
	flows := func(what string) {
		t.Helper()
		before := ends()
		eventually(t, 3*time.Minute, what+": records are taken", func() error {
			if got := ends(); got < before+200 {
				return fmt.Errorf("%d, and %d before", got, before)
			}
			return nil
		})
	}
	flows("at first")
	servers := []*server{one, two}
	for i := range 8 {
		p := i % partitions
		to := 3 - partitionRows(t, servers[i%2], "shop")[p].Leader
		mustMove(t, servers[i%2], "shop", fmt.Sprint(p), "--to", fmt.Sprint(to))
	}
	flows("after moves")
	one.kill()
	mustMove(t, two, "--all-from", "1", "--to", "2", "--recover")
	flows("after a recovery")
	if got := registerSchemaOf(t, two, "later", sr.Schema{Schema: strings.Replace(orderSchema, `"name": "Order"`, `"name": "Order", "doc": "later"`, 1)}); !slices.Equal(got, late.header) {
		t.Fatalf("the schema has header %x, records have %x", got, late.header)
	}
	flows("with the late schema")
	one.start()
	mustMove(t, one, "--all-from", "2", "--to", "1")
	mustMove(t, one, "shop", "1", "--to", "2")
	flows("moved back")
	stop()
	producers.Wait()

	log := readLog(t, two, "shop", partitions)
	isRefund := func(v string) bool { return strings.HasPrefix(v, string(events[2].header)) }
	refunds := 0
	for _, v := range log {
		if isRefund(v) {
			refunds++
		}
	}
	routes := []string{"shop", "shop:com.shop.Order", "shop:com.shop.Payment"}
	for _, route := range routes {
		eventually(t, 3*time.Minute, "the table of "+route, func() error {
			var status tableStatus
			if err := two.api("/api/tables/"+route, &status); err != nil {
				return err
			}
			if status.LagRecords != 0 {
				return fmt.Errorf("%d records behind: %s", status.LagRecords, status.Message)
			}
			return nil
		})
	}
	rows, dead := maps.Clone(log), map[place]bool{}
	causes := map[string]int{}
	for _, x := range dlqList(t, two, "shop") {
		at := place{x.SourcePartition, x.SourceOffset}
		want := "unknown-schema"
		if isRefund(log[at]) {
			want = "no-table"
		}
		if dead[at] || x.Cause != want || want == "unknown-schema" && !strings.HasPrefix(log[at], string(late.header)) {
			t.Errorf("letter %+v of %.30q, a second one: %t", x, log[at], dead[at])
		}
		dead[at] = true
		causes[x.Cause]++
		delete(rows, at)
	}
	if causes["no-table"] != refunds || causes["unknown-schema"] == 0 {
		t.Errorf("dead letters by cause: %v, and the log has %d refunds", causes, refunds)
	}
	lateRows := late.ofLog(t, rows)
	if len(lateRows) == 0 {
		t.Error("no record of the late schema is a row")
	}
	want := map[string][]string{"orders": append(events[0].ofLog(t, rows), lateRows...), "payments": events[1].ofLog(t, rows)}
	for table, want := range want {
		slices.Sort(want)
		for _, engine := range []string{"duckdb", "pyiceberg"} {
			if got := rowsOf(t, engine, uri, table); !slices.Equal(got, want) {
				t.Errorf("%s reads %d rows of %s, the log has %d: %s", engine, len(got), table, len(want), diffLines(strings.Join(want, "\n"), strings.Join(got, "\n")))
			}
		}
	}
	for i, s := range servers {
		for _, route := range routes {
			if out, code := s.cli("", "table", "verify", route, "--deep"); code != 0 {
				t.Errorf("table verify %s at server %d: exit %d\n%s", route, i+1, code, out)
			}
		}
	}
	t.Logf("%d records, dead letters by cause %v, %d rows of the late schema", len(log), causes, len(lateRows))
}

// A type with a table that has its columns in capitals and its rows in partitions, one whose name needs escapes, and
// records that are of none: through replays of dead letters, more types, rows for the others, and tables that are
// dropped, each record is in one table, or in the dead letters, once.
func TestTablesOfTypesThroughReplaysAndDrops(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	const title = "Refund / v2? of «#1»:%2F"
	s.createTopic("shop", 1, 300*time.Millisecond, "table.topic.fan.out", "com.shop.Order:orders", "table.topic.column.case", "upper",
		"table.topic.partition.by", "bucket(id, 2), truncate(text, 9)", "table.topic.sort.by", "id desc")
	events := shopEvents(t, s)
	refund := events[2]
	refund.name, refund.schema.Schema = title, strings.Replace(refundSchema, "Refund", title, 1)
	refund.header = registerSchemaOf(t, s, "shop-refunds", refund.schema)
	late := slices.Clone(refund.header)
	late[4]++
	rows := map[string][]string{} // of each table
	produce := func(header []byte, e *shopEvent, ids ...int64) {
		t.Helper()
		for _, id := range ids {
			body, err := e.body(id, fmt.Sprintf("%s %d", e.table, id))
			if err != nil {
				t.Fatal(err)
			}
			produceAll(t, s, "shop", slices.Concat(header, body))
			rows[e.table] = append(rows[e.table], fmt.Sprintf("%d,%s %d", id, e.table, id))
		}
	}
	for i, e := range events {
		produce(e.header, e, int64(10*i), int64(10*i+1))
	}
	produce(late, events[0], 50, 51)
	produceAll(t, s, "shop", []byte("garbage"), nil)
	letters := func(want map[string]int) {
		t.Helper()
		eventually(t, 3*time.Minute, fmt.Sprint("dead letters ", want), func() error {
			got := map[string]int{}
			for _, x := range dlqList(t, s, "shop") {
				if !x.Replayed {
					got[x.Cause]++
				}
			}
			if !maps.Equal(got, want) {
				return fmt.Errorf("%v", got)
			}
			return nil
		})
	}
	settle := func(routes ...string) {
		t.Helper()
		for _, route := range routes {
			eventually(t, 3*time.Minute, "the table of "+route, func() error {
				var status tableStatus
				if err := s.api("/api/tables/"+url.PathEscape(route), &status); err != nil {
					return err
				}
				if status.LagRecords != 0 {
					return fmt.Errorf("%d records behind: %s", status.LagRecords, status.Message)
				}
				return nil
			})
			if out, code := s.cli("", "table", "verify", route, "--deep"); code != 0 {
				t.Errorf("table verify %s: exit %d\n%s", route, code, out)
			}
		}
	}
	tables := func(names ...string) {
		t.Helper()
		for _, name := range names {
			slices.Sort(rows[name])
			for _, engine := range []string{"duckdb", "pyiceberg"} {
				eventually(t, 3*time.Minute, name, func() error { // one that is dropped is made again by and by
					out, err := l.tryQuery(s, engine, "SELECT ID, TEXT FROM ice.default."+name)
					if err != nil {
						return err
					}
					lines := strings.Split(strings.TrimSpace(out), "\n")
					if got := lines[1:]; lines[0] != "ID,TEXT" || !slices.Equal(got, rows[name]) {
						return fmt.Errorf("%s reads %q, want %q", engine, lines, rows[name])
					}
					return nil
				})
			}
		}
	}
	replay := func(route string, want string) {
		t.Helper()
		if out, code := s.cli("", "dlq", "replay", route); code != 0 || !strings.Contains(out, want) {
			t.Errorf("dlq replay %s: exit %d, want %q in\n%s", route, code, want, out)
		}
	}
	alter := func(config ...string) {
		t.Helper()
		args := []string{"topic", "alter", "shop"}
		for _, c := range config {
			args = append(args, "--config", c)
		}
		if out, code := s.cli("", args...); code != 0 {
			t.Fatalf("%v: exit %d\n%s", args, code, out)
		}
	}
	dead := map[string]int{"no-table": 5, "unknown-schema": 2, "no-magic-byte": 1}
	letters(dead)
	settle("shop", "shop:com.shop.Order")
	live := rows["orders"]
	rows["orders"] = live[:2]
	tables("orders")

	alter(fmt.Sprintf("table.topic.fan.out=com.shop.Order:orders,com.shop.Payment:payments,%s:refunds", title))
	replay("shop:com.shop.Payment", "replayed 2 dead letters")
	replay("shop:"+title, "replayed 2 dead letters")
	if got := registerSchemaOf(t, s, "later", sr.Schema{Schema: strings.Replace(orderSchema, `"name": "Order"`, `"name": "Order", "doc": "later"`, 1)}); !slices.Equal(got, late) {
		t.Fatalf("the schema has header %x, records have %x", got, late)
	}
	alter("table.topic.fan.out.others=table")
	settle("shop", "shop:com.shop.Order", "shop:com.shop.Payment", "shop:"+title)
	replay("shop", "replayed 4 dead letters") // two orders, a tombstone, and what is bad for ever
	rows["orders"] = live
	letters(map[string]int{"no-magic-byte": 1})
	tables("orders", "payments", "refunds")
	settle("shop", "shop:com.shop.Order", "shop:com.shop.Payment", "shop:"+title)

	for _, name := range []string{"orders", "payments", "shop"} {
		req, err := http.NewRequest(http.MethodDelete, s.catalogURL()+"/v1/namespaces/default/tables/"+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNoContent {
			t.Fatalf("drop %s: %s", name, resp.Status)
		}
	}
	for i, e := range events {
		produce(e.header, e, int64(100+i))
	}
	s.kill()
	s.start()
	tables("orders", "payments", "refunds")
	settle("shop", "shop:com.shop.Order", "shop:com.shop.Payment", "shop:"+title)
	letters(map[string]int{"no-magic-byte": 1})
	var status tableStatus
	if err := s.api("/api/tables/shop", &status); err != nil || status.Rows != 1 {
		t.Errorf("the topic's own table has %d rows, want the tombstone that was replayed: %v", status.Rows, err)
	}
}
