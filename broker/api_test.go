package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Every version of every API that is advertised answers the plainest request in its form.
func TestEveryVersionAnswers(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	for _, a := range b.apis.list {
		for v := a.min; v <= a.max; v++ {
			req := a.key.Request()
			req.SetVersion(v)
			switch req := req.(type) {
			case *kmsg.ApiVersionsRequest:
				req.ClientSoftwareName, req.ClientSoftwareVersion = "test", "1"
			case *kmsg.ProduceRequest:
				req.Acks = -1
			case *kmsg.MetadataRequest:
				req.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic.Name}}
			case *kmsg.FindCoordinatorRequest:
				req.CoordinatorKey, req.CoordinatorKeys = "g", []string{"g"}
			}
			w.ask(req) // receive checks the form to the last byte
		}
	}
}

func TestMetadata(t *testing.T) {
	b := start(t, Config{DefaultPartitions: 3})
	topic := b.topic(t, "t", 2)
	w := b.dial(t)
	ask := func(version int16, allow bool, topics ...kmsg.MetadataRequestTopic) *kmsg.MetadataResponse {
		req := kmsg.NewPtrMetadataRequest()
		req.Version, req.AllowAutoTopicCreation, req.Topics = version, allow, topics
		req.IncludeTopicAuthorizedOperations = true
		return w.ask(req).(*kmsg.MetadataResponse)
	}
	named := func(name string) kmsg.MetadataRequestTopic { return kmsg.MetadataRequestTopic{Topic: &name} }
	empty := ""
	for v := range b.apis.byKey(int16(kmsg.Metadata)).max + 1 {
		resp := ask(v, false, named("t"))
		rt := resp.Topics[0]
		if rt.ErrorCode != 0 || *rt.Topic != "t" || len(rt.Partitions) != 2 || rt.Partitions[1].Leader != 1 || len(rt.Partitions[0].ISR) != 1 {
			t.Errorf("v%d: %+v", v, rt)
		}
		if v >= 10 && rt.TopicID != topic.ID || v >= 8 && rt.AuthorizedOperations != 0b110111111000 {
			t.Errorf("v%d: id %x, operations %b", v, rt.TopicID, rt.AuthorizedOperations)
		}
		if v >= 1 && resp.ControllerID != 1 || v >= 2 && *resp.ClusterID != b.meta.ClusterID() {
			t.Errorf("v%d: %+v", v, resp)
		}
	}
	if resp := ask(12, false); len(resp.Topics) != 1 {
		t.Errorf("no list: %d topics, want all", len(resp.Topics))
	}
	if resp := w.ask(&kmsg.MetadataRequest{Version: 12, Topics: []kmsg.MetadataRequestTopic{}}).(*kmsg.MetadataResponse); len(resp.Topics) != 0 {
		t.Errorf("empty list: %d topics, want none", len(resp.Topics))
	}
	if resp := w.ask(&kmsg.MetadataRequest{Version: 0, Topics: []kmsg.MetadataRequestTopic{}}).(*kmsg.MetadataResponse); len(resp.Topics) != 1 {
		t.Errorf("empty list in v0: %d topics, want all", len(resp.Topics))
	}
	for name, tc := range map[string]struct {
		version int16
		allow   bool
		topic   kmsg.MetadataRequestTopic
		want    *kerr.Error
	}{
		"by id":                    {12, true, kmsg.MetadataRequestTopic{TopicID: topic.ID}, &kerr.Error{}},
		"by id with empty name":    {12, true, kmsg.MetadataRequestTopic{TopicID: topic.ID, Topic: &empty}, &kerr.Error{}},
		"by unknown id":            {12, true, kmsg.MetadataRequestTopic{TopicID: [16]byte{1}}, kerr.UnknownTopicID},
		"by id before v12":         {11, true, kmsg.MetadataRequestTopic{TopicID: topic.ID, Topic: &empty}, kerr.InvalidRequest},
		"neither":                  {12, true, kmsg.MetadataRequestTopic{}, kerr.InvalidRequest},
		"unknown, not created":     {12, false, named("n"), kerr.UnknownTopicOrPartition},
		"created":                  {12, true, named("auto"), &kerr.Error{}},
		"created, no choice":       {3, false, named("auto3"), &kerr.Error{}},
		"name that cannot be":      {12, true, named("a/b"), kerr.InvalidTopicException},
		"such a name, not created": {12, false, named("a/b"), kerr.InvalidTopicException},
		"name that is too long":    {12, true, named(strings.Repeat("x", 250)), kerr.InvalidTopicException},
		"name of internal topic":   {12, true, named("__consumer_offsets"), kerr.InvalidTopicException},
		"empty name":               {12, true, named(""), kerr.InvalidTopicException},
		"name that is just a dot":  {12, true, named(".."), kerr.InvalidTopicException},
	} {
		if got := ask(tc.version, tc.allow, tc.topic).Topics[0]; got.ErrorCode != tc.want.Code {
			t.Errorf("%s: %v, want %v", name, kerr.ErrorForCode(got.ErrorCode), tc.want)
		}
	}
	if got, _ := b.set.Topic("auto"); len(got.Partitions) != 3 {
		t.Errorf("created with %d partitions, want 3", len(got.Partitions))
	}

	b2 := start(t, Config{NoAutoCreate: true})
	w = b2.dial(t)
	if got := ask(12, true, named("auto")).Topics[0]; got.ErrorCode != kerr.UnknownTopicOrPartition.Code {
		t.Errorf("creation is off: %v", kerr.ErrorForCode(got.ErrorCode))
	}
}

