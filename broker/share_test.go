package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/security"
)

// shareMember is a member of a share group on a connection of its own.
type shareMember struct {
	*wire
	group, id string
	topic     metadata.Topic
	epoch     int32                                 // of the group
	session   int32                                 // epoch of its share session
	last      kmsg.ShareFetchResponseTopicPartition // what its first fetch got
}

// joinShare makes a member that begins its session: from then on the group has an offset.
func (b *testBroker) joinShare(t testing.TB, group, id string, topic metadata.Topic) *shareMember {
	t.Helper()
	m := &shareMember{wire: b.dial(t), group: group, id: id, topic: topic}
	m.heartbeat(0)
	if m.last = m.fetch(0); m.last.ErrorCode != 0 {
		t.Fatalf("first fetch: %v", kerr.ErrorForCode(m.last.ErrorCode))
	}
	return m
}

func (m *shareMember) heartbeat(epoch int32) *kmsg.ShareGroupHeartbeatResponse {
	m.t.Helper()
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.Version, req.GroupID, req.MemberID, req.MemberEpoch = 1, m.group, m.id, epoch
	if epoch == 0 {
		req.SubscribedTopicNames = []string{m.topic.Name}
	}
	resp := m.ask(req).(*kmsg.ShareGroupHeartbeatResponse)
	if resp.ErrorCode != 0 {
		m.t.Fatalf("heartbeat of %s: %v: %s", m.id, kerr.ErrorForCode(resp.ErrorCode), *resp.ErrorMessage)
	}
	m.epoch = resp.MemberEpoch
	return resp
}

type ack = kmsg.ShareFetchRequestTopicPartitionAcknowledgementBatch

func (m *shareMember) fetchRequest(wait time.Duration, acks ...ack) *kmsg.ShareFetchRequest {
	req := kmsg.NewPtrShareFetchRequest()
	req.Version, req.GroupID, req.MemberID, req.ShareSessionEpoch = 2, &m.group, &m.id, m.session
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.MaxRecords, req.BatchSize = int32(wait.Milliseconds()), 1, 1<<20, 500, 500
	rt := kmsg.NewShareFetchRequestTopic()
	rt.TopicID = m.topic.ID
	rp := kmsg.NewShareFetchRequestTopicPartition()
	rp.AcknowledgementBatches = acks
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

// fetch returns what the answer says of the one partition; nothing if it does not name it.
func (m *shareMember) fetch(wait time.Duration, acks ...ack) (p kmsg.ShareFetchResponseTopicPartition) {
	m.t.Helper()
	resp := m.ask(m.fetchRequest(wait, acks...)).(*kmsg.ShareFetchResponse)
	if resp.ErrorCode != 0 {
		m.t.Fatalf("fetch of %s: %v", m.id, kerr.ErrorForCode(resp.ErrorCode))
	}
	m.session++
	for _, t := range resp.Topics {
		for _, p = range t.Partitions {
		}
	}
	return p
}

// until fetches until something was acquired.
func (m *shareMember) until(acks ...ack) kmsg.ShareFetchResponseTopicPartition {
	m.t.Helper()
	for deadline := time.Now().Add(invariant.Patience(time.Minute)); time.Now().Before(deadline); acks = nil {
		p := m.fetch(time.Second, acks...)
		if p.ErrorCode != 0 || p.AcknowledgeErrorCode != 0 {
			m.t.Fatalf("%v, %v", kerr.ErrorForCode(p.ErrorCode), kerr.ErrorForCode(p.AcknowledgeErrorCode))
		}
		if len(p.AcquiredRecords) > 0 {
			return p
		}
	}
	m.t.Fatalf("%s acquired nothing", m.id)
	return kmsg.ShareFetchResponseTopicPartition{}
}

// first is the first that a member has acquired since it joined.
func (m *shareMember) first() kmsg.ShareFetchResponseTopicPartition {
	m.t.Helper()
	if len(m.last.AcquiredRecords) > 0 {
		return m.last
	}
	return m.until()
}

func acquiredOf(p kmsg.ShareFetchResponseTopicPartition) (s []string) {
	for _, a := range p.AcquiredRecords {
		s = append(s, fmt.Sprintf("%d-%d ×%d", a.FirstOffset, a.LastOffset, a.DeliveryCount))
	}
	return s
}

func wantAcquired(t testing.TB, p kmsg.ShareFetchResponseTopicPartition, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, acquiredOf(p)); diff != "" {
		t.Fatalf("acquired (-want +got):\n%s", diff)
	}
}

