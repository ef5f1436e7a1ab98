package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/security"
	"github.com/tabletopic/tabletopic/streamstore"
)

// The one directory has every partition with the bytes that it keeps, and takes no other.
func TestLogDirs(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 2)
	b.topic(t, "u", 1)
	w := b.dial(t)
	batch := testBatch(t, 3, 100)
	w.ask(produceRequest(9, topic, 1, -1, batch))
	describe := func(topics []kmsg.DescribeLogDirsRequestTopic) map[string]int64 {
		t.Helper()
		req := kmsg.NewPtrDescribeLogDirsRequest()
		req.Version, req.Topics = 4, topics
		resp := w.ask(req).(*kmsg.DescribeLogDirsResponse)
		if resp.ErrorCode != 0 || len(resp.Dirs) != 1 || resp.Dirs[0].Dir != logDir {
			t.Fatalf("%+v", resp)
		}
		sizes := map[string]int64{}
		for _, rt := range resp.Dirs[0].Topics {
			for _, p := range rt.Partitions {
				sizes[fmt.Sprintf("%s-%d", rt.Topic, p.Partition)] = p.Size
			}
		}
		return sizes
	}
	size := int64(len(batch))
	if diff := cmp.Diff(map[string]int64{"t-0": 0, "t-1": size, "u-0": 0}, describe(nil)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]int64{"t-1": size}, describe([]kmsg.DescribeLogDirsRequestTopic{{Topic: "t", Partitions: []int32{1, 9}}, {Topic: "nope", Partitions: []int32{0}}})); diff != "" {
		t.Error(diff)
	}
	for _, tc := range []struct {
		dir, topic string
		partition  int32
		want       *kerr.Error
	}{{logDir, "t", 1, nil}, {"/other", "t", 1, kerr.LogDirNotFound}, {logDir, "t", 2, kerr.ReplicaNotAvailable}} {
		req := kmsg.NewPtrAlterReplicaLogDirsRequest()
		req.Version = 2
		req.Dirs = []kmsg.AlterReplicaLogDirsRequestDir{{Dir: tc.dir, Topics: []kmsg.AlterReplicaLogDirsRequestDirTopic{{Topic: tc.topic, Partitions: []int32{tc.partition}}}}}
		got := w.ask(req).(*kmsg.AlterReplicaLogDirsResponse).Topics[0].Partitions[0].ErrorCode
		if !sameCode(got, tc.want) {
			t.Errorf("%s-%d to %s: %v, want %v", tc.topic, tc.partition, tc.dir, kerr.ErrorForCode(got), tc.want)
		}
	}
}

func sameCode(got int16, want *kerr.Error) bool {
	return want == nil && got == 0 || want != nil && got == want.Code
}

// recordedMoves takes the place of the other nodes.
type recordedMoves struct {
	mu    sync.Mutex
	moves []string // guarded by mu
	err   error    // guarded by mu; what a move answers
}

func (m *recordedMoves) Move(_ context.Context, ids []partition.ID, to streamstore.NodeID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.moves = append(m.moves, fmt.Sprint(ids, " to ", to))
	return m.err
}

// A reassignment moves a partition to the first node that it names, and is over when it is
// answered. What it cannot mean is refused.
func TestReassignments(t *testing.T) {
	mover := &recordedMoves{}
	b := start(t, Config{Mover: mover})
	b.topic(t, "t", 2)
	w := b.dial(t)
	reassign := func(topic string, index int32, replicas []int32) kmsg.AlterPartitionAssignmentsResponseTopicPartition {
		req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
		req.Topics = []kmsg.AlterPartitionAssignmentsRequestTopic{{Topic: topic, Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{{Partition: index, Replicas: replicas}}}}
		return w.ask(req).(*kmsg.AlterPartitionAssignmentsResponse).Topics[0].Partitions[0]
	}
	for _, tc := range []struct {
		topic    string
		index    int32
		replicas []int32
		want     *kerr.Error
	}{
		{"t", 0, []int32{1}, nil},
		{"t", 2, []int32{1}, kerr.UnknownTopicOrPartition},
		{"n", 0, []int32{1}, kerr.UnknownTopicOrPartition},
		{"t", 1, []int32{2}, kerr.InvalidReplicaAssignment},
		{"t", 1, []int32{1, 2}, kerr.InvalidReplicaAssignment},
		{"t", 1, []int32{1, 1}, kerr.InvalidReplicaAssignment},
		{"t", 1, []int32{}, kerr.InvalidReplicaAssignment},
		{"t", 1, nil, kerr.NoReassignmentInProgress},
	} {
		if got := reassign(tc.topic, tc.index, tc.replicas); !sameCode(got.ErrorCode, tc.want) || tc.want != nil && got.ErrorMessage == nil {
			t.Errorf("%s-%d to %v: %v, %v; want %v with a reason", tc.topic, tc.index, tc.replicas, kerr.ErrorForCode(got.ErrorCode), got.ErrorMessage, tc.want)
		}
	}
	mover.mu.Lock()
	if want := []string{"[t-0] to 1"}; !slices.Equal(mover.moves, want) {
		t.Errorf("moves %v, want %v", mover.moves, want)
	}
	mover.err = errors.New("the reason")
	mover.mu.Unlock()
	if got := reassign("t", 0, []int32{1}); got.ErrorCode == 0 || got.ErrorMessage == nil || *got.ErrorMessage != "the reason" {
		t.Errorf("a move that failed: %+v", got)
	}
	if got := w.ask(kmsg.NewPtrListPartitionReassignmentsRequest()).(*kmsg.ListPartitionReassignmentsResponse); got.ErrorCode != 0 || len(got.Topics) != 0 {
		t.Errorf("in progress: %+v", got)
	}
}

