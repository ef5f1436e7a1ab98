package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// oneSubject is a registry whose schemas are all versions of one subject.
type oneSubject struct {
	subject string
	err     error
	asked   int
}

func (s *oneSubject) Holds(_ context.Context, subject string, _ int32) (bool, error) {
	s.asked++
	return subject == s.subject, s.err
}

func validation(t testing.TB, settings ...string) *partition.TopicConfig {
	t.Helper()
	raw := map[string]string{}
	for i := 0; i+1 < len(settings); i += 2 {
		raw[settings[i]] = settings[i+1]
	}
	cfg, err := partition.ParseTopicConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &cfg
}

// What full validation takes becomes a row, and what it refuses would be a dead letter: bytes of
// records are changed at random.
func TestValidationForetellsDeadLetters(t *testing.T) {
	p := newPath(t, 1)
	p.schemas[2] = renamedSchema
	v := NewValidator(control.NewSchemas(p.call, p), &oneSubject{subject: "events-value"})
	cfg := validation(t, "table.topic.validate", "full")
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	rows, letters := int64(0), int64(0)
	for range 2000 {
		rec := event(t, r.Int64())
		if r.IntN(2) == 0 {
			rec = encode(t, 2, renamedSchema, map[string]any{"id": r.Int64(), "title": "x"})
		}
		rec.Value = bytes.Clone(rec.Value)
		if r.IntN(2) == 0 {
			rec.Value[r.IntN(len(rec.Value))] ^= 1 << r.IntN(8)
		}
		if r.IntN(4) == 0 {
			rec.Value = rec.Value[:r.IntN(len(rec.Value)+1)]
		}
		reason, err := v.Validate(t.Context(), "events", cfg, &rec)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if reason == "" {
			rows++
		} else {
			letters++
		}
		p.logs[0].append(t, rec)
	}
	if rows < 100 || letters < 100 {
		t.Fatalf("seed %d: %d good, %d bad", seed, rows, letters)
	}
	p.start()
	p.committed()
	t.Logf("seed %d", seed)
	p.exact(rows, letters)
}

