package schemaregistry

import (
	"container/list"
	"sync"

	"github.com/tabletopic/tabletopic/metadata"
)

// A cache keeps what was used last, up to a number of bytes.
type cache[K comparable, V any] struct {
	size  func(V) int
	limit int

	mu    sync.Mutex
	used  int
	order list.List // of cached[K, V], the last used in front
	byKey map[K]*list.Element
}

type cached[K comparable, V any] struct {
	key   K
	value V
	size  int
}

func newCache[K comparable, V any](limit int, size func(V) int) *cache[K, V] {
	return &cache[K, V]{limit: limit, size: size, byKey: map[K]*list.Element{}}
}

func (c *cache[K, V]) get(key K) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[key]
	if e == nil {
		return value, false
	}
	c.order.MoveToFront(e)
	return e.Value.(cached[K, V]).value, true
}

// put adds a value, in the place of an older one.
func (c *cache[K, V]) put(key K, value V) {
	n := c.size(value)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byKey[key]; e != nil {
		c.remove(e)
	}
	if n > c.limit {
		return
	}
	c.byKey[key] = c.order.PushFront(cached[K, V]{key, value, n})
	for c.used += n; c.used > c.limit; {
		c.remove(c.order.Back())
	}
}

func (c *cache[K, V]) remove(e *list.Element) {
	v := c.order.Remove(e).(cached[K, V])
	delete(c.byKey, v.key)
	c.used -= v.size
}

// clear forgets everything.
func (c *cache[K, V]) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.order.Len() > 0 {
		c.remove(c.order.Back())
	}
}

// schemaSize estimates the memory of a schema.
func schemaSize(s metadata.Schema) int {
	n := 512 + len(s.Text) + len(s.Metadata) + len(s.RuleSet)
	for _, r := range s.References {
		n += 64 + len(r.Name) + len(r.Subject)
	}
	return n
}

// size estimates the memory of a schema and the texts of what it refers to.
func (s Schema) size() int {
	n := schemaSize(s.Schema)
	for _, d := range s.Dependencies {
		n += 32 + len(d.Name) + len(d.Text)
	}
	return n
}

// subjectSize estimates the memory of a subject.
func subjectSize(u metadata.Subject) int {
	n := 512
	for _, v := range u.Versions {
		n += schemaSize(v.Schema)
	}
	return n
}
