package broker

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/limitlog"
	"github.com/tabletopic/tabletopic/security"
)

func metadataRequest(names ...string) *kmsg.MetadataRequest {
	req := &kmsg.MetadataRequest{Version: 12, AllowAutoTopicCreation: true, Topics: []kmsg.MetadataRequestTopic{}}
	for _, name := range names {
		req.Topics = append(req.Topics, kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr(name)})
	}
	return req
}

// One Metadata request creates so many topics and no more, however many it names. Of the others it says that they are
// not ready yet; whoever asks again gets them all.
func TestAMetadataRequestCreatesABoundedNumberOfTopics(t *testing.T) {
	b := start(t, Config{MaxAutoCreate: 3})
	w := b.dial(t)
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprint("t", i))
	}
	count := func(names []string) (made, waiting int) {
		t.Helper()
		for _, topic := range w.ask(metadataRequest(names...)).(*kmsg.MetadataResponse).Topics {
			switch topic.ErrorCode {
			case 0:
				made++
			case kerr.LeaderNotAvailable.Code:
				waiting++
			default:
				t.Fatalf("topic %s: %v", *topic.Topic, kerr.ErrorForCode(topic.ErrorCode))
			}
		}
		return made, waiting
	}
	if made, waiting := count(names); made != 3 || waiting != 997 {
		t.Fatalf("%d topics are made and %d wait, want 3 and 997", made, waiting)
	}
	if n := len(b.set.Topics()); n != 3 {
		t.Fatalf("%d topics exist, want 3", n)
	}
	for i := 2; i <= 4; i++ {
		want := min(3*i, 10)
		if made, waiting := count(names[:10]); made != want || waiting != 10-want {
			t.Errorf("asked for the %d. time: %d topics are there and %d wait, want %d and %d", i, made, waiting, want, 10-want)
		}
	}
}

// Who owes to its quota of partitions gets no topic by asking for it, and is told to be silent.
func TestAutoCreationObeysTheQuotaOfMutations(t *testing.T) {
	b := start(t, Config{DefaultPartitions: 30})
	setQuota(t, b.dial(t), security.ControllerMutationRate, 1, quotaOf("user", nil))
	resp := b.dial(t).ask(metadataRequest("a", "b")).(*kmsg.MetadataResponse)
	if got := resp.Topics[0].ErrorCode; got != 0 {
		t.Errorf("the first topic: %v", kerr.ErrorForCode(got))
	}
	if got := kerr.ErrorForCode(resp.Topics[1].ErrorCode); got != kerr.LeaderNotAvailable {
		t.Errorf("a topic beyond the quota: %v", got)
	}
	if resp.ThrottleMillis == 0 {
		t.Error("the client is not told to be silent")
	}
	if _, ok := b.set.Topic("b"); ok {
		t.Error("the topic beyond the quota exists")
	}
}

// A request to create more partitions than one may make creates none, whether they are of one topic or of many.
func TestARequestMakesABoundedNumberOfPartitions(t *testing.T) {
	b := start(t, Config{MaxPartitions: 10})
	w := b.dial(t)
	create := func(each ...int32) (codes []*kerr.Error) {
		t.Helper()
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Version = 7
		for i, n := range each {
			req.Topics = append(req.Topics, kmsg.CreateTopicsRequestTopic{Topic: fmt.Sprint("t", i), NumPartitions: n, ReplicationFactor: 1})
		}
		for _, topic := range w.ask(req).(*kmsg.CreateTopicsResponse).Topics {
			codes = append(codes, kerr.TypedErrorForCode(topic.ErrorCode))
		}
		return codes
	}
	for _, code := range create(6, 5) {
		if code != kerr.PolicyViolation {
			t.Errorf("11 partitions in two topics: %v", code)
		}
	}
	if n := len(b.set.Topics()); n > 0 {
		t.Errorf("%d topics exist", n)
	}
	for _, code := range create(2, 8) {
		if code != nil {
			t.Errorf("10 partitions in two topics: %v", code)
		}
	}
	grow := func(counts ...int32) (codes []*kerr.Error) {
		t.Helper()
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.Version = 3
		for i, n := range counts {
			req.Topics = append(req.Topics, kmsg.CreatePartitionsRequestTopic{Topic: fmt.Sprint("t", i), Count: n})
		}
		for _, topic := range w.ask(req).(*kmsg.CreatePartitionsResponse).Topics {
			codes = append(codes, kerr.TypedErrorForCode(topic.ErrorCode))
		}
		return codes
	}
	b.topic(t, "t2", 1)
	for _, code := range grow(5, 9, 10) {
		if code != kerr.PolicyViolation {
			t.Errorf("13 more partitions in three topics: %v", code)
		}
	}
	for _, code := range grow(5, 9) {
		if code != nil {
			t.Errorf("4 more partitions in two topics: %v", code)
		}
	}
}

