package partition

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Append checks and appends the one record batch of a produce request, as it came: offset
// and leader epoch are rewritten in place, and the bytes are the caller's again when Append returns. It returns as
// soon as the offsets are assigned; done is called exactly once, in the order of appends,
// when the batch is durable or has failed, and must not block. A batch that repeats one of
// its producer's last five gets the offsets of the first attempt, once that is durable. If
// Append returns an error, nothing was appended and done is not called. It blocks only while
// the WAL is full. More than one batch is refused, as Kafka does.
func (p *Partition) Append(ctx context.Context, batches []byte, done func(AppendResult, error)) error {
	b, err := p.validate(ctx, batches, p.now())
	if err != nil {
		return fmt.Errorf("append to %s: %w", p, err)
	}
	return p.append(ctx, b, nil, done)
}

// AppendRecords is for the parts of this process that keep their state in internal topics:
// it appends the records as one batch, waits until it is durable and returns the first
// offset. Records without a time get the time of now.
func (p *Partition) AppendRecords(ctx context.Context, records []record.Record) (base int64, err error) {
	now := p.now()
	for i := range records {
		if records[i].Timestamp == 0 {
			records[i].Timestamp = now
		}
	}
	b, err := record.AppendBatch(nil, record.BatchOptions{}, records)
	if err != nil {
		return 0, fmt.Errorf("append to %s: %w", p, err)
	}
	type answer struct {
		base int64
		err  error
	}
	answers := make(chan answer, 1)
	if err := p.append(ctx, b, nil, func(r AppendResult, err error) { answers <- answer{r.BaseOffset, err} }); err != nil {
		return 0, err
	}
	select {
	case a := <-answers:
		return a.base, a.err
	case <-ctx.Done():
		return 0, fmt.Errorf("append to %s: outcome unknown: %w", p, context.Cause(ctx))
	}
}

func (p *Partition) append(ctx context.Context, b record.Batch, check func(*state) error, done func(AppendResult, error)) error {
	if err := p.lockAppends(ctx); err != nil {
		return err
	}
	defer p.unlockAppends()
	return p.appendLocked(ctx, b, check, done)
}

