package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// Topic is the control log on the internal topic, of which the cluster has one. Partitions that
// this node leads are reached in process, others by the Kafka protocol.
type Topic struct {
	set        *partition.Set
	name       string
	partitions int
	hubs       hubs
	remote     *remote
}

// OpenTopic makes the control topic with n partitions if there is none. Its retention is
// without end: what is no longer needed is trimmed by the coordinators. toPeers is how other
// nodes are reached: their TLS, and how this one proves who it is.
func OpenTopic(ctx context.Context, set *partition.Set, n int, toPeers ...kgo.Opt) (*Topic, error) {
	return OpenNamed(ctx, set, TopicName, n, toPeers...)
}

// OpenNamed is OpenTopic under another name, for nodes that share a database and cannot reach
// each other, as those of a simulation: each has its own.
func OpenNamed(ctx context.Context, set *partition.Set, name string, n int, toPeers ...kgo.Opt) (*Topic, error) {
	t, err := set.EnsureInternal(ctx, metadata.NewTopic{Name: name, Partitions: n,
		Config: map[string]string{"retention.ms": "-1", "retention.bytes": "-1"}})
	if err != nil {
		return nil, fmt.Errorf("open control log: %w", err)
	}
	return &Topic{set: set, name: name, partitions: len(t.Partitions), remote: newRemote(set, name, toPeers)}, nil
}

// Close ends the connections to other nodes. Tails must be closed before.
func (t *Topic) Close() { t.remote.close() }

// Partitions returns the number of partitions.
func (t *Topic) Partitions() int { return t.partitions }

const (
	// leaderPatience is how long an append looks for a leader: a move is over by then.
	leaderPatience = 10 * time.Second
	leaderPause    = 20 * time.Millisecond
)

