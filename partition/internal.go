package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/tabletopic/tabletopic/metadata"
)

// EnsureInternal returns the internal topic of that name, and makes it if the cluster has none.
func (s *Set) EnsureInternal(ctx context.Context, n metadata.NewTopic) (metadata.Topic, error) {
	n.Internal = true
	if t, ok := s.Topic(n.Name); ok {
		return t, nil
	}
	t, err := s.CreateTopic(ctx, n)
	if !errors.Is(err, metadata.ErrTopicExists) {
		return t, err
	}
	// Another node, or another caller, was faster.
	if err := s.Sync(ctx); err != nil {
		return metadata.Topic{}, err
	}
	if t, ok := s.Topic(n.Name); ok {
		return t, nil
	}
	return metadata.Topic{}, fmt.Errorf("%s: %w", n.Name, ErrUnknownTopicOrPartition)
}
