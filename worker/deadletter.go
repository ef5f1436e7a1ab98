package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// The headers that a dead letter has besides those of its source ([partition.HeaderSourceTopicID],
// …Partition, …Offset) and its own. Numbers are decimal.
const (
	HeaderCause     = "tabletopic.cause"            // one of the Cause constants
	HeaderDetail    = "tabletopic.cause.detail"     // text
	HeaderTopic     = "tabletopic.source.topic"     // name
	HeaderTimestamp = "tabletopic.source.timestamp" // milliseconds since 1970
	HeaderSchemaID  = "tabletopic.schema.id"        // only if the payload names one
	HeaderRecord    = "tabletopic.record"           // type of the record, only of a topic with several tables, and if it is known
)

// HeaderReplayOf is the header of a record that is a dead letter again: which record it was, as topic
// id, partition and offset with slashes between.
const HeaderReplayOf = "tabletopic.replay.of"

// DeadLetterTopic appends the dead letters of a route to a topic, made when the first comes, with as
// many partitions as the source has. The id of their source is that of the route: tables of one topic
// come to their letters in any order, and those of each ascend.
type DeadLetterTopic struct {
	set    *partition.Set
	route  uuid.UUID
	record string // the type of records of the route
	source metadata.Topic
	name   string
}

// NewDeadLetterTopic returns the dead letters of a route in the topic that its settings name,
// "<topic>.dlq" if they name none.
func NewDeadLetterTopic(set *partition.Set, r partition.Route) *DeadLetterTopic {
	name := r.Table.DLQ
	if name == "" {
		name = r.Topic.Name + partition.DeadLetterSuffix
	}
	return &DeadLetterTopic{set, r.ID, r.Table.Record, r.Topic, name}
}

// Append implements DeadLetters.
func (d *DeadLetterTopic) Append(ctx context.Context, index int32, letters []Letter) error {
	if len(letters) == 0 {
		return nil
	}
	if err := d.ensure(ctx, index); err != nil {
		return fmt.Errorf("dead letter topic %s: %w", d.name, err)
	}
	out, h := make([]partition.DeadLetter, len(letters)), newHeadersOfLetters(letters)
	topic := []byte(d.source.Name)
	for i, l := range letters {
		first := len(h.all)
		h.text(HeaderCause, l.Cause)
		h.text(HeaderDetail, l.Detail)
		h.all = append(h.all, record.Header{Key: HeaderTopic, Value: topic})
		h.number(HeaderTimestamp, l.Record.Timestamp)
		if l.SchemaID != 0 {
			h.number(HeaderSchemaID, int64(l.SchemaID))
			if l.Type != "" {
				h.text(HeaderRecord, l.Type)
			}
		}
		h.all = append(h.all, l.Record.Headers...)
		out[i] = partition.DeadLetter{SourceOffset: l.Record.Offset,
			Record: record.Record{Key: l.Record.Key, Value: l.Record.Value, Headers: h.all[first:len(h.all):len(h.all)]}}
	}
	return d.set.AppendDeadLetters(ctx, partition.ID{Topic: d.name, Index: index}, d.route, index, out)
}

// headersOfLetters are the headers of many letters, in two pieces of memory: what the collector has to do for the
// letters, the rows among which they are would pay for.
type headersOfLetters struct {
	all    []record.Header
	values []byte
}

func newHeadersOfLetters(letters []Letter) *headersOfLetters {
	const own, digits = 6, 2 * 20
	headers, bytes := 0, 0
	for _, l := range letters {
		headers += own + len(l.Record.Headers)
		bytes += len(l.Cause) + len(l.Detail) + len(l.Type) + digits
	}
	return &headersOfLetters{make([]record.Header, 0, headers), make([]byte, 0, bytes)}
}

func (h *headersOfLetters) text(key, value string) { h.add(key, append(h.values, value...)) }

func (h *headersOfLetters) number(key string, value int64) {
	h.add(key, strconv.AppendInt(h.values, value, 10))
}

// add adds a header whose value is what values has more than before.
func (h *headersOfLetters) add(key string, values []byte) {
	h.all = append(h.all, record.Header{Key: key, Value: values[len(h.values):len(values):len(values)]})
	h.values = values
}

// ensure makes the partition of that index if there is none in the cluster.
func (d *DeadLetterTopic) ensure(ctx context.Context, index int32) error {
	for range 3 {
		t, ok := d.set.Topic(d.name)
		if ok && int(index) < len(t.Partitions) {
			return nil
		}
		var err error
		if ok {
			_, err = d.set.CreatePartitions(ctx, d.name, max(len(d.source.Partitions), int(index)+1))
		} else {
			// A letter is as large as its record was, and a little more.
			config := map[string]string{"max.message.bytes": strconv.Itoa(100 << 20)}
			if d.name != d.source.Name+partition.DeadLetterSuffix {
				config["table.topic.enable"] = "false" // whatever the cluster's default
			}
			_, err = d.set.CreateTopic(ctx, metadata.NewTopic{Name: d.name, Partitions: len(d.source.Partitions), Config: config})
		}
		if err != nil && !errors.Is(err, metadata.ErrTopicExists) {
			return err
		}
	}
	return fmt.Errorf("partition %d: %w", index, partition.ErrUnknownTopicOrPartition)
}