func accept(first, last int64) ack {
	return ack{FirstOffset: first, LastOffset: last, AcknowledgeTypes: []int8{1}}
}

func produceShare(t testing.TB, w *wire, topic metadata.Topic, n int) {
	t.Helper()
	req := produceRequest(9, topic, 0, -1, testBatch(t, n, 10))
	if p := w.ask(req).(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode != 0 {
		t.Fatal(kerr.ErrorForCode(p.ErrorCode))
	}
}

// Two members share a partition: what one has the other does not get, until it is released or the
// connection of the first ends; what was accepted or rejected nobody gets again.
func TestShareDelivery(t *testing.T) {
	b := start(t, Config{ShareRecordLock: time.Hour})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	one := b.joinShare(t, "g", "one", topic)
	two := b.joinShare(t, "g", "two", topic)
	produceShare(t, w, topic, 4)
	wantAcquired(t, one.until(), "0-3 ×1")
	produceShare(t, w, topic, 3)
	wantAcquired(t, two.until(), "4-6 ×1")
	if p := two.fetch(0, accept(0, 0)); p.AcknowledgeErrorCode != kerr.InvalidRecordState.Code {
		t.Errorf("two accepts what one has: %v", kerr.ErrorForCode(p.AcknowledgeErrorCode))
	}
	if p := one.fetch(0, ack{FirstOffset: 0, LastOffset: 2, AcknowledgeTypes: []int8{1, 2, 3}}); p.AcknowledgeErrorCode != 0 {
		t.Fatal(kerr.ErrorForCode(p.AcknowledgeErrorCode))
	} else {
		wantAcquired(t, p, "1-1 ×2") // what it has released itself
	}
	two.Close()
	three := b.joinShare(t, "g", "three", topic)
	wantAcquired(t, three.first(), "4-6 ×2")
	one.fetch(0, ack{FirstOffset: 1, LastOffset: 1, AcknowledgeTypes: []int8{1}}, accept(3, 3))
	if p := three.fetch(0, accept(4, 6)); p.AcknowledgeErrorCode != 0 || len(p.AcquiredRecords) > 0 {
		t.Errorf("%v, and %v", kerr.ErrorForCode(p.AcknowledgeErrorCode), acquiredOf(p))
	}
	offsets, err := b.groups.ShareOffsets(t.Context(), "g")
	if diff := cmp.Diff([]group.ShareOffset{{Partition: 0, Start: 7, LeaderEpoch: offsets[topic.ID][0].LeaderEpoch}}, offsets[topic.ID]); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// What is not acknowledged in time goes to another member, which waits for it.
func TestShareLockEnds(t *testing.T) {
	b := start(t, Config{ShareRecordLock: 100 * time.Millisecond, ShareDeliveries: 1000})
	topic := b.topic(t, "t", 1)
	one := b.joinShare(t, "g", "one", topic)
	produceShare(t, b.dial(t), topic, 4)
	wantAcquired(t, one.until(), "0-3 ×1")
	two := b.joinShare(t, "g", "two", topic)
	if p := two.first(); p.AcquiredRecords[0].DeliveryCount < 2 {
		t.Errorf("acquired %v", acquiredOf(p))
	}
}

// A member may renew what it has, and nothing else (KIP-1222): in requests that say so, which fetch nothing, and where the
// group allows it. It has the records as before.
func TestShareRenewals(t *testing.T) {
	b := start(t, Config{ShareRecordLock: time.Hour})
	topic := b.topic(t, "t", 1)
	one, two := b.joinShare(t, "g", "one", topic), b.joinShare(t, "g", "two", topic)
	produceShare(t, b.dial(t), topic, 4)
	wantAcquired(t, one.until(), "0-3 ×1")
	produceShare(t, b.dial(t), topic, 2)
	renew := func(m *shareMember, first, last int64, change func(*kmsg.ShareFetchRequest)) (code, ackCode int16) {
		t.Helper()
		req := m.fetchRequest(0, ack{FirstOffset: first, LastOffset: last, AcknowledgeTypes: []int8{4}})
		req.IsRenewAck, req.MinBytes, req.MaxBytes, req.MaxRecords = true, 0, 0, 0
		change(req)
		resp := m.ask(req).(*kmsg.ShareFetchResponse)
		if resp.ErrorCode != 0 {
			return resp.ErrorCode, 0
		}
		m.session++
		p := resp.Topics[0].Partitions[0]
		if len(p.AcquiredRecords) > 0 {
			t.Errorf("acquired %v with a renewal", acquiredOf(p))
		}
		return 0, p.AcknowledgeErrorCode
	}
	as := func(*kmsg.ShareFetchRequest) {}
	for _, tc := range []struct {
		name          string
		of            *shareMember
		first, last   int64
		change        func(*kmsg.ShareFetchRequest)
		code, ackCode int16
	}{
		{"what it has", one, 0, 3, as, 0, 0},
		{"a part of it", one, 1, 2, as, 0, 0},
		{"what another has", two, 0, 3, as, 0, kerr.InvalidRecordState.Code},
		{"what nobody was given yet", one, 4, 5, as, 0, kerr.InvalidRequest.Code},
		{"beside a fetch of records", one, 0, 3, func(r *kmsg.ShareFetchRequest) { r.MaxRecords = 1 }, kerr.InvalidRequest.Code, 0},
		{"beside a fetch of bytes", one, 0, 3, func(r *kmsg.ShareFetchRequest) { r.MaxBytes = 1 }, kerr.InvalidRequest.Code, 0},
		{"beside a wait", one, 0, 3, func(r *kmsg.ShareFetchRequest) { r.MaxWaitMillis = 1 }, kerr.InvalidRequest.Code, 0},
		{"beside a least of bytes", one, 0, 3, func(r *kmsg.ShareFetchRequest) { r.MinBytes = 1 }, kerr.InvalidRequest.Code, 0},
		{"in a request that does not say so", one, 0, 3, func(r *kmsg.ShareFetchRequest) { r.IsRenewAck = false }, 0, kerr.InvalidRequest.Code},
		{"in version 1", one, 0, 3, func(r *kmsg.ShareFetchRequest) { r.Version, r.IsRenewAck = 1, false }, 0, kerr.InvalidRequest.Code},
	} {
		if code, ackCode := renew(tc.of, tc.first, tc.last, tc.change); code != tc.code || ackCode != tc.ackCode {
			t.Errorf("%s: %v and %v, want %v and %v", tc.name, kerr.ErrorForCode(code), kerr.ErrorForCode(ackCode), kerr.ErrorForCode(tc.code), kerr.ErrorForCode(tc.ackCode))
		}
	}
	acknowledge := func(says bool, types int8) int16 {
		t.Helper()
		req := kmsg.NewPtrShareAcknowledgeRequest()
		req.Version, req.GroupID, req.MemberID, req.ShareSessionEpoch, req.IsRenewAck = 2, &one.group, &one.id, one.session, says
		rt := kmsg.NewShareAcknowledgeRequestTopic()
		rt.TopicID = topic.ID
		rt.Partitions = []kmsg.ShareAcknowledgeRequestTopicPartition{{AcknowledgementBatches: []kmsg.ShareAcknowledgeRequestTopicPartitionAcknowledgementBatch{
			{FirstOffset: 0, LastOffset: 3, AcknowledgeTypes: []int8{types}}}}}
		req.Topics = append(req.Topics, rt)
		resp := one.ask(req).(*kmsg.ShareAcknowledgeResponse)
		if resp.ErrorCode != 0 {
			t.Fatal(kerr.ErrorForCode(resp.ErrorCode))
		}
		one.session++
		return resp.Topics[0].Partitions[0].ErrorCode
	}
	if got := acknowledge(true, 4); got != 0 {
		t.Errorf("ShareAcknowledge renews: %v", kerr.ErrorForCode(got))
	}
	if got := acknowledge(false, 4); got != kerr.InvalidRequest.Code {
		t.Errorf("ShareAcknowledge renews and does not say so: %v", kerr.ErrorForCode(got))
	}
	set := kmsg.NewPtrIncrementalAlterConfigsRequest()
	set.Version = 1
	set.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeGroupConfig, ResourceName: "g",
		Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "share.renew.acknowledge.enable", Value: kmsg.StringPtr("false")}}}}
	if got := b.dial(t).ask(set).(*kmsg.IncrementalAlterConfigsResponse).Resources[0].ErrorCode; got != 0 {
		t.Fatal(kerr.ErrorForCode(got))
	}
	if got := acknowledge(true, 4); got != kerr.InvalidRequest.Code {
		t.Errorf("a renewal where the group allows none: %v", kerr.ErrorForCode(got))
	}
	if got := acknowledge(false, 1); got != 0 {
		t.Errorf("what was renewed is accepted: %v", kerr.ErrorForCode(got))
	}
}

