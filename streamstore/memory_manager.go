package streamstore

import (
	"cmp"
	"context"
	"fmt"
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
}

type memoryNode struct {
	epoch int64
	wals  []WALState // by epoch; the last is the current life's
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
	named     int       // stream ranges that lie in it
	since     time.Time // unnamed since, or prepared until
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

func (m *MemoryManager) unname(id ObjectID) {
	o := m.objects[id]
	if o.named--; o.named == 0 {
		o.since = m.now()
	}
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
		list = append(list, uploadedObject{ObjectRef{ID: u.StreamSet.ID, Kind: KindStreamSet, Size: u.StreamSet.Size}, u.StreamSet.Ranges})
	}
	for _, o := range u.Streams {
		list = append(list, uploadedObject{ObjectRef{ID: o.ID, Kind: KindStream, Size: o.Size}, []StreamRange{o.Range}})
	}
	return list
}

type uploadedObject struct {
	ObjectRef
	ranges []StreamRange
}

func (m *MemoryManager) CommitUpload(_ context.Context, node Node, u Upload) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.check(node)
	if err != nil {
		return err
	}
	objects := uploaded(u)
	done := 0
	ends := make(map[StreamID]int64) // of the streams that the upload has passed
	for _, o := range objects {
		p := m.objects[o.ID]
		if p == nil || p.node != node.ID || !p.committed && !m.now().Before(p.since) {
			return fmt.Errorf("object %d is not prepared: %w", o.ID, ErrConflict)
		}
		if p.committed {
			done++
			continue
		}
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
	if done > 0 {
		if done < len(objects) {
			return fmt.Errorf("%d of %d objects are committed already: %w", done, len(objects), ErrConflict)
		}
		return nil // the answer of the first call was lost
	}
	wal := slices.IndexFunc(n.wals, func(w WALState) bool { return w.Epoch == u.WALEpoch })
	if wal < 0 {
		return fmt.Errorf("WAL of epoch %d is retired: %w", u.WALEpoch, ErrConflict)
	}
	n.wals[wal].Mark = max(n.wals[wal].Mark, u.WALMark)
	for _, o := range objects {
		p := m.objects[o.ID]
		p.ObjectRef, p.committed, p.since = o.ObjectRef, true, m.now()
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
