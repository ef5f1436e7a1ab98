package partition

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/streamstore"
)

// The cluster as a node sees it. Metadata is the truth of who leads what: each node follows the
// change log, opens what it has come to lead, and closes what it leads no more. That a node
// sees it late costs its clients an ErrNotLeader; it never lets two nodes lead, since streams
// open for one node at a time. Who lives is an opinion, found by asking: it says where new
// partitions go and which addresses clients get, and decides nothing about records.

// Peers reaches the other nodes of the cluster.
type Peers interface {
	// Alive reports whether the node answers, in that life.
	Alive(ctx context.Context, m metadata.Member) bool
	// Sync makes the node look at what others changed, and returns when it has.
	Sync(ctx context.Context, m metadata.Member) error
	// Read is [Partition.Read] of a partition that the node leads; of nothing but the offsets if
	// maxBytes is 0.
	Read(ctx context.Context, m metadata.Member, id ID, from int64, maxBytes int, isolation Isolation) (ReadResult, error)
	// AppendDeadLetters is [Partition.AppendDeadLetters] on a partition that the node leads.
	AppendDeadLetters(ctx context.Context, m metadata.Member, id ID, sourceTopic uuid.UUID, sourcePartition int32, letters []DeadLetter) error
}

// A Member is a node of the cluster as this one sees it.
type Member struct {
	metadata.Member
	Alive bool

	misses int // questions without an answer, since the last one
}

// maxMisses is how many questions a node leaves without an answer before it counts as dead.
const maxMisses = 2

// openPatience bounds an attempt to open what this node has come to lead.
const openPatience = 10 * time.Second

// syncPatience bounds how long a change waits for other nodes to see it.
const syncPatience = time.Second

// Members returns the nodes that take part in the cluster, by id, this one included once it is
// announced.
func (s *Set) Members() []Member {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.members)
}

// Lives reports whether a node is there to lead its partitions, as far as this one knows.
func (s *Set) Lives(id streamstore.NodeID) bool {
	if id == s.store.Node().ID {
		return true
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.ContainsFunc(s.members, func(m Member) bool { return m.ID == id && m.Alive })
}

// Node returns the node that the set belongs to.
func (s *Set) Node() streamstore.Node { return s.store.Node() }

// Led returns the partitions of a topic that this node serves, with their leader epochs.
func (s *Set) Led(name string) map[int32]int32 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	led := map[int32]int32{}
	if t := s.topics[name]; t != nil {
		for _, p := range t.partitions {
			if p != nil {
				led[p.index] = p.epoch
			}
		}
	}
	return led
}

// others returns the members that live, without this node.
func (s *Set) others() []Member {
	return slices.DeleteFunc(s.Members(), func(m Member) bool { return m.ID == s.store.Node().ID || !m.Alive })
}

// place returns the nodes that new partitions go round: those that live, the one that leads the
// fewest partitions first. Nil if this node is alone.
func (s *Set) place(ctx context.Context) []streamstore.NodeID {
	if err := s.Sync(ctx); err != nil {
		return nil // the change itself says why
	}
	others := s.others()
	lives := make([]bool, len(others))
	var asked sync.WaitGroup
	for i, m := range others {
		asked.Go(func() { lives[i] = s.asks(ctx, m) })
	}
	asked.Wait()
	nodes := []streamstore.NodeID{s.store.Node().ID}
	for i, m := range others {
		if lives[i] {
			nodes = append(nodes, m.ID)
		}
	}
	if len(nodes) == 1 {
		return nil
	}
	leads := map[streamstore.NodeID]int{}
	for _, t := range s.Topics() {
		for _, p := range t.Partitions {
			leads[p.Leader]++
		}
	}
	slices.SortFunc(nodes, func(a, b streamstore.NodeID) int {
		if leads[a] != leads[b] {
			return leads[a] - leads[b]
		}
		return int(a) - int(b)
	})
	return nodes
}

// asks reports whether a member answers now.
func (s *Set) asks(ctx context.Context, m Member) bool {
	if s.cfg.Peers == nil {
		return m.Alive
	}
	ctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	return s.cfg.Peers.Alive(ctx, m.Member)
}

