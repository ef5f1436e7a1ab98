package control

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/partition"
)

// hubs has a hub for each control partition that somebody on this node follows.
type hubs struct {
	mu   sync.Mutex
	open map[*partition.Partition]*hub // guarded by mu
}

// A hub looks at the keys of a control partition once for all who follow topics in it, and
// wakes those that there is something for: with a thousand topics an event is read by its own
// coordinator and worker, and not by two thousand.
type hub struct {
	p      *partition.Partition
	cancel context.CancelFunc
	done   chan struct{} // closed when run has ended

	mu      sync.Mutex
	seen    int64                          // guarded by mu; records below are told of
	err     error                          // guarded by mu; why run has ended
	members map[uuid.UUID]map[*member]bool // guarded by mu; by topic
	count   int                            // guarded by hubs.mu; of members
}

// A member follows one topic.
type member struct {
	hub   *hub
	topic uuid.UUID
	moved chan<- struct{}
	due   int64 // guarded by hub.mu; the first record for it that it has not taken; -1 if none
}

// enter follows a topic from an offset on. moved, of capacity 1, gets something whenever take
// has something.
func (s *hubs) enter(p *partition.Partition, topic uuid.UUID, from int64, moved chan<- struct{}) *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.open[p]
	if h == nil {
		ctx, cancel := context.WithCancel(context.Background())
		h = &hub{p: p, cancel: cancel, done: make(chan struct{}), seen: p.Offsets().HighWatermark, members: map[uuid.UUID]map[*member]bool{}}
		if s.open == nil {
			s.open = map[*partition.Partition]*hub{}
		}
		s.open[p] = h
		go h.run(ctx)
	}
	h.count++
	m := &member{hub: h, topic: topic, moved: moved, due: -1}
	h.mu.Lock()
	defer h.mu.Unlock()
	if from < h.seen {
		m.due = from
	}
	if h.members[topic] == nil {
		h.members[topic] = map[*member]bool{}
	}
	h.members[topic][m] = true
	return m
}

// leave ends it. The hub ends with the last that leaves.
func (s *hubs) leave(m *member) {
	h := m.hub
	s.mu.Lock()
	h.count--
	last := h.count == 0
	if last {
		delete(s.open, h.p)
	}
	s.mu.Unlock()
	h.mu.Lock()
	delete(h.members[m.topic], m)
	if len(h.members[m.topic]) == 0 {
		delete(h.members, m.topic)
	}
	h.mu.Unlock()
	if last {
		h.cancel()
		<-h.done
	}
}

// take returns the stretch of the log that has all that is new to the member; empty if there
// is nothing.
func (m *member) take() (from, until int64, err error) {
	m.hub.mu.Lock()
	defer m.hub.mu.Unlock()
	if m.due < 0 {
		return 0, 0, m.hub.err
	}
	from, m.due = m.due, -1
	return from, m.hub.seen, nil
}

// passed returns the offset below which there is nothing for the member that take did not give.
func (m *member) passed() int64 {
	m.hub.mu.Lock()
	defer m.hub.mu.Unlock()
	if m.due >= 0 {
		return m.due
	}
	return m.hub.seen
}

// run looks at what comes until ctx ends, or the partition is closed or trimmed.
func (h *hub) run(ctx context.Context) {
	defer close(h.done)
	moved := make(chan struct{}, 1)
	defer h.p.Notify(moved)()
	for {
		if err := h.look(ctx); err != nil {
			h.fail(err)
			return
		}
		if h.seen < h.p.Offsets().HighWatermark {
			continue
		}
		select {
		case <-moved: // a closed partition notifies too, and look tells
		case <-ctx.Done():
			return
		}
	}
}

// look reads a stretch, and wakes whom it is for.
func (h *hub) look(ctx context.Context) error {
	first := map[uuid.UUID]int64{} // of the stretch, by topic
	next, err := eachRecord(ctx, h.p, h.seen, func(topic uuid.UUID, offset int64, _ []byte) error {
		if _, ok := first[topic]; !ok {
			first[topic] = offset
		}
		return nil
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = next
	for topic, offset := range first {
		for m := range h.members[topic] {
			if m.due < 0 || invariant.Off("control-first-due") {
				m.due = offset
			}
			m.wake()
		}
	}
	return err
}

func (m *member) wake() {
	select {
	case m.moved <- struct{}{}:
	default:
	}
}

// fail tells everybody that nothing comes any more.
func (h *hub) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
	for _, members := range h.members {
		for m := range members {
			m.wake()
		}
	}
}
