package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
)

const (
	// stepPause lies between two tries of a step of the start.
	stepPause = 2 * time.Second
	// slowStep is when the log says what a start waits for, though nothing has failed.
	slowStep = 10 * time.Second
)

// patient takes a step of the start, again and again while the object store is busy or does
// not answer: a node that ended instead would be started anew, and ask for all of it again.
// Any other error ends the start.
func (n *Node) patient(ctx context.Context, what string, step func() error) error {
	for {
		slow := time.AfterFunc(slowStep, func() { n.log.Warn("the start waits for the object store", "for", what) })
		err := step()
		slow.Stop()
		if !errors.Is(err, objectstore.ErrUnavailable) || errors.Is(err, objectstore.ErrRefused) {
			return err
		}
		if ctx.Err() == nil {
			n.log.Warn("the object store is busy or does not answer: the start tries again", "for", what, "error", err)
		}
		select {
		case <-time.After(stepPause):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, context.Cause(ctx), err)
		}
	}
}