// No election is needed where the leader lives, and none is made for what does not exist.
func TestElectLeaders(t *testing.T) {
	b := start(t, Config{})
	b.topic(t, "t", 1)
	w := b.dial(t)
	for version := range int16(3) {
		for _, election := range []int8{0, electUnclean} {
			req := kmsg.NewPtrElectLeadersRequest()
			req.Version, req.ElectionType = version, election
			req.Topics = []kmsg.ElectLeadersRequestTopic{{Topic: "t", Partitions: []int32{0, 1}}, {Topic: "n", Partitions: []int32{0}}}
			got := map[string]int16{}
			for _, rt := range w.ask(req).(*kmsg.ElectLeadersResponse).Topics {
				for _, p := range rt.Partitions {
					got[fmt.Sprintf("%s-%d", rt.Topic, p.Partition)] = p.ErrorCode
				}
			}
			want := map[string]int16{"t-0": kerr.ElectionNotNeeded.Code, "t-1": kerr.UnknownTopicOrPartition.Code, "n-0": kerr.UnknownTopicOrPartition.Code}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("v%d: %s", version, diff)
			}
			req.Topics = nil
			if all := w.ask(req).(*kmsg.ElectLeadersResponse); all.ErrorCode != 0 || len(all.Topics) != 0 {
				t.Errorf("all: %+v", all)
			}
		}
	}
}

// Pushed metrics are counted, within bounds.
func TestClientTelemetry(t *testing.T) {
	b := start(t, Config{})
	w := b.dial(t)
	sub := w.ask(kmsg.NewPtrGetTelemetrySubscriptionsRequest()).(*kmsg.GetTelemetrySubscriptionsResponse)
	if sub.ErrorCode != 0 || sub.ClientInstanceID == [16]byte{} || len(sub.RequestedMetrics) != 0 || sub.PushIntervalMillis <= 0 {
		t.Fatalf("%+v", sub)
	}
	again := kmsg.NewPtrGetTelemetrySubscriptionsRequest()
	again.ClientInstanceID = sub.ClientInstanceID
	if got := w.ask(again).(*kmsg.GetTelemetrySubscriptionsResponse); got.ClientInstanceID != sub.ClientInstanceID {
		t.Error("a client that has an id gets another")
	}
	for _, tc := range []struct {
		name   string
		change func(*kmsg.PushTelemetryRequest)
		want   *kerr.Error
	}{
		{"good", func(*kmsg.PushTelemetryRequest) {}, nil},
		{"no id", func(r *kmsg.PushTelemetryRequest) { r.ClientInstanceID = [16]byte{} }, kerr.InvalidRequest},
		{"another subscription", func(r *kmsg.PushTelemetryRequest) { r.SubscriptionID++ }, kerr.UnknownSubscriptionID},
		{"another codec", func(r *kmsg.PushTelemetryRequest) { r.CompressionType = 5 }, kerr.UnsupportedCompressionType},
		{"too large", func(r *kmsg.PushTelemetryRequest) { r.Metrics = make([]byte, sub.TelemetryMaxBytes+1) }, kerr.TelemetryTooLarge},
	} {
		req := kmsg.NewPtrPushTelemetryRequest()
		req.ClientInstanceID, req.SubscriptionID, req.Metrics = sub.ClientInstanceID, sub.SubscriptionID, []byte("12345")
		tc.change(req)
		if got := w.ask(req).(*kmsg.PushTelemetryResponse).ErrorCode; !sameCode(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, kerr.ErrorForCode(got), tc.want)
		}
	}
	if got := counterValue(t, b.m.telemetry); got != 5 {
		t.Errorf("%v bytes counted, want 5", got)
	}
}

