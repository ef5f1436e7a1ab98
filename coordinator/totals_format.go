package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go"

	"github.com/tabletopic/tabletopic/coordinator/control"
)

// What a table says of all its commits together, for `tabletopic table verify`: summaries
// tell of each commit, and expire with its snapshot. Both are properties that are set in the
// same change as the snapshot, values as in table_format.go:
//
//	tabletopic.totals.N  of the partitions 32 N to 32 N + 31
//	┌───┬──────────┬──────────┬───────────────────────────────────┬─────┐
//	│ 1 │ topic id │ sequence │ begin:rows:dead:gaps,…  "-": none │ crc │
//	└───┴──────────┴──────────┴───────────────────────────────────┴─────┘
//	tabletopic.lost.N    of all partitions, in n values
//	┌───┬──────────┬──────────┬───┬──────────────────────────────┬─────┐
//	│ 1 │ topic id │ sequence │ n │ partition:start-end:reason,… │ crc │
//	└───┴──────────┴──────────┴───┴──────────────────────────────┴─────┘
//
// From offset begin to the next offset, commits have brought rows into the table and passed
// dead letters and gaps; the other offsets are markers, aborted records and such. A rewind
// that is replayed or accepted begins the count anew. Lost are the offsets that are in no
// commit: the reason is r for retention, where the log had lost them before they were read,
// a for a rewind that was accepted, and s for what is before the start of the table. The newest
// maxLost are kept.
//
// Versions: 1, the first; the reason s came later, and releases before refuse it.
const (
	keyTotals = "tabletopic.totals."
	keyLost   = "tabletopic.lost."

	totalsPerValue = 32
	maxLost        = 20_000
)

// Total is what the commits of a partition have done between Begin and its next offset.
type Total struct {
	Begin, Rows, Dead, Gaps int64
}

// A LostSpan is offsets [Start, End) of which no commit tells.
type LostSpan struct {
	Partition int32  `json:"-"`
	Start     int64  `json:"start"`
	End       int64  `json:"end"`
	Reason    string `json:"reason"` // LostRetention or LostRewind
}

// Why offsets are not in the table.
const (
	LostRetention = "retention" // the log had lost them before they were read
	LostRewind    = "rewind"    // a rollback removed them, and table.topic.on.rewind=accept
	LostStart     = "start"     // they are before table.topic.start
)

// add counts a range in.
func (t Total) add(r control.Range) Total {
	return Total{t.Begin, t.Rows + r.Rows, t.Dead + r.Dead, t.Gaps + r.Gap}
}

// count makes the totals of p, of those of v and what cm adds.
func (p *Position) count(v view, cm *Commit) {
	p.Totals = map[int32]Total{}
	if !v.rewrite {
		for i, t := range v.position.Totals {
			p.Totals[i] = t
		}
	}
	for _, r := range cm.Ranges {
		t, ok := p.Totals[r.Partition]
		if !ok {
			t.Begin = r.Start - r.Gap
		}
		p.Totals[r.Partition] = t.add(r)
	}
	if v.own {
		for _, l := range v.position.Lost {
			if l.Start < v.next[l.Partition] {
				p.Lost = append(p.Lost, l)
			}
		}
	}
	p.Lost = append(append(p.Lost, v.accepted...), cm.gaps()...)
	p.Lost = p.Lost[max(0, len(p.Lost)-maxLost):]
}

// totalsProperties returns what a commit sets: the values of the moved partitions, of all if
// moved is nil, and those of what was lost if that is more than before.
func (p Position) totalsProperties(moved []int32, before []LostSpan) iceberg.Properties {
	props := iceberg.Properties{}
	p.chunks(props, keyTotals, totalsPerValue, moved, func(first int32) string {
		return items(first, totalsPerValue, func(i int32) string {
			if t, ok := p.Totals[i]; ok {
				return fmt.Sprintf("%d:%d:%d:%d", t.Begin, t.Rows, t.Dead, t.Gaps)
			}
			return ""
		})
	})
	if !slices.Equal(p.Lost, before) {
		for i, v := range lostValues(p) {
			props[keyLost+strconv.Itoa(i)] = v
		}
	}
	return props
}

// lostReasons are the reasons as the property has them.
var lostReasons = map[string]string{LostRetention: "r", LostRewind: "a", LostStart: "s"}

// lostValues returns the values of tabletopic.lost, at least one.
func lostValues(p Position) []string {
	items := make([]string, len(p.Lost))
	for i, l := range p.Lost {
		items[i] = fmt.Sprintf("%d:%d-%d:%s", l.Partition, l.Start, l.End, lostReasons[l.Reason])
	}
	const head = 128 // bytes of the other fields
	values := lists(items, maxValue-head)
	if len(values) == 0 {
		values = []string{""}
	}
	for i, list := range values {
		values[i] = p.value(strconv.Itoa(len(values)), list)
	}
	return values
}

func (p Position) parseLost(props iceberg.Properties) (lost []LostSpan, err error) {
	n, sequence := 1, ""
	for i := 0; i < n; i++ {
		value, ok := props[keyLost+strconv.Itoa(i)]
		if !ok && i == 0 {
			return nil, nil
		}
		of, f, err := p.parse(value, 2)
		if err != nil || f == nil {
			return nil, err
		}
		count, err := strconv.Atoi(f[0])
		if i == 0 {
			n, sequence = count, of
		}
		if err != nil || count != n || of != sequence || n > maxLost {
			return nil, fmt.Errorf("%w: value %d of %q is not of the same change as the first", ErrCorruptTable, i, f[0])
		}
		for _, item := range strings.Split(f[1], ",") {
			if item == "" {
				continue
			}
			var l LostSpan
			var reason string
			if n, _ := fmt.Sscanf(item, "%d:%d-%d:%s", &l.Partition, &l.Start, &l.End, &reason); n != 4 {
				return nil, fmt.Errorf("%w: lost offsets %q", ErrCorruptTable, item)
			}
			for name, letter := range lostReasons {
				if letter == reason {
					l.Reason = name
				}
			}
			if l.Reason == "" {
				return nil, fmt.Errorf("%w: lost offsets %q have a reason that this release does not know", ErrCorruptTable, item)
			}
			lost = append(lost, l)
		}
	}
	return lost, nil
}

// readTotals adds to p what the properties say of all commits.
func (p *Position) readTotals(props iceberg.Properties) error {
	if err := p.eachItem(props, keyTotals, totalsPerValue, func(i int32, item string) error {
		if p.Totals == nil {
			p.Totals = map[int32]Total{}
		}
		var t Total
		err := scan(item, "%d:%d:%d:%d", &t.Begin, &t.Rows, &t.Dead, &t.Gaps)
		p.Totals[i] = t
		return err
	}); err != nil {
		return err
	}
	lost, err := p.parseLost(props)
	if err != nil {
		return fmt.Errorf("%sN: %w", keyLost, err)
	}
	p.Lost = lost
	return nil
}

// lostOf returns what was lost of a partition, in order, from the properties and from the
// summaries that are still there.
func lostOf(all []LostSpan, partition int32) []LostSpan {
	var out []LostSpan
	for _, l := range all {
		if l.Partition == partition {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b LostSpan) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End), strings.Compare(a.Reason, b.Reason))
	})
	return slices.Compact(out)
}
