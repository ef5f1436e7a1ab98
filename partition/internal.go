package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/tabletopic/tabletopic/metadata"
)

// Nodes that share a database have their own topics, and so each its own internal ones: the
// first to make one has it under its plain name, the others as <name>-<node id>.

// Internal returns the internal topic of that name which this node leads.
func (s *Set) Internal(name string) (metadata.Topic, bool) {
	if t, ok := s.Topic(name); ok {
		return t, true
	}
	return s.Topic(s.internalName(name))
}

func (s *Set) internalName(name string) string {
	return fmt.Sprintf("%s-%d", name, s.store.Node().ID)
}

// EnsureInternal is Internal that makes the topic if this node has none.
func (s *Set) EnsureInternal(ctx context.Context, n metadata.NewTopic) (metadata.Topic, error) {
	n.Internal = true
	name := n.Name
	for _, n.Name = range []string{name, s.internalName(name)} {
		if t, ok := s.Internal(name); ok {
			return t, nil
		}
		t, err := s.CreateTopic(ctx, n)
		if !errors.Is(err, metadata.ErrTopicExists) {
			return t, err
		}
		// Another node has that name, or another caller was faster.
	}
	if t, ok := s.Internal(name); ok {
		return t, nil
	}
	return metadata.Topic{}, fmt.Errorf("%s: %w, led by another node", n.Name, metadata.ErrTopicExists)
}
