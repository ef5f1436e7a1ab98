package schemaregistry

import (
	"container/list"
	"sync"
)

// A cache keeps the schemas used last, up to a number of bytes.
type cache struct {
	mu    sync.Mutex
	limit int
	used  int
	order list.List // of Schema, the last used in front
	byID  map[int]*list.Element
}

func newCache(limit int) *cache {
	return &cache{limit: limit, byID: map[int]*list.Element{}}
}

func (c *cache) get(id int) (Schema, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byID[id]
	if e == nil {
		return Schema{}, false
	}
	c.order.MoveToFront(e)
	return e.Value.(Schema), true
}

func (c *cache) add(s Schema) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID[s.ID] != nil {
		return
	}
	c.byID[s.ID] = c.order.PushFront(s)
	c.used += s.size()
	for c.used > c.limit && c.order.Len() > 0 {
		c.remove(c.order.Back())
	}
}

func (c *cache) remove(e *list.Element) {
	s := c.order.Remove(e).(Schema)
	delete(c.byID, s.ID)
	c.used -= s.size()
}

// clear forgets everything.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.order.Len() > 0 {
		c.remove(c.order.Back())
	}
}

// size estimates the memory of a schema.
func (s Schema) size() int {
	n := 512 + len(s.Text)
	for _, d := range s.Dependencies {
		n += 32 + len(d.Name) + len(d.Text)
	}
	for _, r := range s.References {
		n += 64 + len(r.Name) + len(r.Subject)
	}
	return n
}
