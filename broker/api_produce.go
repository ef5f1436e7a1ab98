package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/security"
)

// A produce waits at least this long for its batches to be durable. In Kafka the timeout
// is for replicas, and a leader alone never runs into it; here the store is what is
// waited for, so a client that asks for less (often 0) cannot mean it.
const minProduceTimeout = time.Second

// produce is a Produce request whose batches are on their way to durability.
type produce struct {
	req      *request
	acks     int16
	timeout  time.Duration
	deadline time.Time     // of what was appended last
	places   int           // results in the answer
	done     chan struct{} // closed when nothing is left

	mu       sync.Mutex
	resp     *kmsg.ProduceResponse // guarded by mu
	left     int                   // partitions without a result, and 1 until all are appended; guarded by mu
	answered bool                  // later results come too late; guarded by mu
}

// unanswered marks a partition that has no result yet.
const unanswered = -128

// handleProduce appends every batch and returns before they are durable. acks=1 waits
// for the same as acks=all, since there is no leader that holds what is not durable;
// acks=0 keeps its place in the order, to bound what is in flight, but is not answered:
// an error closes the connection, as the protocol has it, so that the client looks for
// the cause.
//
// Of a large request each batch is appended when it has come: where the connection ends before the rest does, the client
// has no answer and sends all of it again, as after any lost connection.
func handleProduce(_ context.Context, b *Broker, r *request) (*answer, error) {
	body := newProduceBody(r)
	head, err := body.head()
	if err != nil {
		return nil, err
	}
	p := newProduce(r, head)
	appendCtx, cancel := context.WithDeadline(b.ctx, p.deadline)
	defer func() { cancel() }()
	var verified *verification
	if !body.stream {
		if verified, err = b.verifyProduce(appendCtx, r, head, *body); err != nil {
			return nil, err
		}
	}
	var (
		bytes    int
		refused  = b.produceRefused(r, head)
		topic    string
		topicErr error
	)
	err = body.each(func(t kmsg.ProduceRequestTopic) {
		p.addTopic(t)
		if topicErr = refused; topicErr == nil {
			topic, topicErr = b.produceTopic(r, t)
		}
	}, func(index int32, records []byte) {
		if body.stream { // the client may have taken its time
			cancel()
			p.deadline = time.Now().Add(p.timeout)
			appendCtx, cancel = context.WithDeadline(b.ctx, p.deadline)
		}
		bytes += len(records)
		at := p.addPartition(index)
		err := topicErr
		if err == nil {
			err = b.append(appendCtx, r.version, topic, index, records, verified, func(res partition.AppendResult, err error) { p.set(at, res, err) })
		}
		if err != nil {
			if peer, epoch, ok := b.newLeader(appendCtx, r.conn.listener, topic, index, err); ok {
				p.redirect(at, peer, epoch)
			}
			p.set(at, partition.AppendResult{}, err)
		}
	})
	r.waited += body.waited
	p.places = body.places
	b.m.produced.Add(float64(bytes))
	wait := b.quotas.take(security.ProducerByteRate, r, float64(bytes)) // also of a request whose end is malformed
	if err != nil {
		return nil, err
	}
	p.resp.ThrottleMillis = millis(r.silence(wait)) // nobody else has it before finish
	p.finish()
	return &answer{produce: p}, nil
}

func newProduce(r *request, head produceHead) *produce {
	resp := kmsg.NewPtrProduceResponse()
	resp.SetVersion(r.version)
	timeout := max(head.timeout, minProduceTimeout)
	return &produce{req: r, acks: head.acks, timeout: timeout, deadline: r.start.Add(timeout), done: make(chan struct{}), resp: resp, left: 1}
}

// place is where the answer has the result of a partition.
type place struct{ topic, partition int }

func (p *produce) addTopic(t kmsg.ProduceRequestTopic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resp.Topics = append(p.resp.Topics, kmsg.ProduceResponseTopic{Topic: t.Topic, TopicID: t.TopicID})
}

// addPartition gives the next partition of the last topic its place.
func (p *produce) addPartition(index int32) place {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := &p.resp.Topics[len(p.resp.Topics)-1]
	result := kmsg.NewProduceResponseTopicPartition()
	result.Partition, result.ErrorCode, result.BaseOffset, result.LogStartOffset = index, unanswered, -1, -1
	t.Partitions = append(t.Partitions, result)
	p.left++
	return place{len(p.resp.Topics) - 1, len(t.Partitions) - 1}
}