// latest is the next offset, also read committed; times find the first record at or after.
func TestListOffsets(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	list := func(version int16, ts int64, isolation int8) kmsg.ListOffsetsResponseTopicPartition {
		req := listOffsetsRequest("t", ts)
		req.Version, req.IsolationLevel = version, isolation
		return w.ask(req).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
	}
	if got := list(7, timestampLatest, 0).Offset; got != 0 {
		t.Errorf("latest of an empty partition is %d", got)
	}
	for i := range 3 { // batches of two records, one second apart
		batch := testBatchOf(t, 2, func(r *kmsg.RecordBatch) {
			r.FirstTimestamp = 1_000_000 + int64(i)*1000
			r.MaxTimestamp = r.FirstTimestamp
		}, 10)
		if p := w.ask(produceRequest(9, topic, 0, -1, batch)).(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode != 0 {
			t.Fatal(kerr.ErrorForCode(p.ErrorCode))
		}
	}
	top := b.apis.byKey(int16(kmsg.ListOffsets)).max
	for _, tc := range []struct {
		version     int16
		ts          int64
		offset, got int64
	}{
		{1, timestampLatest, 6, -1}, {top, timestampLatest, 6, -1},
		{1, timestampEarliest, 0, -1}, {top, timestampEarliest, 0, -1},
		{7, timestampMax, 4, 1_002_000}, {top, timestampMax, 4, 1_002_000},
		{8, timestampEarliestLocal, 0, -1}, {9, timestampLatestTiered, -1, -1}, {11, timestampEarliestPendingUpload, -1, -1},
		{7, 0, 0, 1_000_000}, {7, 1_000_000, 0, 1_000_000}, {7, 1_000_001, 2, 1_001_000}, {7, 1_002_000, 4, 1_002_000}, {7, 1_002_001, -1, -1},
	} {
		for _, isolation := range []int8{0, 1} {
			if got := list(tc.version, tc.ts, isolation); got.ErrorCode != 0 || got.Offset != tc.offset || got.Timestamp != tc.got {
				t.Errorf("v%d, timestamp %d: %v, offset %d at %d; want %d at %d", tc.version, tc.ts, kerr.ErrorForCode(got.ErrorCode), got.Offset, got.Timestamp, tc.offset, tc.got)
			}
		}
	}
	for _, tc := range []struct {
		version int16
		ts      int64
		want    *kerr.Error
	}{{6, timestampMax, kerr.UnsupportedVersion}, {7, timestampEarliestLocal, kerr.UnsupportedVersion}, {10, timestampEarliestPendingUpload, kerr.UnsupportedVersion}, {11, -7, kerr.UnsupportedVersion}} {
		if got := list(tc.version, tc.ts, 0); got.ErrorCode != tc.want.Code || got.Offset != -1 {
			t.Errorf("v%d, timestamp %d: %v, want %v", tc.version, tc.ts, kerr.ErrorForCode(got.ErrorCode), tc.want)
		}
	}
}

// Who reads committed records is told of none behind the first transaction that is open, however it asks.
func TestListOffsetsBehindOpenTransactions(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	empty := listOffsetsRequest(b.topic(t, "empty", 1).Name, timestampEarliest)
	empty.Version, empty.IsolationLevel = 11, 1
	if got := w.ask(empty).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0].Offset; got != 0 {
		t.Errorf("the beginning of an empty partition is offset %d", got)
	}
	if p := w.ask(produceRequest(9, topic, 0, -1, testBatchOf(t, 2, func(r *kmsg.RecordBatch) { r.FirstTimestamp, r.MaxTimestamp = 1_000_000, 1_000_000 }, 10))).(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode != 0 {
		t.Fatal(kerr.ErrorForCode(p.ErrorCode))
	}
	x := b.transactional(t, topic, "id")
	x.produce(12) // at offset 2, now
	list := func(ts int64, isolation int8) (offset int64) {
		req := listOffsetsRequest("t", ts)
		req.Version, req.IsolationLevel = 11, isolation
		got := w.ask(req).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
		if got.ErrorCode != 0 || (got.Offset < 0) != (got.Timestamp < 0) && ts != timestampLatest && ts != timestampEarliest {
			t.Errorf("timestamp %d, isolation %d: %v, offset %d at %d", ts, isolation, kerr.ErrorForCode(got.ErrorCode), got.Offset, got.Timestamp)
		}
		return got.Offset
	}
	for _, tc := range []struct {
		name                   string
		ts                     int64
		uncommitted, committed int64
	}{
		{"the end", timestampLatest, 3, 2},
		{"the beginning", timestampEarliest, 0, 0},
		{"the latest time", timestampMax, 2, -1},
		{"a time before it", 1_000_000, 0, 0},
		{"its time", 1_000_001, 2, -1},
	} {
		if u, c := list(tc.ts, 0), list(tc.ts, 1); u != tc.uncommitted || c != tc.committed {
			t.Errorf("%s: offset %d, committed %d, want %d and %d", tc.name, u, c, tc.uncommitted, tc.committed)
		}
	}
	if code := x.end(4, true, x.producer, x.epoch).ErrorCode; code != 0 {
		t.Fatal(kerr.ErrorForCode(code))
	}
	eventually(t, "the end of the transaction", func() bool { return list(timestampLatest, 1) == 4 })
	if got := list(timestampMax, 1); got != 3 {
		t.Errorf("the latest time after the commit is at offset %d, want that of the marker, 3", got)
	}
}

func TestDeleteRecords(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	w.ask(produceRequest(9, topic, 0, -1, testBatch(t, 10, 10)))
	cut := func(name string, partition int32, offset int64) kmsg.DeleteRecordsResponseTopicPartition {
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.Version = 2
		req.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: name, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Partition: partition, Offset: offset}}}}
		return w.ask(req).(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0]
	}
	for _, tc := range []struct {
		topic     string
		partition int32
		offset    int64
		low       int64
		want      *kerr.Error
	}{
		{"t", 0, 4, 4, nil}, {"t", 0, 2, 4, nil}, {"t", 0, 11, -1, kerr.OffsetOutOfRange}, {"t", 0, -2, -1, kerr.OffsetOutOfRange},
		{"t", 1, 0, -1, kerr.UnknownTopicOrPartition}, {"n", 0, 0, -1, kerr.UnknownTopicOrPartition}, {"t", 0, -1, 10, nil},
	} {
		got := cut(tc.topic, tc.partition, tc.offset)
		if want := tc.want; got.LowWatermark != tc.low || want == nil && got.ErrorCode != 0 || want != nil && got.ErrorCode != want.Code {
			t.Errorf("%s-%d before %d: %v, low watermark %d; want %v, %d", tc.topic, tc.partition, tc.offset, kerr.ErrorForCode(got.ErrorCode), got.LowWatermark, want, tc.low)
		}
	}
	if got := w.ask(listOffsetsRequest("t", timestampEarliest)).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0].Offset; got != 10 {
		t.Errorf("log starts at %d, want 10", got)
	}
	if got := w.ask(fetchRequest(12, topic, 3)).(*kmsg.FetchResponse).Topics[0].Partitions[0]; got.ErrorCode != kerr.OffsetOutOfRange.Code {
		t.Errorf("fetch below the log's start: %+v", got)
	}
}