// Append implements Log. While leadership moves it tries again: an event may be there twice.
func (t *Topic) Append(ctx context.Context, topic uuid.UUID, events ...Event) error {
	index := Partition(topic, t.partitions)
	var records []record.Record
	size := 0
	flush := func() error {
		if len(records) == 0 {
			return nil
		}
		err := t.append(ctx, index, records)
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

// append appends records where the partition is led.
func (t *Topic) append(ctx context.Context, index int32, records []record.Record) error {
	begin := time.Now()
	for {
		p, err := t.set.Partition(t.name, index)
		if err == nil {
			if _, err = p.AppendRecords(ctx, records); !p.Moving() {
				return err
			}
		} else if errors.Is(err, partition.ErrNotLeader) {
			err = t.remote.append(ctx, index, records)
		}
		if !errors.Is(err, partition.ErrNotLeader) || time.Since(begin) > leaderPatience {
			return err
		}
		if err := sleep(ctx, leaderPause); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Tail implements Log.
func (t *Topic) Tail(topic uuid.UUID) (Tail, error) {
	r := &topicTail{t: t, topic: topic, index: Partition(topic, t.partitions), moved: make(chan struct{}, 1)}
	p, err := t.set.Partition(t.name, r.index)
	switch {
	case err == nil:
		r.next = p.Offsets().HighWatermark
		r.p, r.member = p, t.hubs.enter(p, topic, r.next, r.moved)
	case errors.Is(err, partition.ErrNotLeader):
		ctx, cancel := context.WithTimeout(context.Background(), leaderPatience)
		defer cancel()
		if r.next, err = t.remote.end(ctx, r.index); err != nil {
			return nil, fmt.Errorf("end of %s-%d: %w", t.name, r.index, err)
		}
	default:
		return nil, err
	}
	return r, nil
}

// topicTail reads one partition for the events of one topic, wherever the partition is led:
// the offsets are the same at each leader. Here it reads where its hub says that there are
// some. Events of other topics are passed without decoding.
type topicTail struct {
	t     *Topic
	topic uuid.UUID
	index int32
	next  int64
	until int64 // end of the stretch that the hub gave
	parts assembler
	ready []Event

	moved  chan struct{}        // cap 1: there may be more
	p      *partition.Partition // where it reads: here, as a member of its hub, …
	member *member
	mirror *mirror // … or in the copy of what its leader has
}

// Close leaves where it reads.
func (r *topicTail) Close() {
	if r.member != nil {
		if r.next >= r.until {
			r.next = max(r.next, r.member.passed())
		}
		r.t.hubs.leave(r.member)
	}
	if r.mirror != nil {
		r.mirror.leave(r.moved)
	}
	r.p, r.member, r.mirror, r.until = nil, nil, nil, 0
}

func (r *topicTail) Next(ctx context.Context) (Event, error) {
	for len(r.ready) == 0 {
		if err := r.read(ctx); err != nil {
			return nil, err
		}
	}
	e := r.ready[0]
	r.ready = r.ready[1:]
	return e, nil
}

// read waits for more of the log and takes the events in it. It may return without any.
func (r *topicTail) read(ctx context.Context) error {
	p, err := r.t.set.Partition(r.t.name, r.index)
	switch {
	case err == nil && p.Err() == nil:
		return r.readHere(ctx, p)
	case err == nil && p.Moving():
		return sleep(ctx, leaderPause)
	case err == nil:
		return p.Err()
	case errors.Is(err, partition.ErrNotLeader):
		return r.readThere(ctx)
	}
	return err
}

func (r *topicTail) readHere(ctx context.Context, p *partition.Partition) error {
	if r.p != p {
		r.Close()
		r.p, r.member = p, r.t.hubs.enter(p, r.topic, r.next, r.moved)
	}
	var err error
	if r.next >= r.until {
		var from int64
		if from, r.until, err = r.member.take(); err == nil && from == r.until {
			return r.wait(ctx) // a closed partition wakes it too
		}
		r.next = max(r.next, from)
	}
	for err == nil && r.next < r.until {
		r.next, err = scanEvents(ctx, p, r.next, func(uuid.UUID) *assembler { return &r.parts }, func(topic uuid.UUID, _ int64, e Event) error {
			if topic == r.topic {
				r.ready = append(r.ready, e)
			}
			return nil
		}, &r.topic)
	}
	switch {
	case errors.Is(err, partition.ErrOffsetOutOfRange):
		return fmt.Errorf("%w: %w", ErrLost, err)
	case errors.Is(err, partition.ErrNotLeader):
		return nil // looks where it is now
	}
	return err
}

func (r *topicTail) readThere(ctx context.Context) error {
	if r.mirror == nil {
		r.Close()
		m, err := r.t.remote.mirrorOf(r.index, r.next)
		if err != nil {
			return err
		}
		r.mirror = m
		m.enter(r.moved)
	}
	records, err := r.mirror.after(r.next)
	if err != nil {
		return err
	}
	if len(records) == 0 {
		return r.wait(ctx)
	}
	for _, rec := range records {
		r.next = rec.Offset + 1
		if !bytes.Equal(rec.Key, r.topic[:]) {
			continue
		}
		e, whole, err := r.parts.event(rec.Value)
		if err != nil {
			return fmt.Errorf("control event at offset %d: %w", rec.Offset, err)
		}
		if whole {
			r.ready = append(r.ready, e)
		}
	}
	return nil
}

func (r *topicTail) wait(ctx context.Context) error {
	select {
	case <-r.moved:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// scanEvents reads one stretch of a control partition from an offset on, and returns the
// offset that follows. parts is what joins a topic's. If only is set, other topics' events are not decoded.
func scanEvents(ctx context.Context, p *partition.Partition, from int64, parts func(topic uuid.UUID) *assembler,
	fn func(topic uuid.UUID, offset int64, e Event) error, only *uuid.UUID) (int64, error) {
	return eachRecord(ctx, p, from, func(topic uuid.UUID, offset int64, value []byte) error {
		if only != nil && topic != *only {
			return nil
		}
		e, whole, err := parts(topic).event(value)
		if whole {
			err = fn(topic, offset, e)
		}
		if err != nil {
			return fmt.Errorf("control event at offset %d: %w", offset, err)
		}
		return nil
	})
}

// eachRecord calls fn for the records of one stretch from an offset on, and returns the offset
// that follows.
func eachRecord(ctx context.Context, p *partition.Partition, from int64, fn func(topic uuid.UUID, offset int64, value []byte) error) (int64, error) {
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
			if rec.Offset < from || len(rec.Key) != 16 {
				continue
			}
			if err := fn(uuid.UUID(rec.Key), rec.Offset, rec.Value); err != nil {
				return from, err
			}
		}
		from = max(from, b.NextOffset())
	}
	return from, nil
}

// event returns the event that a record completes, if it does.
func (a *assembler) event(value []byte) (Event, bool, error) {
	x, err := parsePart(value)
	if err != nil {
		return nil, false, err
	}
	return a.add(x)
}

// Scan calls fn for the events of a control partition that this node leads from offset from on, those that can
// be read at once, and returns the offset that follows. The first call may begin below the
// log: it begins at its start.
func (t *Topic) Scan(ctx context.Context, index int32, from int64, fn func(topic uuid.UUID, offset int64, e Event) error) (next int64, err error) {
	p, err := t.set.Partition(t.name, index)
	if err != nil {
		return from, err
	}
	open := map[uuid.UUID]*assembler{} // each of its own: however many topics there are, none pushes out what another has begun
	parts := func(topic uuid.UUID) *assembler {
		if open[topic] == nil {
			open[topic] = &assembler{}
		}
		return open[topic]
	}
	for from = max(from, p.Offsets().LogStart); from < p.Offsets().HighWatermark; {
		next, err := scanEvents(ctx, p, from, parts, fn, nil)
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