// What was done survives a restart, and so does how often the rest was delivered. Who comes later
// begins where the group is.
func TestShareStateSurvivesRestart(t *testing.T) {
	set, meta, node := openSet(t)
	open := func() (*testBroker, func()) {
		groups := group.Open(set, group.Config{}, nil, slog.New(slog.DiscardHandler))
		logged := &logBuffer{}
		b, err := Open(Config{ShareRecordLock: time.Hour}, []Listener{{Listener: listen(t)}}, openAccess(t, security.Config{}, meta), set, groups, openTransactions(t, set, groups), meta, node, slog.New(slog.NewTextHandler(logged, nil)), nil)
		if err != nil {
			t.Fatal(err)
		}
		return &testBroker{b, logged}, func() {
			if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
			groups.Close()
		}
	}
	b, stop := open()
	topic := b.topic(t, "t", 1)
	one := b.joinShare(t, "g", "one", topic)
	produceShare(t, b.dial(t), topic, 10)
	wantAcquired(t, one.until(), "0-9 ×1")
	one.fetch(0, ack{FirstOffset: 0, LastOffset: 5, AcknowledgeTypes: []int8{1, 1, 2, 1, 3, 1}})
	stop() // which ends the session, and so the delivery of the rest
	b, stop = open()
	defer stop()
	two := b.joinShare(t, "g", "two", topic)
	wantAcquired(t, two.last, "2-2 ×3", "6-9 ×2")
}

