package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/security"
	"github.com/tabletopic/tabletopic/streamstore"
)

const (
	// maxFetchWait bounds a long poll, whatever the client asks for.
	maxFetchWait = time.Minute
	// Batches from this size on are written from where they lie; smaller ones are
	// copied together, which is cheaper than a vector of many.
	referenceBytes = 4 << 10
)

// fetch is a Fetch request with its partitions found.
type fetch struct {
	b         *Broker
	r         *request
	isolation partition.Isolation
	minBytes  int
	maxBytes  int
	topics    []fetchTopic
	session   int32 // id; 0 for none

	failed   bool              // a partition has an error: no reason to wait for records
	full     bool              // there is no memory for more
	total    int               // bytes of records read
	passed   int               // batches that are left out
	reserved int64             // of Broker.ansMemory, for them
	lease    streamstore.Lease // of them
	cold     []*fetchPartition // that have records, but not in memory
	leaders  []peer            // of partitions that are not led here
}

type fetchTopic struct {
	name       string
	id         uuid.UUID
	partitions []fetchPartition
}

type fetchPartition struct {
	index    int32
	maxBytes int
	p        *partition.Partition // nil if err
	err      error
	res      partition.ReadResult
	aborted  bool // the answer lists aborted transactions
	leader   peer // of KIP-951, and its epoch; none if host is empty
	epoch    int32

	next  int64        // offset after what was read
	size  int          // bytes read
	seen  bool         // something was read
	empty record.Batch // the last that was read without records, and is left out; nil for none
}

// handleFetch answers when minBytes are there, at the latest after the wait that the
// client allows.
func handleFetch(ctx context.Context, b *Broker, r *request) (*answer, error) {
	req := kmsg.NewPtrFetchRequest()
	if err := r.decode(ctx, req); err != nil {
		return nil, err
	}
	var session *fetchSession
	var err error
	if req.ReplicaID >= 0 || req.ReplicaState.ID >= 0 { // there are no followers
		err = kerr.InvalidRequest
	} else {
		session, err = r.conn.enterSession(req)
	}
	if err != nil {
		resp := kmsg.NewPtrFetchResponse()
		resp.ErrorCode = codeOf(err)
		return r.reply(resp), nil
	}
	f := newFetch(b, r, req)
	r.waits()
	wait := min(max(time.Duration(req.MaxWaitMillis)*time.Millisecond, 0), maxFetchWait)
	f.poll(r.conn.ctx, wait)
	if f.failed {
		f.redirect(r.conn.ctx)
	}
	f.restoreEmpty()
	if session != nil {
		f.session, f.topics = session.id, session.answer(f.topics)
	}
	r.silence(b.quotas.take(security.ConsumerByteRate, r, float64(f.total)))
	return &answer{bufs: f.encode(), release: f.release}, nil
}

// release lets others have the memory of the records, when they are written.
func (f *fetch) release() {
	f.lease.Release()
	f.b.ansMemory.Release(f.reserved)
}

func newFetch(b *Broker, r *request, req *kmsg.FetchRequest) *fetch {
	f := &fetch{
		b: b, r: r, isolation: partition.ReadUncommitted,
		minBytes: int(req.MinBytes),
		maxBytes: min(int(req.MaxBytes), b.cfg.MaxFetchBytes),
		topics:   make([]fetchTopic, len(req.Topics)),
	}
	if req.IsolationLevel == 1 {
		f.isolation = partition.ReadCommitted
	}
	for i := range req.Topics {
		t, ft := &req.Topics[i], &f.topics[i]
		ft.name, ft.id = t.Topic, uuid.UUID(t.TopicID)
		var err error
		if r.version >= 13 {
			if topic, ok := b.set.TopicByID(ft.id); ok {
				ft.name = topic.Name
			} else {
				err = kerr.UnknownTopicID
			}
		}
		if err == nil && !r.may(opRead, onTopic, ft.name) {
			err = kerr.TopicAuthorizationFailed
		}
		ft.partitions = make([]fetchPartition, len(t.Partitions))
		for j := range t.Partitions {
			tp, fp := &t.Partitions[j], &ft.partitions[j]
			fp.index, fp.next, fp.maxBytes = tp.Partition, tp.FetchOffset, max(int(tp.PartitionMaxBytes), 0)
			fp.aborted = f.isolation == partition.ReadCommitted
			if fp.err = err; err == nil {
				fp.p, fp.err = b.partition(ft.name, tp.Partition, tp.CurrentLeaderEpoch)
			}
			f.failed = f.failed || fp.err != nil
		}
	}
	return f
}

