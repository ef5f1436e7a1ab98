package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// Schemas of the registry.
const (
	narrowSchema = 1
	wideSchema   = 2 // with a field in the middle
	widerSchema  = 3
	otherSchema  = 8  // which no table of the others can hold
	lateSchema   = 9  // unknown at first
	payments     = 10 // of another type of records
	latePayments = 11 // of that type, and unknown at first
	refunds      = 12 // of a third type
	noSchema     = 77 // always unknown
)

var writerSchemas = map[int32]string{
	narrowSchema: `{"type":"record","name":"Event","fields":[{"name":"id","type":"long"},{"name":"name","type":["null","string"],"default":null}]}`,
	wideSchema:   `{"type":"record","name":"Event","fields":[{"name":"id","type":"long"},{"name":"extra","type":["null","string"],"default":null},{"name":"name","type":["null","string"],"default":null}]}`,
	widerSchema:  `{"type":"record","name":"Event","fields":[{"name":"id","type":"long"},{"name":"more","type":["null","long"],"default":null},{"name":"name","type":["null","string"],"default":null}]}`,
	otherSchema:  `{"type":"record","name":"Event","fields":[{"name":"id","type":"string"}]}`,
	lateSchema:   `{"type":"record","name":"Event","fields":[{"name":"id","type":"long"},{"name":"name","type":["null","string"],"default":null}]}`,
	payments:     `{"type":"record","name":"Payment","fields":[{"name":"id","type":"long"},{"name":"name","type":["null","string"],"default":null}]}`,
	latePayments: `{"type":"record","name":"Payment","fields":[{"name":"id","type":"long"},{"name":"name","type":["null","string"],"default":null},{"name":"more","type":["null","long"],"default":null}]}`,
	refunds:      `{"type":"record","name":"Refund","fields":[{"name":"id","type":"long"},{"name":"name","type":["null","string"],"default":null}]}`,
}

// A form is what a record is like.
type form int

const (
	narrow form = iota
	wide
	wider
	tombstone
	late // a row or a dead letter
	payment
	latePayment // likewise; a row of another table than the dead letter
	refund
	firstBad
	noMagic = iota - 1
	unknownSchema
	truncated
	unfit
)

// isRow tells whether records of the form become rows; certain, that it is.
func (f form) isRow() (row, certain bool) { return f < firstBad, f != late && f != latePayment }

// typed returns the type of records of the form, if that may have a table of its own.
func (f form) typed() string {
	switch f {
	case payment, latePayment:
		return "Payment"
	case refund:
		return "Refund"
	}
	return ""
}

// record builds record n of the form. Its key is n, and so is id, if it has one.
func (f form) record(n int64) record.Record {
	avro := func(schema uint32, fields ...any) []byte {
		b := binary.BigEndian.AppendUint32([]byte{0}, schema)
		for _, v := range fields {
			switch v := v.(type) {
			case int64:
				b = binary.AppendVarint(b, v)
			case string:
				b = append(binary.AppendVarint(b, int64(len(v))), v...)
			}
		}
		return b
	}
	const second = int64(1) // of a union
	name := fmt.Sprint("name ", n)
	r := record.Record{Key: strconv.AppendInt(nil, n, 10)}
	switch f {
	case narrow:
		r.Value = avro(narrowSchema, n, second, name)
	case wide:
		r.Value = avro(wideSchema, n, second, fmt.Sprint("extra ", n), second, name)
	case wider:
		r.Value = avro(widerSchema, n, second, 2*n, second, name)
	case late:
		r.Value = avro(lateSchema, n, second, name)
	case payment:
		r.Value = avro(payments, n, second, name)
	case latePayment:
		r.Value = avro(latePayments, n, second, name, second, 2*n)
	case refund:
		r.Value = avro(refunds, n, second, name)
	case noMagic:
		r.Value = []byte("bad")
	case unknownSchema:
		r.Value = avro(noSchema, n)
	case truncated:
		r.Value = avro(narrowSchema, n, second)
	case unfit:
		r.Value = avro(otherSchema, name)
	}
	return r
}

