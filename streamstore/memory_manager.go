package streamstore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// MemoryManager is a [StreamManager] and an [ObjectManager] in memory: it runs the library
// without a database, and forgets everything with the process.
type MemoryManager struct {
	now func() time.Time

	mu         sync.Mutex // guards all below
	nodes      map[NodeID]*memoryNode
	streams    map[StreamID]*memoryStream
	objects    map[ObjectID]*memoryObject
	nextStream StreamID
	nextObject ObjectID
	sweeper    Node
	sweepUntil time.Time
}

type memoryNode struct {
	epoch  int64
	wals   []WALState // by epoch; the last is the current life's, unless another node leads that
	leader Node       // of the current life; zero if the node itself
}

type memoryStream struct {
	StreamState
	life   int64         // node epoch of its owner
	ranges []ObjectRange // by offset
}

type memoryObject struct {
	ObjectRef
	node      NodeID // that prepared it
	committed bool
	named     int        // stream ranges that lie in it, and composites that link it
	since     time.Time  // unnamed since, or prepared until
	oldest    time.Time  // first commit of the oldest data in it
	parts     []ObjectID // that it links while it is named
}

var (
	_ StreamManager = (*MemoryManager)(nil)
	_ ObjectManager = (*MemoryManager)(nil)
)

// NewMemoryManager returns a manager that knows no node and no stream.
func NewMemoryManager() *MemoryManager {
	return &MemoryManager{
		now:   time.Now,
		nodes: make(map[NodeID]*memoryNode), streams: make(map[StreamID]*memoryStream), objects: make(map[ObjectID]*memoryObject),
		nextStream: 1, nextObject: 1,
	}
}

// check refuses all but the newest life of a node. The caller holds mu.
func (m *MemoryManager) check(node Node) (*memoryNode, error) {
	n := m.nodes[node.ID]
	if n == nil || n.epoch != node.Epoch {
		return nil, fmt.Errorf("node %d epoch %d: %w", node.ID, node.Epoch, ErrNodeFenced)
	}
	return n, nil
}

func (m *MemoryManager) RegisterNode(_ context.Context, id NodeID, wal WALKind) (Node, []WALState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[id]
	if n == nil {
		n = &memoryNode{}
		m.nodes[id] = n
	}
	n.epoch++
	n.leader = Node{}
	earlier := slices.Clone(n.wals)
	n.wals = append(n.wals, WALState{Epoch: n.epoch, Kind: wal})
	return Node{ID: id, Epoch: n.epoch}, earlier, nil
}

func (m *MemoryManager) RetireWAL(_ context.Context, node Node, epoch int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.check(node)
	if err != nil {
		return err
	}
	if epoch >= node.Epoch {
		return fmt.Errorf("retire WAL of epoch %d in epoch %d: only earlier lives: %w", epoch, node.Epoch, ErrConflict)
	}
	n.wals = slices.DeleteFunc(n.wals, func(w WALState) bool { return w.Epoch == epoch })
	return nil
}

func (m *MemoryManager) CreateStreams(_ context.Context, node Node, count int) (StreamID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.check(node); err != nil {
		return 0, err
	}
	first := m.nextStream
	for range count {
		m.streams[m.nextStream] = &memoryStream{StreamState: StreamState{ID: m.nextStream}}
		m.nextStream++
	}
	return first, nil
}

func (m *MemoryManager) OpenStreams(_ context.Context, node Node, open []OpenRequest) ([]StreamState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.check(node); err != nil {
		return nil, err
	}
	for _, o := range open {
		s := m.streams[o.ID]
		switch {
		case s == nil:
			return nil, fmt.Errorf("stream %d: %w", o.ID, ErrStreamNotExist)
		case s.Open && s.Node != node.ID:
			return nil, fmt.Errorf("stream %d is open on node %d: %w", o.ID, s.Node, ErrConflict)
		case o.Epoch < s.Epoch || o.Epoch == s.Epoch && !(s.Open && s.Node == node.ID && s.life == node.Epoch):
			return nil, fmt.Errorf("stream %d has epoch %d, asked for %d: %w", o.ID, s.Epoch, o.Epoch, ErrStreamFenced)
		}
	}
	states := make([]StreamState, len(open))
	for i, o := range open {
		s := m.streams[o.ID]
		s.Epoch, s.Node, s.Open, s.life = o.Epoch, node.ID, true, node.Epoch
		states[i] = s.StreamState
	}
	return states, nil
}