func (p *produce) atLocked(at place) *kmsg.ProduceResponseTopicPartition {
	return &p.resp.Topics[at.topic].Partitions[at.partition]
}

// produceRefused says what is wrong for all topics.
func (b *Broker) produceRefused(r *request, head produceHead) error {
	switch {
	case head.acks < -1 || head.acks > 1:
		return refuse(kerr.InvalidRequiredAcks, "acks must be -1 (all), 0 or 1, not %d", head.acks)
	case head.transactionalID != nil && !r.may(opWrite, onTxn, *head.transactionalID):
		return kerr.TransactionalIDAuthorizationFailed
	}
	return nil
}

// produceTopic says which topic is written, or what is wrong for all of its partitions.
func (b *Broker) produceTopic(r *request, t kmsg.ProduceRequestTopic) (string, error) {
	if r.version >= 13 {
		topic, ok := b.set.TopicByID(uuid.UUID(t.TopicID))
		if !ok {
			return "", kerr.UnknownTopicID
		}
		t.Topic = topic.Name
	}
	if !r.may(opWrite, onTopic, t.Topic) {
		return "", kerr.TopicAuthorizationFailed
	}
	topic, ok := b.set.Topic(t.Topic)
	switch {
	case !ok:
		return "", kerr.UnknownTopicOrPartition
	case topic.Internal && (!b.fromPeer(r) || topic.Name != b.cfg.PeerTopic):
		return "", refuse(kerr.InvalidTopicException, "topic %q is internal: clients cannot write to it", topic.Name)
	}
	return topic.Name, nil
}

// fromPeer reports whether another node of the cluster sent a request. Where there is
// authentication it has proved that.
func (b *Broker) fromPeer(r *request) bool {
	return b.cfg.PeerClientID != "" && r.clientID == b.cfg.PeerClientID && (!b.access.Enabled() || r.conn.session.client.Principal == security.Node)
}

func (b *Broker) append(ctx context.Context, version int16, topic string, index int32, records []byte, verified *verification, done func(partition.AppendResult, error)) error {
	p, err := b.set.Partition(topic, index)
	if err != nil {
		return produceError(err)
	}
	if err := checkBatch(version, records); err != nil {
		return err
	}
	v, ok := verified.of(p)
	if !ok {
		return produceError(p.Append(ctx, records, done))
	}
	if verified.err != nil {
		return verified.err
	}
	return produceError(p.AppendTransactional(ctx, records, v, done))
}

// checkBatch checks what a client must not send and the partition would take from the
// parts of this process. The partition checks the batch itself.
func checkBatch(version int16, records []byte) error {
	const magicAt = 16
	if len(records) <= magicAt {
		return refuse(kerr.CorruptMessage, "%d bytes are no record batch", len(records))
	}
	if magic := int8(records[magicAt]); magic == 0 || magic == 1 {
		return refuse(kerr.UnsupportedForMessageFormat, "message sets of format %d are not supported: use a client of Kafka 0.11 or later", magic)
	}
	if version < 3 {
		return refuse(kerr.UnsupportedForMessageFormat, "record batches need Produce v3 or later")
	}
	batch, rest, err := record.Split(records)
	switch {
	case err != nil:
		return refuse(kerr.CorruptMessage, "%v", err)
	case len(rest) > 0: // as documented for v3 and later
		return refuse(kerr.InvalidRecord, "a partition takes one record batch per request, %d bytes follow the first", len(rest))
	case batch.IsControl():
		return refuse(kerr.InvalidRecord, "clients cannot write control batches")
	case batch.Codec() == record.CodecZstd && version < 7: // KIP-110
		return refuse(kerr.UnsupportedCompressionType, "zstd needs Produce v7 or later")
	}
	return nil
}