// Requests that do not fit a share session are refused, with the code by which clients begin anew; a
// member that comes back on another connection has its session there, and what it had is available.
func TestShareSessions(t *testing.T) {
	b := start(t, Config{MaxShareSessions: 2, ShareRecordLock: time.Hour})
	topic := b.topic(t, "t", 1)
	one := b.joinShare(t, "g", "one", topic)
	refused := func(m *shareMember, session int32, acks ...ack) string {
		t.Helper()
		req := m.fetchRequest(0, acks...)
		req.ShareSessionEpoch = session
		return errorName(m.ask(req).(*kmsg.ShareFetchResponse).ErrorCode)
	}
	for name, got := range map[string]string{
		"SHARE_SESSION_NOT_FOUND":     refused(&shareMember{wire: b.dial(t), group: "g", id: "nobody", topic: topic}, 1),
		"INVALID_SHARE_SESSION_EPOCH": refused(one, 7),
		"INVALID_REQUEST":             refused(&shareMember{wire: b.dial(t), group: "g", id: "two", topic: topic}, 0, accept(0, 0)),
	} {
		if got != name {
			t.Errorf("%s, want %s", got, name)
		}
	}
	produceShare(t, b.dial(t), topic, 2)
	wantAcquired(t, one.until(), "0-1 ×1")
	back := b.joinShare(t, "g", "one", topic)
	wantAcquired(t, back.first(), "0-1 ×2")
	if got := refused(one, one.session); got != "SHARE_SESSION_NOT_FOUND" {
		t.Errorf("on the old connection: %s", got)
	}
	b.joinShare(t, "g", "two", topic)
	if got := refused(&shareMember{wire: b.dial(t), group: "g", id: "three", topic: topic}, 0); got != "SHARE_SESSION_LIMIT_REACHED" {
		t.Errorf("one session too many: %s", got)
	}
	bye := back.fetchRequest(0, accept(0, 1))
	bye.ShareSessionEpoch = -1
	if p := back.ask(bye).(*kmsg.ShareFetchResponse).Topics[0].Partitions[0]; p.AcknowledgeErrorCode != 0 {
		t.Errorf("the last request accepts: %v", kerr.ErrorForCode(p.AcknowledgeErrorCode))
	}
	if p := b.joinShare(t, "g", "three", topic).last; len(p.AcquiredRecords) > 0 {
		t.Errorf("accepted, and given out again: %v", acquiredOf(p))
	}
}