func (m *MemoryManager) Streams(_ context.Context, id NodeID) ([]StreamState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var states []StreamState
	for _, s := range m.streams {
		if s.Open && s.Node == id {
			states = append(states, s.StreamState)
		}
	}
	slices.SortFunc(states, func(a, b StreamState) int { return cmp.Compare(a.ID, b.ID) })
	return states, nil
}

// own returns an open stream of the node. The caller holds mu.
func (m *MemoryManager) own(node Node, id StreamID, epoch int64) (*memoryStream, error) {
	if _, err := m.check(node); err != nil {
		return nil, err
	}
	s := m.streams[id]
	switch {
	case s == nil:
		return nil, fmt.Errorf("stream %d: %w", id, ErrStreamNotExist)
	case s.Epoch != epoch || s.Node != node.ID || !s.Open:
		return nil, fmt.Errorf("stream %d is at epoch %d of node %d, not %d of %d: %w", id, s.Epoch, s.Node, epoch, node.ID, ErrStreamFenced)
	}
	return s, nil
}

func (m *MemoryManager) TrimStream(_ context.Context, node Node, id StreamID, epoch, start int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.own(node, id, epoch)
	if err != nil {
		return err
	}
	if start <= s.Start {
		return nil
	}
	s.Start = start
	m.dropTrimmed(s)
	return nil
}

// dropTrimmed forgets the objects of a stream below its start. The caller holds mu.
func (m *MemoryManager) dropTrimmed(s *memoryStream) {
	n := 0
	for n < len(s.ranges) && s.ranges[n].End <= s.Start {
		m.unname(s.ranges[n].ID)
		n++
	}
	s.ranges = slices.Delete(s.ranges, 0, n)
}

// unname takes one name from an object. A composite that loses its last lets go of its parts.
func (m *MemoryManager) unname(id ObjectID) {
	o := m.objects[id]
	if o.named--; o.named > 0 {
		return
	}
	o.since = m.now()
	for _, part := range o.parts {
		m.unname(part)
	}
	o.parts = nil
}

func (m *MemoryManager) CloseStreams(_ context.Context, node Node, close []OpenRequest) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.check(node); err != nil {
		return err
	}
	for _, c := range close {
		s := m.streams[c.ID]
		if s == nil || !s.Open && s.Epoch == c.Epoch && s.Node == node.ID {
			continue // the answer of the first call was lost
		}
		if _, err := m.own(node, c.ID, c.Epoch); err != nil {
			return err
		}
	}
	for _, c := range close {
		if s := m.streams[c.ID]; s != nil {
			s.Open = false
		}
	}
	return nil
}

func (m *MemoryManager) DeleteStreams(_ context.Context, node Node, ids []StreamID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.check(node); err != nil {
		return err
	}
	for _, id := range ids {
		if s := m.streams[id]; s != nil && s.Open && s.Node != node.ID {
			return fmt.Errorf("stream %d is open on node %d: %w", id, s.Node, ErrConflict)
		}
	}
	for _, id := range ids {
		if s := m.streams[id]; s != nil {
			for _, r := range s.ranges {
				m.unname(r.ID)
			}
			delete(m.streams, id)
		}
	}
	return nil
}