// partition finds a partition for a client that believes its leader epoch to be epoch,
// -1 if it does not know (KIP-320).
func (b *Broker) partition(topic string, index, epoch int32) (*partition.Partition, error) {
	p, err := b.set.Partition(topic, index)
	if err != nil {
		return nil, readError(err)
	}
	switch current := p.LeaderEpoch(); {
	case epoch >= 0 && epoch < current:
		return nil, kerr.FencedLeaderEpoch
	case epoch > current:
		return nil, kerr.UnknownLeaderEpoch
	}
	return p, nil
}

// readError chooses the Kafka code for what a partition answered to a read.
func readError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, partition.ErrUnknownTopicOrPartition):
		return kerr.UnknownTopicOrPartition
	case errors.Is(err, partition.ErrDamaged):
		return kerr.KafkaStorageError
	case errors.Is(err, partition.ErrNotLeader):
		return kerr.NotLeaderForPartition
	case errors.Is(err, partition.ErrOffsetOutOfRange):
		return kerr.OffsetOutOfRange
	}
	return err
}

// poll reads until there are minBytes or wait is over, and leaves how much of
// Broker.ansMemory the results hold in reserved.
//
// An answer never waits for objects once it has minBytes from memory: partitions at the tail
// are not delayed by those that must be read from the bucket. Of these, up to maxColdReads
// are read side by side, and go on when the answer is sent without them; the next fetch of the
// connection finds them in memory. If nothing is in memory, the fetch waits for the first of
// them: as long as its client waits, but coldWait at least.
func (f *fetch) poll(ctx context.Context, wait time.Duration) {
	begin := time.Now()
	reads := f.r.conn.cold
	wake := make(chan struct{}, 1)
	over, coldOver := wait == 0 || f.minBytes <= 0 || f.failed, false
	var timer *time.Timer
	for {
		reads.settle()
		more := f.read(ctx)
		urgent := reads.want(f)
		enough := over || f.failed || f.full || f.total >= min(f.minBytes, f.maxBytes)
		if needCold := len(f.cold) > 0 && (urgent || f.total == 0) && !f.failed && !coldOver; enough && !needCold {
			return
		}
		if more { // and perhaps still more behind it, in another cache
			continue
		}
		if timer == nil {
			timer = time.NewTimer(0)
			defer timer.Stop()
			wake <- struct{}{} // so that it looks again: offsets may have moved before Notify
			for i := range f.topics {
				for j := range f.topics[i].partitions {
					stop := f.topics[i].partitions[j].p.Notify(wake)
					defer stop()
				}
			}
		}
		due := begin.Add(wait)
		if over {
			due = begin.Add(max(wait, coldWait))
		}
		timer.Reset(time.Until(due))
		from := time.Now()
		select {
		case <-wake:
		case read := <-reads.done:
			reads.ended(read)
		case <-timer.C:
			over, coldOver = true, time.Since(begin) >= max(wait, coldWait)
		case <-ctx.Done(): // the peer is gone, or the broker stops and answers with what there is
			over, coldOver = true, true
			ctx = f.b.ctx
		}
		f.r.waited += time.Since(from)
	}
}

// read reads from memory what there is behind what was read before, within maxBytes in all. It
// reports whether there was anything.
func (f *fetch) read(ctx context.Context) bool {
	f.cold = f.cold[:0]
	want := min(f.want(), int64(max(f.maxBytes, 1)), f.b.cfg.MaxAnswerMemory)
	if want > 0 && f.reserved == 0 {
		if err := f.b.ansMemory.Acquire(ctx, want); err != nil {
			want = 0 // nothing is read; the answer has the offsets
		}
	} else if want > 0 && !f.b.ansMemory.TryAcquire(want) {
		want, f.full = 0, true // others wait for what this one holds
	}
	before, passed := f.total, f.passed
	for i := range f.topics {
		for j := range f.topics[i].partitions {
			fp := &f.topics[i].partitions[j]
			if want > 0 && (f.total == 0 || f.total < f.maxBytes) && fp.readable(f.isolation) {
				f.readPartition(fp)
			} else if fp.p != nil {
				fp.noteOffsets()
			}
		}
	}
	got := min(want, int64(f.total-before))
	f.b.ansMemory.Release(want - got)
	f.reserved += got
	f.b.m.fetched.Add(float64(f.total - before))
	return f.total > before || f.passed > passed
}