// Clients that break the protocol again and again write a burst of lines, and then a few a second; each is counted.
func TestHostileConnectionsDoNotFloodTheLog(t *testing.T) {
	b := start(t, Config{})
	const hostile = 1000
	begun := time.Now()
	for range hostile {
		w := b.dial(t)
		w.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		io.Copy(io.Discard, w)
		w.Close()
	}
	eventually(t, "each connection is counted", func() bool { return counted(t, b.m.protocolErrors) == hostile })
	lines, most := strings.Count(b.logged.String(), "connection closed"), limitlog.Burst+limitlog.PerSecond*(1+time.Since(begun).Seconds())
	if lines < limitlog.Burst || float64(lines) > most {
		t.Errorf("%d lines for %d connections, want %d to %.0f", lines, hostile, limitlog.Burst, most)
	}
}

func counted(t testing.TB, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// A text that is longer than the protocol allows closes its connection, in each request and each field that has one. A
// name of 65,541 bytes would be kept as one of 5, and one of 40,000 could not be kept at all.
func TestTextsLongerThanTheProtocolAllows(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	for _, n := range []int{40_000, 1<<16 + 5} {
		long := strings.Repeat("g", n)
		commit := kmsg.NewPtrOffsetCommitRequest()
		commit.Version, commit.Group, commit.Generation = 9, long, -1
		commit.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: topic.Name, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 1}}}}
		for name, req := range map[string]kmsg.Request{
			"consumer group":     &kmsg.ConsumerGroupHeartbeatRequest{Version: 1, Group: long, MemberID: "m", RebalanceTimeoutMillis: 1000, SubscribedTopicNames: []string{"t"}},
			"member":             &kmsg.ConsumerGroupHeartbeatRequest{Version: 1, Group: "g", MemberID: long, RebalanceTimeoutMillis: 1000, SubscribedTopicNames: []string{"t"}},
			"instance":           &kmsg.ConsumerGroupHeartbeatRequest{Version: 1, Group: "g", MemberID: "m", InstanceID: &long, RebalanceTimeoutMillis: 1000, SubscribedTopicNames: []string{"t"}},
			"subscription":       &kmsg.ConsumerGroupHeartbeatRequest{Version: 1, Group: "g", MemberID: "m", RebalanceTimeoutMillis: 1000, SubscribedTopicNames: []string{"t", long}},
			"share group":        &kmsg.ShareGroupHeartbeatRequest{Version: 1, GroupID: long, MemberID: "m", SubscribedTopicNames: []string{"t"}},
			"classic group":      &kmsg.JoinGroupRequest{Version: 9, Group: long, ProtocolType: "consumer", SessionTimeoutMillis: 10_000, Protocols: []kmsg.JoinGroupRequestProtocol{{Name: "range"}}},
			"assignor":           &kmsg.JoinGroupRequest{Version: 9, Group: "g", ProtocolType: "consumer", SessionTimeoutMillis: 10_000, Protocols: []kmsg.JoinGroupRequestProtocol{{Name: long}}},
			"group of an offset": commit,
			"transactional id":   &kmsg.InitProducerIDRequest{Version: 5, TransactionalID: &long, TransactionTimeoutMillis: 1000, ProducerID: -1, ProducerEpoch: -1},
			"topic":              metadataRequest(long),
		} {
			w := b.dial(t)
			w.send(7, req)
			if raw, err := w.frame(); err == nil {
				t.Errorf("%s of %d bytes: an answer of %d bytes, want the connection closed", name, n, len(raw))
			}
		}
	}
	if got := strings.Count(b.logged.String(), "the longest are of 32767"); got != 20 {
		t.Errorf("%d lines say why, want 20", got)
	}
	beat := &kmsg.ConsumerGroupHeartbeatRequest{Version: 1, Group: strings.Repeat("g", maxText), MemberID: strings.Repeat("m", maxText), RebalanceTimeoutMillis: 1000, SubscribedTopicNames: []string{"t"}}
	if got := b.dial(t).ask(beat).(*kmsg.ConsumerGroupHeartbeatResponse); got.ErrorCode != 0 {
		t.Errorf("names of %d bytes: %v", maxText, kerr.ErrorForCode(got.ErrorCode))
	}
}

