package broker

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/share"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/security"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Modes of acquisition (KIP-1206).
const shareAcquireStrict = 1

// shareFetch is a ShareFetch request under way.
type shareFetch struct {
	b        *Broker
	r        *request
	s        *shareSession
	cfg      groupConfig
	demand   share.Demand
	minBytes int // to wait for
	maxBytes int

	partitions []*sharePartition // that are fetched
	results    map[sharePartitionKey]*shareResult
	order      []*shareResult // of results
	records    int            // acquired
	bytes      int            // read, for them
	failed     bool           // a partition has an error: no reason to wait for records
	reserved   int64          // of Broker.ansMemory
}

// shareResult is what a request has to say of a partition.
type shareResult struct {
	sharePartitionKey
	name     string
	err      error // of fetching
	ackErr   error
	wait     func(context.Context) error // for what was acknowledged; nil for nothing
	acquired []share.AcquiredRecords
	batches  []record.Batch
}

// handleShareFetch acknowledges what the member says, and answers as soon as MinBytes can be acquired,
// at the latest after the wait that the client allows, with what there is. Nothing is acquired before:
// it would be kept from other members meanwhile.
func handleShareFetch(ctx context.Context, b *Broker, r *request) (*answer, error) {
	req := kmsg.NewPtrShareFetchRequest()
	if err := r.decode(ctx, req); err != nil {
		return nil, err
	}
	resp := kmsg.NewPtrShareFetchResponse()
	if req.IsRenewAck && (req.MaxWaitMillis != 0 || req.MinBytes != 0 || req.MaxBytes != 0 || req.MaxRecords != 0) {
		resp.ErrorCode, resp.ErrorMessage = codeAndText(refuse(kerr.InvalidRequest, "a request that renews records fetches nothing (KIP-1222)"))
		r.throttle(resp, 0)
		return r.reply(resp), nil
	}
	s, err := r.shareSession(req.GroupID, req.MemberID, req.ShareSessionEpoch, true)
	if err == nil && req.ShareSessionEpoch == 0 && hasAcks(req) {
		s.end()
		err = refuse(kerr.InvalidRequest, "a request that begins a share session acknowledges nothing")
	}
	if err != nil {
		resp.ErrorCode, resp.ErrorMessage = codeAndText(err)
		r.throttle(resp, 0)
		return r.reply(resp), nil
	}
	f := &shareFetch{
		b: b, r: r, s: s, cfg: b.groupConfig(s.key.group), results: map[sharePartitionKey]*shareResult{},
		demand:   share.Demand{Owner: s.owner, Records: int(req.MaxRecords), BatchRecords: int(req.BatchSize), Strict: req.ShareAcquireMode == shareAcquireStrict},
		maxBytes: min(int(req.MaxBytes), b.cfg.MaxFetchBytes),
	}
	f.minBytes = min(int(req.MinBytes), f.maxBytes)
	final := req.ShareSessionEpoch == finalEpoch
	f.take(req, final)
	wait := min(max(time.Duration(req.MaxWaitMillis)*time.Millisecond, 0), maxFetchWait)
	r.waits()
	if !final {
		f.poll(r.conn.ctx, wait)
	}
	f.settle(ctx)
	if final {
		s.end()
	}
	resp.AcquisitionLockTimeoutMillis = int32(f.cfg.lockMillis)
	f.fill(resp)
	r.throttle(resp, b.quotas.take(security.ConsumerByteRate, r, float64(f.bytes)))
	a := r.reply(resp)
	a.release = func() { b.ansMemory.Release(f.reserved) }
	return a, nil
}

// shareSession finds the session of a request to fetch, which may begin it, or to acknowledge.
func (r *request) shareSession(group, member *string, epoch int32, fetches bool) (*shareSession, error) {
	if group == nil || *group == "" || member == nil || *member == "" {
		return nil, refuse(kerr.InvalidRequest, "the request has no group id or no member id")
	}
	if !r.may(opRead, onGroup, *group) {
		return nil, kerr.GroupAuthorizationFailed
	}
	if epoch == 0 && !fetches {
		return nil, kerr.InvalidShareSessionEpoch
	}
	return r.conn.enterShareSession(shareMemberKey{*group, *member}, epoch)
}