// produceError chooses the Kafka code for what a partition answered.
func produceError(err error) error {
	var code *kerr.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, partition.ErrUnknownTopicOrPartition):
		code = kerr.UnknownTopicOrPartition
	case errors.Is(err, partition.ErrDamaged):
		code = kerr.KafkaStorageError
	case errors.Is(err, partition.ErrNotLeader):
		code = kerr.NotLeaderForPartition
	case errors.Is(err, partition.ErrCorrupt):
		code = kerr.CorruptMessage
	case errors.Is(err, partition.ErrTooLarge):
		code = kerr.MessageTooLarge
	case errors.Is(err, partition.ErrInvalidRecord):
		code = kerr.InvalidRecord
	case errors.Is(err, partition.ErrNotValidated):
		code = kerr.RequestTimedOut // clients send the batch again
	case errors.Is(err, partition.ErrInvalidTimestamp):
		code = kerr.InvalidTimestamp
	case errors.Is(err, partition.ErrOutOfOrderSequence):
		code = kerr.OutOfOrderSequenceNumber
	case errors.Is(err, partition.ErrInvalidProducerEpoch):
		code = kerr.InvalidProducerEpoch
	case errors.Is(err, partition.ErrInvalidTxnState):
		code = kerr.InvalidTxnState
	case errors.Is(err, partition.ErrTooManyTransactions):
		code = kerr.PolicyViolation
	default:
		return err
	}
	r := &refusal{code: code, text: err.Error()}
	if bad := (*partition.InvalidRecordsError)(nil); errors.As(err, &bad) {
		r.records = bad.Records
	}
	return r
}

// set stores the result of one partition. It never blocks: partitions call it from
// where they acknowledge.
func (p *produce) set(at place, res partition.AppendResult, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.answered {
		result := p.atLocked(at)
		if err = produceError(err); err != nil {
			result.ErrorCode, result.ErrorMessage = codeAndText(err)
			result.ErrorRecords = errorRecords(err)
		} else {
			result.ErrorCode = 0
			result.BaseOffset, result.LogStartOffset, result.LogAppendTime = res.BaseOffset, res.LogStartOffset, res.LogAppendTime
		}
	}
	p.leave()
}

// errorRecords are the records because of which a batch is refused (KIP-467).
func errorRecords(err error) (all []kmsg.ProduceResponseTopicPartitionErrorRecord) {
	var r *refusal
	if !errors.As(err, &r) {
		return nil
	}
	for _, bad := range r.records {
		e := kmsg.NewProduceResponseTopicPartitionErrorRecord()
		e.RelativeOffset, e.ErrorMessage = bad.Index, &bad.Reason
		all = append(all, e)
	}
	return all
}

// redirect adds to a result who leads the partition.
func (p *produce) redirect(at place, leader peer, epoch int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	result := p.atLocked(at)
	result.CurrentLeader.LeaderID, result.CurrentLeader.LeaderEpoch = leader.id, epoch
	if slices.ContainsFunc(p.resp.Brokers, func(o kmsg.ProduceResponseBroker) bool { return o.NodeID == leader.id }) {
		return
	}
	broker := kmsg.NewProduceResponseBroker()
	broker.NodeID, broker.Host, broker.Port, broker.Rack = leader.id, leader.host, leader.port, leader.rack
	p.resp.Brokers = append(p.resp.Brokers, broker)
}

// finish says that every partition was appended or refused.
func (p *produce) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave()
}

func (p *produce) leave() {
	if p.left--; p.left == 0 {
		close(p.done)
	}
}

// answer waits until all batches are durable or refused, or the deadline, and encodes
// the answer into a. An error closes the connection.
func (p *produce) answer(a *answer, timer *time.Timer) error {
	select {
	case <-p.done:
	default:
		timer.Reset(time.Until(p.deadline))
		select {
		case <-p.done:
		case <-timer.C:
		case <-p.req.conn.b.ctx.Done():
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answered = true
	for i := range p.resp.Topics {
		for j := range p.resp.Topics[i].Partitions {
			result := &p.resp.Topics[i].Partitions[j]
			if result.ErrorCode == unanswered {
				result.ErrorCode, result.ErrorMessage = codeAndText(refuse(kerr.RequestTimedOut, "not durable after %v: it may become so later; an idempotent producer can repeat it", time.Since(p.req.start).Round(time.Millisecond)))
			}
			if p.acks == 0 && result.ErrorCode != 0 {
				return fmt.Errorf("produce without acks to topic %q partition %d: %w", p.resp.Topics[i].Topic, result.Partition, kerr.ErrorForCode(result.ErrorCode))
			}
		}
	}
	if p.acks != 0 {
		a.bufs = [][]byte{p.resp.AppendTo(p.req.appendHeader(make([]byte, 0, 128)))}
	}
	return nil
}
