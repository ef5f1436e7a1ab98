package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Config holds the settings of a [Set]. The zero value of a field means its default.
type Config struct {
	// CheckpointBytes of new log start a checkpoint of the partition: about so much is
	// replayed at a start after a crash. 4 MiB if zero.
	CheckpointBytes int64
	// RecoverParallel is how many partitions are recovered at the same time. 64 if zero.
	RecoverParallel int
	// MaxProducers bounds the idempotent producers known per partition; the ones not seen
	// for the longest time go first. 10,000 if zero.
	MaxProducers int
	// MaxAborted bounds the transactions of a partition that are open, or were aborted and have records that its log still
	// holds: none begins beyond it. 1,000,000 if zero.
	MaxAborted int
	// ProducerExpiry is how long a producer that appends nothing is known. 24 h if zero.
	ProducerExpiry time.Duration
	// RetentionInterval is how often retention is applied. 30 s if zero, never if negative.
	RetentionInterval time.Duration
	// CleanerInterval is how often the partitions of compacted topics are looked at. 15 s if zero, never if negative.
	CleanerInterval time.Duration
	// CleanerDedupeBytes bounds the memory for the keys of a pass of the cleaner, 32 bytes each: more
	// keys take several passes. 64 MiB if zero.
	CleanerDedupeBytes int64
	// MaxPartitions bounds the partitions of one topic. 10,000 if zero.
	MaxPartitions int
	// MaxDecompressedBytes is how much one batch of a producer may decompress to, at most
	// record.DefaultLimit, up to which what is stored is read. 128 MiB if zero.
	MaxDecompressedBytes int
	// Readers is how many batches are checked at the same time, which bounds the memory of
	// decompression, and as many of topics that validate payloads. GOMAXPROCS if zero.
	Readers int
	// CheckTable refuses table settings that cannot work here, such as a catalog that does
	// not exist. Every setting that can be read is taken if nil.
	CheckTable func(topic string, cfg TableConfig) error
	// LetterTable returns the name of the table of a topic's dead letters, with its namespace. There
	// are none if nil.
	LetterTable func(topic string, cfg TableConfig) (string, error)
	// Defaults are settings of tables that topics have unless they set them, from
	// ParseTopicDefaults.
	Defaults map[string]string
	// Validator judges the payloads of topics that ask for it. No topic can ask if nil.
	Validator Validator
	// Peers reaches the other nodes of the cluster. If nil, members count as alive, and hear of
	// changes when they look.
	Peers Peers
	// FollowInterval is how often a node looks for what others changed, if the database is
	// shared. 150 ms if zero.
	FollowInterval time.Duration
	// ProbeInterval is how often it asks the other nodes whether they live. 1 s if zero.
	ProbeInterval time.Duration
}

func (c *Config) setDefaults() {
	setDefault(&c.CheckpointBytes, 4<<20)
	setDefault(&c.RecoverParallel, 64)
	setDefault(&c.MaxProducers, 10_000)
	setDefault(&c.MaxAborted, 1_000_000)
	setDefault(&c.ProducerExpiry, 24*time.Hour)
	setDefault(&c.RetentionInterval, 30*time.Second)
	setDefault(&c.CleanerInterval, 15*time.Second)
	setDefault(&c.CleanerDedupeBytes, 64<<20)
	setDefault(&c.MaxPartitions, 10_000)
	setDefault(&c.MaxDecompressedBytes, record.DefaultLimit)
	setDefault(&c.Readers, runtime.GOMAXPROCS(0))
	setDefault(&c.FollowInterval, 150*time.Millisecond)
	setDefault(&c.ProbeInterval, time.Second)
}

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (c *Config) validate() error {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"CheckpointBytes", c.CheckpointBytes}, {"RecoverParallel", int64(c.RecoverParallel)}, {"MaxProducers", int64(c.MaxProducers)}, {"MaxAborted", int64(c.MaxAborted)},
		{"CleanerDedupeBytes", c.CleanerDedupeBytes},
		{"ProducerExpiry", int64(c.ProducerExpiry)}, {"MaxPartitions", int64(c.MaxPartitions)},
		{"MaxDecompressedBytes", int64(c.MaxDecompressedBytes)}, {"Readers", int64(c.Readers)},
		{"FollowInterval", int64(c.FollowInterval)}, {"ProbeInterval", int64(c.ProbeInterval)},
	} {
		if f.value < 0 {
			return fmt.Errorf("%s is %d: it must be positive, or zero for its default", f.name, f.value)
		}
	}
	if c.MaxDecompressedBytes > record.DefaultLimit {
		return fmt.Errorf("MaxDecompressedBytes is %d: batches of more than %d could not be read", c.MaxDecompressedBytes, record.DefaultLimit)
	}
	return nil
}