func hasAcks(req *kmsg.ShareFetchRequest) bool {
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			if len(req.Topics[i].Partitions[j].AcknowledgementBatches) > 0 {
				return true
			}
		}
	}
	return false
}

// take acknowledges what the request says and applies what it adds to the session and forgets.
func (f *shareFetch) take(req *kmsg.ShareFetchRequest, final bool) {
	for i := range req.Topics {
		t := &req.Topics[i]
		for j := range t.Partitions {
			tp := &t.Partitions[j]
			key := sharePartitionKey{uuid.UUID(t.TopicID), tp.Partition}
			if len(tp.AcknowledgementBatches) > 0 {
				res := f.result(key)
				acks := make([]share.Acknowledgement, 0, len(tp.AcknowledgementBatches))
				for _, a := range tp.AcknowledgementBatches {
					acks = append(acks, acknowledgement(a.FirstOffset, a.LastOffset, a.AcknowledgeTypes))
				}
				res.wait, res.ackErr = f.s.acknowledge(f.r, key, acks, req.IsRenewAck && f.cfg.renew)
			}
			if !final && !f.s.add(key) {
				f.result(key).err, f.failed = kerr.ShareSessionLimitReached, true
			}
		}
	}
	for _, t := range req.ForgottenTopicsData {
		for _, index := range t.Partitions {
			f.s.forget(sharePartitionKey{uuid.UUID(t.TopicID), index})
		}
	}
}

func acknowledgement(first, last int64, types []int8) share.Acknowledgement {
	a := share.Acknowledgement{First: first, Last: last, Types: make([]share.AckType, len(types))}
	for i, t := range types {
		a.Types[i] = share.AckType(t)
	}
	return a
}

// acknowledge does what a member says of records that it has acquired; wait returns once that is
// durable. renew says that it may ask for more time.
func (s *shareSession) acknowledge(r *request, key sharePartitionKey, acks []share.Acknowledgement, renew bool) (wait func(context.Context) error, err error) {
	sp := s.find(key)
	if sp == nil || sp.use == nil {
		if _, ok := s.b.set.TopicByID(key.topic); !ok {
			return nil, kerr.UnknownTopicID
		}
		return nil, kerr.InvalidRecordState // nothing of it is with the member
	}
	if !r.may(opRead, onTopic, sp.name) {
		return nil, kerr.TopicAuthorizationFailed
	}
	for _, a := range acks {
		for _, t := range a.Types {
			if t == share.Renew && !renew {
				return nil, kerr.InvalidRequest
			}
		}
	}
	if err := sp.p.Err(); err != nil {
		return nil, readError(err)
	}
	wait, err = sp.use.Acknowledge(s.owner, acks)
	return wait, shareError(err)
}

// result is what is to be said of a partition.
func (f *shareFetch) result(key sharePartitionKey) *shareResult {
	res := f.results[key]
	if res == nil {
		res = &shareResult{sharePartitionKey: key}
		f.results[key] = res
		f.order = append(f.order, res)
	}
	return res
}

// poll acquires records once there are enough, or wait is over.
func (f *shareFetch) poll(ctx context.Context, wait time.Duration) {
	begin := time.Now()
	f.partitions = f.s.prepare(ctx, f.r)
	wake := make(chan struct{}, 1)
	var timer *time.Timer
	for over := wait == 0; ; {
		if over || f.enough() {
			cold := f.acquire(ctx, false)
			if f.records == 0 && cold && !f.failed {
				f.acquire(ctx, true)
			}
		}
		if f.records > 0 || f.failed || over {
			return
		}
		if timer == nil {
			timer = time.NewTimer(time.Until(begin.Add(wait)))
			defer timer.Stop()
			wake <- struct{}{} // so that it looks again: something may have come before Notify
			for _, sp := range f.partitions {
				defer sp.p.Notify(wake)()
				defer sp.use.Notify(wake)()
			}
		}
		from := time.Now()
		select {
		case <-wake:
		case <-timer.C:
			over = true
		case <-ctx.Done(): // the peer is gone, or the broker stops
			over = true
		}
		f.r.waited += time.Since(from)
	}
}