// tellOthers lets the other nodes see a change, within bounds: they would find it anyway.
func (s *Set) tellOthers(ctx context.Context) {
	if s.cfg.Peers == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	var told sync.WaitGroup
	for _, m := range s.others() {
		told.Go(func() {
			if err := s.cfg.Peers.Sync(ctx, m.Member); err != nil {
				s.log.Debug("a node was not told of a change: it finds it by itself", "peer", m.ID, "err", err)
			}
		})
	}
	told.Wait()
}

// Sync looks at what others changed, and returns when this node has followed.
func (s *Set) Sync(ctx context.Context) error {
	if err := s.change(ctx); err != nil {
		return err
	}
	s.admin.leave()
	return nil
}

// followLoop follows the change log, and tries again what could not be opened, until the set
// closes. A database that no other node uses is not asked.
func (s *Set) followLoop() {
	timer := time.NewTimer(s.cfg.FollowInterval)
	defer timer.Stop()
	failed, unfinished := false, false
	for {
		var due <-chan time.Time
		if s.meta.Shared() || failed || unfinished {
			timer.Reset(s.cfg.FollowInterval)
			due = timer.C
		}
		select {
		case <-due:
		case <-s.poke:
		case <-s.ctx.Done():
			return
		}
		if s.admin.enter(s.ctx) != nil {
			return
		}
		err := s.catchUp(s.ctx)
		unfinished = len(s.unfinished) > 0
		s.admin.leave()
		if err != nil && !failed && s.ctx.Err() == nil {
			s.log.Warn("the cluster's metadata cannot be followed, trying again", "err", err)
		}
		failed = err != nil
	}
}

// catchUp brings the set to what metadata says now. The caller holds admin.
func (s *Set) catchUp(ctx context.Context) error {
	dirty := s.unfinished
	s.unfinished = map[uuid.UUID]int{}
	if s.meta.Shared() {
		dirty = maps.Clone(dirty)
		if err := s.changes(ctx, dirty); err != nil {
			maps.Copy(s.unfinished, dirty)
			return err
		}
	}
	for id, attempts := range dirty {
		if err := s.refreshWithin(id); err != nil {
			s.postpone(id, attempts+1, err)
		}
	}
	return nil
}

// changes reads the change log to its end and adds the topics that changed to dirty.
func (s *Set) changes(ctx context.Context, dirty map[uuid.UUID]int) error {
	const page = 1000
	nodes := false
	for {
		changes, err := s.meta.Changes(ctx, s.seq, page)
		if errors.Is(err, metadata.ErrChangesPruned) {
			if err := s.rescan(ctx, dirty); err != nil {
				return err
			}
			nodes = true
			continue
		}
		if err != nil {
			return err
		}
		for _, c := range changes {
			switch c.Kind {
			case metadata.ChangeTopic:
				id, err := uuid.Parse(c.Subject)
				if err != nil {
					return fmt.Errorf("change %d: topic %q: %w", c.Seq, c.Subject, err)
				}
				mark(dirty, id)
			case metadata.ChangeNode:
				nodes = true
			}
			s.seq = c.Seq
		}
		if len(changes) == page {
			continue
		}
		if nodes {
			return s.readMembers(ctx)
		}
		return nil
	}
}

func mark(dirty map[uuid.UUID]int, id uuid.UUID) {
	if _, marked := dirty[id]; !marked {
		dirty[id] = 0
	}
}

// rescan marks every topic as changed and goes on from the end of the change log.
func (s *Set) rescan(ctx context.Context, dirty map[uuid.UUID]int) error {
	seq, err := s.meta.LastChange(ctx)
	if err != nil {
		return err
	}
	topics, err := s.meta.Topics(ctx)
	if err != nil {
		return err
	}
	for _, t := range topics {
		mark(dirty, t.ID)
	}
	for _, t := range s.Topics() {
		mark(dirty, t.ID)
	}
	s.seq = seq
	return nil
}