func (m *MemoryManager) TakeOverNode(_ context.Context, by Node, id NodeID) (Node, []WALState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.check(by); err != nil {
		return Node{}, nil, err
	}
	n := m.nodes[id]
	switch {
	case n == nil:
		return Node{}, nil, fmt.Errorf("node %d: %w", id, ErrNodeNotExist)
	case id == by.ID:
		return Node{}, nil, fmt.Errorf("node %d cannot take itself over: %w", id, ErrConflict)
	}
	n.epoch++
	n.leader = by
	return Node{ID: id, Epoch: n.epoch}, slices.Clone(n.wals), nil
}

func (m *MemoryManager) ReleaseNode(_ context.Context, by, node Node) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.check(by); err != nil {
		return err
	}
	n, err := m.check(node)
	switch {
	case err != nil:
		return err
	case n.leader != by:
		return fmt.Errorf("node %d epoch %d is not led by node %d epoch %d: %w", node.ID, node.Epoch, by.ID, by.Epoch, ErrConflict)
	case len(n.wals) > 0:
		return fmt.Errorf("the WAL of epoch %d of node %d is not retired: %w", n.wals[0].Epoch, node.ID, ErrConflict)
	}
	for _, s := range m.streams {
		if s.Node == node.ID {
			s.Open = false
		}
	}
	for _, o := range m.objects {
		if o.node == node.ID && o.committed {
			o.node = by.ID
		}
	}
	return nil
}