// enough tells whether MinBytes are available, counting whole batches, or it is not known without the
// object store, or a partition has an error.
func (f *shareFetch) enough() bool {
	if f.minBytes <= 1 {
		return true
	}
	size := 0
	for _, sp := range f.partitions {
		if sp.err != nil {
			return true
		}
		from, end, ok, err := f.next(sp)
		if err != nil {
			return true
		}
		if !ok || from >= end {
			continue
		}
		read, err := sp.p.ReadFast(from, f.minBytes-size, f.cfg.isolation, nil)
		if err != nil {
			return true
		}
		for _, batch := range read.Batches {
			if sp.use.Available(batch.BaseOffset(), batch.LastOffset()) {
				size += len(batch)
			}
		}
		if size >= f.minBytes {
			return true
		}
	}
	return false
}

// next returns from where to where there may be something to acquire; ok is false if there is no room
// for more.
func (f *shareFetch) next(sp *sharePartition) (from, end int64, ok bool, err error) {
	o := sp.p.Offsets()
	from, ok, err = sp.use.Next(f.cfg.limits(), o.LogStart)
	end = o.HighWatermark
	if f.cfg.isolation == partition.ReadCommitted {
		end = o.LastStable
	}
	return from, end, ok, err
}

// acquire takes what is available, from memory alone unless slow is set. It reports whether there
// is something else, that must be read from the object store.
func (f *shareFetch) acquire(ctx context.Context, slow bool) (cold bool) {
	for _, sp := range f.partitions {
		if sp.err != nil {
			f.fail(sp, sp.err)
			continue
		}
		if f.records >= f.demand.Records || f.bytes > 0 && f.bytes >= f.maxBytes || slow && f.records > 0 {
			return cold
		}
		err := f.acquireFrom(ctx, sp, slow)
		if errors.Is(err, partition.ErrNotInMemory) {
			cold = true
		} else if err != nil {
			f.fail(sp, err)
		}
	}
	return cold
}

func (f *shareFetch) fail(sp *sharePartition, err error) {
	res := f.result(sp.sharePartitionKey)
	res.name, res.err, f.failed = sp.name, err, true
}

func (f *shareFetch) acquireFrom(ctx context.Context, sp *sharePartition, slow bool) error {
	from, end, ok, err := f.next(sp)
	if err != nil {
		return shareError(err)
	}
	if !ok || from >= end {
		return nil
	}
	want := min(int64(max(f.maxBytes-f.bytes, 1)), f.b.cfg.MaxAnswerMemory)
	if f.reserved == 0 {
		if err := f.b.ansMemory.Acquire(ctx, want); err != nil {
			return nil // the peer is gone
		}
	} else if !f.b.ansMemory.TryAcquire(want) {
		return nil // others wait for what this one holds
	}
	size := 0
	defer func() {
		left := max(want-int64(size), 0)
		f.b.ansMemory.Release(left)
		f.reserved += want - left
	}()
	var read partition.ReadResult
	if slow {
		read, err = sp.p.Read(streamstore.WithReader(ctx, f.r.conn), from, int(want), f.cfg.isolation)
	} else {
		read, err = sp.p.ReadFast(from, int(want), f.cfg.isolation, nil)
	}
	switch {
	case errors.Is(err, partition.ErrNotInMemory):
		return err
	case errors.Is(err, partition.ErrOffsetOutOfRange), errors.Is(err, context.Canceled):
		return nil // the log start has moved, and the next look sees it; or the peer is gone
	case err != nil:
		return readError(err)
	}
	demand := f.demand
	demand.Records -= f.records
	acquired, err := sp.use.Acquire(from, shareBatches(&read), demand)
	if err != nil {
		return shareError(err)
	}
	if len(acquired) == 0 {
		return nil
	}
	res := f.result(sp.sharePartitionKey)
	res.acquired = append(res.acquired, acquired...)
	for _, a := range acquired {
		f.records += int(a.Last - a.First + 1)
	}
	next := 0
	for _, batch := range read.Batches {
		for next < len(acquired) && acquired[next].Last < batch.BaseOffset() {
			next++
		}
		if next < len(acquired) && acquired[next].First <= batch.LastOffset() {
			res.batches = append(res.batches, batch)
			size += len(batch)
		}
	}
	f.bytes += size
	f.b.m.fetched.Add(float64(size))
	f.s.last(sp)
	return nil
}