// readMembers reads who takes part. A new life counts as alive until it leaves questions open. That a later life of this very node
// has begun ends it: it may have nothing to write, and would not hear of it.
func (s *Set) readMembers(ctx context.Context) error {
	if err := s.meta.CheckNode(ctx, s.store.Node()); err != nil {
		if errors.Is(err, streamstore.ErrNodeFenced) && !invariant.Off("takeover-noticed") {
			s.store.Replaced(err)
		}
		return err
	}
	read, err := s.meta.Members(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	members := make([]Member, len(read))
	for i, m := range read {
		members[i] = Member{Member: m, Alive: true}
		if j := slices.IndexFunc(s.members, func(o Member) bool { return o.Member == m }); j >= 0 {
			members[i] = s.members[j]
		}
	}
	s.members = members
	return nil
}

// probeLoop asks the other nodes whether they live, until the set closes.
func (s *Set) probeLoop() {
	if !s.meta.Shared() || s.cfg.Peers == nil {
		return
	}
	ticker := time.NewTicker(s.cfg.ProbeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.ctx.Done():
			return
		}
		var asked sync.WaitGroup
		for _, m := range s.Members() {
			if m.ID != s.store.Node().ID {
				asked.Go(func() { s.noteAnswer(m, s.asks(s.ctx, m)) })
			}
		}
		asked.Wait()
	}
}

func (s *Set) noteAnswer(m Member, answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.members, func(o Member) bool { return o.Member == m.Member })
	if i < 0 || s.ctx.Err() != nil {
		return
	}
	now := &s.members[i]
	if now.misses++; answered {
		now.misses = 0
	}
	if alive := now.misses < maxMisses; alive != now.Alive {
		now.Alive = alive
		s.log.Info("a node of the cluster", "peer", m.ID, "alive", alive)
	}
}

// postpone leaves a topic to the loop that follows.
func (s *Set) postpone(id uuid.UUID, attempts int, err error) {
	s.unfinished[id] = attempts
	if s.ctx.Err() == nil && attempts&(attempts-1) == 0 { // less and less often
		s.log.Warn("topic is not as metadata has it yet, trying again", "topic_id", id, "err", err)
	}
}

// refreshWithin is refresh with bounds of its own: it goes on if the caller does not wait, and
// lets others have admin if the bucket is away.
func (s *Set) refreshWithin(id uuid.UUID) error {
	ctx, cancel := context.WithTimeout(s.ctx, openPatience)
	defer cancel()
	return s.refresh(ctx, id)
}

// refresh brings one topic to what metadata says. The caller holds admin.
func (s *Set) refresh(ctx context.Context, id uuid.UUID) error {
	t, err := s.meta.Topic(ctx, id)
	if errors.Is(err, metadata.ErrTopicNotExist) {
		s.mu.RLock()
		old := s.byID[id]
		s.mu.RUnlock()
		if old != nil {
			s.drop(ctx, old)
		}
		return nil
	}
	if err != nil {
		return err
	}
	return s.apply(ctx, t)
}

// applyMine applies what this node has changed: even if ctx ends now it must be followed.
func (s *Set) applyMine(ctx context.Context, t metadata.Topic) error {
	err := s.apply(context.WithoutCancel(ctx), t)
	if err != nil {
		s.postpone(t.ID, 1, err)
		select {
		case s.poke <- struct{}{}:
		default:
		}
	}
	return err
}

// apply brings a topic to what metadata said: partitions that this node has come to lead are
// opened, those that it leads no more are closed. The caller holds admin.
func (s *Set) apply(ctx context.Context, t metadata.Topic) error {
	s.mu.RLock()
	old, namesake := s.byID[t.ID], s.topics[t.Name]
	s.mu.RUnlock()
	if namesake != nil && namesake != old {
		s.drop(ctx, namesake)
	}
	t, err := s.takeBack(ctx, t, old)
	if err != nil {
		return err
	}
	opened, err := s.open(ctx, []metadata.Topic{t}, old)
	if opened == nil {
		return err
	}
	now := opened[0]
	if old != nil {
		for i, p := range old.partitions {
			if p != nil && now.partition(i) != p {
				p.close(errors.New("another node leads it"))
				p.endMove()
			}
		}
		if !maps.Equal(t.Config, old.Config) {
			cfg, cerr := s.parseConfig(t)
			if cerr != nil {
				return cerr
			}
			now.configure(cfg)
		}
	}
	switch {
	case old == nil:
		s.put(now, TopicCreated)
	case !now.equal(old):
		s.put(now, TopicChanged)
	}
	return err
}

