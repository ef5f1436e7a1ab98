package group

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/record"
)

// Offsets that a transaction commits count once its marker is there, and only if none was committed
// after them; until then they are unstable. Through snapshots and replays, against a model.
func TestTxnOffsets(t *testing.T) {
	type pending struct{ offset, order int64 }
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		s := NewState(Config{})
		var log []shard.Record
		apply := func(records ...shard.Record) {
			for _, rec := range records {
				if err := s.Replay(rec); err != nil {
					t.Fatal(err)
				}
			}
			log = append(log, records...)
		}
		committed := map[int32]pending{}
		open := map[int64]map[int32]pending{}
		now := time.Unix(1000, 0)
		exists := func(string, int32) bool { return true }
		for order := range int64(120) {
			p, producer, offset := int32(r.IntN(3)), int64(r.IntN(3)), r.Int64N(1000)
			switch r.IntN(8) {
			case 0, 1:
				req := kmsg.NewPtrOffsetCommitRequest()
				req.Group, req.Generation = "g", -1
				req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: p, Offset: offset}}}}
				apply(s.Commit(now, 1, req, exists).Records...)
				committed[p] = pending{offset, order}
			case 2, 3, 4:
				req := kmsg.NewPtrTxnOffsetCommitRequest()
				req.Group, req.Generation, req.ProducerID = "g", -1, producer
				req.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: p, Offset: offset}}}}
				resp, records := s.TxnCommit(now, req, exists)
				if code := resp.Topics[0].Partitions[0].ErrorCode; code != 0 {
					t.Fatal(kerr.ErrorForCode(code))
				}
				apply(records...)
				if open[producer] == nil {
					open[producer] = map[int32]pending{}
				}
				open[producer][p] = pending{offset, order}
			case 5, 6:
				commit := r.IntN(2) == 0
				apply(shard.Record{Marker: &record.Marker{ProducerID: producer, Commit: commit}})
				for p, o := range open[producer] {
					if commit && (committed[p] == pending{} || o.order > committed[p].order) {
						committed[p] = o
					}
				}
				delete(open, producer)
			case 7:
				if r.IntN(2) == 0 {
					log = s.Snapshot()
				}
				s = NewState(Config{})
				again := log
				log = nil
				apply(again...)
			}
			for _, stable := range []bool{false, true} {
				got := s.Fetch(1, "g", "", -1, []kmsg.OffsetFetchRequestGroupTopic{{Topic: "t", Partitions: []int32{0, 1, 2}}}, stable).Answers[0].Value.(kmsg.OffsetFetchResponseGroup)
				for _, sp := range got.Topics[0].Partitions {
					want, code := int64(-1), int16(0)
					if c, ok := committed[sp.Partition]; ok {
						want = c.offset
					}
					for _, o := range open {
						if _, unstable := o[sp.Partition]; unstable && stable {
							want, code = -1, kerr.UnstableOffsetCommit.Code
						}
					}
					if sp.Offset != want || sp.ErrorCode != code {
						t.Fatalf("seed %d step %d: partition %d, stable %v: offset %d, code %d; want %d, %d", seed, order, sp.Partition, stable, sp.Offset, sp.ErrorCode, want, code)
					}
				}
			}
		}
	}
}

// What is deleted does not come back with the marker of a transaction that was open.
func TestDeletedOffsetsStayDeleted(t *testing.T) {
	s := NewState(Config{})
	apply := func(records ...shard.Record) {
		for _, rec := range records {
			if err := s.Replay(rec); err != nil {
				t.Fatal(err)
			}
		}
	}
	for producer := range int64(2) {
		apply(pendingRecord("g", topicPartition{"gone", 0}, shard.Producer{ID: producer}, offset{offset: 5}),
			pendingRecord("g", topicPartition{"stays", 0}, shard.Producer{ID: producer}, offset{offset: 6 + producer}))
	}
	apply(s.ForgetTopic(1, "gone", uuid.UUID{}).Records...)
	for producer := range int64(2) {
		apply(shard.Record{Marker: &record.Marker{ProducerID: producer, Commit: true}})
	}
	if got, want := fmt.Sprint(s.groups["g"].offsets[topicPartition{"stays", 0}].offset, len(s.groups["g"].offsets), len(s.pending), len(s.groups["g"].unstable)), "7 1 0 0"; got != want {
		t.Errorf("offset that stays, offsets, pending, unstable: %s, want %s", got, want)
	}
}