func errorName(code int16) string {
	if err := kerr.TypedErrorForCode(code); err != nil {
		return err.Message
	}
	return ""
}

// A group that reads what is committed gets nothing of an aborted transaction and waits for an open
// one; the other gets all, but no markers.
func TestShareIsolation(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	for _, group := range []string{"committed", "uncommitted"} {
		b.setGroup(t, group, "share.isolation.level", "read_"+group)
		b.setGroup(t, group, "share.auto.offset.reset", "earliest")
	}
	produce := func(id string, commit kgo.TransactionEndTry, n int) {
		cl := b.client(t, kgo.TransactionalID(id), kgo.DefaultProduceTopic("t"))
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for range n {
			cl.Produce(t.Context(), &kgo.Record{Value: []byte("x")}, nil)
		}
		if err := cl.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := cl.EndTransaction(t.Context(), commit); err != nil {
			t.Fatal(err)
		}
	}
	produce("a", kgo.TryAbort, 3)
	produce("b", kgo.TryCommit, 2)
	open := b.client(t, kgo.TransactionalID("c"), kgo.DefaultProduceTopic("t"))
	if err := open.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := open.ProduceSync(t.Context(), &kgo.Record{Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	count := func(p kmsg.ShareFetchResponseTopicPartition) (n int64) {
		for _, a := range p.AcquiredRecords {
			n += a.LastOffset - a.FirstOffset + 1
		}
		return n
	}
	committed, uncommitted := b.joinShare(t, "committed", "m", topic), b.joinShare(t, "uncommitted", "m", topic)
	if got := count(committed.last); got != 2 {
		t.Errorf("read_committed: %v", acquiredOf(committed.last))
	}
	if got := count(uncommitted.last); got != 6 {
		t.Errorf("read_uncommitted: %v", acquiredOf(uncommitted.last))
	}
	if err := open.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	if got := count(committed.until()); got != 1 {
		t.Errorf("read_committed then: %d", got)
	}
}

func (b *testBroker) setGroup(t testing.TB, group, name, value string) error {
	t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	res.Configs = []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: name, Value: &value}}
	req.Resources = append(req.Resources, res)
	resp, err := req.RequestWith(t.Context(), b.client(t))
	if err != nil {
		t.Fatal(err)
	}
	return kerr.ErrorForCode(resp.Resources[0].ErrorCode)
}

// A fetch waits until the bytes that it asks for are available, and is given what there is when its
// wait is over; what it waits for is not kept from other members.
func TestShareFetchWaitsForMinBytes(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	m, other := b.joinShare(t, "g", "m", topic), b.joinShare(t, "g", "other", topic)
	producer := b.dial(t)
	fetch := func(m *shareMember, minBytes int32, wait time.Duration) (p kmsg.ShareFetchResponseTopicPartition) {
		t.Helper()
		req := m.fetchRequest(wait)
		req.MinBytes = minBytes
		resp := m.ask(req).(*kmsg.ShareFetchResponse)
		m.session++
		for _, t := range resp.Topics {
			for _, p = range t.Partitions {
			}
		}
		return p
	}
	produceShare(t, producer, topic, 2)
	one := fetch(m, 1, time.Minute)
	wantAcquired(t, one, "0-1 ×1")
	size := int32(len(one.Records))
	done := make(chan kmsg.ShareFetchResponseTopicPartition, 1)
	go func() { done <- fetch(m, 3*size, time.Hour) }()
	produceShare(t, producer, topic, 2)
	wantAcquired(t, other.until(), "2-3 ×1") // it is not kept for m
	for range 2 {
		select {
		case p := <-done:
			t.Fatalf("answered with %v, and fewer bytes than it asked for are there", acquiredOf(p))
		default:
		}
		produceShare(t, producer, topic, 2)
	}
	produceShare(t, producer, topic, 2)
	wantAcquired(t, <-done, "4-9 ×1")
	produceShare(t, producer, topic, 2)
	wantAcquired(t, fetch(m, 3*size, 10*time.Millisecond), "10-11 ×1")
}

