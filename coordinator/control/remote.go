package control

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// ClientID is how the nodes of a cluster call themselves to each other. Brokers take control
// events from nobody else.
const ClientID = "tabletopic-control"

const (
	// mirrorBytes bounds the records that are kept of one partition of another node. A tail
	// that falls further behind begins anew.
	mirrorBytes = 4 << 20
	// mirrorBefore is how many offsets before those of its first tail a mirror begins: the
	// other tails of a partition that moved away are not all at the same place.
	mirrorBefore = 1000
	// remoteRetry is the longest pause before a node is asked again.
	remoteRetry = 250 * time.Millisecond
)

// remote reaches the control partitions that other nodes lead. It has no connection until one
// is needed, then one client to append and one to read, whatever the number of topics.
type remote struct {
	set  *partition.Set
	name string // of the topic
	opts []kgo.Opt

	mu       sync.Mutex
	closed   bool              // guarded by mu
	producer *kgo.Client       // guarded by mu; nil until needed
	consumer *kgo.Client       // guarded by mu; nil until needed
	mirrors  map[int32]*mirror // guarded by mu; those that tails read
	polls    sync.WaitGroup
}

func newRemote(set *partition.Set, name string, opts []kgo.Opt) *remote {
	return &remote{set: set, name: name, opts: opts, mirrors: map[int32]*mirror{}}
}

func (r *remote) close() {
	r.mu.Lock()
	r.closed = true
	for _, cl := range []*kgo.Client{r.producer, r.consumer} {
		if cl != nil {
			cl.Close()
		}
	}
	r.mu.Unlock()
	r.polls.Wait()
}

// connect returns a client that knows the nodes which live. Leaders it finds by itself.
func (r *remote) connect(opts ...kgo.Opt) (*kgo.Client, error) {
	if r.closed {
		return nil, errors.New("control log closed")
	}
	seeds := r.seeds()
	if len(seeds) == 0 {
		return nil, fmt.Errorf("%w: no node of the cluster has said where it is reached", partition.ErrNotLeader)
	}
	return kgo.NewClient(append([]kgo.Opt{
		kgo.ClientID(ClientID), kgo.SeedBrokers(seeds...), kgo.MetadataMinAge(leaderPause), kgo.MetadataMaxAge(10 * time.Second),
		kgo.RetryBackoffFn(func(n int) time.Duration { return min(leaderPause<<min(n, 8), remoteRetry) }),
		kgo.DialTimeout(2 * time.Second),
	}, append(opts, r.opts...)...)...)
}

func (r *remote) seeds() (addresses []string) {
	for _, m := range r.set.Members() {
		if m.Alive && m.ID != r.set.Node().ID {
			addresses = append(addresses, m.Kafka)
		}
	}
	return addresses
}

func (r *remote) appender() (*kgo.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.producer == nil {
		// Not idempotent, so that an append can be given up: an event may be there twice.
		cl, err := r.connect(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1),
			kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.NoCompression()))
		if err != nil {
			return nil, err
		}
		r.producer = cl
	}
	return r.producer, nil
}

// append returns when the records are durable at the leader of a partition, or after
// leaderPatience with ErrNotLeader.
func (r *remote) append(ctx context.Context, index int32, records []record.Record) error {
	cl, err := r.appender()
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	out := make([]*kgo.Record, len(records))
	for i, rec := range records {
		out[i] = &kgo.Record{Topic: r.name, Partition: index, Key: rec.Key, Value: rec.Value}
	}
	if err := cl.ProduceSync(within, out...).FirstErr(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.reseed(cl)
		return fmt.Errorf("%w: append to %s-%d: %w", partition.ErrNotLeader, r.name, index, err)
	}
	return nil
}

// reseed tells a client where nodes are by now.
func (r *remote) reseed(cl *kgo.Client) {
	if seeds := r.seeds(); len(seeds) > 0 {
		_ = cl.UpdateSeedBrokers(seeds...) // addresses that are none stay as they were
	}
}

