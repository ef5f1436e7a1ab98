package coordinator

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go"
)

// Which snapshots hold the last data commit, so that a rollback is told from an expiry when
// what lies between main and the commit is gone. A data commit names its own snapshot; when all
// that are named have expired, a change of properties alone names later ones. The value is as
// in table_format.go:
//
//	tabletopic.heads
//	┌───┬──────────┬──────────┬──────────────┬─────┐
//	│ 1 │ topic id │ sequence │ snapshot,…   │ crc │
//	└───┴──────────┴──────────┴──────────────┴─────┘
//
// Topic id and sequence are those of tabletopic.state; a value of others was left by a release
// that does not write it, and counts for nothing.
//
// Versions: 1, the first.
const (
	keyHeads = "tabletopic.heads"

	maxHeads = 100 // newest first
)

// headsProperty is the value of tabletopic.heads.
func (p Position) headsProperty() string {
	ids := make([]string, min(len(p.Heads), maxHeads))
	for i := range ids {
		ids[i] = strconv.FormatInt(p.Heads[i], 10)
	}
	return p.value(strings.Join(ids, ","))
}

func (p *Position) readHeads(props iceberg.Properties) error {
	value, ok := props[keyHeads]
	if !ok {
		return nil
	}
	of, f, err := p.parse(value, 1)
	if err != nil {
		return fmt.Errorf("%s: %w", keyHeads, err)
	}
	if f == nil || of != strconv.FormatInt(p.Sequence, 10) {
		return nil
	}
	ids := strings.Split(f[0], ",")
	if len(ids) > maxHeads {
		return fmt.Errorf("%s: %w: %d snapshots", keyHeads, ErrCorruptTable, len(ids))
	}
	for _, id := range ids {
		v, err := strconv.ParseInt(id, 10, 64)
		if err != nil {
			return fmt.Errorf("%s: %w: snapshot %q", keyHeads, ErrCorruptTable, id)
		}
		p.Heads = append(p.Heads, v)
	}
	return nil
}