// A tableTopic is what the topic of a table must hold, over all its incarnations.
type tableTopic struct {
	name  string
	table table.Identifier
	types []tableRoute // of records with tables of their own; without ids

	mu   sync.Mutex
	sent map[int64]*sentRecord // guarded by mu; by number
	open []*openTransaction    // guarded by mu; may have records and no marker
}

// A tableRoute is a table of a topic, and what fills it.
type tableRoute struct {
	id     uuid.UUID // as which the log fills it
	record string    // type of its records, "" if it is the topic's own
	table  table.Identifier
}

// routes returns the tables of an incarnation of the topic, its own first.
func (t *tableTopic) routes(id uuid.UUID) []tableRoute {
	all := []tableRoute{{id: id, table: t.table}}
	for _, r := range t.types {
		r.id = partition.RouteID(id, r.record)
		all = append(all, r)
	}
	return all
}

// An openTransaction is one that its coordinator has decided; its marker has to follow, whoever lives.
type openTransaction struct {
	topic     uuid.UUID
	partition int32
	marker    record.Marker
}

// A sentRecord was sent, whatever came of it.
type sentRecord struct {
	form      form
	topic     uuid.UUID
	partition int32
	offset    int64 // -1 if nobody was told
	aborted   bool  // it is of a transaction that is aborted
}

func (l *tableLife) topic() *tableTopic { return l.n.w.topics[l.n.id-1] }

func (l *tableLife) createTopic(ctx context.Context) error {
	p := l.n.w.plan
	config := map[string]string{
		"table.topic.enable": "true", "table.topic.target.lag.ms": ms(p.lag), "table.topic.on.rewind": p.rewind,
		"table.topic.name": l.topic().table[1],
	}
	if types := l.topic().types; len(types) > 0 {
		var list []string
		for _, r := range types {
			list = append(list, r.record+":"+r.table[1])
		}
		config["table.topic.fan.out"], config["table.topic.fan.out.others"] = strings.Join(list, ","), partition.OthersTable
	}
	config["table.topic.compact.enabled"] = strconv.FormatBool(p.compact > 0)
	if p.compact > 0 {
		config["table.topic.compact.min.files"] = strconv.Itoa(p.compact)
	}
	if p.retention > 0 {
		config["retention.ms"], config["table.topic.hold.max.ms"] = ms(p.retention), ms(p.hold)
	}
	t, err := l.set.CreateTopic(ctx, metadata.NewTopic{Name: l.topic().name, Partitions: p.partitions, Config: config})
	l.log("topic made: %s %v", t.ID, err)
	if errors.Is(err, metadata.ErrTopicExists) {
		return nil
	}
	return err
}