func (p *Partition) lockAppends(ctx context.Context) error {
	if err := p.appends.enter(ctx); err != nil {
		return fmt.Errorf("append to %s: %w", p, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed != nil {
		p.appends.leave()
		return p.closed
	}
	return nil
}

func (p *Partition) unlockAppends() { p.appends.leave() }

// maxBatchBytes is the largest batch whatever the topic says: streams take somewhat more.
const maxBatchBytes = 128 << 20

// appendLocked places a checked batch. Check tells what else must hold of the state; nil if a batch
// may begin no transaction. The caller holds the appends.
func (p *Partition) appendLocked(ctx context.Context, b record.Batch, check func(*state) error, done func(AppendResult, error)) error {
	if len(b) > maxBatchBytes {
		return fmt.Errorf("append to %s: %w: the batch has %d bytes, no topic takes more than %d", p, ErrTooLarge, len(b), maxBatchBytes)
	}
	p.mu.Lock()
	if p.closed != nil {
		defer p.mu.Unlock()
		return p.closed
	}
	repeated, err := p.state.check(b)
	if err != nil {
		p.mu.Unlock()
		return fmt.Errorf("append to %s: %w", p, err)
	}
	if repeated != nil {
		p.answerRepeat(*repeated, done) // unlocks
		return nil
	}
	if check == nil {
		check = Verification{}.check(b)
	}
	if err := check(p.state); err != nil {
		p.mu.Unlock()
		return fmt.Errorf("append to %s: %w", p, err)
	}
	base := p.state.next
	b.SetBaseOffset(base)
	b.SetLeaderEpoch(p.epoch)
	result := AppendResult{BaseOffset: base, LogAppendTime: -1}
	if b.LogAppendTime() {
		result.LogAppendTime = b.MaxTimestamp()
	}
	p.pending = append(p.pending, pendingAppend{end: b.NextOffset(), result: result, done: done})
	p.mu.Unlock()

	got, err := p.log.AppendSummed(ctx, streamstore.RecordBatch{Count: b.Count(), MaxTimestamp: b.MaxTimestamp(), Payload: b}, b.Checksum(), p.durable)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.pending = p.pending[:len(p.pending)-1]
		if ctx.Err() == nil || !errors.Is(err, context.Cause(ctx)) {
			p.closeLocked(err)
			return p.closed
		}
		return fmt.Errorf("append to %s: %w", p, err)
	}
	invariant.Check(got == base, "%s: the stream assigned offset %d, the partition %d", p, got, base)
	p.decideLocked(b)
	if err := p.state.apply(b, p.now()); err != nil {
		invariant.Check(false, "%s: own dead letters or markers do not read back: %v", p, err)
	}
	if p.highWatermark >= p.state.next {
		p.notifyLocked() // the last stable offset moves only now
	}
	if p.uncheckpoint += int64(len(b)); p.uncheckpoint >= p.set.cfg.CheckpointBytes && !p.due {
		p.due = p.set.askCheckpoint(p)
	}
	return nil
}

// answerRepeat answers a batch that is in the log already: at once if nothing is pending
// before it, else in its turn. The caller holds mu; answerRepeat gives it back.
func (p *Partition) answerRepeat(first producedBatch, done func(AppendResult, error)) {
	result := AppendResult{BaseOffset: first.base, LogStartOffset: p.log.StartOffset(), LogAppendTime: first.appendTime}
	if len(p.pending) > 0 || p.answering {
		p.pending = append(p.pending, pendingAppend{repeat: true, result: result, done: done})
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	done(result, nil)
}

// durable takes the stream's answer to the oldest pending append. The stream calls it from
// one goroutine, in the order of appends.
func (p *Partition) durable(err error) {
	p.mu.Lock()
	a := p.popLocked()
	if err != nil {
		p.closeLocked(err)
		err = p.closed
	} else {
		p.highWatermark = a.end
		p.dropDecidedLocked()
		p.notifyLocked()
	}
	p.answering = true
	for {
		a.result.LogStartOffset = p.log.StartOffset()
		p.mu.Unlock()
		a.done(a.result, err)
		p.mu.Lock()
		if len(p.pending) == 0 || !p.pending[0].repeat {
			p.answering = false
			p.mu.Unlock()
			return
		}
		a = p.popLocked()
	}
}

func (p *Partition) popLocked() pendingAppend {
	a := p.pending[0]
	p.pending[0] = pendingAppend{}
	if p.pending = p.pending[1:]; len(p.pending) == 0 {
		p.pending = nil
	}
	return a
}

// validate checks a batch of a client and brings it into the form that the topic stores. It
// looks at every record, as Kafka's LogValidator does: what is stored can be read.
func (p *Partition) validate(ctx context.Context, data []byte, now int64) (record.Batch, error) {
	cfg := p.config.Load()
	b, rest, err := record.Split(data)
	if errors.Is(err, record.ErrMagic) {
		return nil, fmt.Errorf("%w: %w", ErrInvalidRecord, err)
	}
	if err != nil {
		return nil, err
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes follow the batch, a produce request holds one batch per partition", ErrInvalidRecord, len(rest))
	}
	if len(b) > cfg.MaxMessageBytes {
		return nil, fmt.Errorf("%w: the batch has %d bytes, max.message.bytes is %d", ErrTooLarge, len(b), cfg.MaxMessageBytes)
	}
	if err := b.Check(); err != nil {
		return nil, err
	}
	if err := checkHeader(b); err != nil {
		return nil, err
	}
	readers := p.set.readers
	if cfg.validates() && !invariant.Off("validation-own-readers") {
		readers = p.set.validating
	}
	r, err := takeReader(ctx, readers)
	if err != nil {
		return nil, err
	}
	defer func() { readers <- r }()
	if !invariant.Off("batch-decompressed-limit") {
		r.Limit = p.set.cfg.MaxDecompressedBytes
	}
	err = r.Reset(b)
	r.Limit = 0 // what is stored is read whatever the setting is now
	if err != nil {
		return nil, err
	}
	latest, err := p.checkRecords(ctx, r, b, cfg, now)
	if err != nil {
		return nil, err
	}
	if cfg.Recompress && cfg.Codec != b.Codec() {
		if data, err = record.AppendRecompressed(nil, b, r.Body(), cfg.Codec); err != nil {
			return nil, err
		}
		if b = data; len(b) > cfg.MaxMessageBytes && !invariant.Off("recompressed-size") {
			return nil, fmt.Errorf("%w: the batch has %d bytes after compression.type, max.message.bytes is %d", ErrTooLarge, len(b), cfg.MaxMessageBytes)
		}
	}
	if cfg.LogAppendTime {
		b.SetLogAppendTime(now)
	} else if b.MaxTimestamp() != latest {
		b.SetMaxTimestamp(latest)
	}
	return b, nil
}

// checkHeader refuses what a client may not send in a batch header.
func checkHeader(b record.Batch) error {
	switch {
	case b.IsControl():
		return fmt.Errorf("%w: clients may not write control records", ErrInvalidRecord)
	case b.IsTransactional() && b.ProducerID() < 0:
		return fmt.Errorf("%w: a batch of a transaction without producer id", ErrInvalidRecord)
	case b.LogAppendTime():
		return fmt.Errorf("%w: producers must not set the timestamp type to LogAppendTime", ErrInvalidTimestamp)
	case b.NumRecords() != int(b.Count()):
		return fmt.Errorf("%w: %d records in %d offsets", ErrInvalidRecord, b.NumRecords(), b.Count())
	case b.ProducerID() >= 0 && (b.ProducerEpoch() < 0 || b.BaseSequence() < 0):
		return fmt.Errorf("%w: producer %d with epoch %d and sequence %d", ErrInvalidRecord, b.ProducerID(), b.ProducerEpoch(), b.BaseSequence())
	case b.ProducerID() < 0 && b.BaseSequence() == deadLetterSequence:
		return fmt.Errorf("%w: base sequence %d is reserved", ErrInvalidRecord, deadLetterSequence)
	}
	if _, ok := b.DeleteHorizon(); ok {
		return fmt.Errorf("%w: only compaction sets a delete horizon", ErrInvalidRecord)
	}
	return nil
}

// checkRecords reads every record and returns the largest time.
func (p *Partition) checkRecords(ctx context.Context, r *record.Reader, b record.Batch, cfg *TopicConfig, now int64) (latest int64, err error) {
	latest = -1
	var bad InvalidRecordsError
	earliestAllowed, latestAllowed := int64(math.MinInt64), int64(math.MaxInt64)
	if !cfg.LogAppendTime {
		earliestAllowed = now - cfg.TimestampBefore
		if cfg.TimestampAfter < math.MaxInt64-now {
			latestAllowed = now + cfg.TimestampAfter
		}
	}
	var rec record.Record
	for want := b.BaseOffset(); ; want++ {
		ok, err := r.Next(&rec)
		if err != nil {
			return 0, err
		}
		if !ok && len(bad.Records) > 0 {
			return 0, &bad
		}
		if !ok {
			return latest, nil
		}
		index := int32(want - b.BaseOffset())
		if b.Codec() != record.CodecNone && r.RecordBytes() > cfg.MaxDecompressedMessageBytes && !invariant.Off("record-decompressed-limit") {
			return 0, fmt.Errorf("%w: record %d has %d bytes decompressed, max.decompressed.message.bytes is %d", ErrInvalidRecord, index, r.RecordBytes(), cfg.MaxDecompressedMessageBytes)
		}
		if rec.Offset != want {
			return 0, fmt.Errorf("%w: record %d has offset delta %d", ErrInvalidRecord, want-b.BaseOffset(), rec.Offset-b.BaseOffset())
		}
		reason := ""
		if cfg.Compact && rec.Key == nil {
			reason = "it has no key, and the topic is compacted by key"
		} else if cfg.validates() {
			if reason, err = p.set.cfg.Validator.Validate(ctx, p.topic, cfg, &rec); err != nil {
				return 0, fmt.Errorf("%w: %w", ErrNotValidated, err)
			}
		}
		if reason != "" {
			if bad.Records = append(bad.Records, RecordError{index, reason}); len(bad.Records) == maxRecordErrors {
				return 0, &bad
			}
		}
		// −1 is a record without time, which any bound allows.
		if t := rec.Timestamp; t != -1 && (t < earliestAllowed || t > latestAllowed) {
			return 0, fmt.Errorf("%w: record %d has time %d ms, the broker %d; message.timestamp.before.max.ms and message.timestamp.after.max.ms say how far apart they may be",
				ErrInvalidTimestamp, want-b.BaseOffset(), t, now)
		}
		latest = max(latest, rec.Timestamp)
	}
}
