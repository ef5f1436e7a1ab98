package partition

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/record"
)

// A judge is a Validator that refuses values that begin with bad, and waits for ctx at wait.
type judge struct{ waits chan struct{} }

func (j judge) Validate(ctx context.Context, _ string, _ *TopicConfig, r *record.Record) (string, error) {
	switch {
	case string(r.Value) == "wait":
		j.waits <- struct{}{}
		<-ctx.Done()
		return "", context.Cause(ctx)
	case strings.HasPrefix(string(r.Value), "bad"):
		return "it is bad", nil
	}
	return "", nil
}

// A batch with records that are not good is refused with the first of them, and nothing is appended.
func TestBadRecordsAreNamed(t *testing.T) {
	c := newCluster(t)
	c.cfg.Validator = judge{}
	n := c.start()
	p := n.create(t, "t", 1, map[string]string{"confluent.value.schema.validation": "true"})
	refused := func(values ...string) (at []int32) {
		t.Helper()
		var bad *InvalidRecordsError
		err := p.Append(t.Context(), produced{values: values}.bytes(t), func(AppendResult, error) { t.Error("done was called") })
		if !errors.As(err, &bad) || !errors.Is(err, ErrInvalidRecord) {
			t.Fatalf("%.50q: %v", values, err)
		}
		for _, r := range bad.Records {
			if at = append(at, r.Index); r.Reason != "it is bad" {
				t.Errorf("record %d: %s", r.Index, r.Reason)
			}
		}
		return at
	}
	if at := refused("good", "bad", "good", "bad too"); !slices.Equal(at, []int32{1, 3}) {
		t.Errorf("records %v, want 1 and 3", at)
	}
	if at := refused(slices.Repeat([]string{"bad"}, 1000)...); len(at) != maxRecordErrors {
		t.Errorf("%d records are named, want %d", len(at), maxRecordErrors)
	}
	if o := p.Offsets(); o.HighWatermark != 0 {
		t.Errorf("offsets %+v after refusals", o)
	}
}

// While the registry does not answer, topics that validate get no answer but their deadline, and
// the others go on.
func TestOthersDoNotWaitForTheRegistry(t *testing.T) {
	c := newCluster(t)
	c.cfg.Readers = 1
	j := judge{make(chan struct{})}
	c.cfg.Validator = j
	n := c.start()
	slow := n.create(t, "slow", 1, map[string]string{"table.topic.validate": "id"})
	other := n.create(t, "other", 1, nil)
	ctx, cancel := context.WithCancel(t.Context())
	refused := make(chan error)
	go func() {
		refused <- slow.Append(ctx, produced{values: []string{"wait"}}.bytes(t), func(AppendResult, error) {})
	}()
	<-j.waits
	done := make(chan error, 1)
	soon, end := context.WithTimeout(t.Context(), 10*time.Second)
	defer end()
	if err := other.Append(soon, produced{values: []string{"v"}}.bytes(t), func(_ AppendResult, err error) { done <- err }); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-refused; !errors.Is(err, ErrNotValidated) {
		t.Errorf("without an answer: %v", err)
	}
}

// Validation that has nothing to look at, or nobody to ask, is refused when it is set.
func TestValidationThatCannotWork(t *testing.T) {
	n := newCluster(t).start()
	for _, config := range []map[string]string{
		{"confluent.value.schema.validation": "true"}, // there is no registry
		{"table.topic.validate": "id"},
		{"table.topic.validate": "full", "table.topic.value.format": "string"},
		{"confluent.key.subject.name.strategy": "com.example.Mine"},
		{"table.topic.validate": "some"},
	} {
		if _, err := n.CreateTopic(t.Context(), metadata.NewTopic{Name: "t", Partitions: 1, Config: config}); !errors.Is(err, ErrInvalidConfig) {
			t.Errorf("%v: %v", config, err)
		}
	}
}
