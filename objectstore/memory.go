package objectstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Memory is a Bucket that lives as long as the process: for tests and for mem:.
type Memory struct {
	mu      sync.RWMutex
	objects map[string]memoryObject // guarded by mu
	keys    []string                // guarded by mu; sorted
}

// memoryObject is never modified, only replaced.
type memoryObject struct {
	data     []byte
	modified time.Time
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{objects: make(map[string]memoryObject)}
}

// Put implements Bucket.
func (m *Memory) Put(ctx context.Context, key string, body ...[]byte) error {
	return m.put(ctx, key, body, false)
}

// PutIfAbsent implements Bucket.
func (m *Memory) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	return m.put(ctx, key, body, true)
}

func (m *Memory) put(ctx context.Context, key string, body [][]byte, create bool) error {
	if err := CheckKey(key); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	data := slices.Concat(body...)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.objects[key]; ok {
		if create {
			return fmt.Errorf("put %s: %w", key, ErrExists)
		}
	} else {
		at, _ := slices.BinarySearch(m.keys, key)
		if err := m.checkDirectories(key); err != nil {
			return fmt.Errorf("put %s: %w", key, err)
		}
		m.keys = slices.Insert(m.keys, at, key)
	}
	m.objects[key] = memoryObject{data: data, modified: time.Now()}
	return nil
}

// checkDirectories refuses what a directory store could not hold.
func (m *Memory) checkDirectories(key string) error {
	for i := range len(key) {
		if key[i] != '/' {
			continue
		}
		if _, ok := m.objects[key[:i]]; ok {
			return fmt.Errorf("%s is an object, so nothing can be below it", key[:i])
		}
	}
	if at, _ := slices.BinarySearch(m.keys, key+"/"); at < len(m.keys) && strings.HasPrefix(m.keys[at], key+"/") {
		return fmt.Errorf("%s is below it, so it cannot be an object", m.keys[at])
	}
	return nil
}

// Get implements Bucket.
func (m *Memory) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := CheckKey(key); err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	m.mu.RLock()
	o, ok := m.objects[key]
	m.mu.RUnlock()
	if !ok {
		return nil, fmt.Errorf("get %s: %w", key, ErrNotFound)
	}
	from, to := span(int64(len(o.data)), off, n)
	return append([]byte{}, o.data[from:to]...), nil
}

// List implements Bucket.
func (m *Memory) List(ctx context.Context, prefix, after string) ([]Object, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	at, found := slices.BinarySearch(m.keys, max(prefix, after))
	if found && after >= prefix {
		at++ // the key after itself
	}
	var page []Object
	for _, key := range m.keys[at:] {
		if len(page) == PageKeys || !strings.HasPrefix(key, prefix) {
			break
		}
		o := m.objects[key]
		page = append(page, Object{Key: key, Size: int64(len(o.data)), Modified: o.modified})
	}
	return page, nil
}

// Delete implements Bucket.
func (m *Memory) Delete(ctx context.Context, keys ...string) error {
	if err := checkDelete(ctx, keys); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		if at, ok := slices.BinarySearch(m.keys, key); ok {
			m.keys = slices.Delete(m.keys, at, at+1)
			delete(m.objects, key)
		}
	}
	return nil
}

// checkDelete refuses a Delete as a whole.
func checkDelete(ctx context.Context, keys []string) error {
	if err := checkKeys(keys); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil && len(keys) > 0 {
		return &DeleteError{Keys: slices.Clone(keys), Err: err}
	}
	return nil
}

func checkKeys(keys []string) error {
	for _, key := range keys {
		if err := CheckKey(key); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
	}
	return nil
}

// Location is mem:///key.
func (m *Memory) Location(key string) string { return "mem:///" + key }
