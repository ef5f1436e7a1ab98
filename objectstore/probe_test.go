package objectstore

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
)

// overwriting ignores the condition, as stores do that do not know it.
type overwriting struct{ *Memory }

func (o overwriting) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	return o.Put(ctx, key, body...)
}

func TestProbeRefusesOverwrite(t *testing.T) {
	m := NewMemory()
	err := Probe(t.Context(), overwriting{m})
	if err == nil || !strings.Contains(err.Error(), "second create") || !strings.Contains(err.Error(), "If-None-Match") {
		t.Errorf("probe: %v, want one that names the second create and If-None-Match", err)
	}
	if left, _ := m.List(t.Context(), "", ""); len(left) > 0 {
		t.Errorf("probe left %v", left)
	}
}

// looking checks the condition before it writes, but not in one step: those that come
// together all pass.
type looking struct {
	*Memory
	together *sync.WaitGroup
}

func (l looking) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	if _, err := l.Get(ctx, key, 0, 0); err == nil {
		return ErrExists
	}
	if strings.HasSuffix(key, "/raced") {
		l.together.Done()
		l.together.Wait()
	}
	return l.Put(ctx, key, body...)
}

func TestProbeRefusesRace(t *testing.T) {
	l := looking{NewMemory(), &sync.WaitGroup{}}
	l.together.Add(probeRacers)
	if err := Probe(t.Context(), l); err == nil || !strings.Contains(err.Error(), "at the same time") {
		t.Errorf("probe: %v, want one that names the race", err)
	}
}

// A store that is away is not one that lacks conditional PUT.
func TestProbeGivesOtherErrors(t *testing.T) {
	f := NewFaulty(NewMemory(), Faults{})
	f.Cut(true)
	if err := Probe(t.Context(), f); !errors.Is(err, ErrInjected) || strings.Contains(err.Error(), "If-None-Match") {
		t.Errorf("probe: %v, want %v", err, ErrInjected)
	}
}