func (t *topic) configure(cfg TopicConfig) {
	for _, p := range t.partitions {
		if p != nil {
			p.config.Store(&cfg)
			p.retainAt.Store(0)
		}
	}
}

func (t *topic) equal(o *topic) bool {
	return maps.Equal(t.Config, o.Config) && slices.Equal(t.Topic.Partitions, o.Topic.Partitions) && slices.Equal(t.partitions, o.partitions)
}

// takeBack raises the epochs of partitions whose move ended before another node led them: their
// streams may be closed already, and open again only in a new epoch.
func (s *Set) takeBack(ctx context.Context, t metadata.Topic, old *topic) (metadata.Topic, error) {
	var back []metadata.PartitionMove
	node := s.store.Node()
	for i, p := range t.Partitions {
		if had := old.partition(i); had != nil && had.Moving() && p.Leader == node.ID && p.LeaderEpoch == had.epoch {
			back = append(back, metadata.PartitionMove{Topic: t.ID, Index: p.Index, From: node.ID, To: node.ID})
		}
	}
	if len(back) == 0 {
		return t, nil
	}
	if err := s.meta.MovePartitions(ctx, node, back); err != nil {
		return t, err
	}
	return s.meta.Topic(ctx, t.ID)
}

func (s *Set) put(t *topic, kind EventKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topics[t.Name], s.byID[t.ID] = t, t
	s.emitLocked(Event{Kind: kind, Topic: t.Topic})
}

// ID names a partition.
type ID struct {
	Topic string
	Index int32
}

func (id ID) String() string { return fmt.Sprintf("%s-%d", id.Topic, id.Index) }

// ErrNodeAway says that partitions cannot move to a node, for it is not there to lead them.
var ErrNodeAway = errors.New("node is not alive")

// Move makes another node the leader of partitions, all or none: those that this node leads,
// and those whose leader is dead and recovered. ErrNotLeader says that a third node leads one.
//
// This node stops appends, waits for those before, uploads what no object holds and closes the
// streams; metadata then names the new leader, with the next epoch, which opens the streams
// and recovers the partitions. No bytes move. If it fails on the way this node leads on, in a
// new epoch. Pause is how long nobody served what this node led.
func (s *Set) Move(ctx context.Context, ids []ID, to streamstore.NodeID) (pause time.Duration, err error) {
	target, err := s.target(ctx, to)
	if err != nil {
		return 0, err
	}
	s.checkpointAhead(ctx, ids)
	began, err := s.move(ctx, ids, to)
	if err != nil {
		return 0, err
	}
	if s.cfg.Peers != nil && to != s.store.Node().ID {
		if err := s.cfg.Peers.Sync(ctx, target); err != nil {
			return 0, fmt.Errorf("node %d leads %d partitions from now on, and has not said yet that it serves them: %w", to, len(ids), err)
		}
	}
	pause = time.Since(began)
	s.log.Info("partitions moved", "partitions", len(ids), "to", to, "pause", pause.Round(time.Millisecond))
	return pause, nil
}

func (s *Set) target(ctx context.Context, to streamstore.NodeID) (metadata.Member, error) {
	for _, m := range s.Members() {
		if m.ID == to && (to == s.store.Node().ID || s.asks(ctx, m)) {
			return m.Member, nil
		}
	}
	return metadata.Member{}, fmt.Errorf("node %d: %w: 'tabletopic node list' shows those that are", to, ErrNodeAway)
}

// checkpointAhead leaves little for the new leader to replay, while the partitions still serve.
func (s *Set) checkpointAhead(ctx context.Context, ids []ID) {
	var g errgroup.Group
	g.SetLimit(s.cfg.RecoverParallel)
	for _, id := range ids {
		if p, err := s.Partition(id.Topic, id.Index); err == nil {
			g.Go(func() error {
				if err := p.checkpoint(ctx); err != nil {
					s.log.Debug("checkpoint before a move", "topic", p.topic, "partition", p.index, "err", err)
				}
				return nil
			})
		}
	}
	_ = g.Wait()
}