// end returns the offset after the last durable event of a partition.
func (r *remote) end(ctx context.Context, index int32) (int64, error) {
	cl, err := r.appender()
	if err != nil {
		return 0, err
	}
	for {
		req := kmsg.NewPtrListOffsetsRequest()
		req.ReplicaID = -1
		topic := kmsg.NewListOffsetsRequestTopic()
		topic.Topic = r.name
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = index, -1
		topic.Partitions = append(topic.Partitions, p)
		req.Topics = append(req.Topics, topic)
		resp, err := req.RequestWith(ctx, cl)
		if err == nil {
			if err = errNoAnswer; len(resp.Topics) == 1 && len(resp.Topics[0].Partitions) == 1 {
				answer := resp.Topics[0].Partitions[0]
				if err = kerr.ErrorForCode(answer.ErrorCode); err == nil {
					return answer.Offset, nil
				}
			}
		}
		r.reseed(cl)
		if sleep(ctx, leaderPause) != nil {
			return 0, err
		}
	}
}

var errNoAnswer = errors.New("the answer does not name the partition")

// mirrorOf returns the mirror of a partition, which it begins for a tail that is at offset next.
func (r *remote) mirrorOf(index int32, next int64) (*mirror, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.mirrors[index]; m != nil {
		m.tails++
		return m, nil
	}
	from := max(0, next-mirrorBefore)
	at := map[string]map[int32]kgo.Offset{r.name: {index: kgo.NewOffset().At(from)}}
	if r.consumer == nil {
		cl, err := r.connect(kgo.ConsumePartitions(at), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(time.Second),
			kgo.FetchMaxBytes(mirrorBytes), kgo.FetchMaxPartitionBytes(mirrorBytes/4))
		if err != nil {
			return nil, err
		}
		r.consumer = cl
		r.polls.Go(func() { r.poll(cl) })
	} else {
		r.consumer.AddConsumePartitions(at)
	}
	m := &mirror{r: r, index: index, tails: 1, start: from, subscribers: map[chan<- struct{}]struct{}{}}
	r.mirrors[index] = m
	return m, nil
}

// poll hands what comes to the mirrors, until the client is closed.
func (r *remote) poll(cl *kgo.Client) {
	for {
		fetches := cl.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			r.mu.Lock()
			m := r.mirrors[p.Partition]
			r.mu.Unlock()
			if m != nil {
				m.add(p.Records, p.LogStartOffset)
			}
		})
		if fetches.Err() != nil {
			r.reseed(cl)
		}
	}
}

// A mirror holds the newest records of a control partition that another node leads, for all
// tails of this one.
type mirror struct {
	r     *remote
	index int32
	tails int // guarded by r.mu

	mu          sync.Mutex
	start       int64                        // guarded by mu; no record from here on is missing
	records     []*kgo.Record                // guarded by mu; by offset
	bytes       int                          // guarded by mu; of records
	subscribers map[chan<- struct{}]struct{} // guarded by mu
}

// enter arranges a non-blocking send on ch whenever there are more records, until leave.
func (m *mirror) enter(ch chan<- struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subscribers[ch] = struct{}{}
}

// leave ends it. The mirror ends with the last tail that leaves.
func (m *mirror) leave(ch chan<- struct{}) {
	m.mu.Lock()
	delete(m.subscribers, ch)
	m.mu.Unlock()
	m.r.mu.Lock()
	defer m.r.mu.Unlock()
	if m.tails--; m.tails == 0 {
		delete(m.r.mirrors, m.index)
		m.r.consumer.RemoveConsumePartitions(map[string][]int32{m.r.name: {m.index}})
	}
}

// add takes what was read, of a log that begins at logStart.
func (m *mirror) add(records []*kgo.Record, logStart int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start = max(m.start, logStart)
	for _, rec := range records {
		if n := len(m.records); n > 0 && rec.Offset <= m.records[n-1].Offset {
			continue
		}
		m.records = append(m.records, rec)
		m.bytes += len(rec.Key) + len(rec.Value)
	}
	drop := 0
	for m.bytes > mirrorBytes && drop < len(m.records)-1 {
		m.bytes -= len(m.records[drop].Key) + len(m.records[drop].Value)
		m.start = m.records[drop].Offset + 1
		drop++
	}
	m.records = append(m.records[:0:0], m.records[drop:]...)
	for ch := range m.subscribers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// after returns the records from an offset on that are there; ErrLost if some before them are
// not any more.
func (m *mirror) after(offset int64) ([]*kgo.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if offset < m.start {
		return nil, fmt.Errorf("%w: offset %d of %s-%d, what is kept of it begins at %d", ErrLost, offset, m.r.name, m.index, m.start)
	}
	i := len(m.records)
	for i > 0 && m.records[i-1].Offset >= offset {
		i--
	}
	return m.records[i:len(m.records):len(m.records)], nil
}
