package objectstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Prefix returns the part of b below prefix, a key with or without a slash at its end, as
// a Bucket of its own. An empty prefix returns b. MaxKeyBytes counts the prefix too.
func Prefix(b Bucket, prefix string) (Bucket, error) {
	if prefix == "" {
		return b, nil
	}
	prefix = strings.TrimSuffix(prefix, "/")
	if err := CheckKey(prefix); err != nil {
		return nil, fmt.Errorf("prefix: %w", err)
	}
	return &prefixed{b: b, prefix: prefix + "/"}, nil
}

type prefixed struct {
	b      Bucket
	prefix string // ends in a slash
}

func (p *prefixed) Put(ctx context.Context, key string, body ...[]byte) error {
	if err := CheckKey(key); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	return p.b.Put(ctx, p.prefix+key, body...)
}

func (p *prefixed) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	if err := CheckKey(key); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	return p.b.PutIfAbsent(ctx, p.prefix+key, body...)
}

func (p *prefixed) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := CheckKey(key); err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	return p.b.Get(ctx, p.prefix+key, off, n)
}

func (p *prefixed) List(ctx context.Context, prefix, after string) ([]Object, error) {
	if after != "" {
		after = p.prefix + after
	}
	page, err := p.b.List(ctx, p.prefix+prefix, after)
	for i := range page {
		page[i].Key = page[i].Key[len(p.prefix):]
	}
	return page, err
}

func (p *prefixed) Delete(ctx context.Context, keys ...string) error {
	full := make([]string, len(keys))
	for i, key := range keys {
		if err := CheckKey(key); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		full[i] = p.prefix + key
	}
	err := p.b.Delete(ctx, full...)
	if e, ok := errors.AsType[*DeleteError](err); ok {
		left := make([]string, len(e.Keys))
		for i, key := range e.Keys {
			left[i] = strings.TrimPrefix(key, p.prefix)
		}
		return &DeleteError{Keys: left, Err: e.Err}
	}
	return err
}

func (p *prefixed) Location(key string) string { return Location(p.b, p.prefix+key) }
