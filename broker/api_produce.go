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
	deadline time.Time
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
func handleProduce(ctx context.Context, b *Broker, r *request) (*answer, error) {
	req := kmsg.NewPtrProduceRequest()
	if err := r.decode(ctx, req); err != nil {
		return nil, err
	}
	p := newProduce(r, req)
	appendCtx, cancel := context.WithDeadline(b.ctx, p.deadline)
	defer cancel()
	bytes := 0
	refused := b.produceRefused(r, req)
	verified := b.verifyProduce(appendCtx, r, req)
	for i := range req.Topics {
		t := &req.Topics[i]
		name, err := "", refused
		if err == nil {
			name, err = b.produceTopic(r, t)
		}
		for j := range t.Partitions {
			tp := &t.Partitions[j]
			bytes += len(tp.Records)
			result := &p.resp.Topics[i].Partitions[j]
			perr := err
			if perr == nil {
				perr = b.append(appendCtx, r.version, name, tp, verified, func(res partition.AppendResult, err error) {
					p.set(result, res, err)
				})
			}
			if perr != nil {
				if at, epoch, ok := b.newLeader(appendCtx, r.conn.listener, name, tp.Partition, perr); ok {
					p.redirect(result, at, epoch)
				}
				p.set(result, partition.AppendResult{}, perr)
			}
		}
	}
	p.resp.ThrottleMillis = millis(r.silence(b.quotas.take(security.ProducerByteRate, r, float64(bytes)))) // nobody else has it before finish
	p.finish()
	b.m.produced.Add(float64(bytes))
	return &answer{produce: p}, nil
}

func newProduce(r *request, req *kmsg.ProduceRequest) *produce {
	resp := kmsg.NewPtrProduceResponse()
	resp.SetVersion(r.version)
	resp.Topics = make([]kmsg.ProduceResponseTopic, len(req.Topics))
	left := 1
	for i, t := range req.Topics {
		resp.Topics[i].Topic, resp.Topics[i].TopicID = t.Topic, t.TopicID
		resp.Topics[i].Partitions = make([]kmsg.ProduceResponseTopicPartition, len(t.Partitions))
		left += len(t.Partitions)
		for j := range t.Partitions {
			result := &resp.Topics[i].Partitions[j]
			result.Default()
			result.Partition, result.ErrorCode = t.Partitions[j].Partition, unanswered
			result.BaseOffset, result.LogStartOffset = -1, -1
		}
	}
	timeout := max(time.Duration(req.TimeoutMillis)*time.Millisecond, minProduceTimeout)
	return &produce{req: r, acks: req.Acks, deadline: r.start.Add(timeout), done: make(chan struct{}), resp: resp, left: left}
}

// produceRefused says what is wrong for all topics.
func (b *Broker) produceRefused(r *request, req *kmsg.ProduceRequest) error {
	switch {
	case req.Acks < -1 || req.Acks > 1:
		return refuse(kerr.InvalidRequiredAcks, "acks must be -1 (all), 0 or 1, not %d", req.Acks)
	case req.TransactionID != nil && !r.may(opWrite, onTxn, *req.TransactionID):
		return kerr.TransactionalIDAuthorizationFailed
	}
	return nil
}

// produceTopic says which topic is written, or what is wrong for all of its partitions.
func (b *Broker) produceTopic(r *request, t *kmsg.ProduceRequestTopic) (string, error) {
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

func (b *Broker) append(ctx context.Context, version int16, topic string, tp *kmsg.ProduceRequestTopicPartition, verified *verification, done func(partition.AppendResult, error)) error {
	p, err := b.set.Partition(topic, tp.Partition)
	if err != nil {
		return produceError(err)
	}
	if err := checkBatch(version, tp.Records); err != nil {
		return err
	}
	v, ok := verified.of(p)
	if !ok {
		return produceError(p.Append(ctx, tp.Records, done))
	}
	if verified.err != nil {
		return verified.err
	}
	return produceError(p.AppendTransactional(ctx, tp.Records, v, done))
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
func (p *produce) set(result *kmsg.ProduceResponseTopicPartition, res partition.AppendResult, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.answered {
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
func (p *produce) redirect(result *kmsg.ProduceResponseTopicPartition, at peer, epoch int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	result.CurrentLeader.LeaderID, result.CurrentLeader.LeaderEpoch = at.id, epoch
	if slices.ContainsFunc(p.resp.Brokers, func(o kmsg.ProduceResponseBroker) bool { return o.NodeID == at.id }) {
		return
	}
	broker := kmsg.NewProduceResponseBroker()
	broker.NodeID, broker.Host, broker.Port, broker.Rack = at.id, at.host, at.port, at.rack
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
