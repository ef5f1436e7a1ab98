package broker

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/txn"
	"github.com/tabletopic/tabletopic/internal/shards"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// verification is what a coordinator said of the batches of a request that begin a transaction in
// their partition (KIP-890).
type verification struct {
	partitions map[*partition.Partition]partition.Verification
	err        error // for all of them
}

// of returns what lets a batch begin a transaction in p; ok is false if it need not.
func (v *verification) of(p *partition.Partition) (partition.Verification, bool) {
	if v == nil {
		return partition.Verification{}, false
	}
	one, ok := v.partitions[p]
	return one, ok
}

// verifyProduce asks the coordinator about the batches that begin a transaction in their
// partition. From version 12 on the request makes the partitions part of the transaction; before,
// the producer has. It returns nil if no batch begins one. An error says that the request is malformed.
func (b *Broker) verifyProduce(ctx context.Context, r *request, head produceHead, body produceBody) (*verification, error) {
	asks := head.transactionalID != nil && r.allowed(opWrite, onTxn, *head.transactionalID)
	e := txn.Enlistment{Verify: r.version < 12, Version: 2}
	if asks {
		e.TransactionalID = *head.transactionalID
	}
	var all []*partition.Partition
	var name string
	err := body.each(func(t kmsg.ProduceRequestTopic) {
		if name = t.Topic; r.version >= 13 {
			topic, _ := b.set.TopicByID(uuid.UUID(t.TopicID))
			name = topic.Name
		}
	}, func(index int32, records []byte) {
		if !asks {
			return
		}
		p, err := b.set.Partition(name, index)
		if topic, _ := b.set.Topic(name); topic.Internal || !r.allowed(opWrite, onTopic, name) {
			return
		}
		batch, _, berr := record.Split(records)
		if err != nil || berr != nil || len(batch) < record.HeaderSize || !batch.IsTransactional() {
			return // append says why, or need not ask
		}
		e.Producer = txn.Identity{ProducerID: batch.ProducerID(), Epoch: batch.ProducerEpoch()}
		all = append(all, p)
	})
	if err != nil {
		return nil, err
	}
	v, refused, err := b.enlist(ctx, e, all)
	if v == nil {
		return nil, nil
	}
	return &verification{v, verifyError(r.version, refused, err)}, nil
}

// enlist makes those of the partitions in which the producer has no transaction open part of its
// transaction, or verifies that they are. It returns nil if there are none.
func (b *Broker) enlist(ctx context.Context, e txn.Enlistment, all []*partition.Partition) (v map[*partition.Partition]partition.Verification, refused *kerr.Error, err error) {
	for range enlistAttempts {
		v, e.Partitions = nil, nil
		for _, p := range all {
			one, open := p.Verification(e.Producer.ProducerID, e.Producer.Epoch)
			if open {
				continue
			}
			if v == nil {
				v = map[*partition.Partition]partition.Verification{}
			}
			v[p] = one
			e.Partitions = append(e.Partitions, partition.ID{Topic: p.Topic(), Index: p.Index()})
		}
		if v == nil {
			return nil, nil, nil
		}
		if refused, err = b.txns.Enlist(ctx, e); refused != nil || err != nil {
			return v, refused, err
		}
		fresh := true
		for p, one := range v {
			now, _ := p.Verification(e.Producer.ProducerID, e.Producer.Epoch)
			fresh = fresh && now == one
		}
		if fresh {
			break
		}
		// A marker came meanwhile, mostly that of the transaction before, which the coordinator waited
		// for: ask again, so that it agrees after that.
	}
	return v, nil, nil
}

// enlistAttempts is how often a coordinator is asked while markers come.
const enlistAttempts = 3

// verifyError chooses the code for a batch that its coordinator did not agree to. Producers before
// KIP-890 know none that says to try again later, but that of replicas that are missing.
func verifyError(version int16, refused *kerr.Error, err error) error {
	switch {
	case errors.Is(err, shards.ErrNotCoordinator), errors.Is(err, context.DeadlineExceeded),
		err == nil && refused == kerr.ConcurrentTransactions && version < 12:
		return refuse(kerr.NotEnoughReplicas, "the coordinator of the transaction did not agree yet: try again")
	case err != nil:
		return refuse(kerr.NotEnoughReplicas, "the coordinator of the transaction did not answer: %v", err)
	case refused == kerr.ProducerFenced:
		return refuse(kerr.InvalidProducerEpoch, "another producer has the transactional id now")
	case refused == kerr.InvalidTxnState && version >= 11:
		return refuse(kerr.TransactionAbortable, "the partition is not part of the transaction: abort it")
	case refused != nil:
		return refuse(refused, "the coordinator of the transaction refused the partition")
	}
	return nil
}
