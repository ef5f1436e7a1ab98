package partition

import (
	"maps"
	"slices"
	"sync"

	"github.com/tabletopic/tabletopic/metadata"
)

// EventKind says what happened to a topic.
type EventKind int8

const (
	TopicCreated EventKind = iota + 1
	TopicDeleted
	TopicChanged // its configuration or its number of partitions
)

// Event is a change of a topic.
type Event struct {
	Kind  EventKind
	Topic metadata.Topic // after the change; before it for TopicDeleted
}

// event is an entry of the list of events; each watcher holds its place in it, and what all
// have passed is garbage. The list is as long as the slowest watcher is behind.
type event struct {
	ready chan struct{} // closed when value and next are set
	value Event
	next  *event
}

func newEvent() *event { return &event{ready: make(chan struct{})} }

// emitLocked appends an event. The caller holds mu.
func (s *Set) emitLocked(e Event) {
	place := s.last
	s.last = newEvent()
	place.value, place.next = e, s.last
	close(place.ready)
}

// Watch calls fn, from one goroutine and in order, with TopicCreated for every topic that is
// there and then for every change, until cancel or the end of the set. It never misses one.
// cancel returns after the last call; fn must not call it.
func (s *Set) Watch(fn func(Event)) (cancel func()) {
	s.mu.Lock()
	place := s.last
	var present []metadata.Topic
	for _, name := range slices.Sorted(maps.Keys(s.topics)) {
		present = append(present, s.topics[name].Topic)
	}
	s.mu.Unlock()
	stop, done := make(chan struct{}), make(chan struct{})
	s.watchers.Add(1)
	go func() {
		defer s.watchers.Done()
		defer close(done)
		for _, t := range present {
			select {
			case <-stop:
				return
			default:
				fn(Event{Kind: TopicCreated, Topic: t})
			}
		}
		for {
			select {
			case <-place.ready:
				fn(place.value)
				place = place.next
			case <-stop:
				return
			case <-s.ctx.Done():
				return
			}
		}
	}()
	var once sync.Once
	return func() {
		once.Do(func() { close(stop) })
		<-done
	}
}