// Set knows all topics of the cluster, and holds the partitions that this node leads. It is safe
// for concurrent use.
type Set struct {
	cfg   Config
	store *streamstore.Store
	meta  *metadata.Store
	log   *slog.Logger

	readers     chan *record.Reader
	validating  chan *record.Reader // of topics that ask the registry, so that others never wait for it
	checkpoints chan *Partition     // asked for; when full, a partition asks again later
	metrics     *setMetrics
	ctx         context.Context
	cancel      context.CancelCauseFunc
	loops       sync.WaitGroup

	admin gate // held while topics change, so that events have the order of metadata

	// guarded by admin
	seq        int64             // changes up to here are known
	unfinished map[uuid.UUID]int // topics with partitions that could not be opened yet, and attempts
	poke       chan struct{}     // cap 1: something is unfinished

	mu       sync.RWMutex
	topics   map[string]*topic    // guarded by mu
	byID     map[uuid.UUID]*topic // guarded by mu
	members  []Member             // guarded by mu; by id
	last     *event               // guarded by mu; the place of the next event
	watchers sync.WaitGroup
}

// topic is replaced, not changed, when something of it changes.
type topic struct {
	metadata.Topic
	partitions []*Partition // by index; nil if this node does not lead it
}

var errSetClosed = errors.New("the server is shutting down")

// OpenSet reads the topics of the cluster and takes over every partition that metadata assigns
// to this node: it raises their leader epochs, opens all streams, each in one transaction, and recovers the partitions. A
// partition whose log cannot be understood is left out with a log line: it alone is not served.
func OpenSet(ctx context.Context, cfg Config, store *streamstore.Store, meta *metadata.Store, log *slog.Logger) (*Set, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Set{
		cfg: cfg, store: store, meta: meta, log: log, metrics: newSetMetrics(),
		readers: make(chan *record.Reader, cfg.Readers), validating: make(chan *record.Reader, cfg.Readers), checkpoints: make(chan *Partition, 1024), admin: newGate(),
		topics: map[string]*topic{}, byID: map[uuid.UUID]*topic{}, last: newEvent(),
		unfinished: map[uuid.UUID]int{}, poke: make(chan struct{}, 1),
	}
	for range cfg.Readers {
		s.readers <- new(record.Reader)
		s.validating <- new(record.Reader)
	}
	topics, err := s.take(ctx)
	if err != nil {
		return nil, fmt.Errorf("take over partitions: %w", err)
	}
	opened, err := s.open(ctx, topics, nil)
	if err != nil {
		return nil, err
	}
	for _, t := range opened {
		s.topics[t.Name], s.byID[t.ID] = t, t
	}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.loops.Go(s.checkpointLoop)
	s.loops.Go(s.retentionLoop)
	s.loops.Go(s.cleanLoop)
	s.loops.Go(s.followLoop)
	s.loops.Go(s.probeLoop)
	return s, nil
}

// take raises the leader epochs of what this node leads and reads what there is. What others
// change meanwhile is read once more by the loop that follows.
func (s *Set) take(ctx context.Context) ([]metadata.Topic, error) {
	var err error
	if s.seq, err = s.meta.LastChange(ctx); err != nil {
		return nil, err
	}
	if _, err := s.meta.TakePartitions(ctx, s.store.Node()); err != nil {
		return nil, err
	}
	if err := s.readMembers(ctx); err != nil {
		return nil, err
	}
	return s.meta.Topics(ctx)
}