// lettersSequence marks the batches of partition.AppendDeadLetters; those of clients that
// have it are refused.
const lettersSequence = -2

// Since implements DeadLetters. The letters of a source ascend, so it reads the topic
// backwards until one is below from, of each source.
func (d *DeadLetterTopic) Since(ctx context.Context, index int32, from int64) (map[int64]bool, error) {
	found := map[int64]bool{}
	p, err := d.set.Log(ctx, partition.ID{Topic: d.name, Index: index})
	if errors.Is(err, partition.ErrUnknownTopicOrPartition) {
		return found, nil
	}
	if err == nil && d.route != d.source.ID {
		// What the topic's own worker wrote, before this one began, is durable after this.
		err = d.set.AppendDeadLetters(ctx, partition.ID{Topic: d.name, Index: index}, d.route, index, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("dead letter topic %s: %w", d.name, err)
	}
	const stretch = 10_000 // offsets
	bounds, left := p.Offsets(), map[uuid.UUID]bool{d.route: true, d.source.ID: true}
	for end := bounds.HighWatermark; end > bounds.LogStart && len(left) > 0; {
		begin := max(bounds.LogStart, end-stretch)
		err := d.scan(ctx, p, index, begin, end, func(source uuid.UUID, offset int64, r *record.Record) {
			own, kind := source == d.route, headerOf(r, HeaderRecord)
			switch {
			case offset < from:
				delete(left, source)
			case own || !found[offset] && (kind == "" || kind == d.record):
				found[offset] = own
			}
		})
		if err != nil {
			return nil, fmt.Errorf("dead letter topic %s: %w", d.name, err)
		}
		end = begin
	}
	return found, nil
}

// Each calls fn with the source offset and the cause of every letter that the route has of the source
// partition, of those of its type that the topic's own table had when the type had no table, and,
// without the cause, of those that this had of no type.
func (d *DeadLetterTopic) Each(ctx context.Context, index int32, fn func(offset int64, cause string)) error {
	p, err := d.set.Log(ctx, partition.ID{Topic: d.name, Index: index})
	if errors.Is(err, partition.ErrUnknownTopicOrPartition) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("dead letter topic %s: %w", d.name, err)
	}
	bounds := p.Offsets()
	err = d.scan(ctx, p, index, bounds.LogStart, bounds.HighWatermark, func(source uuid.UUID, offset int64, r *record.Record) {
		switch kind := headerOf(r, HeaderRecord); {
		case source == d.route || kind == d.record:
			fn(offset, headerOf(r, HeaderCause))
		case kind == "":
			fn(offset, "")
		}
	})
	if err != nil {
		return fmt.Errorf("dead letter topic %s: %w", d.name, err)
	}
	return nil
}

// headerOf returns the text of one of the headers that a letter has besides those of its record.
func headerOf(r *record.Record, name string) string {
	for _, h := range r.Headers[:min(len(r.Headers), len(letterHeaders))] {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// scan calls fn with the source, the route or its topic, and the source offset of each letter in [begin, end) of p.
func (d *DeadLetterTopic) scan(ctx context.Context, p partition.Log, index int32, begin, end int64, fn func(source uuid.UUID, offset int64, r *record.Record)) error {
	var reader record.Reader
	var rec record.Record
	for begin < end {
		res, err := p.Read(ctx, begin, 1<<20, partition.ReadUncommitted)
		if err != nil {
			return err
		}
		if len(res.Batches) == 0 {
			return nil
		}
		for _, b := range res.Batches {
			begin = max(begin, b.NextOffset())
			if b.ProducerID() >= 0 || b.BaseSequence() != lettersSequence {
				continue // a client's own records
			}
			if err := reader.Reset(b); err != nil {
				return err
			}
			for {
				ok, err := reader.Next(&rec)
				if err != nil {
					return err
				}
				if !ok {
					break
				}
				if source, offset, ok := d.letterOf(&rec, index); ok {
					fn(source, offset, &rec)
				}
			}
		}
	}
	return nil
}

// letterOf returns the source and the source offset of a record that is a dead letter of our partition.
func (d *DeadLetterTopic) letterOf(r *record.Record, index int32) (source uuid.UUID, offset int64, ok bool) {
	if len(r.Headers) < 3 || r.Headers[0].Key != partition.HeaderSourceTopicID || r.Headers[1].Key != partition.HeaderSourcePartition ||
		r.Headers[2].Key != partition.HeaderSourceOffset {
		return source, 0, false
	}
	source, err := uuid.ParseBytes(r.Headers[0].Value)
	if err != nil || source != d.route && source != d.source.ID || string(r.Headers[1].Value) != itoa(index) {
		return source, 0, false
	}
	offset, err = strconv.ParseInt(string(r.Headers[2].Value), 10, 64)
	return source, offset, err == nil
}
