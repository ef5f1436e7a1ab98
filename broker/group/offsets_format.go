package group

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/record"
)

// Records of __consumer_offsets are Kafka's own (GroupMetadata and OffsetCommit of its
// message definitions), so that tools that read the topic understand it. The batch around
// them carries the checksum.
//
//	key    ┌────────────┬────────────────────────────────────┐
//	       │ version 2  │ 1: group, topic, partition         │  a committed offset
//	       │            │ 2: group                           │  members and assignment
//	       └────────────┴────────────────────────────────────┘
//	value  ┌────────────┬────────────────────────────────────┐
//	       │ version 2  │ OffsetCommitValue 3, GroupMetadataValue 3; null deletes
//	       └────────────┴────────────────────────────────────┘
//
// Offsets that a transaction commits are in batches of the transaction, and count from its marker on.
const (
	offsetKeyVersion   = 1
	groupKeyVersion    = 2
	offsetValueVersion = 3
	groupValueVersion  = 3
)

type topicPartition struct {
	topic     string
	partition int32
}

// offset is a committed offset.
type offset struct {
	offset      int64
	leaderEpoch int32
	metadata    string
	committed   time.Time
	order       int64 // of its record among all
}

func offsetRecord(group string, tp topicPartition, o *offset) shard.Record {
	key := kmsg.OffsetCommitKey{Version: offsetKeyVersion, Group: group, Topic: tp.topic, Partition: tp.partition}
	r := shard.Record{Record: record.Record{Key: key.AppendTo(nil)}}
	if o != nil {
		v := kmsg.NewOffsetCommitValue()
		v.Version, v.Offset, v.LeaderEpoch, v.Metadata, v.CommitTimestamp = offsetValueVersion, o.offset, o.leaderEpoch, o.metadata, o.committed.UnixMilli()
		r.Value, r.Timestamp = v.AppendTo(nil), v.CommitTimestamp
	}
	return r
}

// pendingRecord is an offset that a transaction commits.
func pendingRecord(group string, tp topicPartition, txn shard.Producer, o offset) shard.Record {
	r := offsetRecord(group, tp, &o)
	r.Txn = &txn
	return r
}

func groupRecord(group string, v *kmsg.GroupMetadataValue) shard.Record {
	key := kmsg.GroupMetadataKey{Version: groupKeyVersion, Group: group}
	r := shard.Record{Record: record.Record{Key: key.AppendTo(nil)}}
	if v != nil {
		v.Version = groupValueVersion
		r.Value, r.Timestamp = v.AppendTo(nil), v.CurrentStateTimestamp
	}
	return r
}

// parseRecord returns either an offset key and value or a group key and value; a nil value deletes.
func parseRecord(r record.Record) (ok *kmsg.OffsetCommitKey, ov *kmsg.OffsetCommitValue, gk *kmsg.GroupMetadataKey, gv *kmsg.GroupMetadataValue, err error) {
	if len(r.Key) < 2 {
		return nil, nil, nil, nil, fmt.Errorf("group record key of %d bytes", len(r.Key))
	}
	switch version := int16(binary.BigEndian.Uint16(r.Key)); version {
	case 0, offsetKeyVersion:
		ok = new(kmsg.OffsetCommitKey)
		if err = ok.ReadFrom(r.Key); err == nil && r.Value != nil {
			ov = new(kmsg.OffsetCommitValue)
			err = ov.ReadFrom(r.Value)
		}
	case groupKeyVersion:
		gk = new(kmsg.GroupMetadataKey)
		if err = gk.ReadFrom(r.Key); err == nil && r.Value != nil {
			gv = new(kmsg.GroupMetadataValue)
			err = gv.ReadFrom(r.Value)
		}
	default:
		err = fmt.Errorf("group record key version %d: this release reads 0 to 2", version)
	}
	return ok, ov, gk, gv, err
}