// open opens the streams of those partitions of the topics that this node leads, in one
// transaction, and recovers them. Those that old holds already, in the same epoch, are taken
// from there. After an error the topics lack the partitions that were to be opened.
func (s *Set) open(ctx context.Context, topics []metadata.Topic, old *topic) ([]*topic, error) {
	node := s.store.Node().ID
	opened := make([]*topic, len(topics))
	var requests []streamstore.OpenRequest
	var fresh []*Partition
	for i, t := range topics {
		opened[i] = &topic{Topic: t, partitions: make([]*Partition, len(t.Partitions))}
		cfg, err := s.parseConfig(t)
		if err != nil {
			return nil, err
		}
		for j, p := range t.Partitions {
			if p.Leader != node {
				continue
			}
			if had := old.partition(j); had != nil && had.epoch == p.LeaderEpoch {
				opened[i].partitions[j] = had
				continue
			}
			epoch := int64(p.LeaderEpoch)
			requests = append(requests, streamstore.OpenRequest{ID: p.Meta, Epoch: epoch}, streamstore.OpenRequest{ID: p.Log, Epoch: epoch})
			fresh = append(fresh, newPartition(s, t, p, nil, nil, cfg))
		}
	}
	if len(fresh) == 0 {
		return opened, nil
	}
	streams, err := s.store.OpenStreams(ctx, requests)
	if err != nil {
		return opened, fmt.Errorf("open %d partitions: %w", len(fresh), err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(s.cfg.RecoverParallel)
	for i, p := range fresh {
		p.meta, p.log = streams[2*i], streams[2*i+1]
		g.Go(func() error { return s.recoverOne(gctx, p) })
	}
	if err := g.Wait(); err != nil {
		return opened, err
	}
	byID := make(map[uuid.UUID]*topic, len(opened))
	for _, t := range opened {
		byID[t.ID] = t
	}
	for _, p := range fresh {
		byID[p.topicID].partitions[p.index] = p
	}
	return opened, nil
}

func (s *Set) parseConfig(t metadata.Topic) (TopicConfig, error) {
	cfg, err := s.TopicConfig(t)
	if err == nil {
		return cfg, nil
	}
	// It was valid once. The defaults keep the data safe, and the log says what to do.
	s.log.Error("topic configuration is not understood, using the defaults with infinite retention", "topic", t.Name, "err", err)
	return ParseTopicConfig(map[string]string{"retention.ms": "-1"})
}

// partition returns the partition of that index if this node holds it. t may be nil.
func (t *topic) partition(i int) *Partition {
	if t == nil || i >= len(t.partitions) {
		return nil
	}
	return t.partitions[i]
}

// recoverAttempts, with a wait that doubles from recoverWait, give a bucket that is away for
// some seconds the time to come back.
const (
	recoverAttempts = 8
	recoverWait     = 50 * time.Millisecond
	// damagedAttempts is how often a log is read before it counts as damaged.
	damagedAttempts = 3
)

// recoverOne recovers p. A partition that cannot be understood is closed, so that it does
// not keep the others from being served.
func (s *Set) recoverOne(ctx context.Context, p *Partition) error {
	wait := recoverWait
	for attempt := 1; ; attempt++ {
		err := p.recover(ctx)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrCorrupt), errors.Is(err, errCheckpoint), errors.Is(err, errCheckpointVersion),
			errors.Is(err, ErrDamaged) && attempt == damagedAttempts:
			s.log.Error("partition is not served: find out what its log lacks with tabletopic object check --deep", "topic", p.topic, "partition", p.index, "err", err)
			err = fmt.Errorf("%w: %w", ErrDamaged, err)
			p.state = newState(s.cfg.MaxProducers, s.cfg.MaxAborted)
			p.close(err)
			return nil
		case attempt == recoverAttempts, errors.Is(err, ErrNotLeader):
			return err
		}
		s.log.Warn("recover partition, trying again", "topic", p.topic, "partition", p.index, "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		wait *= 2
	}
}

// Close writes the last checkpoints and refuses everything from then on. The streams stay
// open: closing the store makes them durable, and the next start takes them over.
func (s *Set) Close(ctx context.Context) error {
	s.cancel(errSetClosed)
	s.loops.Wait() // also if ctx is over: nothing of the set goes on by itself
	if err := s.admin.enter(ctx); err != nil {
		return err
	}
	defer s.admin.leave()
	s.mu.Lock()
	all := s.allLocked()
	s.mu.Unlock()
	var g errgroup.Group
	g.SetLimit(1024) // they wait for the same WAL bulk
	for _, p := range all {
		g.Go(func() error {
			err := p.checkpoint(ctx)
			p.close(errSetClosed)
			return err
		})
	}
	err := g.Wait()
	s.watchers.Wait()
	return err
}

func (s *Set) allLocked() []*Partition {
	var all []*Partition
	for _, t := range s.topics {
		for _, p := range t.partitions {
			if p != nil {
				all = append(all, p)
			}
		}
	}
	return all
}

// Topics returns the topics of the cluster, by name.
func (s *Set) Topics() []metadata.Topic {
	s.mu.RLock()
	defer s.mu.RUnlock()
	topics := make([]metadata.Topic, 0, len(s.topics))
	for _, name := range slices.Sorted(maps.Keys(s.topics)) {
		topics = append(topics, s.topics[name].Topic)
	}
	return topics
}

// Topic returns the topic of that name.
func (s *Set) Topic(name string) (metadata.Topic, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if t := s.topics[name]; t != nil {
		return t.Topic, true
	}
	return metadata.Topic{}, false
}

// TopicByID returns the topic with that id.
func (s *Set) TopicByID(id uuid.UUID) (metadata.Topic, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if t := s.byID[id]; t != nil {
		return t.Topic, true
	}
	return metadata.Topic{}, false
}

// Partition returns a partition of a topic: ErrUnknownTopicOrPartition if it does not
// exist, ErrNotLeader if another node leads it.
func (s *Set) Partition(name string, index int32) (*Partition, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.topics[name]
	if t == nil || index < 0 || int(index) >= len(t.partitions) {
		return nil, fmt.Errorf("%w: %s-%d", ErrUnknownTopicOrPartition, name, index)
	}
	if t.partitions[index] == nil {
		return nil, fmt.Errorf("%w: %s-%d", ErrNotLeader, name, index)
	}
	return t.partitions[index], nil
}

// CheckConfig reads a topic's configuration and refuses, with ErrInvalidConfig, one that
// cannot work.
func (s *Set) CheckConfig(topic string, raw map[string]string) (TopicConfig, error) {
	cfg, err := ParseTopicConfig(s.effective(topic, raw))
	if err == nil {
		err = cfg.checkSet(raw)
	}
	if err == nil && cfg.validates() && s.cfg.Validator == nil {
		return cfg, fmt.Errorf("%w: there is no schema registry to validate payloads with", ErrInvalidConfig)
	}
	if err == nil && s.cfg.CheckTable != nil {
		if terr := s.cfg.CheckTable(topic, cfg.Table); terr != nil {
			err = fmt.Errorf("%w: %w", ErrInvalidConfig, terr)
		}
	}
	return cfg, err
}

// CreateTopic makes a topic with its partitions, which go round the nodes that live, beginning
// at the one that leads the fewest; or round those that n names. Names that no topic can
// have give ErrInvalidTopicName, as does one that differs from another topic's only in '.'
// and '_'; also ErrInvalidConfig, ErrInvalidPartitions and metadata.ErrTopicExists.
func (s *Set) CreateTopic(ctx context.Context, n metadata.NewTopic) (metadata.Topic, error) {
	if err := CheckTopicName(n.Name); err != nil {
		return metadata.Topic{}, err
	}
	if err := s.checkCount(n.Name, n.Partitions); err != nil {
		return metadata.Topic{}, err
	}
	config, err := canonicalConfig(n.Config)
	if err != nil {
		return metadata.Topic{}, fmt.Errorf("create topic %s: %w", n.Name, err)
	}
	n.Config = config
	if len(n.Leaders) == 0 {
		n.Leaders = s.place(ctx)
	}
	created, err := s.createTopic(ctx, n)
	if err == nil {
		s.tellOthers(ctx)
	}
	return created, err
}

func (s *Set) createTopic(ctx context.Context, n metadata.NewTopic) (metadata.Topic, error) {
	if err := s.change(ctx); err != nil {
		return metadata.Topic{}, err
	}
	defer s.admin.leave()
	if _, err := s.CheckConfig(n.Name, n.Config); err != nil {
		return metadata.Topic{}, fmt.Errorf("create topic %s: %w", n.Name, err)
	}
	if err := s.settleStart(ctx, n.Name, 0, n.Config, n.Config); err != nil {
		return metadata.Topic{}, fmt.Errorf("create topic %s: %w", n.Name, err)
	}
	created, err := s.meta.CreateTopic(ctx, s.store.Node(), n)
	if errors.Is(err, metadata.ErrTopicCollides) {
		err = fmt.Errorf("%w: %w", ErrInvalidTopicName, err)
	}
	if err != nil {
		return metadata.Topic{}, err
	}
	return created, s.applyMine(ctx, created)
}

func (s *Set) checkCount(name string, n int) error {
	if n < 1 || n > s.cfg.MaxPartitions {
		return fmt.Errorf("%w: %d for topic %s, want 1 to %d", ErrInvalidPartitions, n, name, s.cfg.MaxPartitions)
	}
	return nil
}

// change takes the right to change topics, once what others changed is known.
func (s *Set) change(ctx context.Context) error {
	if err := s.admin.enter(ctx); err != nil {
		return err
	}
	if s.ctx.Err() != nil {
		s.admin.leave()
		return fmt.Errorf("%w: %w", ErrNotLeader, errSetClosed)
	}
	if err := s.catchUp(ctx); err != nil {
		s.admin.leave()
		return err
	}
	return nil
}

// DeleteTopic deletes a topic with its data. Its partitions answer ErrNotLeader from then on.
func (s *Set) DeleteTopic(ctx context.Context, name string) error {
	err := s.deleteTopic(ctx, name)
	if err == nil {
		s.tellOthers(ctx)
	}
	return err
}

func (s *Set) deleteTopic(ctx context.Context, name string) error {
	if err := s.change(ctx); err != nil {
		return err
	}
	defer s.admin.leave()
	t := s.topic(name)
	if t == nil {
		return fmt.Errorf("%w: %s", ErrUnknownTopicOrPartition, name)
	}
	if err := s.meta.DeleteTopic(ctx, s.store.Node(), t.ID); err != nil && !errors.Is(err, metadata.ErrTopicNotExist) {
		return err
	}
	s.drop(ctx, t)
	return nil
}

// drop lets go of a topic that metadata does not have any more.
func (s *Set) drop(ctx context.Context, t *topic) {
	s.mu.Lock()
	delete(s.topics, t.Name)
	delete(s.byID, t.ID)
	s.emitLocked(Event{Kind: TopicDeleted, Topic: t.Topic})
	s.mu.Unlock()
	var streams []*streamstore.Stream
	for _, p := range t.partitions {
		if p != nil {
			p.close(errors.New("the topic was deleted"))
			streams = append(streams, p.meta, p.log)
		}
	}
	if len(streams) == 0 {
		return
	}
	// The streams are deleted in metadata already; this stops their handles.
	if err := s.store.DestroyStreams(context.WithoutCancel(ctx), streams); err != nil {
		s.log.Warn("streams of a deleted topic", "topic", t.Name, "err", err)
	}
}

func (s *Set) topic(name string) *topic {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.topics[name]
}

// CreatePartitions raises the number of partitions of a topic to count. The new ones go round
// leaders, or if there are none the nodes that live.
func (s *Set) CreatePartitions(ctx context.Context, name string, count int, leaders ...streamstore.NodeID) (metadata.Topic, error) {
	if err := s.checkCount(name, count); err != nil {
		return metadata.Topic{}, err
	}
	if len(leaders) == 0 {
		leaders = s.place(ctx)
	}
	changed, err := s.createPartitions(ctx, name, count, leaders)
	if err == nil {
		s.tellOthers(ctx)
	}
	return changed, err
}

func (s *Set) createPartitions(ctx context.Context, name string, count int, leaders []streamstore.NodeID) (metadata.Topic, error) {
	if err := s.change(ctx); err != nil {
		return metadata.Topic{}, err
	}
	defer s.admin.leave()
	t := s.topic(name)
	if t == nil {
		return metadata.Topic{}, fmt.Errorf("%w: %s", ErrUnknownTopicOrPartition, name)
	}
	if have := len(t.partitions); count <= have {
		return metadata.Topic{}, fmt.Errorf("%w: topic %s has %d already, it can only get more, not %d", ErrInvalidPartitions, name, have, count)
	}
	changed, err := s.meta.CreatePartitions(ctx, s.store.Node(), name, count, leaders...)
	if err != nil {
		return metadata.Topic{}, err
	}
	return changed, s.applyMine(ctx, changed)
}

// AlterConfig sets and removes settings of a topic, all or none, if the whole that results is valid.
func (s *Set) AlterConfig(ctx context.Context, name string, set map[string]string, remove []string) (metadata.Topic, error) {
	set, err := canonicalConfig(set)
	if err != nil {
		return metadata.Topic{}, fmt.Errorf("alter topic %s: %w", name, err)
	}
	removed := make([]string, len(remove))
	for i, k := range remove {
		if removed[i], err = canonicalKey(k); err != nil {
			return metadata.Topic{}, fmt.Errorf("alter topic %s: %w", name, err)
		}
		if _, both := set[removed[i]]; both {
			return metadata.Topic{}, fmt.Errorf("alter topic %s: %w: %s is both set and removed", name, ErrInvalidConfig, removed[i])
		}
	}
	changed, err := s.alterConfig(ctx, name, set, removed)
	if err == nil {
		s.tellOthers(ctx)
	}
	return changed, err
}

func (s *Set) alterConfig(ctx context.Context, name string, set map[string]string, removed []string) (metadata.Topic, error) {
	if err := s.change(ctx); err != nil {
		return metadata.Topic{}, err
	}
	defer s.admin.leave()
	t := s.topic(name)
	if t == nil {
		return metadata.Topic{}, fmt.Errorf("%w: %s", ErrUnknownTopicOrPartition, name)
	}
	whole := maps.Clone(t.Config)
	if whole == nil {
		whole = map[string]string{}
	}
	maps.Copy(whole, set)
	for _, k := range removed {
		delete(whole, k)
	}
	if _, err := s.CheckConfig(name, whole); err != nil {
		return metadata.Topic{}, fmt.Errorf("alter topic %s: %w", name, err)
	}
	if err := s.settleStart(ctx, name, len(t.partitions), whole, set); err != nil {
		return metadata.Topic{}, fmt.Errorf("alter topic %s: %w", name, err)
	}
	changed, err := s.meta.AlterTopicConfig(ctx, s.store.Node(), name, set, removed)
	if err != nil {
		return metadata.Topic{}, err
	}
	return changed, s.applyMine(ctx, changed)
}

// takeReader takes one of the readers that check batches, which is to be given back.
func takeReader(ctx context.Context, readers <-chan *record.Reader) (*record.Reader, error) {
	select {
	case r := <-readers:
		return r, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// askCheckpoint queues p for a checkpoint; false if the queue is full.
func (s *Set) askCheckpoint(p *Partition) bool {
	select {
	case s.checkpoints <- p:
		return true
	default:
		return false
	}
}

// checkpointLoop writes the checkpoints that are asked for, until the set closes. When the
// node is fenced it closes the partitions, so that everybody who waits for one hears of it.
func (s *Set) checkpointLoop() {
	for {
		select {
		case <-s.store.Fenced():
			s.mu.RLock()
			defer s.mu.RUnlock()
			for _, p := range s.allLocked() {
				p.close(s.store.Err())
			}
			return
		case p := <-s.checkpoints:
			if err := p.checkpoint(s.ctx); err != nil && s.ctx.Err() == nil {
				s.log.Warn("checkpoint", "topic", p.topic, "partition", p.index, "err", err)
			}
		case <-s.ctx.Done():
			return
		}
	}
}

// retentionLoop applies retention to one partition after another, until the set closes.
func (s *Set) retentionLoop() {
	if s.cfg.RetentionInterval < 0 {
		return
	}
	ticker := time.NewTicker(s.cfg.RetentionInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.ctx.Done():
			return
		}
		s.mu.RLock()
		all := s.allLocked()
		s.mu.RUnlock()
		for _, p := range all {
			if err := p.retain(s.ctx, time.Now()); err != nil && s.ctx.Err() == nil {
				s.log.Warn("retention", "topic", p.topic, "partition", p.index, "err", err)
			}
		}
	}
}
