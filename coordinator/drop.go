package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// The policies of table.topic.on.drop.
const (
	DropRecreate = "recreate" // another table of the name is filled, or made, from the start of the log
	DropPause    = "pause"    // stop until the table is back, or the policy changes
)

// errDropped says that the table that the topic fills is gone, and the policy is to pause.
var errDropped = errors.New("the table of the topic was dropped")

// place is where the table of the topic is, as table.topic.table.id has it before the id: a topic that
// gets another name, or catalog, is to fill another table.
func (c *Coordinator) place() string {
	name := strings.Join(c.ident, ".")
	if c.cfg.Catalog != "" {
		name = c.cfg.Catalog + "/" + name
	}
	return name
}

// checkDropped refuses what has the name of the table, a zero id if nothing has, if it is not the
// table that the topic filled before.
func (c *Coordinator) checkDropped(id uuid.UUID) error {
	place, pinned, _ := strings.Cut(c.pinned, "@")
	if c.cfg.OnDrop != DropPause || place != c.place() || pinned == id.String() || invariant.Off("dropped-table-pauses") {
		return nil
	}
	if id == uuid.Nil {
		return fmt.Errorf("%w, its id was %s: restore it, or set table.topic.on.drop=recreate to have it made again from the start of the log", errDropped, pinned)
	}
	return fmt.Errorf("%w, its id was %s, and another one has its name, with id %s: restore the first, or set table.topic.on.drop=recreate to have the other one filled from the start of the log", errDropped, pinned, id)
}

// remember has the settings of the topic name the table that it fills, for the next coordinator. If that
// fails the next begin does it.
func (c *Coordinator) remember(ctx context.Context) {
	want := ""
	if c.cfg.OnDrop == DropPause {
		want = c.place() + "@" + c.uuid.String()
	}
	if c.pinned == want {
		return
	}
	c.pinned = want
	if c.keepPin == nil {
		return
	}
	if err := c.keepPin(ctx, want); err != nil && ctx.Err() == nil {
		c.log.Warn("which table the topic fills is not written down: the next coordinator does it", "table_id", want, "error", err)
	}
}