func TestListConfigResources(t *testing.T) {
	b := start(t, Config{})
	b.topic(t, "t", 1)
	w := b.dial(t)
	for _, tc := range []struct {
		version int16
		types   []int8
		want    []string
		code    *kerr.Error
	}{
		{0, nil, nil, nil},
		{1, nil, []string{"2 t", "4 1"}, nil},
		{1, []int8{4, 4}, []string{"4 1"}, nil},
		{1, []int8{16, 32}, nil, nil},
		{1, []int8{2, 99}, nil, kerr.UnsupportedVersion},
	} {
		req := kmsg.NewPtrListConfigResourcesRequest()
		req.Version, req.ResourceTypes = tc.version, tc.types
		resp := w.ask(req).(*kmsg.ListConfigResourcesResponse)
		var got []string
		for _, r := range resp.ConfigResources {
			got = append(got, fmt.Sprint(r.Type, " ", r.Name))
		}
		if !slices.Equal(got, tc.want) || !sameCode(resp.ErrorCode, tc.code) {
			t.Errorf("v%d, types %v: %v, %v; want %v, %v", tc.version, tc.types, got, kerr.ErrorForCode(resp.ErrorCode), tc.want, tc.code)
		}
	}
}

// What does not exist here is refused with the reason.
func TestFeaturesAndQuorumAreRefused(t *testing.T) {
	b := start(t, Config{})
	w := b.dial(t)
	for version := range int16(3) {
		req := kmsg.NewPtrUpdateFeaturesRequest()
		req.Version = version
		req.FeatureUpdates = []kmsg.UpdateFeaturesRequestFeatureUpdate{{Feature: "metadata.version", MaxVersionLevel: 30, UpgradeType: 1}}
		resp := w.ask(req).(*kmsg.UpdateFeaturesResponse)
		code, text := resp.ErrorCode, resp.ErrorMessage
		if version < 2 {
			code, text = resp.Results[0].ErrorCode, resp.Results[0].ErrorMessage
		}
		if code != kerr.InvalidUpdateVersion.Code || text == nil {
			t.Errorf("v%d: %+v", version, resp)
		}
		if version >= 2 && !strings.Contains(*text, `"metadata.version"`) { // tools say it of each of several
			t.Errorf("the one text for all features does not name the one that it comes from: %s", *text)
		}
	}
	same := kmsg.NewPtrUpdateFeaturesRequest() // what is so already is not refused
	same.Version = 2
	same.FeatureUpdates = []kmsg.UpdateFeaturesRequestFeatureUpdate{{Feature: groupVersion, MaxVersionLevel: 1, UpgradeType: 1}}
	if resp := w.ask(same).(*kmsg.UpdateFeaturesResponse); resp.ErrorCode != 0 {
		t.Errorf("a level that there is: %+v", resp)
	}
	same.FeatureUpdates = append(same.FeatureUpdates, kmsg.UpdateFeaturesRequestFeatureUpdate{Feature: transactionVersion, MaxVersionLevel: 1, UpgradeType: 2})
	if resp := w.ask(same).(*kmsg.UpdateFeaturesResponse); resp.ErrorCode != kerr.InvalidUpdateVersion.Code {
		t.Errorf("a level that there is, and another: %+v", resp)
	}
	req := kmsg.NewPtrDescribeQuorumRequest()
	req.Version = 2
	if resp := w.ask(req).(*kmsg.DescribeQuorumResponse); resp.ErrorCode != kerr.InvalidRequest.Code || resp.ErrorMessage == nil {
		t.Errorf("%+v", resp)
	}
}

