package streamstore

import "container/list"

// An lru keeps the most recently used values up to a total cost. Its caller locks.
type lru[K comparable, V any] struct {
	limit, used int64
	order       list.List // of *lruItem[K, V], most recent first
	items       map[K]*list.Element
}

type lruItem[K comparable, V any] struct {
	key   K
	value V
	cost  int64
}

func newLRU[K comparable, V any](limit int64) *lru[K, V] {
	return &lru[K, V]{limit: limit, items: make(map[K]*list.Element)}
}

func (l *lru[K, V]) get(key K) (v V, ok bool) {
	e := l.items[key]
	if e == nil {
		return v, false
	}
	l.order.MoveToFront(e)
	return e.Value.(*lruItem[K, V]).value, true
}

// put adds or replaces a value. One that is larger than the limit is not kept.
func (l *lru[K, V]) put(key K, v V, cost int64) {
	l.remove(key)
	if cost > l.limit {
		return
	}
	l.items[key] = l.order.PushFront(&lruItem[K, V]{key, v, cost})
	l.used += cost
	for l.used > l.limit {
		l.remove(l.order.Back().Value.(*lruItem[K, V]).key)
	}
}

func (l *lru[K, V]) remove(key K) {
	e := l.items[key]
	if e == nil {
		return
	}
	l.used -= e.Value.(*lruItem[K, V]).cost
	l.order.Remove(e)
	delete(l.items, key)
}