func (m *MemoryManager) Nodes(context.Context) ([]NodeState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	nodes := make(map[NodeID]*NodeState, len(m.nodes))
	for id, n := range m.nodes {
		nodes[id] = &NodeState{Node: Node{ID: id, Epoch: n.epoch}, WALs: slices.Clone(n.wals), Leader: n.leader}
	}
	for _, s := range m.streams {
		if s.Open {
			nodes[s.Node].Open++
		}
	}
	list := make([]NodeState, 0, len(nodes))
	for _, n := range nodes {
		list = append(list, *n)
	}
	slices.SortFunc(list, func(a, b NodeState) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

func (m *MemoryManager) PrepareObjects(_ context.Context, node Node, n int, ttl time.Duration) (ObjectID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.check(node); err != nil {
		return 0, err
	}
	first := m.nextObject
	for range n {
		m.objects[m.nextObject] = &memoryObject{ObjectRef: ObjectRef{ID: m.nextObject}, node: node.ID, since: m.now().Add(ttl)}
		m.nextObject++
	}
	return first, nil
}

// uploaded lists an upload's objects with their ranges.
func uploaded(u Upload) []uploadedObject {
	var list []uploadedObject
	if u.StreamSet != nil {
		list = append(list, uploadedObject{ObjectRef{ID: u.StreamSet.ID, Kind: KindStreamSet, Size: u.StreamSet.Size}, u.StreamSet.Ranges, nil})
	}
	for _, o := range u.Streams {
		list = append(list, uploadedObject{ObjectRef{ID: o.ID, Kind: KindStream, Size: o.Size}, []StreamRange{o.Range}, nil})
	}
	return list
}

type uploadedObject struct {
	ObjectRef
	ranges []StreamRange
	parts  []ObjectID
}

// isRepeat checks that all objects are prepared by node, or that all were committed before:
// the answer of the first call was lost. The caller holds mu.
func (m *MemoryManager) isRepeat(node Node, objects []uploadedObject) (bool, error) {
	done := 0
	for _, o := range objects {
		p := m.objects[o.ID]
		if p == nil || p.node != node.ID || !p.committed && !m.now().Before(p.since) {
			return false, fmt.Errorf("object %d is not prepared: %w", o.ID, ErrConflict)
		}
		if p.committed {
			done++
		}
	}
	if done > 0 && done < len(objects) {
		return false, fmt.Errorf("%d of %d objects are committed already: %w", done, len(objects), ErrConflict)
	}
	return done > 0, nil
}

func (m *MemoryManager) CommitUpload(_ context.Context, node Node, u Upload) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.check(node)
	if err != nil {
		return err
	}
	objects := uploaded(u)
	repeat, err := m.isRepeat(node, objects)
	if err != nil || repeat {
		return err
	}
	ends := make(map[StreamID]int64) // of the streams that the upload has passed
	for _, o := range objects {
		for _, r := range o.ranges {
			s := m.streams[r.Stream]
			if s == nil {
				continue
			}
			end, ok := ends[r.Stream]
			if !ok {
				end = s.End
			}
			if s.Epoch != r.Epoch || end != r.Start || !s.Open || s.Node != node.ID {
				return fmt.Errorf("stream %d ends at %d in epoch %d, the upload has %+v: %w", r.Stream, end, s.Epoch, r, ErrConflict)
			}
			ends[r.Stream] = r.End
		}
	}
	wal := slices.IndexFunc(n.wals, func(w WALState) bool { return w.Epoch == u.WALEpoch })
	if wal < 0 {
		return fmt.Errorf("WAL of epoch %d is retired: %w", u.WALEpoch, ErrConflict)
	}
	n.wals[wal].Mark = max(n.wals[wal].Mark, u.WALMark)
	for _, o := range objects {
		p := m.objects[o.ID]
		p.ObjectRef, p.committed, p.since, p.oldest = o.ObjectRef, true, m.now(), m.now()
		for _, r := range o.ranges {
			s := m.streams[r.Stream]
			if s == nil {
				continue
			}
			s.ranges = append(s.ranges, ObjectRange{ObjectRef: o.ObjectRef, Start: r.Start, End: r.End})
			s.End = r.End
			p.named++
		}
	}
	for _, o := range objects {
		for _, r := range o.ranges {
			if s := m.streams[r.Stream]; s != nil {
				m.dropTrimmed(s)
			}
		}
	}
	return nil
}

func (m *MemoryManager) CommitCompaction(_ context.Context, node Node, c Compaction) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.check(node); err != nil {
		return err
	}
	results := compacted(c)
	repeat, err := m.isRepeat(node, results)
	if err != nil || repeat {
		return err
	}
	isSource := make(map[ObjectID]bool)
	for _, id := range c.Sources {
		isSource[id] = true
	}
	now := make(map[StreamID][]ObjectRange)
	for _, o := range results {
		for _, r := range o.ranges {
			now[r.Stream] = append(now[r.Stream], ObjectRange{ObjectRef: o.ObjectRef, Start: r.Start, End: r.End})
		}
	}
	for id, s := range m.streams {
		before := slices.DeleteFunc(slices.Clone(s.ranges), func(r ObjectRange) bool { return !isSource[r.ID] })
		slices.SortFunc(now[id], func(a, b ObjectRange) int { return cmp.Compare(a.Start, b.Start) })
		if !SameRanges(before, now[id], s.Start) {
			return fmt.Errorf("stream %d from %d on: the sources hold %v, the results %v: %w", id, s.Start, before, now[id], ErrConflict)
		}
	}
	if err := m.checkParts(c, isSource); err != nil {
		return err
	}

	oldest := m.now()
	for _, id := range c.Sources {
		if o := m.objects[id]; o != nil && o.oldest.Before(oldest) {
			oldest = o.oldest
		}
	}
	for _, o := range results {
		p := m.objects[o.ID]
		p.ObjectRef, p.committed, p.since, p.oldest = o.ObjectRef, true, m.now(), oldest
	}
	var replaced []ObjectID // once for each range
	for id, s := range m.streams {
		s.ranges = slices.DeleteFunc(s.ranges, func(r ObjectRange) bool {
			if isSource[r.ID] {
				replaced = append(replaced, r.ID)
			}
			return isSource[r.ID]
		})
		for _, r := range now[id] {
			if r.End > s.Start {
				m.objects[r.ID].named++
				s.ranges = append(s.ranges, r)
			}
		}
		slices.SortFunc(s.ranges, func(a, b ObjectRange) int { return cmp.Compare(a.Start, b.Start) })
	}
	for _, o := range results {
		if p := m.objects[o.ID]; p.named > 0 {
			p.parts = slices.Clone(o.parts)
			for _, part := range o.parts {
				m.objects[part].named++
			}
		}
	}
	for _, id := range replaced { // last: parts were kept by what they are replaced in
		m.unname(id)
	}
	return nil
}