// An assignment of new partitions names each of them, also one that names none: kafka-topics sends it where its user has
// forgotten those that there are.
func TestAnAssignmentOfNewPartitionsNamesEach(t *testing.T) {
	b := start(t, Config{})
	b.topic(t, "t", 2)
	w := b.dial(t)
	me := kmsg.CreatePartitionsRequestTopicAssignment{Replicas: []int32{int32(b.node.ID)}}
	for _, c := range []struct {
		assignment []kmsg.CreatePartitionsRequestTopicAssignment
		code       int16
	}{
		{[]kmsg.CreatePartitionsRequestTopicAssignment{}, kerr.InvalidReplicaAssignment.Code},
		{[]kmsg.CreatePartitionsRequestTopicAssignment{me}, kerr.InvalidReplicaAssignment.Code},
		{[]kmsg.CreatePartitionsRequestTopicAssignment{me, me, me}, kerr.InvalidReplicaAssignment.Code},
		{[]kmsg.CreatePartitionsRequestTopicAssignment{me, me}, 0},
		{nil, 0},
	} {
		for version := range int16(4) {
			req := kmsg.NewPtrCreatePartitionsRequest()
			req.Version, req.ValidateOnly = version, true
			req.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: "t", Count: 4, Assignment: c.assignment}}
			if got := w.ask(req).(*kmsg.CreatePartitionsResponse).Topics[0]; got.ErrorCode != c.code {
				t.Errorf("v%d, %v for two new partitions: %v, want %v", version, c.assignment, kerr.ErrorForCode(got.ErrorCode), kerr.ErrorForCode(c.code))
			}
		}
	}
}

// Nodes are not unregistered. Of one that there is not, and of one that there is, a tool fails with the reason; of a request
// that is not served kafka-cluster would say so and exit with 0.
func TestNodesAreNotUnregistered(t *testing.T) {
	b := start(t, Config{})
	w := b.dial(t)
	for id, want := range map[int32]*kerr.Error{int32(b.node.ID): kerr.InvalidRequest, 9: kerr.BrokerIDNotRegistered, -1: kerr.BrokerIDNotRegistered} {
		req := kmsg.NewPtrUnregisterBrokerRequest()
		req.BrokerID = id
		if resp := w.ask(req).(*kmsg.UnregisterBrokerResponse); resp.ErrorCode != want.Code || resp.ErrorMessage == nil {
			t.Errorf("node %d: %+v, want %v", id, resp, want)
		}
	}
}

// What administers the cluster is for those who may.
func TestClusterOperationsNeedRights(t *testing.T) {
	b := startSecured(t, Config{}, security.Config{})
	b.topic(t, "t", 1)
	alice := b.as(t, "alice", security.Plain)
	elect := kmsg.NewPtrElectLeadersRequest()
	elect.Topics = []kmsg.ElectLeadersRequestTopic{{Topic: "t", Partitions: []int32{0}}}
	dirs := kmsg.NewPtrAlterReplicaLogDirsRequest()
	dirs.Dirs = []kmsg.AlterReplicaLogDirsRequestDir{{Dir: logDir, Topics: []kmsg.AlterReplicaLogDirsRequestDirTopic{{Topic: "t", Partitions: []int32{0}}}}}
	for _, req := range []kmsg.Request{
		elect, dirs, kmsg.NewPtrDescribeLogDirsRequest(), kmsg.NewPtrAlterPartitionAssignmentsRequest(), kmsg.NewPtrListPartitionReassignmentsRequest(),
		kmsg.NewPtrUpdateFeaturesRequest(), kmsg.NewPtrDescribeQuorumRequest(), kmsg.NewPtrListConfigResourcesRequest(),
		kmsg.NewPtrUnregisterBrokerRequest(),
	} {
		resp, err := alice.Broker(1).Request(t.Context(), req)
		if err != nil {
			t.Errorf("%T: %v", req, err)
			continue
		}
		code := int16(0)
		switch resp := resp.(type) {
		case *kmsg.ElectLeadersResponse:
			code = resp.ErrorCode
		case *kmsg.AlterReplicaLogDirsResponse:
			code = resp.Topics[0].Partitions[0].ErrorCode
		case *kmsg.DescribeLogDirsResponse:
			code = resp.ErrorCode
		case *kmsg.AlterPartitionAssignmentsResponse:
			code = resp.ErrorCode
		case *kmsg.ListPartitionReassignmentsResponse:
			code = resp.ErrorCode
		case *kmsg.UpdateFeaturesResponse:
			code = resp.ErrorCode
		case *kmsg.DescribeQuorumResponse:
			code = resp.ErrorCode
		case *kmsg.UnregisterBrokerResponse:
			code = resp.ErrorCode
		case *kmsg.ListConfigResourcesResponse:
			code = resp.ErrorCode
		}
		if code != kerr.ClusterAuthorizationFailed.Code {
			t.Errorf("%T: %v", req, kerr.ErrorForCode(code))
		}
	}
}
