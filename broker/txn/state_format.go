package txn

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// Records of __transaction_state are Kafka's own (TransactionLogKey and TransactionLogValue of its
// message definitions), so that tools that read the topic understand it. The batch around them
// carries the checksum.
//
//	key    ┌────────────┬──────────────────────────────────────────────────────────────┐
//	       │ version 2  │ 0: transactional id                                          │
//	       └────────────┴──────────────────────────────────────────────────────────────┘
//	value  ┌────────────┬──────────────────────────────────────────────────────────────┐
//	       │ version 2  │ 1: producer id and epoch, timeout, state, partitions, times,
//	       │            │ tags: previous and next producer id, version of the client    │
//	       └────────────┴──────────────────────────────────────────────────────────────┘
//
// A null value deletes. Version 0 of the value, which lacks the tags, is read too.
const (
	keyVersion   = 0
	valueVersion = 1
)

// The states of a transaction; the numbers are stored.
const (
	empty          kmsg.TransactionState = 0
	ongoing        kmsg.TransactionState = 1
	prepareCommit  kmsg.TransactionState = 2
	prepareAbort   kmsg.TransactionState = 3
	completeCommit kmsg.TransactionState = 4
	completeAbort  kmsg.TransactionState = 5
)

// record is what survives of the transaction.
func (t *transaction) record(now time.Time) shard.Record {
	key := kmsg.TxnMetadataKey{Version: keyVersion, TransactionalID: t.id}
	v := kmsg.NewTxnMetadataValue()
	v.Version = valueVersion
	v.ProducerID, v.ProducerEpoch, v.TimeoutMillis, v.State = t.producerID, t.epoch, int32(t.timeout.Milliseconds()), t.phase
	v.Topics = topics(t.partitions)
	v.LastUpdateTimestamp, v.StartTimestamp = now.UnixMilli(), millisOf(t.started)
	v.PreviousProducerID, v.NextProducerID, v.ClientTransactionVersion = t.previous, t.next, t.version
	return shard.Record{Record: record.Record{Timestamp: now.UnixMilli(), Key: key.AppendTo(nil), Value: v.AppendTo(nil)}}
}

// tombstone deletes a transactional id.
func tombstone(id string, now time.Time) shard.Record {
	key := kmsg.TxnMetadataKey{Version: keyVersion, TransactionalID: id}
	return shard.Record{Record: record.Record{Timestamp: now.UnixMilli(), Key: key.AppendTo(nil)}}
}

// parseRecord returns a transactional id and its value, nil if that is deleted.
func parseRecord(r record.Record) (id string, v *kmsg.TxnMetadataValue, err error) {
	if len(r.Key) < 2 {
		return "", nil, fmt.Errorf("transaction record key of %d bytes", len(r.Key))
	}
	if version := int16(binary.BigEndian.Uint16(r.Key)); version != keyVersion {
		return "", nil, fmt.Errorf("transaction record key version %d: this release reads %d", version, keyVersion)
	}
	var key kmsg.TxnMetadataKey
	if err := key.ReadFrom(r.Key); err != nil {
		return "", nil, fmt.Errorf("transaction record key: %w", err)
	}
	if r.Value == nil {
		return key.TransactionalID, nil, nil
	}
	if len(r.Value) < 2 {
		return "", nil, fmt.Errorf("transaction record value of %d bytes", len(r.Value))
	}
	if version := int16(binary.BigEndian.Uint16(r.Value)); version < 0 || version > valueVersion {
		return "", nil, fmt.Errorf("transaction record value version %d: this release reads up to %d", version, valueVersion)
	}
	v = new(kmsg.TxnMetadataValue)
	if err := v.ReadFrom(r.Value); err != nil {
		return "", nil, fmt.Errorf("transaction record of %q: %w", key.TransactionalID, err)
	}
	if v.State < empty || v.State > completeAbort {
		return "", nil, fmt.Errorf("transaction record of %q: unknown state %d", key.TransactionalID, v.State)
	}
	return key.TransactionalID, v, nil
}

// topics are partitions as the protocol names them.
func topics(partitions map[partition.ID]bool) (out []kmsg.TxnMetadataValueTopic) {
	ids := slices.SortedFunc(maps.Keys(partitions), func(a, b partition.ID) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Index, b.Index))
	})
	for _, id := range ids {
		if n := len(out); n == 0 || out[n-1].Topic != id.Topic {
			out = append(out, kmsg.TxnMetadataValueTopic{Topic: id.Topic})
		}
		t := &out[len(out)-1]
		t.Partitions = append(t.Partitions, id.Index)
	}
	return out
}

func millisOf(t time.Time) int64 {
	if t.IsZero() {
		return -1
	}
	return t.UnixMilli()
}

func timeOf(millis int64) time.Time {
	if millis < 0 {
		return time.Time{}
	}
	return time.UnixMilli(millis)
}