// The last record of each key is what a compacted topic is for: DeleteRecords leaves it alone, as in Kafka,
// unless the topic has retention as well.
func TestDeleteRecordsLeavesCompactedTopicsAlone(t *testing.T) {
	b := start(t, Config{})
	b.topic(t, "t", 1)
	w := b.dial(t)
	for _, tc := range []struct {
		policy string
		want   *kerr.Error
	}{{"compact", kerr.PolicyViolation}, {"compact,delete", nil}, {"compact", kerr.PolicyViolation}, {"delete", nil}} {
		alter := kmsg.NewPtrIncrementalAlterConfigsRequest()
		alter.Version = 1
		alter.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "t", Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{
			{Name: "cleanup.policy", Value: kmsg.StringPtr(tc.policy)}}}}
		if got := w.ask(alter).(*kmsg.IncrementalAlterConfigsResponse).Resources[0]; got.ErrorCode != 0 {
			t.Fatalf("cleanup.policy=%s: %+v", tc.policy, got)
		}
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.Version = 2
		req.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: "t", Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Partition: 0, Offset: 0}}}}
		got := w.ask(req).(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0]
		if tc.want == nil && got.ErrorCode != 0 || tc.want != nil && got.ErrorCode != tc.want.Code {
			t.Errorf("cleanup.policy=%s: %v, want %v", tc.policy, kerr.ErrorForCode(got.ErrorCode), tc.want)
		}
	}
}