// Settings of groups are checked, shown with where they come from, and hold for fetches and heartbeats
// that come later.
func TestGroupConfigs(t *testing.T) {
	b := start(t, Config{})
	b.topic(t, "t", 1)
	beat := func(epoch int32) *kmsg.ConsumerGroupHeartbeatResponse {
		t.Helper()
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Group, req.MemberID, req.MemberEpoch = "g", "m", epoch
		if epoch == 0 {
			req.RebalanceTimeoutMillis, req.SubscribedTopicNames, req.Topics = 60_000, []string{"t"}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		}
		resp, err := req.RequestWith(t.Context(), b.client(t))
		if err != nil || resp.ErrorCode != 0 {
			t.Fatal(err, kerr.ErrorForCode(resp.ErrorCode))
		}
		return resp
	}
	if got := beat(0).HeartbeatIntervalMillis; got != 5000 {
		t.Errorf("a member is to send a heartbeat each %d ms, want 5000", got)
	}
	for name, value := range map[string]string{
		"share.auto.offset.reset": "by_duration:-PT1H", "share.delivery.count.limit": "1", "share.isolation.level": "serializable",
		"share.record.lock.duration.ms": "soon", "share.session.timeout.ms": "5000", "share.nothing": "1",
		"consumer.session.timeout.ms": "44999", "consumer.heartbeat.interval.ms": "15001", "consumer.nothing": "1",
		"consumer.assignment.interval.ms": "-1", "share.assignment.interval.ms": "15001", "share.assignor.offload.enable": "maybe", "errors.deadletterqueue.topic.name": "a/b", "streams.session.timeout.ms": "50000",
	} {
		if err := b.setGroup(t, "g", name, value); !errors.Is(err, kerr.InvalidConfig) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
	for name, value := range map[string]string{"share.auto.offset.reset": "by_duration:P1DT2H3M4.5S", "share.record.lock.duration.ms": "15000", "consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "7000",
		"consumer.assignment.interval.ms": "2000", "share.assignment.interval.ms": "3000", "errors.deadletterqueue.topic.name": "letters"} {
		if err := b.setGroup(t, "g", name, value); err != nil {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
	c := b.groupConfig("g")
	if want := 26*time.Hour + 3*time.Minute + 4500*time.Millisecond; c.reset.since != want || c.limits().Lock != 15*time.Second || c.deliveries != 5 {
		t.Errorf("%+v", c)
	}
	if got := beat(2).HeartbeatIntervalMillis; got != 7000 {
		t.Errorf("a member is to send a heartbeat each %d ms, want 7000", got)
	}
	if got, want := c.consumer.durations(), (group.Timeouts{Session: time.Minute, Heartbeat: 7 * time.Second, Assignment: 2 * time.Second}); got != want {
		t.Errorf("members of the consumer protocol have %+v, want %+v", got, want)
	}
	if got, want := c.share.durations(), (group.Timeouts{Session: 45 * time.Second, Heartbeat: 5 * time.Second, Assignment: 3 * time.Second}); got != want {
		t.Errorf("members of a share group have %+v, want %+v", got, want)
	}
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeGroupConfig, ResourceName: "g"}}
	resp, err := req.RequestWith(t.Context(), b.client(t))
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	for _, c := range resp.Resources[0].Configs {
		shown[c.Name] = *c.Value + " " + c.Source.String()
	}
	for name, want := range map[string]string{"share.record.lock.duration.ms": "15000 " + kmsg.ConfigSourceGroupConfig.String(), "consumer.heartbeat.interval.ms": "7000 " + kmsg.ConfigSourceGroupConfig.String(), "share.delivery.count.limit": "5 " + kmsg.ConfigSourceDefaultConfig.String(),
		"consumer.assignment.interval.ms": "2000 " + kmsg.ConfigSourceGroupConfig.String(), "errors.deadletterqueue.topic.name": "letters " + kmsg.ConfigSourceGroupConfig.String(),
		"share.assignor.offload.enable": "true " + kmsg.ConfigSourceDefaultConfig.String(), "errors.deadletterqueue.copy.record.enable": "false " + kmsg.ConfigSourceDefaultConfig.String()} {
		if shown[name] != want {
			t.Errorf("%s is shown as %q, want %q", name, shown[name], want)
		}
	}
}

// An administrator sees how far a share group is, moves it and makes it forget, while it has no
// members; then it begins there.
func TestShareOffsetsAdministration(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	m := b.joinShare(t, "g", "m", topic)
	produceShare(t, b.dial(t), topic, 8)
	wantAcquired(t, m.until(), "0-7 ×1")
	m.fetch(0, accept(0, 2), accept(5, 5))
	cl := b.client(t)
	describe := func() string {
		t.Helper()
		req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
		req.Groups = []kmsg.DescribeShareGroupOffsetsRequestGroup{{GroupID: "g"}}
		resp, err := req.RequestWith(t.Context(), cl)
		if err != nil || resp.Groups[0].ErrorCode != 0 {
			t.Fatal(err, resp)
		}
		var out []string
		for _, rt := range resp.Groups[0].Topics {
			for _, p := range rt.Partitions {
				out = append(out, fmt.Sprintf("%s-%d at %d, lag %d", rt.Topic, p.Partition, p.StartOffset, p.Lag))
			}
		}
		return fmt.Sprint(out)
	}
	if got := describe(); got != "[t-0 at 3, lag 4]" {
		t.Error(got)
	}
	alter := func() string {
		t.Helper()
		req := kmsg.NewPtrAlterShareGroupOffsetsRequest()
		req.GroupID = "g"
		req.Topics = []kmsg.AlterShareGroupOffsetsRequestTopic{{Topic: "t", Partitions: []kmsg.AlterShareGroupOffsetsRequestTopicPartition{{StartOffset: 1}}}}
		resp, err := req.RequestWith(t.Context(), cl)
		if err != nil {
			t.Fatal(err)
		}
		return errorName(resp.ErrorCode)
	}
	if got := alter(); got != "NON_EMPTY_GROUP" {
		t.Errorf("altered with a member: %q", got)
	}
	m.heartbeat(-1)
	if got := alter(); got != "" {
		t.Fatal(got)
	}
	if got := describe(); got != "[t-0 at 1, lag 7]" {
		t.Error(got)
	}
	m.Close()
	again := b.joinShare(t, "g", "m", topic)
	wantAcquired(t, again.first(), "1-7 ×1")
	again.heartbeat(-1)
	again.Close()
	req := kmsg.NewPtrDeleteShareGroupOffsetsRequest()
	req.GroupID, req.Topics = "g", []kmsg.DeleteShareGroupOffsetsRequestTopic{{Topic: "t"}}
	if resp, err := req.RequestWith(t.Context(), cl); err != nil || resp.ErrorCode != 0 || resp.Topics[0].ErrorCode != 0 {
		t.Fatal(err, resp)
	}
	if got := describe(); got != "[]" {
		t.Error(got)
	}
	if resp, err := req.RequestWith(t.Context(), cl); err != nil || resp.ErrorCode != 0 || resp.Topics[0].ErrorCode != kerr.UnknownTopicOrPartition.Code {
		t.Errorf("deleted what is not there: %+v, %v", resp, err) // as Kafka does
	}
}

// Where a share group begins can be set before it has had a member, which makes the group; offsets of topics
// that are not there do not.
func TestShareGroupBeginsWhereItWasToldBefore(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	produceShare(t, b.dial(t), topic, 8)
	cl := b.client(t)
	alter := func(group, topic string) (code int16) {
		t.Helper()
		req := kmsg.NewPtrAlterShareGroupOffsetsRequest()
		req.GroupID = group
		req.Topics = []kmsg.AlterShareGroupOffsetsRequestTopic{{Topic: topic, Partitions: []kmsg.AlterShareGroupOffsetsRequestTopicPartition{{StartOffset: 5}}}}
		resp, err := req.RequestWith(t.Context(), cl)
		if err != nil || resp.ErrorCode != 0 || len(resp.Topics) != 1 {
			t.Fatal(err, resp)
		}
		return resp.Topics[0].Partitions[0].ErrorCode
	}
	if got := errorName(alter("none", "nothing")); got != "UNKNOWN_TOPIC_OR_PARTITION" {
		t.Errorf("altered a topic that is not there: %q", got)
	}
	if got := errorName(alter("g", "t")); got != "" {
		t.Errorf("altered a group that is not there: %q", got)
	}
	req := kmsg.NewPtrListGroupsRequest()
	resp, err := req.RequestWith(t.Context(), cl)
	if err != nil || len(resp.Groups) != 1 || resp.Groups[0].Group != "g" || resp.Groups[0].GroupType != "share" || resp.Groups[0].GroupState != "Empty" {
		t.Errorf("groups %v, %v", resp, err)
	}
	m := b.joinShare(t, "g", "m", topic)
	wantAcquired(t, m.first(), "5-7 ×1")
}