// readPartition adds to what was read of the partition before.
func (f *fetch) readPartition(fp *fetchPartition) {
	res, err := fp.p.ReadFast(fp.next, min(fp.maxBytes-fp.size, max(f.maxBytes-f.total, 0)), f.isolation, &f.lease)
	if errors.Is(err, partition.ErrNotInMemory) {
		if res, err = f.r.conn.cold.take(fp); errors.Is(err, partition.ErrNotInMemory) {
			f.cold = append(f.cold, fp)
			err = nil
		}
	}
	if err != nil && fp.size == 0 { // else the next fetch meets it
		fp.err = readError(err)
		f.failed = true
	}
	for _, a := range res.Aborted {
		if !fp.seen || a.FirstOffset >= fp.next { // else it is in the answer already
			fp.res.Aborted = append(fp.res.Aborted, a)
		}
	}
	for _, batch := range res.Batches {
		fp.next, fp.seen = batch.NextOffset(), true
		if batch.NumRecords() == 0 {
			fp.empty = batch
			f.passed++
			continue
		}
		fp.res.Batches = append(fp.res.Batches, batch)
		fp.size += len(batch)
		f.total += len(batch)
	}
	fp.noteOffsets()
}

// restoreEmpty puts batches without records, which the cleaner leaves where there were some, into the
// answer where there is nothing else, so that the client gets on. Otherwise offsets just go on
// behind them, as they do behind batches that Kafka's cleaner removes: some clients, of them
// kafka-go 0.4, wait for ever behind a batch that is empty.
func (f *fetch) restoreEmpty() {
	for i := range f.topics {
		for j := range f.topics[i].partitions {
			if fp := &f.topics[i].partitions[j]; fp.size == 0 && fp.empty != nil {
				fp.res.Batches, fp.size = []record.Batch{fp.empty}, len(fp.empty)
			}
		}
	}
}

// want returns how much the partitions may still answer at most, 0 if none has anything.
func (f *fetch) want() int64 {
	want := int64(0)
	for i := range f.topics {
		for j := range f.topics[i].partitions {
			if fp := &f.topics[i].partitions[j]; fp.readable(f.isolation) {
				want += int64(max(fp.maxBytes-fp.size, 1))
			}
		}
	}
	return want
}

// readable reports whether a read gives more records, or an error.
func (fp *fetchPartition) readable(isolation partition.Isolation) bool {
	if fp.p == nil || fp.err != nil || fp.size > 0 && fp.size >= fp.maxBytes {
		return false
	}
	o := fp.p.Offsets()
	end := o.HighWatermark
	if isolation == partition.ReadCommitted {
		end = o.LastStable
	}
	return fp.next < end || fp.next > o.HighWatermark || fp.next < o.LogStart
}

// noteOffsets puts the offsets of the partition into the result.
func (fp *fetchPartition) noteOffsets() {
	o := fp.p.Offsets()
	fp.res.HighWatermark, fp.res.LastStableOffset, fp.res.LogStartOffset = o.HighWatermark, o.LastStable, o.LogStart
}

// redirect finds out who leads the partitions that are not led here.
func (f *fetch) redirect(ctx context.Context) {
	for i := range f.topics {
		for j := range f.topics[i].partitions {
			fp := &f.topics[i].partitions[j]
			if at, epoch, ok := f.b.newLeader(ctx, f.r.conn.listener, f.topics[i].name, fp.index, fp.err); ok {
				fp.leader, fp.epoch = at, epoch
				if !slices.Contains(f.leaders, at) {
					f.leaders = append(f.leaders, at)
				}
			}
		}
	}
}