func TestOffsetForLeaderEpoch(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	w.ask(produceRequest(9, topic, 0, -1, testBatch(t, 10, 10)))
	p, err := b.set.Partition("t", 0)
	if err != nil {
		t.Fatal(err)
	}
	epoch := p.LeaderEpoch()
	for _, tc := range []struct {
		current, epoch int32
		want           *kerr.Error
		end            int64
	}{
		{-1, epoch, nil, 10}, {epoch, epoch, nil, 10}, {epoch + 1, epoch, kerr.UnknownLeaderEpoch, -1}, {-1, epoch + 1, nil, -1},
	} {
		req := kmsg.NewPtrOffsetForLeaderEpochRequest()
		req.Version = 4
		req.Topics = []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{{CurrentLeaderEpoch: tc.current, LeaderEpoch: tc.epoch}}}}
		got := w.ask(req).(*kmsg.OffsetForLeaderEpochResponse).Topics[0].Partitions[0]
		if want := tc.want; got.EndOffset != tc.end || want == nil && got.ErrorCode != 0 || want != nil && got.ErrorCode != want.Code {
			t.Errorf("current %d, epoch %d: %+v, want %v, %d", tc.current, tc.epoch, got, want, tc.end)
		}
	}
}

// SET, DELETE, APPEND and SUBTRACT do what they say, the whole result is checked, and
// nothing changes when it is refused or only validated.
func TestAlterConfigs(t *testing.T) {
	b := start(t, Config{})
	b.topic(t, "t", 1)
	adm := kadm.NewClient(b.client(t))
	ctx := t.Context()
	value := func(key string) string {
		t.Helper()
		rc, err := adm.DescribeTopicConfigs(ctx, "t")
		if err != nil || rc[0].Err != nil {
			t.Fatal(err, rc)
		}
		for _, c := range rc[0].Configs {
			if c.Key == key {
				return fmt.Sprintf("%s %s", c.MaybeValue(), c.Source)
			}
		}
		return "absent"
	}
	const set, def = "DYNAMIC_TOPIC_CONFIG", "DEFAULT_CONFIG"
	alter := func(op kadm.IncrementalOp, key string, v *string) error {
		t.Helper()
		resp, err := adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: op, Name: key, Value: v}}, "t")
		if err != nil {
			t.Fatal(err)
		}
		return resp[0].Err
	}
	str := kadm.StringPtr
	if got := value("cleanup.policy"); got != "delete "+def {
		t.Errorf("before: %s", got)
	}
	for _, tc := range []struct {
		op       kadm.IncrementalOp
		key      string
		value    *string
		err      *kerr.Error
		want     string
		whatever string
	}{
		{kadm.SetConfig, "retention.ms", str("1000"), nil, "1000 " + set, ""},
		{kadm.AppendConfig, "cleanup.policy", str("compact"), nil, "delete,compact " + set, ""},
		{kadm.AppendConfig, "cleanup.policy", str("compact"), nil, "delete,compact " + set, "again"},
		{kadm.SubtractConfig, "cleanup.policy", str("delete"), nil, "compact " + set, ""},
		{kadm.SubtractConfig, "cleanup.policy", str("nothing"), nil, "compact " + set, ""},
		{kadm.DeleteConfig, "cleanup.policy", nil, nil, "delete " + def, ""},
		{kadm.AppendConfig, "retention.ms", str("5"), kerr.InvalidConfig, "", "no list"},
		{kadm.SubtractConfig, "unknown.key", str("5"), kerr.InvalidConfig, "", ""},
		{kadm.SetConfig, "unknown.key", str("5"), kerr.InvalidConfig, "absent", ""},
		{kadm.SetConfig, "retention.ms", nil, kerr.InvalidConfig, "1000 " + set, "null"},
		{kadm.SetConfig, "retention.ms", str("soon"), kerr.InvalidConfig, "1000 " + set, ""},
		{kadm.AppendConfig, "cleanup.policy", str("nonsense"), kerr.InvalidConfig, "delete " + def, ""},
	} {
		err := alter(tc.op, tc.key, tc.value)
		if tc.err == nil && err != nil || tc.err != nil && !errors.Is(err, tc.err) {
			t.Errorf("op %d on %s %s: %v, want %v", tc.op, tc.key, tc.whatever, err, tc.err)
		}
		if got := value(tc.key); tc.want != "" && got != tc.want {
			t.Errorf("op %d on %s: %s, want %s", tc.op, tc.key, got, tc.want)
		}
	}
	odd := kmsg.NewPtrIncrementalAlterConfigsRequest()
	odd.Version = 1
	odd.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "t",
		Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "retention.ms", Op: 9, Value: str("1")}}}}
	if got := b.dial(t).ask(odd).(*kmsg.IncrementalAlterConfigsResponse).Resources[0].ErrorCode; got != kerr.InvalidRequest.Code {
		t.Errorf("unknown operation: %v", kerr.ErrorForCode(got))
	}
	if resp, err := adm.ValidateAlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: str("7")}}, "t"); err != nil || resp[0].Err != nil || value("retention.ms") != "1000 "+set {
		t.Errorf("validate only: %v, %v, then %s", resp, err, value("retention.ms"))
	}
	if resp, err := adm.ValidateAlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: str("x")}}, "t"); err != nil || !errors.Is(resp[0].Err, kerr.InvalidConfig) {
		t.Errorf("validate only, wrong: %v, %v", resp, err)
	}
	resp, err := adm.AlterTopicConfigsState(ctx, []kadm.AlterConfig{{Name: "segment.ms", Value: str("60000")}}, "t", "nope")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resp {
		if r.Name == "t" && r.Err != nil || r.Name == "nope" && !errors.Is(r.Err, kerr.UnknownTopicOrPartition) {
			t.Errorf("replace %s: %v", r.Name, r.Err)
		}
	}
	if value("retention.ms") == "1000 "+set || value("segment.ms") != "60000 "+set {
		t.Errorf("after replacing all: retention.ms %s, segment.ms %s", value("retention.ms"), value("segment.ms"))
	}
	if brokers, err := adm.DescribeBrokerConfigs(ctx, 1); err != nil || len(brokers[0].Configs) == 0 {
		t.Errorf("broker: %v, %v", brokers, err)
	}
	if resp, err := adm.AlterBrokerConfigs(ctx, []kadm.AlterConfig{{Name: "num.partitions", Value: str("7")}}, 1); err != nil || !errors.Is(resp[0].Err, kerr.InvalidRequest) {
		t.Errorf("alter the broker: %v, %v", resp, err)
	}
	if resp, err := adm.AlterBrokerConfigs(ctx, []kadm.AlterConfig{{Op: kadm.DeleteConfig, Name: "leader.replication.throttled.rate"}}, 1); err != nil || resp[0].Err != nil {
		t.Errorf("remove what is not set of the broker: %v, %v", resp, err)
	}
}