// checkParts refuses links to anything but stream objects that the sources keep alive until
// now. The caller holds mu.
func (m *MemoryManager) checkParts(c Compaction, isSource map[ObjectID]bool) error {
	linked := make(map[ObjectID]bool)
	for _, id := range c.Sources {
		if o := m.objects[id]; o != nil {
			for _, part := range o.parts {
				linked[part] = true
			}
		}
	}
	for _, o := range c.Streams {
		for _, part := range o.Parts {
			p := m.objects[part]
			if p == nil || p.named == 0 || p.Kind != KindStream || !linked[part] && !isSource[part] {
				return fmt.Errorf("object %d links object %d, which is no stream object of the sources: %w", o.ID, part, ErrConflict)
			}
		}
	}
	return nil
}

// compacted lists a compaction's results with their ranges.
func compacted(c Compaction) []uploadedObject {
	var list []uploadedObject
	for _, o := range c.StreamSets {
		list = append(list, uploadedObject{ObjectRef{ID: o.ID, Kind: KindStreamSet, Size: o.Size}, o.Ranges, nil})
	}
	for _, o := range c.Streams {
		list = append(list, uploadedObject{ObjectRef{ID: o.ID, Kind: o.Kind(), Size: o.Size}, []StreamRange{o.Range}, o.Parts})
	}
	return list
}

// SameRanges reports whether a and b, each sorted by start, cover the same offsets from start
// on and neither covers one twice.
func SameRanges(a, b []ObjectRange, start int64) bool {
	x, okA := mergeRanges(a, start)
	y, okB := mergeRanges(b, start)
	return okA && okB && slices.Equal(x, y)
}

// mergeRanges returns what the ranges cover from start on, as (start, end) pairs; false if two overlap.
func mergeRanges(ranges []ObjectRange, start int64) (pairs []int64, ok bool) {
	for _, r := range ranges {
		if r.End <= start {
			continue
		}
		from := max(r.Start, start)
		n := len(pairs)
		switch {
		case n > 0 && from < pairs[n-1]:
			return nil, false
		case n > 0 && from == pairs[n-1]:
			pairs[n-1] = r.End
		default:
			pairs = append(pairs, from, r.End)
		}
	}
	return pairs, true
}

func (m *MemoryManager) StreamSetObjects(_ context.Context, id NodeID, after ObjectID, limit int) ([]LiveStreamSet, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sets := make(map[ObjectID]*LiveStreamSet)
	for _, s := range m.streams {
		for _, r := range s.ranges {
			o := m.objects[r.ID]
			if r.Kind != KindStreamSet || o.node != id || r.ID <= after {
				continue
			}
			if sets[r.ID] == nil {
				sets[r.ID] = &LiveStreamSet{StreamSetObject: StreamSetObject{ID: r.ID, Size: r.Size}, Oldest: o.oldest}
			}
			set := sets[r.ID]
			set.Ranges = append(set.Ranges, StreamRange{Stream: s.ID, Start: max(r.Start, s.Start), End: r.End})
		}
	}
	list := make([]LiveStreamSet, 0, len(sets))
	for _, set := range sets {
		slices.SortFunc(set.Ranges, func(a, b StreamRange) int { return cmp.Compare(a.Stream, b.Stream) })
		list = append(list, *set)
	}
	slices.SortFunc(list, func(a, b LiveStreamSet) int { return cmp.Compare(a.ID, b.ID) })
	return list[:min(limit, len(list))], nil
}

func (m *MemoryManager) StreamObjects(_ context.Context, id StreamID, start, end int64, limit int) ([]ObjectRange, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streams[id]
	if s == nil {
		return nil, fmt.Errorf("stream %d: %w", id, ErrStreamNotExist)
	}
	if start < s.Start {
		return nil, fmt.Errorf("stream %d starts at %d, asked from %d: %w", id, s.Start, start, ErrOffsetOutOfRange)
	}
	var found []ObjectRange
	for _, r := range s.ranges {
		if r.End > start && r.Start < end && len(found) < limit {
			found = append(found, r)
		}
	}
	return found, nil
}