// A schema must be a version of the subject that the strategy names; the answer says what is wrong,
// of which part; what the registry cannot tell is no fault of the record.
func TestValidationOfSchemaIDs(t *testing.T) {
	p := newPath(t, 1)
	p.schemas[3] = `{"type":"record","name":"Event","namespace":"com.example","fields":[{"name":"id","type":"long"}]}`
	good := encode(t, 3, p.schemas[3], map[string]any{"id": int64(1)})
	with := func(change func(r *record.Record)) record.Record {
		r := good
		change(&r)
		return r
	}
	const values, keys = "confluent.value.schema.validation", "confluent.key.schema.validation"
	const strategy = "confluent.value.subject.name.strategy"
	for name, test := range map[string]struct {
		settings []string
		subject  string
		record   record.Record
		want     string
	}{
		"of the topic":        {[]string{values, "true"}, "events-value", good, ""},
		"of another":          {[]string{values, "true"}, "other-value", good, "schema 3 is no version of subject events-value"},
		"off":                 {nil, "other-value", good, ""},
		"by record":           {[]string{values, "true", strategy, "RecordNameStrategy"}, "com.example.Event", good, ""},
		"by topic and record": {[]string{values, "true", strategy, "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy"}, "events-com.example.Event", good, ""},
		"by another record":   {[]string{values, "true", strategy, "RecordNameStrategy"}, "com.example.Other", good, "no version of subject com.example.Event"},
		"null":                {[]string{values, "true", keys, "true"}, "none", record.Record{}, ""},
		"no magic":            {[]string{values, "true"}, "events-value", record.Record{Value: []byte("text")}, "value: the payload does not begin"},
		"unknown id":          {[]string{values, "true"}, "events-value", record.Record{Value: []byte{0, 0, 0, 0, 9, 0}}, "value: schema 9"},
		"header": {[]string{values, "true"}, "events-value", with(func(r *record.Record) {
			r.Headers, r.Value = []record.Header{{Key: headerValueSchema, Value: r.Value[:5]}}, r.Value[5:]
		}), ""},
		"bad header":  {[]string{values, "true"}, "events-value", with(func(r *record.Record) { r.Headers = []record.Header{{Key: headerValueSchema, Value: []byte{7}}} }), "header __value_schema_id"},
		"key":         {[]string{keys, "true"}, "events-key", with(func(r *record.Record) { r.Key = r.Value }), ""},
		"text as key": {[]string{keys, "true"}, "events-key", with(func(r *record.Record) { r.Key = []byte("k") }), "key: the key does not begin"},
		"only its id": {[]string{values, "true"}, "events-value", with(func(r *record.Record) { r.Value = r.Value[:5] }), ""},
		"too short":   {[]string{"table.topic.validate", "full"}, "events-value", with(func(r *record.Record) { r.Value = r.Value[:5] }), "value: "},
	} {
		v := NewValidator(control.NewSchemas(p.call, p), &oneSubject{subject: test.subject})
		for range 2 { // the second time from memory
			reason, err := v.Validate(t.Context(), "events", validation(t, test.settings...), &test.record)
			if err != nil || test.want == "" && reason != "" || !strings.Contains(reason, test.want) {
				t.Errorf("%s: %q, error %v, want %q", name, reason, err, test.want)
			}
		}
	}
	down := errors.New("down")
	v := NewValidator(control.NewSchemas(p.call, p), &oneSubject{err: down})
	if reason, err := v.Validate(t.Context(), "events", validation(t, values, "true"), &good); !errors.Is(err, down) {
		t.Errorf("registry down: %q, %v", reason, err)
	}
	v = NewValidator(control.NewSchemas(func(context.Context, int32) (control.RegisteredSchema, error) {
		return control.RegisteredSchema{}, down
	}, p), &oneSubject{})
	if reason, err := v.Validate(t.Context(), "events", validation(t, values, "true"), &good); !errors.Is(err, down) || errors.Is(err, metadata.ErrSchemaNotExist) {
		t.Errorf("schema not read: %q, %v", reason, err)
	}
}

// A good record of a known schema costs no allocation and no look at the registry, decoded or not.
func TestValidationAllocatesNothing(t *testing.T) {
	if underRace {
		t.Skip("pools forget at random with the race detector: make sim")
	}
	p := newPath(t, 1)
	subjects := &oneSubject{subject: "events-value"}
	v := NewValidator(control.NewSchemas(p.call, p), subjects)
	rec := event(t, 1)
	for _, depth := range []string{"id", "full"} {
		cfg := validation(t, "table.topic.validate", depth)
		allocs := testing.AllocsPerRun(20, func() {
			for range 1000 {
				if reason, err := v.Validate(context.Background(), "events", cfg, &rec); reason != "" || err != nil {
					panic(fmt.Sprint(reason, err))
				}
			}
		})
		if allocs > 200 { // of 1,000 records: those of a builder that is emptied
			t.Errorf("%s: %.0f allocations for 1,000 records", depth, allocs)
		}
	}
	if subjects.asked != 1 {
		t.Errorf("the registry was asked %d times", subjects.asked)
	}
}

func BenchmarkValidate(b *testing.B) {
	schemas := control.NewSchemas(func(context.Context, int32) (control.RegisteredSchema, error) {
		return control.RegisteredSchema{Text: eventSchema}, nil
	}, nil)
	v := NewValidator(schemas, &oneSubject{subject: "events-value"})
	rec := record.Record{Value: []byte{0, 0, 0, 0, 1, 2, 2, 2, 'x'}}
	for _, depth := range []string{"id", "full"} {
		cfg := validation(b, "table.topic.validate", depth)
		b.Run(depth, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if reason, err := v.Validate(context.Background(), "events", cfg, &rec); reason != "" || err != nil {
					b.Fatal(reason, err)
				}
			}
		})
	}
}