// Pages hold as many partitions as asked for, and following the cursor gives each once.
func TestDescribeTopicPartitionsPages(t *testing.T) {
	b := start(t, Config{})
	for i := range 3 {
		b.topic(t, fmt.Sprintf("t%d", i), i+1)
	}
	w := b.dial(t)
	for limit := int32(1); limit <= 7; limit++ {
		seen := map[string]int{}
		req := kmsg.NewPtrDescribeTopicPartitionsRequest()
		req.ResponsePartitionLimit = limit
		for pages := 1; ; pages++ {
			resp := w.ask(req).(*kmsg.DescribeTopicPartitionsResponse)
			n := 0
			for _, rt := range resp.Topics {
				for _, p := range rt.Partitions {
					seen[fmt.Sprintf("%s-%d", *rt.Topic, p.Partition)]++
					n++
				}
			}
			if n > int(limit) || pages > 10 {
				t.Fatalf("limit %d: a page of %d, the %d.", limit, n, pages)
			}
			if resp.NextCursor == nil {
				break
			}
			req.Cursor = &kmsg.DescribeTopicPartitionsRequestCursor{Topic: resp.NextCursor.Topic, Partition: resp.NextCursor.Partition}
		}
		if len(seen) != 6 {
			t.Errorf("limit %d: %v, want 6 partitions", limit, seen)
		}
		for p, n := range seen {
			if n != 1 {
				t.Errorf("limit %d: %s is there %d times", limit, p, n)
			}
		}
	}
	for name, want := range map[string]*kerr.Error{"nope": kerr.UnknownTopicOrPartition, "a/b": kerr.InvalidTopicException} {
		req := kmsg.NewPtrDescribeTopicPartitionsRequest()
		req.Topics = []kmsg.DescribeTopicPartitionsRequestTopic{{Topic: name}}
		if got := w.ask(req).(*kmsg.DescribeTopicPartitionsResponse).Topics[0].ErrorCode; got != want.Code {
			t.Errorf("topic %q: %v, want %v", name, kerr.ErrorForCode(got), want)
		}
	}
}