func (m *MemoryManager) DeletableObjects(_ context.Context, node Node, grace time.Duration, limit int) ([]ObjectRef, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.check(node); err != nil {
		return nil, err
	}
	before := m.now().Add(-grace)
	var refs []ObjectRef
	for _, o := range m.objects {
		if o.named == 0 && !o.since.After(before) {
			refs = append(refs, o.ObjectRef)
		}
	}
	slices.SortFunc(refs, func(a, b ObjectRef) int { return cmp.Compare(a.ID, b.ID) })
	return refs[:min(limit, len(refs))], nil
}

func (m *MemoryManager) ForgetObjects(_ context.Context, node Node, ids []ObjectID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.check(node); err != nil {
		return err
	}
	for _, id := range ids {
		if o := m.objects[id]; o != nil && o.named > 0 {
			return fmt.Errorf("object %d is in use: %w", id, ErrConflict)
		}
	}
	for _, id := range ids {
		delete(m.objects, id)
	}
	return nil
}

// known describes an object. The caller holds mu.
func (m *MemoryManager) known(o *memoryObject) KnownObject {
	k := KnownObject{ObjectRef: o.ObjectRef, State: ObjectReferenced, Node: o.node, Since: o.since}
	switch {
	case !o.committed && m.now().Before(o.since):
		k.State = ObjectPrepared
	case o.named == 0:
		k.State = ObjectDestroyed
	}
	return k
}

func (m *MemoryManager) Objects(_ context.Context, after ObjectID, limit int) ([]KnownObject, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := make(map[ObjectID]*KnownObject)
	var list []KnownObject
	for id, o := range m.objects {
		if id > after {
			list = append(list, m.known(o))
		}
	}
	slices.SortFunc(list, func(a, b KnownObject) int { return cmp.Compare(a.ID, b.ID) })
	list = list[:min(limit, len(list))]
	for i := range list {
		at[list[i].ID] = &list[i]
		list[i].Parts = slices.Sorted(slices.Values(m.objects[list[i].ID].parts))
	}
	for _, id := range slices.Sorted(maps.Keys(m.streams)) {
		s := m.streams[id]
		for _, r := range s.ranges {
			if o := at[r.ID]; o != nil {
				o.Ranges = append(o.Ranges, StreamRange{Stream: id, Start: max(r.Start, s.Start), End: r.End})
			}
		}
	}
	return list, nil
}

func (m *MemoryManager) FindObjects(_ context.Context, ids []ObjectID) ([]KnownObject, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []KnownObject
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		if o := m.objects[id]; o != nil {
			list = append(list, m.known(o))
		}
	}
	return list, nil
}

func (m *MemoryManager) Composites(_ context.Context, part ObjectID) ([]ObjectID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []ObjectID
	for id, o := range m.objects {
		if slices.Contains(o.parts, part) {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list, nil
}

func (m *MemoryManager) CountObjects(context.Context) (map[ObjectState]ObjectCount, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := make(map[ObjectState]ObjectCount)
	for _, o := range m.objects {
		k := m.known(o)
		counts[k.State] = ObjectCount{counts[k.State].Objects + 1, counts[k.State].Bytes + k.Size}
	}
	return counts, nil
}

func (m *MemoryManager) ClaimSweep(_ context.Context, node Node, ttl time.Duration) (SweepClaim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.check(node); err != nil {
		return SweepClaim{}, err
	}
	mine := m.sweeper == node || !m.now().Before(m.sweepUntil)
	if mine {
		m.sweeper, m.sweepUntil = node, m.now().Add(ttl)
	}
	return SweepClaim{Mine: mine, Until: m.sweepUntil, Last: m.nextObject - 1}, nil
}