// encode builds the answer by hand, not by kmsg, so that large batches are written to
// the socket from the memory that the partition gave, without a copy.
func (f *fetch) encode() [][]byte {
	e := &fetchEncoder{flexible: f.r.version >= f.r.api.flexible}
	e.buf = f.r.appendHeader(make([]byte, 0, 512))
	v := f.r.version
	e.int32(millis(f.r.mute))
	if v >= 7 {
		e.int16(0)
		e.int32(f.session)
	}
	e.arrayLen(len(f.topics))
	for i := range f.topics {
		t := &f.topics[i]
		if v >= 13 {
			e.buf = append(e.buf, t.id[:]...)
		} else {
			e.string(t.name)
		}
		e.arrayLen(len(t.partitions))
		for j := range t.partitions {
			e.partition(v, &t.partitions[j])
		}
		e.tags()
	}
	e.endpoints(v, f.leaders)
	return append(e.bufs, e.buf)
}

// fetchEncoder is a list of buffers of which the last still grows.
type fetchEncoder struct {
	flexible bool
	bufs     [][]byte
	buf      []byte
}

func (e *fetchEncoder) partition(v int16, fp *fetchPartition) {
	e.int32(fp.index)
	e.int16(codeOf(fp.err))
	if fp.p == nil {
		fp.res = partition.ReadResult{HighWatermark: -1, LastStableOffset: -1, LogStartOffset: -1}
	}
	e.int64(fp.res.HighWatermark)
	e.int64(fp.res.LastStableOffset)
	if v >= 5 {
		e.int64(fp.res.LogStartOffset)
	}
	if fp.aborted {
		e.arrayLen(len(fp.res.Aborted))
		for _, a := range fp.res.Aborted {
			e.int64(a.ProducerID)
			e.int64(a.FirstOffset)
			e.tags()
		}
	} else {
		e.arrayLen(-1)
	}
	if v >= 11 {
		e.int32(-1) // preferred read replica
	}
	e.records(fp)
	if v < 12 || fp.leader.host == "" {
		e.tags()
		return
	}
	// One tag, 1: leader, epoch and no tags of their own.
	e.buf = append(e.buf, 1, 1, 4+4+1)
	e.int32(fp.leader.id)
	e.int32(fp.epoch)
	e.tags()
}

// endpoints ends the answer with the addresses of leaders, from version 16 on: tag 0.
func (e *fetchEncoder) endpoints(v int16, leaders []peer) {
	if v < 16 || len(leaders) == 0 {
		e.tags()
		return
	}
	list := &fetchEncoder{flexible: true}
	list.arrayLen(len(leaders))
	for _, p := range leaders {
		list.int32(p.id)
		list.string(p.host)
		list.int32(p.port)
		if p.rack != nil {
			list.string(*p.rack)
		} else {
			list.arrayLen(-1)
		}
		list.tags()
	}
	e.buf = append(e.buf, 1, 0)
	e.buf = binary.AppendUvarint(e.buf, uint64(len(list.buf)))
	e.buf = append(e.buf, list.buf...)
}

func (e *fetchEncoder) records(fp *fetchPartition) {
	size := 0
	for _, b := range fp.res.Batches {
		size += len(b)
	}
	e.arrayLen(size) // a length of bytes has the form of a length of an array
	for _, b := range fp.res.Batches {
		if len(b) < referenceBytes {
			e.buf = append(e.buf, b...)
			continue
		}
		e.bufs = append(e.bufs, e.buf, b)
		e.buf = make([]byte, 0, 512)
	}
}

func (e *fetchEncoder) int16(v int16) { e.buf = binary.BigEndian.AppendUint16(e.buf, uint16(v)) }
func (e *fetchEncoder) int32(v int32) { e.buf = binary.BigEndian.AppendUint32(e.buf, uint32(v)) }
func (e *fetchEncoder) int64(v int64) { e.buf = binary.BigEndian.AppendUint64(e.buf, uint64(v)) }

// arrayLen appends a length, -1 for null.
func (e *fetchEncoder) arrayLen(n int) {
	if e.flexible {
		e.buf = binary.AppendUvarint(e.buf, uint64(n+1))
	} else {
		e.int32(int32(n))
	}
}

func (e *fetchEncoder) string(s string) {
	if e.flexible {
		e.buf = binary.AppendUvarint(e.buf, uint64(len(s)+1))
	} else {
		e.int16(int16(len(s)))
	}
	e.buf = append(e.buf, s...)
}

func (e *fetchEncoder) tags() {
	if e.flexible {
		e.buf = append(e.buf, 0)
	}
}
