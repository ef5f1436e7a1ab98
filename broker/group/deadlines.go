package group

import (
	"container/heap"
	"slices"
	"strings"
	"time"
)

// deadlines are the groups that Tick has to look at, the next one first: a heap. A group is looked at when the first of its
// deadlines, as it was last set, has come: one that went on meanwhile, as sessions do with each heartbeat, says when
// again.
type deadlines []*group

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].wake.Before(d[j].wake) }

func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].place, d[j].place = i, j
}

// Push implements [heap.Interface].
func (d *deadlines) Push(g any) {
	g.(*group).place = len(*d)
	*d = append(*d, g.(*group))
}

// Pop implements [heap.Interface].
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	g := (*d)[last]
	g.place = notDue
	(*d)[last] = nil
	*d = (*d)[:last]
	return g
}

// notDue is the place of a group that is not among the deadlines.
const notDue = -1

// atOnce is a time that has come: of a member that a replay has made, whose deadline counts from the first tick.
var atOnce = time.Unix(0, 0)

// wakeBy makes sure that Tick looks at a group no later than t; at once if t is zero.
func (s *State) wakeBy(g *group, t time.Time) {
	if t.IsZero() {
		t = atOnce
	}
	switch {
	case s.groups[g.id] != g: // it has ended
	case g.place == notDue:
		g.wake = t
		heap.Push(&s.deadlines, g)
	case t.Before(g.wake):
		g.wake = t
		heap.Fix(&s.deadlines, g.place)
	}
}

// due takes the groups whose deadlines have come, in an order that does not depend on chance.
func (s *State) due(now time.Time) []*group {
	var due []*group
	for len(s.deadlines) > 0 && !now.Before(s.deadlines[0].wake) {
		due = append(due, heap.Pop(&s.deadlines).(*group))
	}
	slices.SortFunc(due, func(a, b *group) int { return strings.Compare(a.id, b.id) })
	return due
}

// Wake implements [shard.State].
func (s *State) Wake() time.Time {
	wake := s.expiry
	if wake.IsZero() {
		wake = atOnce
	}
	if len(s.deadlines) > 0 && s.deadlines[0].wake.Before(wake) {
		wake = s.deadlines[0].wake
	}
	return wake
}