func ms(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// serve starts the clients of the life.
func (l *tableLife) serve() {
	l.log("serves")
	if l.n.w.plan.mute > 0 {
		l.clients.Go(l.muteAtTimes)
	}
	r := rand.New(rand.NewPCG(l.n.w.seed, uint64(l.n.id)<<40|uint64(l.n.lives)))
	l.clients.Go(func() {
		for {
			select {
			case <-l.stopping:
				return
			case <-l.store.Fenced():
				return
			case <-time.After(time.Duration(r.Int64N(int64(l.n.w.plan.think)))):
			}
			if r.IntN(12) == 0 {
				l.administer(r)
			} else {
				l.produce(l.ctx, r, l.n.w.plan.bad)
			}
			if l.n.w.plan.transactions > 0 && r.IntN(4) == 0 {
				_ = l.decide() // what an earlier life left
			}
		}
	})
}

// muteAtTimes lets the writes of the log wait for some time, and nothing else: what the node
// knows grows old.
func (l *tableLife) muteAtTimes() {
	r := l.actor.draw("mute")
	pause := func(d time.Duration) bool {
		select {
		case <-l.stopping:
			return false
		case <-time.After(d):
			return true
		}
	}
	for pause(time.Duration(r.Int64N(int64(l.n.w.plan.mute / 4)))) {
		thaw := func() {}
		if l.n.w.plan.frozen > 0 { // what then grows old are files that wait for the catalog
			thaw = l.n.w.freeze()
			pause(2*l.n.w.plan.lag + time.Duration(r.Int64N(int64(l.n.w.plan.grace/4))))
		}
		hold := l.streams.Hold(objectstore.Before, func(op objectstore.Op, _ string) bool { return op == objectstore.OpPutIfAbsent })
		d := l.n.w.plan.mute/3 + time.Duration(r.Int64N(int64(l.n.w.plan.mute*2/3)))
		l.log("cannot write its log for %v", d)
		pause(d)
		hold.Release(nil)
		thaw()
		l.log("writes its log again")
	}
}

// produce appends some records to a partition, now and then many.
func (l *tableLife) produce(ctx context.Context, r *rand.Rand, bad float64) {
	topic, ok := l.set.Topic(l.topic().name)
	if !ok {
		return
	}
	index := int32(r.IntN(len(topic.Partitions)))
	n := 1 + r.IntN(4)
	forms := make([]form, n)
	for i := range forms {
		forms[i] = pick(r, narrow, narrow, narrow, wide, wider, tombstone)
		if r.Float64() < bad {
			forms[i] = pick(r, noMagic, unknownSchema, truncated, late)
			if l.n.w.plan.mixed {
				forms[i] = pick(r, noMagic, unknownSchema, truncated, late, unfit)
			}
		}
		if l.n.w.plan.types > 0 && r.IntN(2) == 0 {
			forms[i] = pick(r, payment, payment, latePayment, refund)
		}
	}
	if share := l.n.w.plan.transactions; share > 0 && r.Float64() < share {
		l.transact(ctx, r, topic.ID, index, forms...)
	} else {
		l.append(ctx, topic.ID, index, forms...)
	}
}

// append appends a record of each form, and notes what came of it.
func (l *tableLife) append(ctx context.Context, id uuid.UUID, index int32, forms ...form) {
	p, err := l.set.Partition(l.topic().name, index)
	if err != nil || p.TopicID() != id {
		return
	}
	records, sent := l.note(id, index, false, forms)
	if base, err := p.AppendRecords(ctx, records); err == nil {
		l.told(sent, base)
	}
}

// note makes the records, and remembers that they are sent.
func (l *tableLife) note(id uuid.UUID, index int32, aborted bool, forms []form) (records []record.Record, sent []*sentRecord) {
	t := l.topic()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range forms {
		n := l.n.w.ids.Add(1)
		s := &sentRecord{form: f, topic: id, partition: index, offset: -1, aborted: aborted}
		t.sent[n] = s
		records, sent = append(records, f.record(n)), append(sent, s)
	}
	return records, sent
}

// told notes the offsets of records.
func (l *tableLife) told(sent []*sentRecord, base int64) {
	t := l.topic()
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range sent {
		sent[i].offset = base + int64(i)
	}
}

// transact appends the records as a transaction of a producer of its own, and ends it after a
// while, in which others append.
func (l *tableLife) transact(ctx context.Context, r *rand.Rand, id uuid.UUID, index int32, forms ...form) {
	t := l.topic()
	p, err := l.set.Partition(t.name, index)
	if err != nil || p.TopicID() != id {
		return
	}
	m := record.Marker{ProducerID: l.n.w.ids.Add(1), Commit: r.IntN(2) == 0}
	records, sent := l.note(id, index, !m.Commit, forms)
	for i := range records {
		records[i].Timestamp = time.Now().UnixMilli()
	}
	batch, err := record.AppendBatch(nil, record.BatchOptions{Idempotent: true, ProducerID: m.ProducerID, Transactional: true}, records)
	if err != nil {
		l.n.w.fail("batch of a transaction: %v", err)
		return
	}
	v, _ := p.Verification(m.ProducerID, m.ProducerEpoch)
	t.mu.Lock()
	t.open = append(t.open, &openTransaction{id, index, m})
	t.mu.Unlock()
	answered := make(chan error, 1)
	err = p.AppendTransactional(ctx, batch, v, func(res partition.AppendResult, err error) {
		if err == nil {
			l.told(sent, res.BaseOffset)
		}
		answered <- err
	})
	if err != nil {
		return
	}
	select {
	case <-answered:
	case <-ctx.Done():
		return
	}
	d := time.Duration(r.Int64N(int64(5 * time.Second)))
	l.clients.Go(func() {
		if wait(ctx, d) == nil {
			_ = l.decide()
		}
	})
}

// decide writes the markers of transactions that may be open, as their coordinator would. A life of
// long ago knows another topic by the name: what it does not know it leaves to others.
func (l *tableLife) decide() error {
	t := l.topic()
	t.mu.Lock()
	open := slices.Clone(t.open)
	t.mu.Unlock()
	for _, o := range open {
		if topic, there := l.set.Topic(t.name); !there || topic.ID != o.topic {
			continue
		}
		p, err := l.set.Partition(t.name, o.partition)
		if err != nil {
			return err
		}
		if p.TopicID() != o.topic {
			continue
		}
		if err := p.AppendMarker(l.ctx, o.marker, false); err != nil {
			return err
		}
		t.mu.Lock()
		t.open = slices.DeleteFunc(t.open, func(x *openTransaction) bool { return x == o })
		t.mu.Unlock()
	}
	return nil
}

// adminActs are what administrators do, by name.
var adminActs = []string{"delete records", "recreate topic", "add partition", "off and on", "lose control topic", "learn schema", "shorter lag", "repartition"}

func (l *tableLife) administer(r *rand.Rand) {
	w := l.n.w
	if len(w.plan.admin) == 0 {
		return
	}
	act := pick(r, w.plan.admin...)
	t := l.topic()
	topic, ok := l.set.Topic(t.name)
	if !ok {
		_ = l.createTopic(l.ctx)
		return
	}
	index := int32(r.IntN(len(topic.Partitions)))
	var err error
	switch act {
	case "delete records":
		var p *partition.Partition
		if p, err = l.set.Partition(t.name, index); err == nil {
			o := p.Offsets()
			_, err = p.DeleteRecords(l.ctx, o.LogStart+r.Int64N(o.HighWatermark-o.LogStart+1))
		}
	case "recreate topic":
		if err = l.set.DeleteTopic(l.ctx, t.name); err == nil {
			err = l.createTopic(l.ctx)
		}
	case "add partition":
		if len(topic.Partitions) < 5 {
			_, err = l.set.CreatePartitions(l.ctx, t.name, len(topic.Partitions)+1)
		}
	case "off and on":
		if _, err = l.set.AlterConfig(l.ctx, t.name, map[string]string{"table.topic.enable": "false"}, nil); err == nil {
			_ = wait(l.ctx, time.Duration(r.Int64N(int64(20*time.Second))))
			_, err = l.set.AlterConfig(l.ctx, t.name, map[string]string{"table.topic.enable": "true"}, nil)
		}
	case "lose control topic": // its owner starts the server again
		if own, ok := l.set.Topic(l.n.controlTopic()); ok {
			err = l.set.DeleteTopic(l.ctx, own.Name)
			l.die()
		}
	case "learn schema":
		w.known.Store(true)
	case "repartition":
		_, err = l.set.AlterConfig(l.ctx, t.name, map[string]string{"table.topic.partition.by": pick(r, "bucket(id, 2)", "truncate(name, 6)", "[]", "")}, nil)
	case "shorter lag":
		_, err = l.set.AlterConfig(l.ctx, t.name, map[string]string{"table.topic.target.lag.ms": ms(pick(r, w.plan.lag, w.plan.lag/2))}, nil)
	}
	l.log("administrator: %s: %v", act, err)
}
