package partition

import (
	"context"
	"fmt"
	"strconv"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/record"
)

// The headers that say where a dead letter comes from. AppendDeadLetters writes them first;
// the state of the dead letters is replayed from them.
const (
	HeaderSourceTopicID   = "tabletopic.source.topic.id"  // as 8-4-4-4-12 hexadecimal digits
	HeaderSourcePartition = "tabletopic.source.partition" // decimal
	HeaderSourceOffset    = "tabletopic.source.offset"    // decimal
)

// DeadLetterSuffix makes the name of a topic that of its dead letters.
const DeadLetterSuffix = ".dlq"

// deadLetterSequence stands as the base sequence of batches that AppendDeadLetters built.
// Batches of clients that have it are refused, so no client can pretend dead letters.
const deadLetterSequence = int32(-2)

// deadLetterBatchBytes closes a batch of dead letters when its records have about this many bytes.
const deadLetterBatchBytes = 1 << 20

// DeadLetter is a record that fits no table.
type DeadLetter struct {
	SourceOffset int64
	Record       record.Record // the source headers are added in front of its own
}

func isDeadLetters(b record.Batch) bool {
	return b.ProducerID() < 0 && b.BaseSequence() == deadLetterSequence
}

// applyLetters replays what a batch of dead letters says of its sources.
func (s *state) applyLetters(b record.Batch) error {
	if err := s.reader.Reset(b); err != nil {
		return fmt.Errorf("replay dead letters: %w", err)
	}
	for {
		var r record.Record
		ok, err := s.reader.Next(&r)
		if err != nil {
			return fmt.Errorf("replay dead letters: %w", err)
		}
		if !ok {
			return nil
		}
		source, offset, err := letterOrigin(r)
		if err != nil {
			return fmt.Errorf("replay dead letter at offset %d: %w", r.Offset, err)
		}
		if last, ok := s.letters[source]; !ok || offset > last {
			s.letters[source] = offset
		}
	}
}

func letterOrigin(r record.Record) (source letterSource, offset int64, err error) {
	if len(r.Headers) < 3 || r.Headers[0].Key != HeaderSourceTopicID || r.Headers[1].Key != HeaderSourcePartition || r.Headers[2].Key != HeaderSourceOffset {
		return source, 0, fmt.Errorf("%w: it does not start with the headers of its source", ErrCorrupt)
	}
	if source.topic, err = uuid.ParseBytes(r.Headers[0].Value); err != nil {
		return source, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	partition, err := strconv.ParseInt(string(r.Headers[1].Value), 10, 32)
	if err != nil {
		return source, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	source.partition = int32(partition)
	if offset, err = strconv.ParseInt(string(r.Headers[2].Value), 10, 64); err != nil {
		return source, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return source, offset, nil
}

// AppendDeadLetters appends those letters whose source offset is above the last one that
// the partition has of that source, and returns when all of them, skipped ones included,
// are durable. Letters must ascend by source offset. So a worker that repeats its work, or
// a second one, adds no letter twice (invariant 3). After an error some letters may be in.
func (p *Partition) AppendDeadLetters(ctx context.Context, sourceTopic uuid.UUID, sourcePartition int32, letters []DeadLetter) error {
	for i := 1; i < len(letters); i++ {
		if letters[i].SourceOffset <= letters[i-1].SourceOffset {
			return fmt.Errorf("dead letters of %s-%d: offset %d follows %d, want them ascending", sourceTopic, sourcePartition,
				letters[i].SourceOffset, letters[i-1].SourceOffset)
		}
	}
	if err := p.lockAppends(ctx); err != nil {
		return err
	}
	end, err := p.appendLetters(ctx, letterSource{sourceTopic, sourcePartition}, letters)
	p.unlockAppends()
	if err != nil {
		return fmt.Errorf("dead letters of %s-%d to %s: %w", sourceTopic, sourcePartition, p, err)
	}
	return p.waitDurable(ctx, end)
}

// appendLetters appends what is new and returns the offset up to which the log must be
// durable. The caller holds the appends.
func (p *Partition) appendLetters(ctx context.Context, source letterSource, letters []DeadLetter) (end int64, err error) {
	p.mu.Lock()
	last, known := p.state.letters[source]
	end = p.state.next
	p.mu.Unlock()

	now := p.now()
	topic, index := []byte(source.topic.String()), strconv.AppendInt(nil, int64(source.partition), 10)
	const own, digits = 3, 20
	n := own * len(letters)
	for _, l := range letters {
		n += len(l.Record.Headers)
	}
	// There may be very many letters: they share their memory.
	headers, offsets := make([]record.Header, 0, n), make([]byte, 0, digits*len(letters))
	var records []record.Record
	var size int
	flush := func() error {
		if len(records) == 0 {
			return nil
		}
		b, err := record.AppendBatch(make([]byte, 0, record.HeaderSize+size), record.BatchOptions{Idempotent: true, ProducerID: record.NoProducerID,
			ProducerEpoch: record.NoProducerEpoch, BaseSequence: deadLetterSequence}, records)
		if err != nil {
			return err
		}
		records, size = records[:0], 0
		if err := p.appendLocked(ctx, b, nil, func(AppendResult, error) {}); err != nil {
			return err
		}
		end = record.Batch(b).NextOffset()
		return nil
	}
	for _, l := range letters {
		if known && l.SourceOffset <= last && !invariant.Off("dead-letter-once") {
			continue
		}
		r := l.Record
		if r.Timestamp == 0 {
			r.Timestamp = now
		}
		first, at := len(headers), len(offsets)
		offsets = strconv.AppendInt(offsets, l.SourceOffset, 10)
		headers = append(headers, record.Header{Key: HeaderSourceTopicID, Value: topic}, record.Header{Key: HeaderSourcePartition, Value: index},
			record.Header{Key: HeaderSourceOffset, Value: offsets[at:]})
		headers = append(headers, l.Record.Headers...)
		r.Headers = headers[first:]
		records = append(records, r)
		if size += sizeAtMost(r); size >= deadLetterBatchBytes {
			if err := flush(); err != nil {
				return 0, err
			}
		}
	}
	err = flush()
	return end, err
}

// sizeAtMost is about what a record takes in a batch, not less.
func sizeAtMost(r record.Record) int {
	const lengths = 10 // bytes of two numbers at most
	n := 4*lengths + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += lengths + len(h.Key) + len(h.Value)
	}
	return n
}
