package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// Topic is the control log on the internal topic.
type Topic struct {
	set        *partition.Set
	name       string
	partitions int
	hubs       hubs
}

// OpenTopic makes the control topic with n partitions if there is none. Its retention is
// without end: what is no longer needed is trimmed by the coordinators.
func OpenTopic(ctx context.Context, set *partition.Set, n int) (*Topic, error) {
	t, err := set.EnsureInternal(ctx, metadata.NewTopic{Name: TopicName, Partitions: n,
		Config: map[string]string{"retention.ms": "-1", "retention.bytes": "-1"}})
	if err != nil {
		return nil, fmt.Errorf("open control log: %w", err)
	}
	return &Topic{set: set, name: t.Name, partitions: len(t.Partitions)}, nil
}

// Partitions returns the number of partitions.
func (t *Topic) Partitions() int { return t.partitions }

// Append implements Log.
func (t *Topic) Append(ctx context.Context, topic uuid.UUID, events ...Event) error {
	p, err := t.set.Partition(t.name, Partition(topic, t.partitions))
	if err != nil {
		return err
	}
	var records []record.Record
	size := 0
	flush := func() error {
		if len(records) == 0 {
			return nil
		}
		_, err := p.AppendRecords(ctx, records)
		records, size = records[:0], 0
		return err
	}
	for _, e := range events {
		parts, err := split(uuid.New(), e)
		if err != nil {
			return err
		}
		for _, x := range parts {
			if size+len(x.body) > maxPart {
				if err := flush(); err != nil {
					return err
				}
			}
			records = append(records, record.Record{Key: topic[:], Value: appendPart(nil, x)})
			size += len(x.body)
		}
	}
	return flush()
}

// Tail implements Log.
func (t *Topic) Tail(topic uuid.UUID) (Tail, error) {
	p, err := t.set.Partition(t.name, Partition(topic, t.partitions))
	if err != nil {
		return nil, err
	}
	r := &topicTail{p: p, topic: topic, moved: make(chan struct{}, 1), next: p.Offsets().HighWatermark}
	r.member = t.hubs.enter(p, topic, r.next, r.moved)
	r.stop = func() { t.hubs.leave(r.member) }
	return r, nil
}

// topicTail reads one partition for the events of one topic, where its hub says that there
// are some; those of others are passed without decoding.
type topicTail struct {
	p      *partition.Partition
	topic  uuid.UUID
	moved  chan struct{}
	member *member
	stop   func()
	next   int64
	parts  assembler
	ready  []Event
}

func (r *topicTail) Close() { r.stop() }

func (r *topicTail) Next(ctx context.Context) (Event, error) {
	for len(r.ready) == 0 {
		from, until, err := r.member.take()
		if err == nil && from == until {
			select {
			case <-r.moved:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			continue
		}
		for r.next = max(r.next, from); err == nil && r.next < until; {
			err = r.read(ctx)
		}
		if errors.Is(err, partition.ErrOffsetOutOfRange) {
			return nil, fmt.Errorf("%w: %w", ErrLost, err)
		}
		if err != nil {
			return nil, err
		}
	}
	e := r.ready[0]
	r.ready = r.ready[1:]
	return e, nil
}

// read takes the events of one stretch.
func (r *topicTail) read(ctx context.Context) (err error) {
	r.next, err = scanEvents(ctx, r.p, r.next, &r.parts, func(topic uuid.UUID, _ int64, e Event) error {
		if topic == r.topic {
			r.ready = append(r.ready, e)
		}
		return nil
	}, &r.topic)
	return err
}

// scanEvents reads one stretch of a control partition from an offset on, and returns the
// offset that follows. If only is set, other topics' events are not decoded.
func scanEvents(ctx context.Context, p *partition.Partition, from int64, parts *assembler,
	fn func(topic uuid.UUID, offset int64, e Event) error, only *uuid.UUID) (int64, error) {
	res, err := p.Read(ctx, from, 1<<20, partition.ReadUncommitted)
	if err != nil {
		return from, err
	}
	var reader record.Reader
	var rec record.Record
	for _, b := range res.Batches {
		if err := reader.Reset(b); err != nil {
			return from, fmt.Errorf("control batch at offset %d: %w", b.BaseOffset(), err)
		}
		for {
			ok, err := reader.Next(&rec)
			if err != nil {
				return from, fmt.Errorf("control batch at offset %d: %w", b.BaseOffset(), err)
			}
			if !ok {
				break
			}
			if rec.Offset < from || len(rec.Key) != 16 || only != nil && uuid.UUID(rec.Key) != *only {
				continue
			}
			x, err := parsePart(rec.Value)
			if err == nil {
				var e Event
				var whole bool
				if e, whole, err = parts.add(x); whole {
					err = fn(uuid.UUID(rec.Key), rec.Offset, e)
				}
			}
			if err != nil {
				return from, fmt.Errorf("control event at offset %d: %w", rec.Offset, err)
			}
		}
		from = max(from, b.NextOffset())
	}
	return from, nil
}

// Scan calls fn for the events of a control partition from offset from on, those that can
// be read at once, and returns the offset that follows. The first call may begin below the
// log: it begins at its start.
func (t *Topic) Scan(ctx context.Context, index int32, from int64, fn func(topic uuid.UUID, offset int64, e Event) error) (next int64, err error) {
	p, err := t.set.Partition(t.name, index)
	if err != nil {
		return from, err
	}
	var parts assembler
	for from = max(from, p.Offsets().LogStart); from < p.Offsets().HighWatermark; {
		next, err := scanEvents(ctx, p, from, &parts, fn, nil)
		if err != nil || next == from {
			return from, err
		}
		from = next
	}
	return from, nil
}

// Trim removes the events of a control partition below offset.
func (t *Topic) Trim(ctx context.Context, index int32, offset int64) error {
	p, err := t.set.Partition(t.name, index)
	if err != nil {
		return err
	}
	_, err = p.DeleteRecords(ctx, offset)
	return err
}
