package broker

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Offsets are committed, alone and in a transaction, and fetched by ids of topics; an id that no topic
// has is refused alone, and a deleted topic is in no answer.
func TestOffsetsByTopicID(t *testing.T) {
	b := start(t, Config{})
	topic, gone := b.topic(t, "t", 2), b.topic(t, "gone", 1)
	unknown := [16]byte{1, 2, 3}
	w := b.dial(t)
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Version, commit.Group, commit.Generation = 10, "g", -1
	for _, id := range [][16]byte{topic.ID, unknown, gone.ID} {
		commit.Topics = append(commit.Topics, kmsg.OffsetCommitRequestTopic{TopicID: id, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: 0, Offset: 7, LeaderEpoch: -1}}})
	}
	eventually(t, "the coordinator", func() bool {
		resp := w.ask(commit).(*kmsg.OffsetCommitResponse)
		codes := map[[16]byte]int16{}
		for _, rt := range resp.Topics {
			codes[rt.TopicID] = rt.Partitions[0].ErrorCode
		}
		if codes[topic.ID] == kerr.NotCoordinator.Code || codes[topic.ID] == kerr.CoordinatorLoadInProgress.Code {
			return false
		}
		if len(codes) != 3 || codes[topic.ID] != 0 || codes[gone.ID] != 0 || codes[unknown] != kerr.UnknownTopicID.Code {
			t.Fatalf("codes %v", codes)
		}
		return true
	})
	init := kmsg.NewPtrInitProducerIDRequest()
	init.Version, init.TransactionalID, init.TransactionTimeoutMillis = 5, strp("x"), 60_000
	init.ProducerID, init.ProducerEpoch = -1, -1
	var producer *kmsg.InitProducerIDResponse
	eventually(t, "the transaction's coordinator", func() bool {
		producer = w.ask(init).(*kmsg.InitProducerIDResponse)
		return producer.ErrorCode == 0
	})
	txn := kmsg.NewPtrTxnOffsetCommitRequest()
	txn.Version, txn.TransactionalID, txn.Group, txn.ProducerID, txn.ProducerEpoch, txn.Generation = 6, "x", "g", producer.ProducerID, producer.ProducerEpoch, -1
	for _, id := range [][16]byte{topic.ID, unknown} {
		txn.Topics = append(txn.Topics, kmsg.TxnOffsetCommitRequestTopic{TopicID: id, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: 1, Offset: 9, LeaderEpoch: -1}}})
	}
	for _, rt := range w.ask(txn).(*kmsg.TxnOffsetCommitResponse).Topics {
		want := int16(0)
		if rt.TopicID == unknown {
			want = kerr.UnknownTopicID.Code
		}
		if got := rt.Partitions[0].ErrorCode; got != want {
			t.Errorf("in a transaction, topic %x: %v", rt.TopicID, kerr.ErrorForCode(got))
		}
	}
	end := kmsg.NewPtrEndTxnRequest()
	end.Version, end.TransactionalID, end.ProducerID, end.ProducerEpoch, end.Commit = 5, "x", producer.ProducerID, producer.ProducerEpoch, true
	if code := w.ask(end).(*kmsg.EndTxnResponse).ErrorCode; code != 0 {
		t.Fatal(kerr.ErrorForCode(code))
	}

	fetch := func(ids ...[16]byte) map[[16]byte]map[int32]int64 {
		t.Helper()
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Version, req.RequireStable = 10, true
		group := kmsg.NewOffsetFetchRequestGroup()
		group.Group = "g"
		for _, id := range ids {
			group.Topics = append(group.Topics, kmsg.OffsetFetchRequestGroupTopic{TopicID: id, Partitions: []int32{0, 1}})
		}
		req.Groups = []kmsg.OffsetFetchRequestGroup{group}
		out := map[[16]byte]map[int32]int64{}
		for _, rt := range w.ask(req).(*kmsg.OffsetFetchResponse).Groups[0].Topics {
			out[rt.TopicID] = map[int32]int64{}
			for _, p := range rt.Partitions {
				if out[rt.TopicID][p.Partition] = p.Offset; p.ErrorCode != 0 {
					out[rt.TopicID][p.Partition] = -int64(p.ErrorCode)
				}
			}
		}
		return out
	}
	eventually(t, "the transaction's offsets", func() bool { return fetch(topic.ID)[topic.ID][1] == 9 })
	if got := fetch(topic.ID, unknown); got[topic.ID][0] != 7 || got[unknown][0] != -int64(kerr.UnknownTopicID.Code) {
		t.Errorf("fetched %v", got)
	}
	remove := kmsg.NewPtrDeleteTopicsRequest()
	remove.Version, remove.Topics = 6, []kmsg.DeleteTopicsRequestTopic{{TopicID: gone.ID}}
	if code := w.ask(remove).(*kmsg.DeleteTopicsResponse).Topics[0].ErrorCode; code != 0 {
		t.Fatal(kerr.ErrorForCode(code))
	}
	if got := fetch(); len(got) != 1 || got[topic.ID][0] != 7 || got[topic.ID][1] != 9 {
		t.Errorf("all offsets are %v", got)
	}
}
