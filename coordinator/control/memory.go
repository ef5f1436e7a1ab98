package control

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// Memory is a Log in memory, for tests. Events pass through their encoding, so that what is
// read is what a topic would give. The zero value is ready.
type Memory struct {
	mu      sync.Mutex
	entries []memoryEntry     // guarded by mu
	start   int               // guarded by mu; of entries, what is kept
	lost    int               // guarded by mu; tails that fell behind it
	grown   chan struct{}     // guarded by mu; closed when entries grow
	refuse  func(Event) error // guarded by mu
}

type memoryEntry struct {
	topic uuid.UUID
	event Event
}

// Refuse makes Append ask fn first, for each event, and return its error. Fn may wait.
func (m *Memory) Refuse(fn func(Event) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refuse = fn
}

// Trim lets go of all events, also for tails that have not read them yet. It returns how many tails have met that.
func (m *Memory) Trim() (lost int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start = len(m.entries)
	return m.lost
}

// Append implements Log.
func (m *Memory) Append(ctx context.Context, topic uuid.UUID, events ...Event) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	refuse := m.refuse
	m.mu.Unlock()
	for _, e := range events {
		if refuse == nil {
			break
		}
		if err := refuse(e); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range events {
		e, err := parseBody(eventVersion, e.kind(), e.appendBody(nil))
		if err != nil {
			return err
		}
		m.entries = append(m.entries, memoryEntry{topic, e})
	}
	if m.grown != nil {
		close(m.grown)
		m.grown = nil
	}
	return nil
}

// Tail implements Log.
func (m *Memory) Tail(topic uuid.UUID) (Tail, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &memoryTail{m, topic, len(m.entries)}, nil
}

// All returns every event of topic so far.
func (m *Memory) All(topic uuid.UUID) []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Event
	for _, e := range m.entries {
		if e.topic == topic {
			out = append(out, e.event)
		}
	}
	return out
}

type memoryTail struct {
	m     *Memory
	topic uuid.UUID
	next  int
}

func (t *memoryTail) Next(ctx context.Context) (Event, error) {
	for {
		t.m.mu.Lock()
		if t.next < t.m.start {
			t.m.lost++
			t.m.mu.Unlock()
			return nil, ErrLost
		}
		for t.next < len(t.m.entries) {
			e := t.m.entries[t.next]
			t.next++
			if e.topic == t.topic {
				t.m.mu.Unlock()
				return e.event, nil
			}
		}
		if t.m.grown == nil {
			t.m.grown = make(chan struct{})
		}
		grown := t.m.grown
		t.m.mu.Unlock()
		select {
		case <-grown:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (t *memoryTail) Close() {}