// What a request names again and again is answered once: else a request of a few MiB has an answer of many GiB, which
// nobody's memory holds.
func TestWhatIsNamedAgainIsAnsweredOnce(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1000)
	w := b.dial(t)
	x := b.transactional(t, topic, "id")
	x.produce(12)
	one := b.joinShare(t, "s", "one", topic)
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Version, commit.Group, commit.Generation = 8, "g", -1
	commit.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 5, Metadata: kmsg.StringPtr(strings.Repeat("m", 4000))}}}}
	if got := w.ask(commit).(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode; got != 0 {
		t.Fatal(kerr.ErrorForCode(got))
	}
	names := func(name string, n int) []string { return slices.Repeat([]string{name}, n) }
	for name, naming := range map[string]func(n int) kmsg.Request{
		"topics": func(n int) kmsg.Request {
			return &kmsg.MetadataRequest{Version: 12, Topics: slices.Repeat([]kmsg.MetadataRequestTopic{{Topic: kmsg.StringPtr("t")}}, n)}
		},
		"ids of topics": func(n int) kmsg.Request {
			return &kmsg.MetadataRequest{Version: 12, Topics: slices.Repeat([]kmsg.MetadataRequestTopic{{TopicID: topic.ID}}, n)}
		},
		"settings": func(n int) kmsg.Request {
			return &kmsg.DescribeConfigsRequest{Version: 4, Resources: slices.Repeat([]kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "t"}}, n)}
		},
		"groups":          func(n int) kmsg.Request { return &kmsg.DescribeGroupsRequest{Version: 5, Groups: names("g", n)} },
		"consumer groups": func(n int) kmsg.Request { return &kmsg.ConsumerGroupDescribeRequest{Version: 1, Groups: names("g", n)} },
		"share groups":    func(n int) kmsg.Request { return &kmsg.ShareGroupDescribeRequest{Version: 1, GroupIDs: names("s", n)} },
		"offsets of a group": func(n int) kmsg.Request {
			g := kmsg.NewOffsetFetchRequestGroup()
			g.Group, g.Topics = "g", []kmsg.OffsetFetchRequestGroupTopic{{Topic: "t", Partitions: make([]int32, n)}}
			return &kmsg.OffsetFetchRequest{Version: 8, Groups: []kmsg.OffsetFetchRequestGroup{g}}
		},
		"offsets of a group in an older version": func(n int) kmsg.Request {
			return &kmsg.OffsetFetchRequest{Version: 7, Group: "g", Topics: []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: make([]int32, n)}}}
		},
		"all offsets of a group": func(n int) kmsg.Request {
			g := kmsg.NewOffsetFetchRequestGroup()
			g.Group = "g"
			return &kmsg.OffsetFetchRequest{Version: 8, Groups: slices.Repeat([]kmsg.OffsetFetchRequestGroup{g}, n)}
		},
		"offsets of a share group": func(n int) kmsg.Request {
			g := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
			g.GroupID = one.group
			return &kmsg.DescribeShareGroupOffsetsRequest{Groups: slices.Repeat([]kmsg.DescribeShareGroupOffsetsRequestGroup{g}, n)}
		},
		"transactions": func(n int) kmsg.Request { return &kmsg.DescribeTransactionsRequest{TransactionalIDs: names("id", n)} },
		"producers of a partition": func(n int) kmsg.Request {
			return &kmsg.DescribeProducersRequest{Topics: []kmsg.DescribeProducersRequestTopic{{Topic: "t", Partitions: make([]int32, n)}}}
		},
		"partitions of a topic": func(n int) kmsg.Request {
			return &kmsg.DescribeTopicPartitionsRequest{Topics: slices.Repeat([]kmsg.DescribeTopicPartitionsRequestTopic{{Topic: "t"}}, n)}
		},
	} {
		var sizes [2]int
		for i, n := range []int{1, 500} {
			w.send(7, naming(n))
			raw, err := w.frame()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			sizes[i] = len(raw)
		}
		if sizes[1] != sizes[0] || sizes[0] < 20 {
			t.Errorf("%s: an answer of %d bytes, and of %d where the request names the same 500 times", name, sizes[0], sizes[1])
		}
	}
}

// Where a request names a great many different things that do not exist, each has its answer, and none costs as much as all others
// together.
func TestManyNamesInARequest(t *testing.T) {
	b := start(t, Config{})
	b.topic(t, "t", 1)
	w := b.dial(t)
	const many = 100_000
	users := kmsg.NewPtrDescribeUserSCRAMCredentialsRequest()
	alter := kmsg.NewPtrIncrementalAlterConfigsRequest()
	alter.Version, alter.Resources = 1, []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "t"}}
	for i := range many {
		users.Users = append(users.Users, kmsg.DescribeUserSCRAMCredentialsRequestUser{Name: fmt.Sprint("u", i)})
		alter.Resources[0].Configs = append(alter.Resources[0].Configs, kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: fmt.Sprint("c", i), Op: kmsg.IncrementalAlterConfigOpDelete})
	}
	if got := w.ask(users).(*kmsg.DescribeUserSCRAMCredentialsResponse).Results; len(got) != many || got[0].ErrorCode != kerr.ResourceNotFound.Code {
		t.Errorf("%d users are answered, want %d", len(got), many)
	}
	if got := w.ask(alter).(*kmsg.IncrementalAlterConfigsResponse).Resources[0].ErrorCode; got != kerr.InvalidConfig.Code {
		t.Errorf("settings that do not exist: %v", kerr.ErrorForCode(got))
	}
}