// move does this node's part, and returns when it stopped to serve.
func (s *Set) move(ctx context.Context, ids []ID, to streamstore.NodeID) (began time.Time, err error) {
	if err := s.change(ctx); err != nil {
		return began, err
	}
	defer s.admin.leave()
	moves, mine, err := s.plan(ids, to)
	began = time.Now()
	if err != nil || len(moves) == 0 {
		return began, err
	}
	err = s.closeStreams(ctx, mine)
	if err == nil {
		err = s.meta.MovePartitions(ctx, s.store.Node(), moves)
	}
	// Whatever came of it, metadata says who leads.
	topics := map[uuid.UUID]bool{}
	for _, m := range moves {
		topics[m.Topic] = true
	}
	for id := range topics {
		rerr := err
		if err == nil {
			rerr = s.refreshWithin(id)
		}
		if rerr != nil {
			s.postpone(id, 1, rerr)
		}
	}
	if err != nil {
		return began, fmt.Errorf("move %d partitions to node %d: %w", len(moves), to, err)
	}
	return began, nil
}

// plan returns the moves and the partitions among them that this node leads. What the target
// leads already is left out.
func (s *Set) plan(ids []ID, to streamstore.NodeID) (moves []metadata.PartitionMove, mine []*Partition, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	node := s.store.Node().ID
	for _, id := range ids {
		t := s.topics[id.Topic]
		if t == nil || id.Index < 0 || int(id.Index) >= len(t.partitions) {
			return nil, nil, fmt.Errorf("%w: %s", ErrUnknownTopicOrPartition, id)
		}
		leader := t.Topic.Partitions[id.Index].Leader
		if leader == to {
			continue
		}
		p := t.partitions[id.Index]
		switch member := slices.ContainsFunc(s.members, func(m Member) bool { return m.ID == leader }); {
		case leader == node && p == nil:
			return nil, nil, fmt.Errorf("%w: %s is being opened here: try again", ErrNotLeader, id)
		case leader == node:
			mine = append(mine, p)
		case member:
			return nil, nil, fmt.Errorf("%w: node %d leads %s", ErrNotLeader, leader, id)
		}
		moves = append(moves, metadata.PartitionMove{Topic: t.ID, Index: id.Index, From: leader, To: to})
	}
	return moves, mine, nil
}

// closeStreams closes the streams of partitions, with all that was acknowledged in objects.
func (s *Set) closeStreams(ctx context.Context, partitions []*Partition) error {
	var streams []*streamstore.Stream
	for _, p := range partitions {
		if err := p.checkpointing.enter(ctx); err != nil {
			return err
		}
		defer p.checkpointing.leave()
	}
	for _, p := range partitions {
		p.startMove()
		streams = append(streams, p.meta, p.log)
	}
	if err := s.store.CloseStreams(ctx, streams); err != nil {
		return streamError(err)
	}
	return nil
}

// startMove refuses everything from now on.
func (p *Partition) startMove() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moving = make(chan struct{})
	p.closeLocked(errors.New("it moves to another node"))
}

// endMove says that it is known who leads the partition.
func (p *Partition) endMove() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moving != nil {
		select {
		case <-p.moving:
		default:
			close(p.moving)
		}
	}
}

// Moving reports whether the partition is closed to be led by another node: the set will know
// which, or lead it again.
func (p *Partition) Moving() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moving != nil
}

// Leader returns who leads a partition, and in which epoch, for a client that asked the wrong
// node. While the partition moves away from here it waits, until ctx ends, for where to.
func (s *Set) Leader(ctx context.Context, id ID) (leader streamstore.NodeID, epoch int32, ok bool) {
	if p, err := s.Partition(id.Topic, id.Index); err == nil {
		p.mu.Lock()
		moving := p.moving
		p.mu.Unlock()
		if moving != nil {
			select {
			case <-moving:
			case <-ctx.Done():
				return 0, 0, false
			}
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.topics[id.Topic]
	if t == nil || id.Index < 0 || int(id.Index) >= len(t.Topic.Partitions) {
		return 0, 0, false
	}
	p := t.Topic.Partitions[id.Index]
	return p.Leader, p.LeaderEpoch, true
}