// shareBatches says which of the batches that were read have records for consumers.
func shareBatches(read *partition.ReadResult) []share.Batch {
	out := make([]share.Batch, 0, len(read.Batches))
	aborted, next := map[int64]bool{}, 0
	for _, b := range read.Batches {
		for ; next < len(read.Aborted) && read.Aborted[next].FirstOffset <= b.LastOffset(); next++ {
			aborted[read.Aborted[next].ProducerID] = true
		}
		skip := b.NumRecords() == 0 || b.IsControl()
		if b.IsControl() {
			delete(aborted, b.ProducerID())
		} else if b.IsTransactional() && aborted[b.ProducerID()] {
			skip = true
		}
		out = append(out, share.Batch{First: b.BaseOffset(), Last: b.LastOffset(), Skip: skip})
	}
	return out
}

// settle waits until what was acknowledged is durable.
func (f *shareFetch) settle(ctx context.Context) {
	from := time.Now()
	for _, res := range f.order {
		if res.wait != nil {
			res.ackErr = shareError(res.wait(ctx))
		}
	}
	f.r.waited += time.Since(from)
}

// fill says what there is to say of partitions, those of one topic together.
func (f *shareFetch) fill(resp *kmsg.ShareFetchResponse) {
	topics := map[uuid.UUID]int{}
	var leaders redirects
	for _, res := range f.order {
		rp := kmsg.NewShareFetchResponseTopicPartition()
		rp.Partition = res.index
		rp.ErrorCode, rp.ErrorMessage = codeAndText(res.err)
		rp.AcknowledgeErrorCode, rp.AcknowledgeErrorMessage = codeAndText(res.ackErr)
		rp.CurrentLeader.LeaderID, rp.CurrentLeader.LeaderEpoch = leaders.find(f.r, res.topic, res.index, errors.Join(res.err, res.ackErr))
		rp.Records = []byte{}
		for _, b := range res.batches {
			rp.Records = append(rp.Records, b...)
		}
		for _, a := range res.acquired {
			rp.AcquiredRecords = append(rp.AcquiredRecords, kmsg.ShareFetchResponseTopicPartitionAcquiredRecord{FirstOffset: a.First, LastOffset: a.Last, DeliveryCount: a.Deliveries})
		}
		at, ok := topics[res.topic]
		if !ok {
			at = len(resp.Topics)
			topics[res.topic] = at
			rt := kmsg.NewShareFetchResponseTopic()
			rt.TopicID = res.topic
			resp.Topics = append(resp.Topics, rt)
		}
		resp.Topics[at].Partitions = append(resp.Topics[at].Partitions, rp)
	}
	for _, p := range leaders.peers {
		n := kmsg.NewShareFetchResponseNodeEndpoint()
		n.NodeID, n.Host, n.Port, n.Rack = p.id, p.host, p.port, p.rack
		resp.NodeEndpoints = append(resp.NodeEndpoints, n)
	}
}

// redirects are the leaders of partitions that are not led here.
type redirects struct{ peers []peer }

// find returns the leader of a partition that was refused with err, and its epoch; −1 for both if
// that is not known.
func (l *redirects) find(r *request, topic uuid.UUID, index int32, err error) (leader, epoch int32) {
	t, ok := r.conn.b.set.TopicByID(topic)
	if err == nil || !ok {
		return -1, -1
	}
	at, epoch, ok := r.conn.b.newLeader(r.conn.ctx, r.conn.listener, t.Name, index, err)
	if !ok {
		return -1, -1
	}
	for _, p := range l.peers {
		if p.id == at.id {
			return at.id, epoch
		}
	}
	l.peers = append(l.peers, at)
	return at.id, epoch
}