// One topic twice in a request is refused once, and the others are done.
func TestTopicTwiceInARequest(t *testing.T) {
	b := start(t, Config{})
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version = 7
	for _, name := range []string{"a", "b", "a"} {
		rt := kmsg.NewCreateTopicsRequestTopic()
		rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, 1, 1
		req.Topics = append(req.Topics, rt)
	}
	resp := b.dial(t).ask(req).(*kmsg.CreateTopicsResponse)
	if len(resp.Topics) != 2 || resp.Topics[0].ErrorCode != kerr.InvalidRequest.Code || resp.Topics[1].ErrorCode != 0 {
		t.Errorf("%+v", resp.Topics)
	}
}

// A batch that its producer sends again is in the log once, with the first offset.
func TestRepeatedBatch(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	id := w.ask(kmsg.NewPtrInitProducerIDRequest()).(*kmsg.InitProducerIDResponse).ProducerID
	send := func(sequence int32) kmsg.ProduceResponseTopicPartition {
		batch := testBatchOf(t, 2, func(r *kmsg.RecordBatch) { r.ProducerID, r.ProducerEpoch, r.FirstSequence = id, 0, sequence }, 10)
		return w.ask(produceRequest(9, topic, 0, -1, batch)).(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	}
	for _, tc := range []struct {
		sequence int32
		offset   int64
		want     *kerr.Error
	}{{0, 0, nil}, {0, 0, nil}, {2, 2, nil}, {0, 0, nil}, {6, -1, kerr.OutOfOrderSequenceNumber}, {4, 4, nil}} {
		got := send(tc.sequence)
		if got.BaseOffset != tc.offset || tc.want == nil && got.ErrorCode != 0 || tc.want != nil && got.ErrorCode != tc.want.Code {
			t.Errorf("sequence %d: %v at %d, want %v at %d", tc.sequence, kerr.ErrorForCode(got.ErrorCode), got.BaseOffset, tc.want, tc.offset)
		}
	}
}

// A record that is too large is refused, and the client hears it.
func TestRecordTooLarge(t *testing.T) {
	b := start(t, Config{})
	b.topic(t, "t", 1)
	cl := b.client(t, kgo.DefaultProduceTopic("t"), kgo.ProducerBatchMaxBytes(50<<20), kgo.BrokerMaxWriteBytes(90<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Value: make([]byte, 20<<20)}).FirstErr(); !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("20 MiB: %v, want MESSAGE_TOO_LARGE", err)
	}
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Value: make([]byte, 1000)}).FirstErr(); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// Clients are told where each node stands that says it, in all answers that name nodes; of one that does not, nothing.
func TestNodesSayWhereTheyStand(t *testing.T) {
	set, meta, node := openSet(t)
	other, _, err := meta.RegisterNode(t.Context(), 2, streamstore.WALObject)
	if err != nil {
		t.Fatal(err)
	}
	if err := meta.AnnounceNode(t.Context(), node, metadata.NodeAddress{Kafka: "a:9092", HTTP: "a:8081", Rack: "here"}); err != nil {
		t.Fatal(err)
	}
	for _, rack := range []string{"there", ""} {
		if err := meta.AnnounceNode(t.Context(), other, metadata.NodeAddress{Kafka: "b:9092", HTTP: "b:8081", Rack: rack}); err != nil {
			t.Fatal(err)
		}
		members, err := meta.Members(t.Context())
		if err != nil || len(members) != 2 || members[0].Rack != "here" || members[1].Rack != rack {
			t.Fatalf("members %+v, %v", members, err)
		}
	}
	for _, rack := range []*string{strp("here"), nil} {
		b := startOn(t, Config{Rack: deref(rack)}, set, meta, node)
		w := b.dial(t)
		for _, version := range []int16{1, 12} {
			req := metadataRequest()
			req.Version = version
			if got := w.ask(req).(*kmsg.MetadataResponse).Brokers; len(got) != 1 || !cmp.Equal(got[0].Rack, rack) {
				t.Errorf("Metadata v%d: %+v, want rack %q", version, got, deref(rack))
			}
		}
		if got := w.ask(&kmsg.DescribeClusterRequest{Version: 1, EndpointType: 1}).(*kmsg.DescribeClusterResponse).Brokers; len(got) != 1 || !cmp.Equal(got[0].Rack, rack) {
			t.Errorf("DescribeCluster: %+v, want rack %q", got, deref(rack))
		}
	}
}
