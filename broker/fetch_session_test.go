package broker

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/record"
)

// sessionClient fetches in a session as KIP-227 says: it names what changes, and takes what
// an answer leaves out for unchanged.
type sessionClient struct {
	*wire
	id       int32
	epoch    int32
	maxBytes int32
	wants    map[sessionKey]*sessionWant
	changed  map[sessionKey]bool // that the next request names
	forgets  map[sessionKey]bool
}

type sessionWant struct{ next, high, start int64 }

func (c *sessionClient) request() *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 13, 0, 0, c.maxBytes
	req.SessionID, req.SessionEpoch = c.id, c.epoch
	for key := range c.changed {
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.PartitionMaxBytes = key.index, c.wants[key].next, 200
		req.Topics = append(req.Topics, kmsg.FetchRequestTopic{TopicID: key.id, Partitions: []kmsg.FetchRequestTopicPartition{p}})
	}
	for key := range c.forgets {
		req.ForgottenTopics = append(req.ForgottenTopics, kmsg.FetchRequestForgottenTopic{TopicID: key.id, Partitions: []int32{key.index}})
	}
	clear(c.changed)
	clear(c.forgets)
	return req
}

// fetch sends the next request and returns how many partitions its answer has.
func (c *sessionClient) fetch() (n int) {
	c.t.Helper()
	resp := c.ask(c.request()).(*kmsg.FetchResponse)
	if resp.ErrorCode != 0 || resp.SessionID == 0 || c.id != 0 && resp.SessionID != c.id {
		c.t.Fatalf("session %d, epoch %d: %v, session %d", c.id, c.epoch, kerr.ErrorForCode(resp.ErrorCode), resp.SessionID)
	}
	c.id = resp.SessionID
	c.epoch++
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			n++
			key := sessionKey{id: t.TopicID, index: p.Partition}
			want := c.wants[key]
			if want == nil {
				c.t.Fatalf("the answer has %v, which is not in the session", key)
			}
			want.high, want.start = p.HighWatermark, p.LogStartOffset
			if p.ErrorCode == kerr.OffsetOutOfRange.Code {
				want.next = p.LogStartOffset
				c.changed[key] = true
				continue
			}
			if p.ErrorCode != 0 {
				c.t.Fatalf("%v: %v", key, kerr.ErrorForCode(p.ErrorCode))
			}
			for raw := p.RecordBatches; len(raw) > 0; {
				b, rest, err := record.Split(raw)
				if err != nil {
					c.t.Fatal(err)
				}
				want.next, raw = b.NextOffset(), rest
				c.changed[key] = true
			}
		}
	}
	return n
}

// Whatever is added, forgotten, produced and deleted meanwhile, a session brings a client as far as its
// partitions are, and then says nothing more.
func TestFetchSessionModel(t *testing.T) {
	b := start(t, Config{})
	topics := map[[16]byte]metadata.Topic{}
	for _, name := range []string{"a", "b", "c"} {
		topic := b.topic(t, name, 3)
		topics[topic.ID] = topic
	}
	w := b.dial(t)
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		c := &sessionClient{wire: b.dial(t), maxBytes: 300, wants: map[sessionKey]*sessionWant{}, changed: map[sessionKey]bool{}, forgets: map[sessionKey]bool{}}
		any := func() (metadata.Topic, sessionKey) {
			names := []string{"a", "b", "c"}
			topic, _ := b.set.Topic(names[random.IntN(3)])
			return topic, sessionKey{id: topic.ID, index: int32(random.IntN(3))}
		}
		for range 100 {
			topic, key := any()
			switch random.IntN(5) {
			case 0:
				w.ask(produceRequest(9, topic, key.index, -1, testBatch(t, 1+random.IntN(3), 20)))
			case 1:
				if c.wants[key] == nil {
					c.wants[key] = &sessionWant{}
					c.changed[key] = true
				}
			case 2:
				if c.wants[key] != nil && len(c.wants) > 1 {
					delete(c.wants, key)
					delete(c.changed, key)
					c.forgets[key] = true
				}
			case 3:
				p, err := b.set.Partition(topic.Name, key.index)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := p.DeleteRecords(t.Context(), p.Offsets().LogStart+random.Int64N(2)*(p.Offsets().HighWatermark-p.Offsets().LogStart)/2); err != nil {
					t.Fatal(err)
				}
			case 4:
				if len(c.wants) > 0 {
					c.fetch()
				}
			}
			for key := range c.forgets { // added again before it was said
				if c.wants[key] != nil {
					delete(c.forgets, key)
				}
			}
		}
		_, key := any()
		if c.wants[key] == nil {
			c.wants[key] = &sessionWant{}
			c.changed[key] = true
		}
		for n := 0; c.fetch() > 0; n++ {
			if n > 1000 {
				t.Fatalf("seed %d: the session always has news", seed)
			}
		}
		for key, want := range c.wants {
			p, err := b.set.Partition(topics[key.id].Name, key.index)
			if err != nil {
				t.Fatal(err)
			}
			if o := p.Offsets(); *want != (sessionWant{o.HighWatermark, o.HighWatermark, o.LogStart}) {
				t.Errorf("seed %d: partition %v: the client has %+v, the log is %+v", seed, key, *want, o)
			}
		}
		c.Close()
	}
	eventually(t, "ended sessions give back their room", func() bool {
		if !b.sessionRoom.TryAcquire(int64(b.cfg.MaxSessionPartitions)) {
			return false
		}
		b.sessionRoom.Release(int64(b.cfg.MaxSessionPartitions))
		return true
	})
}

