package node

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/record"
)

// A producer hears which records of a batch are refused, and why; a batch without them is taken, by
// any node as soon as one has registered the schema.
func TestProducersHearOfBadRecords(t *testing.T) {
	t.Parallel()
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir()}
	c.metadata = "sqlite:" + c.data + "/metadata.db"
	n := c.open(1)
	on, compact := "true", "compact"
	admin := kadm.NewClient(c.client(n))
	if _, err := admin.CreateTopic(t.Context(), 1, 1, map[string]*string{"confluent.value.schema.validation": &on}, "orders"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CreateTopic(t.Context(), 1, 1, map[string]*string{"cleanup.policy": &compact}, "latest"); err != nil {
		t.Fatal(err)
	}
	if status, _, text := call(t, n, "POST", "/subjects/orders-value/versions", map[string]string{"schema": `"string"`}); status != 200 {
		t.Fatal(text)
	}
	produce := func(topic string, version int16, records ...record.Record) kmsg.ProduceResponseTopicPartition {
		t.Helper()
		batch, err := record.AppendBatch(nil, record.BatchOptions{}, records)
		if err != nil {
			t.Fatal(err)
		}
		req := kmsg.NewPtrProduceRequest()
		req.Acks, req.TimeoutMillis = -1, 30_000
		req.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, Partitions: []kmsg.ProduceRequestTopicPartition{{Records: batch}}}}
		resp, err := c.client(n).Broker(1).RetriableRequest(t.Context(), pinned{req, version})
		if err != nil {
			t.Fatal(err)
		}
		return resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	}
	value := func(v string) record.Record {
		return record.Record{Timestamp: time.Now().UnixMilli(), Value: []byte(v)}
	}
	good, unknown, text := value("\x00\x00\x00\x00\x01\x02x"), value("\x00\x00\x00\x00\x09\x02x"), value("text")
	named := func(p kmsg.ProduceResponseTopicPartition) (at []int32) {
		for _, e := range p.ErrorRecords {
			at = append(at, e.RelativeOffset)
		}
		return at
	}
	bad := produce("orders", 9, good, unknown, good, text)
	if bad.ErrorCode != kerr.InvalidRecord.Code || !slices.Equal(named(bad), []int32{1, 3}) || bad.ErrorMessage == nil || !strings.Contains(*bad.ErrorMessage, "schema 9") ||
		!strings.Contains(*bad.ErrorRecords[1].ErrorMessage, "does not begin with a zero byte") {
		t.Errorf("two bad records: %v, records %v", kerr.ErrorForCode(bad.ErrorCode), bad.ErrorRecords)
	}
	if old := produce("orders", 7, unknown); old.ErrorCode != kerr.InvalidRecord.Code || old.ErrorRecords != nil {
		t.Errorf("in a version without per-record errors: %+v", old)
	}
	if p := produce("orders", 9, good, good); p.ErrorCode != 0 || p.BaseOffset != 0 {
		t.Errorf("good records: %v at offset %d", kerr.ErrorForCode(p.ErrorCode), p.BaseOffset)
	}
	if p := produce("latest", 9, record.Record{Key: []byte("k"), Timestamp: 1}, record.Record{Timestamp: 1}); p.ErrorCode != kerr.InvalidRecord.Code || !slices.Equal(named(p), []int32{1}) {
		t.Errorf("without a key in a compacted topic: %v, records %v", kerr.ErrorForCode(p.ErrorCode), named(p))
	}
}

// pinned is a request in one version.
type pinned struct {
	*kmsg.ProduceRequest
	version int16
}

func (p pinned) MaxVersion() int16 { return p.version }

// What a batch may decompress to is a setting of the node, whatever its size on the wire is.
func TestMaxDecompressedBytes(t *testing.T) {
	t.Parallel()
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir()}
	c.metadata = "sqlite:" + c.data + "/metadata.db"
	c.change = func(cfg *Config) { cfg.MaxDecompressed = 64 << 10 }
	cl := c.client(c.open(1), kgo.ProducerBatchCompression(kgo.GzipCompression()), kgo.DefaultProduceTopic("t"))
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int]error{60 << 10: nil, 100 << 10: kerr.MessageTooLarge} {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Value: make([]byte, size)}).FirstErr(); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, want %v", size, err, want)
		}
	}
}
