package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apache/iceberg-go"

	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// Subjects tells which schemas the registry has in its subjects.
type Subjects interface {
	// Holds reports whether a schema is a version of a subject that is not deleted.
	Holds(ctx context.Context, subject string, id int32) (bool, error)
}

// Bounds of a [Validator].
const (
	maxUses     = 10_000      // schemas that are known to be in a subject
	useLives    = time.Minute // after which that is asked again: versions are deleted
	maxTrials   = 16          // schemas that one trial has builders for
	trialRows   = 256         // rows in a builder, which nobody reads
	trialBytes  = 64 << 10    // of payloads that they came from
	maxDecoders = 1000
)

// A Validator judges the payloads of records before they are appended, for topics that ask for it.
// It finds out what wrote them, and decodes them, as the worker of the topic does afterwards. It is
// safe for concurrent use.
type Validator struct {
	schemas  *control.Schemas
	subjects Subjects
	trials   sync.Pool // of *trial

	mu       sync.RWMutex
	uses     map[use]time.Time        // until when they are good; guarded by mu
	decoders map[control.Writer]alone // guarded by mu
}

// An alone is the decoder of a writer to a table of its own.
type alone struct {
	decoder *parquetio.Decoder
	table   *iceberg.Schema
}

// A use is a writer of the values, or keys, of a topic.
type use struct {
	topic    string
	key      bool
	strategy partition.SubjectStrategy
	writer   control.Writer
}

// NewValidator returns a Validator on the registry.
func NewValidator(schemas *control.Schemas, subjects Subjects) *Validator {
	v := &Validator{schemas: schemas, subjects: subjects, uses: map[use]time.Time{}, decoders: map[control.Writer]alone{}}
	v.trials.New = func() any {
		cfg := &Config{}
		cfg.Value.Format, cfg.Key.Format = partition.FormatSchemaID, partition.FormatSchemaID
		return &trial{v: v, reading: reading{cfg: cfg, schemas: schemas, indexed: map[int32]bool{}}, builders: map[control.Writer]*parquetio.Builder{}}
	}
	return v
}

// Validate implements [partition.Validator]. It allocates nothing for a good record of a known schema.
func (v *Validator) Validate(ctx context.Context, topic string, cfg *partition.TopicConfig, r *record.Record) (reason string, err error) {
	t := v.trials.Get().(*trial)
	defer v.trials.Put(t)
	if reason, err = t.side(ctx, use{topic: topic, strategy: cfg.ValueSubject}, cfg.ValidateValue, r.Value, r.Headers); reason != "" || err != nil {
		return reason, err
	}
	return t.side(ctx, use{topic: topic, key: true, strategy: cfg.KeySubject}, cfg.ValidateKey, r.Key, r.Headers)
}

// A trial is what one validation at a time uses.
type trial struct {
	v        *Validator
	reading  reading
	builders map[control.Writer]*parquetio.Builder
	rows     int // in the builders
	bytes    int // that these came from
}

// side judges the value or the key of a record. What is null is good.
func (t *trial) side(ctx context.Context, u use, depth partition.Validation, data []byte, headers []record.Header) (reason string, err error) {
	if depth == partition.ValidateNone || data == nil {
		return "", nil
	}
	if len(t.reading.indexed) > maxDecoders {
		clear(t.reading.indexed)
	}
	part := "value"
	if u.key {
		part = "key"
	}
	p, bad, err := t.reading.payload(ctx, u.key, data, headers)
	switch {
	case err != nil && control.Certain(err):
		return part + ": " + err.Error(), nil
	case err != nil:
		return "", err
	case bad != nil:
		return part + ": " + bad.detail, nil
	}
	p.writer.Key = false // a key is decoded as a value is
	u.writer = p.writer
	if reason, err = t.v.inSubject(ctx, u); reason != "" || err != nil || depth == partition.ValidateID {
		return reason, err
	}
	reason, err = t.decode(ctx, p)
	if reason != "" {
		reason = part + ": " + reason
	}
	return reason, err
}

// inSubject says what is wrong if the writer is in no version of its subject.
func (v *Validator) inSubject(ctx context.Context, u use) (reason string, err error) {
	v.mu.RLock()
	until, known := v.uses[u]
	v.mu.RUnlock()
	now := time.Now()
	if known && now.Before(until) {
		return "", nil
	}
	name := ""
	if u.strategy != partition.TopicNameStrategy {
		name, err = v.schemas.Record(ctx, u.writer)
		if err != nil && control.Certain(err) {
			return err.Error(), nil
		} else if err != nil {
			return "", err
		}
	}
	subject := u.strategy.Subject(u.topic, u.key, name)
	held, err := v.subjects.Holds(ctx, subject, u.writer.Schema)
	if err != nil {
		return "", err
	}
	if !held {
		return fmt.Sprintf("schema %d is no version of subject %s", u.writer.Schema, subject), nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.uses) >= maxUses {
		clear(v.uses)
	}
	v.uses[u] = now.Add(useLives)
	return "", nil
}

// decode says why a payload does not become a row of a table that has just its columns.
func (t *trial) decode(ctx context.Context, p payload) (reason string, err error) {
	d, reason, err := t.v.decoder(ctx, p.writer)
	if reason != "" || err != nil {
		return reason, err
	}
	b := t.builders[p.writer]
	if b == nil {
		if b, err = parquetio.NewBuilder(d.table, ""); err != nil {
			return err.Error(), nil
		}
		if len(t.builders) >= maxTrials {
			clear(t.builders)
		}
		t.builders[p.writer] = b
	}
	err = b.Append(d.decoder, p.body, parquetio.RecordMeta{})
	if errors.Is(err, parquetio.ErrFull) {
		t.empty(b)
		err = b.Append(d.decoder, p.body, parquetio.RecordMeta{})
	}
	if t.rows, t.bytes = t.rows+1, t.bytes+len(p.body); t.rows >= trialRows || t.bytes >= trialBytes {
		for _, b := range t.builders {
			t.empty(b)
		}
		t.rows, t.bytes = 0, 0
	}
	if len(p.body) >= trialBytes {
		delete(t.builders, p.writer) // with its memory
	}
	if err != nil {
		return err.Error(), nil
	}
	return "", nil
}

// empty throws the rows of a builder away.
func (t *trial) empty(b *parquetio.Builder) {
	if rows, err := b.Finish(); err == nil {
		rows.Release()
	}
}

// decoder returns the decoder of w to a table of its own, or why there is none.
func (v *Validator) decoder(ctx context.Context, w control.Writer) (d alone, reason string, err error) {
	v.mu.RLock()
	d, known := v.decoders[w]
	v.mu.RUnlock()
	if known {
		return d, "", nil
	}
	value, err := v.schemas.Value(ctx, w, parquetio.NewRules())
	switch {
	case err != nil && control.Certain(err):
		return d, err.Error(), nil
	case err != nil:
		return d, "", err
	}
	if d.decoder, d.table, err = parquetio.CompileAlone(value); err != nil {
		return d, err.Error(), nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.decoders) >= maxDecoders {
		clear(v.decoders)
	}
	v.decoders[w] = d
	return d, "", nil
}
