package group

import (
	"container/heap"
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// What a State takes in memory is counted, so that it has a bound: by estimate, in bytes, of what groups, members,
// assignments, offsets and invitations take with the maps that hold them. Offsets are counted as they come and go,
// the rest of a group when somebody asks after it has changed.
const (
	groupBytes     = 800 // an empty group
	offsetBytes    = 180 // an offset, committed or of an open transaction, beside its strings
	memberBytes    = 500 // a member, beside what it says of itself
	inviteBytes    = 100
	heldBytes      = 48  // a partition in an assignment
	ownerBytes     = 72  // a partition that has an owner
	deliveredBytes = 200 // a share-partition, beside what is in flight
	rangeBytes     = 24  // of what is in flight
)

// ErrNoRoom says that there is no room for more in the memory for groups.
var ErrNoRoom = errors.New("no room for more in the memory for groups (groups-memory-bytes): delete groups that nobody needs, or have the server give them more")

// newGroupsPart is the part of the memory that groups which are not there yet may fill. The rest is left for those that
// are: strangers with new names do not stop their members from coming back.
func newGroupsPart(bytes int64) int64 { return bytes / 4 * 3 }

// touch notes that a group is another one than was counted.
func (s *State) touch(g *group) {
	if !g.touched {
		g.touched = true
		s.touched = append(s.touched, g)
	}
}

// held is what the groups take in memory.
func (s *State) held() int64 {
	for _, g := range s.touched {
		g.touched = false
		if s.groups[g.id] == g {
			s.bytes -= g.counted
			g.counted = g.bytes()
			s.bytes += g.counted
		}
	}
	s.touched = s.touched[:0]
	return s.bytes + s.offsetBytes + s.pendingBytes
}

// show has others see what the groups take in memory.
func (s *State) show() { s.shown.Store(s.held()) }

// memory is what the groups take, and may take. Any goroutine may ask.
func (s *State) memory() (bytes, bound int64) { return s.shown.Load(), s.cfg.MemoryBytes }

// dropGroup ends a group.
func (s *State) dropGroup(id string) {
	if g := s.groups[id]; g != nil {
		s.bytes -= g.counted
		s.offsetBytes -= g.offsetBytes
		delete(s.groups, id)
		if g.place != notDue {
			heap.Remove(&s.deadlines, g.place)
		}
	}
}

// forgetEmpty ends a group of which there is nothing.
func (s *State) forgetEmpty(g *group) {
	if !g.kept() {
		s.dropGroup(g.id)
	}
}

// wakeIfEmpty has Tick end a group of which there is nothing.
func (s *State) wakeIfEmpty(g *group) {
	if !g.kept() {
		s.wakeBy(g, atOnce)
	}
}

// free is how many bytes more a group may take; nil stands for one that is not there.
func (s *State) free(g *group) int64 {
	if invariant.Off("group-memory-bounded") {
		return 1 << 40
	}
	if g == nil || !g.kept() {
		return newGroupsPart(s.cfg.MemoryBytes) - s.held() - groupBytes
	}
	return s.cfg.MemoryBytes - s.held()
}

// kept tells whether there is anything of a group but that somebody asked for it.
func (g *group) kept() bool {
	return g.occupied() || len(g.invited)+len(g.offsets)+len(g.unstable) > 0 || !g.since.IsZero()
}

// takes takes n bytes of what is free, or notes that somebody is refused.
func (s *State) takes(free *int64, n int) bool {
	if n > 0 && int64(n) > *free {
		s.refused++
		return false
	}
	*free -= int64(n)
	return true
}

// bytes is what a group takes in memory, without its offsets.
func (g *group) bytes() int64 {
	n := groupBytes + len(g.id) + inviteBytes*len(g.invited) + g.invitedBytes + memberBytes*len(g.members) + g.says.memory
	if c := g.consumer; c != nil {
		n += memberBytes*len(c.members) + c.said + c.matchedSaid + heldBytes*(c.held+c.targeted) + ownerBytes*len(c.owners)
	}
	if c := g.share; c != nil {
		n += memberBytes*len(c.members) + c.said + 2*heldBytes*c.held + deliveredBytes*len(c.states) + rangeBytes*c.ranges
	}
	return int64(n)
}

// A census is what the members of a group of the classic protocol say of themselves, in sum: a join looks at that, and not
// at all members.
type census struct {
	said      int            // bytes that count within MaxBytes
	memory    int            // bytes that they take, beside memberBytes each
	protocols map[string]int // how many of them have it
}

func (c *census) add(m *member) {
	c.said += m.said()
	c.memory += m.bytes()
	if c.protocols == nil {
		c.protocols = map[string]int{}
	}
	for name := range protocolNames(m.protocols) {
		c.protocols[name]++
	}
}

// remove takes a member out, which is as it was when it was added.
func (c *census) remove(m *member) {
	c.said -= m.said()
	c.memory -= m.bytes()
	for name := range protocolNames(m.protocols) {
		if c.protocols[name]--; c.protocols[name] == 0 {
			delete(c.protocols, name)
		}
	}
}

func (m *member) said() int { return saidBytes(m.clientID, &m.instance, m.protocols) }

func (m *member) bytes() int { return m.said() + len(m.id) + len(m.assignment) }

// joinGrowth is what a member of the classic protocol takes when it joins, more than it did; g is nil if there is no
// group yet.
func (g *group) joinGrowth(req *kmsg.JoinGroupRequest, client Client) int {
	n := memberBytes + saidBytes(client.ID, req.InstanceID, req.Protocols)
	if g == nil {
		return n
	}
	if m := g.asks(req); m != nil {
		n -= memberBytes + m.said()
	}
	return n
}

func (o *offset) bytes(tp topicPartition) int { return offsetBytes + len(tp.topic) + len(o.metadata) }

// setOffset notes a committed offset.
func (s *State) setOffset(g *group, tp topicPartition, o offset) {
	s.dropOffset(g, tp)
	g.offsets[tp] = o
	n := int64(o.bytes(tp))
	g.offsetBytes += n
	s.offsetBytes += n
}

func (s *State) dropOffset(g *group, tp topicPartition) {
	if old, ok := g.offsets[tp]; ok {
		n := int64(old.bytes(tp))
		g.offsetBytes -= n
		s.offsetBytes -= n
		delete(g.offsets, tp)
	}
}

// offsetGrowth is what an offset takes more than the one before it; g is nil if there is no group yet.
func (g *group) offsetGrowth(tp topicPartition, o *offset) int {
	n := o.bytes(tp)
	if g == nil {
		return n
	}
	if old, ok := g.offsets[tp]; ok {
		n -= old.bytes(tp)
	}
	return n
}