// A partition with much to read does not keep others from their turn, which the client cannot
// see to in a session.
func TestFetchSessionTakesTurns(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 4)
	w := b.dial(t)
	for p := range int32(4) {
		for range 5 {
			w.ask(produceRequest(9, topic, p, -1, testBatch(t, 1, 150)))
		}
	}
	c := &sessionClient{wire: b.dial(t), maxBytes: 1, wants: map[sessionKey]*sessionWant{}, changed: map[sessionKey]bool{}, forgets: map[sessionKey]bool{}}
	for p := range int32(4) {
		key := sessionKey{id: topic.ID, index: p}
		c.wants[key], c.changed[key] = &sessionWant{}, true
	}
	for range 8 { // one batch each time
		c.fetch()
	}
	for key, want := range c.wants {
		if want.next != 2 {
			t.Errorf("partition %d is at %d after two turns of each", key.index, want.next)
		}
	}
}

// What does not fit the session is told so, and the client begins anew.
func TestFetchSessionErrors(t *testing.T) {
	b := start(t, Config{MaxSessionPartitions: 3})
	topic := b.topic(t, "t", 4)
	fetch := func(w *wire, version int16, id, epoch int32, partitions ...int32) *kmsg.FetchResponse {
		req := fetchRequest(version, topic, 0)
		req.MaxWaitMillis, req.SessionID, req.SessionEpoch = 0, id, epoch
		one := req.Topics[0].Partitions[0]
		req.Topics[0].Partitions = nil
		for _, p := range partitions {
			one.Partition = p
			req.Topics[0].Partitions = append(req.Topics[0].Partitions, one)
		}
		return w.ask(req).(*kmsg.FetchResponse)
	}
	is := func(what string, resp *kmsg.FetchResponse, want *kerr.Error) {
		t.Helper()
		if resp.ErrorCode != want.Code || resp.SessionID != 0 {
			t.Errorf("%s: %v, session %d; want %v", what, kerr.ErrorForCode(resp.ErrorCode), resp.SessionID, want)
		}
	}
	w := b.dial(t)
	is("no session", fetch(w, 12, 5, 1, 0), kerr.FetchSessionIDNotFound)
	begun := fetch(w, 12, 0, 0, 0, 1)
	if begun.ErrorCode != 0 || begun.SessionID == 0 {
		t.Fatalf("%+v", begun)
	}
	id := begun.SessionID
	is("another id", fetch(w, 12, id+1, 1), kerr.FetchSessionIDNotFound)
	is("another epoch", fetch(w, 12, id, 2), kerr.InvalidFetchSessionEpoch)
	is("by topic id", fetch(w, 13, id, 1), kerr.FetchSessionTopicIDError)
	other := b.dial(t)
	is("of another connection", fetch(other, 12, id, 1), kerr.FetchSessionIDNotFound)
	if got := fetch(other, 12, 0, 0, 0, 1); got.ErrorCode != 0 || got.SessionID != 0 || len(got.Topics[0].Partitions) != 2 {
		t.Errorf("where there is no room a fetch has no session: %+v", got)
	}
	if got := fetch(w, 12, id, 1, 2); got.ErrorCode != 0 || got.SessionID != id {
		t.Errorf("one partition more: %+v", got)
	}
	is("there is no room for more", fetch(w, 12, id, 2, 3), kerr.FetchSessionIDNotFound)
	if got := fetch(other, 12, 0, 0, 0, 1); got.SessionID == 0 {
		t.Error("the room of the session was not given back")
	} else if end := fetch(other, 12, got.SessionID, -1, 0); end.ErrorCode != 0 || end.SessionID != 0 || len(end.Topics) != 1 {
		t.Errorf("the last fetch: %+v", end)
	}
	if got := fetch(w, 12, 0, 0, 0, 1, 2); got.SessionID == 0 {
		t.Error("the room of a session that ended was not given back")
	}
}

// A partition with an error is in every answer, and once more when the error is over.
func TestFetchSessionPartitionErrors(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	req := fetchRequest(12, topic, 0)
	req.MaxWaitMillis, req.SessionID, req.SessionEpoch = 0, 0, 0
	req.Topics[0].Partitions[0].Partition = 1
	resp := w.ask(req).(*kmsg.FetchResponse)
	codes := map[int32]int16{}
	for epoch := int32(1); epoch < 3; epoch++ {
		again := kmsg.NewPtrFetchRequest()
		again.Version, again.SessionID, again.SessionEpoch = 12, resp.SessionID, epoch
		if got := w.ask(again).(*kmsg.FetchResponse); len(got.Topics) == 1 {
			codes[epoch] = got.Topics[0].Partitions[0].ErrorCode
		}
		if epoch == 1 {
			if _, err := b.set.CreatePartitions(t.Context(), "t", 2); err != nil {
				t.Fatal(err)
			}
		}
	}
	if want := map[int32]int16{1: kerr.UnknownTopicOrPartition.Code, 2: 0}; !maps.Equal(codes, want) {
		t.Errorf("codes by epoch: %v, want %v", codes, want)
	}
}
