package broker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/broker/txn"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/security"
	"github.com/tabletopic/tabletopic/streamstore"
)

// logBuffer is a log that tests read.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type testBroker struct {
	*Broker
	logged *logBuffer
}

// start runs a broker over a real set on a port that the kernel picks.
func start(t testing.TB, cfg Config) *testBroker {
	t.Helper()
	set, meta, node := openSet(t)
	return startOn(t, cfg, set, meta, node)
}

// listen takes a loopback port that the kernel picks.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// openGroups runs the groups of a set until the test ends.
func openGroups(t testing.TB, set *partition.Set) *group.Manager {
	g := group.Open(set, group.Config{}, nil, slog.New(slog.DiscardHandler))
	t.Cleanup(g.Close)
	return g
}

// openTransactions runs the transactions of a set until the test ends.
func openTransactions(t testing.TB, set *partition.Set, groups *group.Manager) *txn.Manager {
	m := txn.Open(set, txn.Config{}, group.Topic, groups, nil, slog.New(slog.DiscardHandler))
	t.Cleanup(m.Close)
	return m
}

func startOn(t testing.TB, cfg Config, set *partition.Set, meta *metadata.Store, node streamstore.Node) *testBroker {
	t.Helper()
	return startWith(t, cfg, Listener{Listener: listen(t)}, openAccess(t, security.Config{}, meta), set, meta, node)
}

// openAccess follows users and rules until the test ends.
func openAccess(t testing.TB, cfg security.Config, meta *metadata.Store) *security.Access {
	t.Helper()
	a, err := security.Open(t.Context(), cfg, meta, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func startWith(t testing.TB, cfg Config, l Listener, access *security.Access, set *partition.Set, meta *metadata.Store, node streamstore.Node) *testBroker {
	t.Helper()
	logged := &logBuffer{}
	groups := openGroups(t, set)
	b, err := Open(cfg, []Listener{l}, access, set, groups, openTransactions(t, set, groups), meta, node, slog.New(slog.NewTextHandler(logged, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if t.Failed() {
			l := logged.String()
			t.Logf("end of the broker's log:\n%s", l[max(0, len(l)-2000):])
		}
	})
	return &testBroker{b, logged}
}

func (b *testBroker) topic(t testing.TB, name string, partitions int) metadata.Topic {
	t.Helper()
	topic, err := b.set.CreateTopic(t.Context(), metadata.NewTopic{Name: name, Partitions: partitions})
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

func (b *testBroker) client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.Addr().String())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// eventually waits until ok, for at most a minute.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(invariant.Patience(time.Minute))
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// wire is a bare connection.
type wire struct {
	net.Conn
	t        testing.TB
	clientID string
}

func (b *testBroker) dial(t testing.TB) *wire {
	t.Helper()
	c, err := net.Dial("tcp", b.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(deadline())
	t.Cleanup(func() { c.Close() })
	return &wire{c, t, "test"}
}

func (w *wire) send(corr int32, req kmsg.Request) {
	w.t.Helper()
	if _, err := w.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID(w.clientID)).AppendRequest(nil, req, corr)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) frame() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(w, head[:]); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:]))
	_, err := io.ReadFull(w, body)
	return body, err
}

// receive reads the answer to req, which must have the correlation id corr.
func (w *wire) receive(corr int32, req kmsg.Request) kmsg.Response {
	w.t.Helper()
	b, err := w.frame()
	if err != nil {
		w.t.Fatalf("answer to %s: %v", kmsg.NameForKey(req.Key()), err)
	}
	if got := int32(binary.BigEndian.Uint32(b)); got != corr {
		w.t.Fatalf("answer to request %d, want %d", got, corr)
	}
	b = b[4:]
	if req.IsFlexible() && req.Key() != int16(kmsg.ApiVersions) {
		b = b[1:]
	}
	resp := req.ResponseKind()
	if err := resp.ReadFrom(b); err != nil {
		w.t.Fatalf("answer to %s v%d: %v", kmsg.NameForKey(req.Key()), req.GetVersion(), err)
	}
	if again := resp.AppendTo(nil); !bytes.Equal(again, b) {
		w.t.Fatalf("answer to %s v%d has %d bytes, %d of them belong to the message", kmsg.NameForKey(req.Key()), req.GetVersion(), len(b), len(again))
	}
	return resp
}

func (w *wire) ask(req kmsg.Request) kmsg.Response {
	w.t.Helper()
	w.send(7, req)
	return w.receive(7, req)
}

// testBatch is a record batch of n records, as franz-go would send it.
func testBatch(t testing.TB, n, valueBytes int) []byte {
	t.Helper()
	return testBatchOf(t, n, func(b *kmsg.RecordBatch) {}, valueBytes)
}

func produceRequest(version int16, topic metadata.Topic, partition int32, acks int16, batch []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks = version, acks
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic, rt.TopicID = topic.Name, topic.ID
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, batch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

func fetchRequest(version int16, topic metadata.Topic, offset int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MinBytes, req.MaxWaitMillis, req.MaxBytes = version, 1, 10_000, 1<<20
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = topic.Name, topic.ID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch = offset, 1<<20, -1
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

// What a client produces, idempotently and with each codec, it reads back in order.
func TestProduceAndConsume(t *testing.T) {
	b := start(t, Config{})
	b.topic(t, "t", 2)
	const perCodec = 500
	codecs := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
	for i, codec := range codecs {
		cl := b.client(t, kgo.ProducerBatchCompression(codec), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		for n := range perCodec {
			r := &kgo.Record{Topic: "t", Partition: int32(n % 2), Key: fmt.Appendf(nil, "k%d", n), Value: fmt.Appendf(nil, "%d-%d", i, n)}
			cl.Produce(t.Context(), r, func(_ *kgo.Record, err error) {
				if err != nil {
					t.Error(err)
				}
			})
		}
		if err := cl.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cl := b.client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {0: kgo.NewOffset().AtStart(), 1: kgo.NewOffset().AtStart()}}))
	next := map[int32]int64{}
	values := map[string]bool{}
	for len(values) < perCodec*len(codecs) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		fetches := cl.PollFetches(ctx)
		cancel()
		if err := fetches.Err(); err != nil {
			t.Fatalf("after %d records: %v", len(values), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset != next[r.Partition] {
				t.Errorf("partition %d: offset %d, want %d", r.Partition, r.Offset, next[r.Partition])
			}
			next[r.Partition] = r.Offset + 1
			if values[string(r.Value)] {
				t.Errorf("value %s twice", r.Value)
			}
			values[string(r.Value)] = true
		})
	}
}

// Every advertised version of Produce and Fetch carries a batch there and back.
func TestProduceAndFetchVersions(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	offset := int64(0)
	for v := int16(3); v <= b.apis.byKey(int16(kmsg.Produce)).max; v++ {
		resp := w.ask(produceRequest(v, topic, 0, -1, testBatch(t, 3, 10))).(*kmsg.ProduceResponse)
		p := resp.Topics[0].Partitions[0]
		if p.ErrorCode != 0 || p.BaseOffset != offset {
			t.Fatalf("produce v%d: %v, offset %d, want %d", v, kerr.ErrorForCode(p.ErrorCode), p.BaseOffset, offset)
		}
		offset += 3
	}
	large := testBatch(t, 1, 3*referenceBytes) // one that is written from where it lies
	if p := w.ask(produceRequest(9, topic, 0, 1, large)).(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode != 0 {
		t.Fatal(kerr.ErrorForCode(p.ErrorCode))
	}
	offset++
	for v := b.apis.byKey(int16(kmsg.Fetch)).min; v <= b.apis.byKey(int16(kmsg.Fetch)).max; v++ {
		for _, isolation := range []int8{0, 1} {
			req := fetchRequest(v, topic, 1) // inside the first batch
			req.IsolationLevel = isolation
			p := w.ask(req).(*kmsg.FetchResponse).Topics[0].Partitions[0]
			if p.ErrorCode != 0 || p.HighWatermark != offset || p.LastStableOffset != offset {
				t.Fatalf("fetch v%d: %v, high watermark %d, last stable offset %d, want %d", v, kerr.ErrorForCode(p.ErrorCode), p.HighWatermark, p.LastStableOffset, offset)
			}
			if first := int64(binary.BigEndian.Uint64(p.RecordBatches)); first != 0 {
				t.Fatalf("fetch v%d from offset 1 starts at %d, want the whole batch from 0 on", v, first)
			}
			if !bytes.Equal(p.RecordBatches[len(p.RecordBatches)-len(large)+61:], large[61:]) {
				t.Fatalf("fetch v%d: the large batch is not what was produced", v)
			}
		}
	}
}

// A fetch at the end waits for a record and is answered when it comes; one whose wait is
// over, or that asks for a partition that is not there, is answered without.
func TestFetchWaits(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	consumer, producer := b.dial(t), b.dial(t)
	consumer.send(1, fetchRequest(12, topic, 0))
	if p := producer.ask(produceRequest(9, topic, 0, -1, testBatch(t, 1, 10))).(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode != 0 {
		t.Fatal(kerr.ErrorForCode(p.ErrorCode))
	}
	if p := consumer.receive(1, fetchRequest(12, topic, 0)).(*kmsg.FetchResponse).Topics[0].Partitions[0]; len(p.RecordBatches) == 0 {
		t.Fatal("the waiting fetch was answered without the record")
	}

	req := fetchRequest(12, topic, 1)
	req.MaxWaitMillis = 50
	if p := consumer.ask(req).(*kmsg.FetchResponse).Topics[0].Partitions[0]; p.ErrorCode != 0 || len(p.RecordBatches) != 0 || p.HighWatermark != 1 {
		t.Fatalf("fetch at the end: %+v", p)
	}
	for name, tc := range map[string]struct {
		change func(*kmsg.FetchRequest)
		want   *kerr.Error
	}{
		"offset above":     {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].FetchOffset = 2 }, kerr.OffsetOutOfRange},
		"offset below":     {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].FetchOffset = -5 }, kerr.OffsetOutOfRange},
		"partition":        {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].Partition = 9 }, kerr.UnknownTopicOrPartition},
		"partition below":  {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].Partition = -1 }, kerr.UnknownTopicOrPartition},
		"topic":            {func(r *kmsg.FetchRequest) { r.Topics[0].Topic = "other" }, kerr.UnknownTopicOrPartition},
		"topic id":         {func(r *kmsg.FetchRequest) { r.Version, r.Topics[0].TopicID = 13, [16]byte{1} }, kerr.UnknownTopicID},
		"unknown epoch":    {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].CurrentLeaderEpoch = 1 << 30 }, kerr.UnknownLeaderEpoch},
		"session unknown":  {func(r *kmsg.FetchRequest) { r.SessionID, r.SessionEpoch = 5, 3 }, kerr.FetchSessionIDNotFound},
		"follower's fetch": {func(r *kmsg.FetchRequest) { r.ReplicaID = 4 }, kerr.InvalidRequest},
	} {
		req := fetchRequest(12, topic, 1)
		tc.change(req)
		resp := consumer.ask(req).(*kmsg.FetchResponse)
		code := resp.ErrorCode
		if len(resp.Topics) > 0 {
			code = resp.Topics[0].Partitions[0].ErrorCode
		}
		if code != tc.want.Code {
			t.Errorf("%s: %v, want %v", name, kerr.ErrorForCode(code), tc.want)
		}
	}
}

// A long poll ends when its peer goes, so that nothing is left of the connection.
func TestFetchEndsWithItsPeer(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	req := fetchRequest(12, topic, 0)
	req.MaxWaitMillis = 1 << 30
	w.send(1, req)
	open := func() int { b.mu.Lock(); defer b.mu.Unlock(); return len(b.conns) }
	eventually(t, "connection is there", func() bool { return open() == 1 })
	w.Close()
	eventually(t, "connection is gone", func() bool { return open() == 0 })
}

// The limits of a fetch hold, but a batch that is larger is still answered, alone.
func TestFetchLimits(t *testing.T) {
	b := start(t, Config{MaxFetchBytes: 5000})
	topic := b.topic(t, "t", 2)
	w := b.dial(t)
	for range 4 {
		for p := range int32(2) {
			w.ask(produceRequest(9, topic, p, -1, testBatch(t, 1, 2000)))
		}
	}
	sizes := func(maxBytes, partitionMaxBytes int32) (sizes [2]int) {
		req := fetchRequest(12, topic, 0)
		req.MaxBytes = maxBytes
		req.Topics[0].Partitions = append(req.Topics[0].Partitions, req.Topics[0].Partitions[0])
		req.Topics[0].Partitions[1].Partition = 1
		for i := range req.Topics[0].Partitions {
			req.Topics[0].Partitions[i].PartitionMaxBytes = partitionMaxBytes
		}
		for i, p := range w.ask(req).(*kmsg.FetchResponse).Topics[0].Partitions {
			sizes[i] = len(p.RecordBatches)
		}
		return sizes
	}
	one := len(testBatch(t, 1, 2000))
	for _, tc := range []struct {
		max, partitionMax int32
		want              [2]int
	}{
		{1 << 30, 1 << 30, [2]int{2 * one, one}}, // the broker's own limit
		{1, 1 << 30, [2]int{one, 0}},
		{1 << 30, 1, [2]int{one, one}},
		{0, 0, [2]int{one, 0}},
	} {
		if got := sizes(tc.max, tc.partitionMax); got != tc.want {
			t.Errorf("max bytes %d, of a partition %d: %v bytes, want %v", tc.max, tc.partitionMax, got, tc.want)
		}
	}
}

func TestProduceRefusals(t *testing.T) {
	b := start(t, Config{ReservedTopics: []string{"__reserved"}})
	topic := b.topic(t, "t", 1)
	internal, err := b.set.CreateTopic(t.Context(), metadata.NewTopic{Name: "__internal", Partitions: 1, Internal: true})
	if err != nil {
		t.Fatal(err)
	}
	good := func() []byte { return testBatch(t, 1, 10) }
	magic := func(m byte) []byte { b := good(); b[16] = m; return b }
	w := b.dial(t)
	for name, tc := range map[string]struct {
		req  *kmsg.ProduceRequest
		want *kerr.Error
	}{
		"unknown topic":         {produceRequest(9, metadata.Topic{Name: "other"}, 0, -1, good()), kerr.UnknownTopicOrPartition},
		"unknown topic id":      {produceRequest(13, metadata.Topic{}, 0, -1, good()), kerr.UnknownTopicID},
		"unknown partition":     {produceRequest(9, topic, 1, -1, good()), kerr.UnknownTopicOrPartition},
		"internal topic":        {produceRequest(9, internal, 0, -1, good()), kerr.InvalidTopicException},
		"acks 2":                {produceRequest(9, topic, 0, 2, good()), kerr.InvalidRequiredAcks},
		"null records":          {produceRequest(9, topic, 0, -1, nil), kerr.CorruptMessage},
		"empty records":         {produceRequest(9, topic, 0, -1, []byte{}), kerr.CorruptMessage},
		"message set v0":        {produceRequest(3, topic, 0, -1, magic(0)), kerr.UnsupportedForMessageFormat},
		"message set v1":        {produceRequest(3, topic, 0, -1, magic(1)), kerr.UnsupportedForMessageFormat},
		"produce v0":            {produceRequest(0, topic, 0, -1, magic(0)), kerr.UnsupportedForMessageFormat},
		"produce v2":            {produceRequest(2, topic, 0, -1, good()), kerr.UnsupportedForMessageFormat},
		"magic 3":               {produceRequest(9, topic, 0, -1, magic(3)), kerr.CorruptMessage},
		"truncated":             {produceRequest(9, topic, 0, -1, good()[:70]), kerr.CorruptMessage},
		"two batches":           {produceRequest(9, topic, 0, -1, append(good(), good()...)), kerr.InvalidRecord},
		"control batch":         {produceRequest(9, topic, 0, -1, testBatchOf(t, 1, func(b *kmsg.RecordBatch) { b.Attributes = 0x30 }, 1)), kerr.InvalidRecord},
		"transaction of nobody": {produceRequest(9, topic, 0, -1, testBatchOf(t, 1, func(b *kmsg.RecordBatch) { b.Attributes = 0x10 }, 1)), kerr.InvalidRecord},
		"transaction without id": {produceRequest(9, topic, 0, -1, testBatchOf(t, 1, func(b *kmsg.RecordBatch) {
			b.Attributes, b.ProducerID, b.ProducerEpoch, b.FirstSequence = 0x10, 7, 0, 0
		}, 1)), kerr.InvalidTxnState},
		"zstd in v6": {produceRequest(6, topic, 0, -1, testBatchOf(t, 1, func(b *kmsg.RecordBatch) { b.Attributes = 4 }, 1)), kerr.UnsupportedCompressionType},
	} {
		p := w.ask(tc.req).(*kmsg.ProduceResponse).Topics[0].Partitions[0]
		if p.ErrorCode != tc.want.Code || p.BaseOffset != -1 {
			t.Errorf("%s: %v, offset %d, want %v", name, kerr.ErrorForCode(p.ErrorCode), p.BaseOffset, tc.want)
		}
	}
	if o := w.ask(listOffsetsRequest("t", -1)).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0].Offset; o != 0 {
		t.Errorf("%d records were stored, want none", o)
	}
}

// A produce without acks is stored and not answered; if it fails, the connection is closed.
func TestProduceWithoutAcks(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	for i := range int32(300) { // more than may be in flight
		w.send(i, produceRequest(9, topic, 0, 0, testBatch(t, 1, 10)))
	}
	eventually(t, "records are there", func() bool {
		return w.ask(listOffsetsRequest("t", -1)).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0].Offset == 300
	})
	w.send(1, produceRequest(9, topic, 5, 0, testBatch(t, 1, 10)))
	if _, err := w.frame(); !errors.Is(err, io.EOF) {
		t.Fatalf("after a failure: %v, want the connection closed", err)
	}
}

func listOffsetsRequest(topic string, timestamp int64) *kmsg.ListOffsetsRequest {
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version = 7
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Timestamp = timestamp
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

// The administration client of franz-go gets what it asks for.
func TestAdministration(t *testing.T) {
	b := start(t, Config{MaxPartitions: 100})
	ctx := t.Context()
	adm := kadm.NewClient(b.client(t))
	for _, factor := range []int16{-1, 1, 2, 3} {
		if _, err := adm.CreateTopic(ctx, 3, factor, nil, fmt.Sprintf("t%d", factor)); err != nil {
			t.Fatalf("replication factor %d: %v", factor, err)
		}
	}
	for name, tc := range map[string]struct {
		partitions int32
		factor     int16
		configs    map[string]*string
		topic      string
		want       error
	}{
		"exists":           {1, 1, nil, "t1", kerr.TopicAlreadyExists},
		"no partitions":    {0, 1, nil, "x", kerr.InvalidPartitions},
		"2^31-1":           {1<<31 - 1, 1, nil, "x", kerr.InvalidPartitions},
		"factor 4":         {1, 4, nil, "x", kerr.InvalidReplicationFactor},
		"reserved":         {1, 1, nil, "__consumer_offsets", kerr.InvalidTopicException},
		"name ../":         {1, 1, nil, "../x", kerr.InvalidTopicException},
		"name .":           {1, 1, nil, ".", kerr.InvalidTopicException},
		"name with NUL":    {1, 1, nil, "a\x00b", kerr.InvalidTopicException},
		"unknown config":   {1, 1, map[string]*string{"retention.mss": kadm.StringPtr("1")}, "x", kerr.InvalidConfig},
		"config not a int": {1, 1, map[string]*string{"retention.ms": kadm.StringPtr("soon")}, "x", kerr.InvalidConfig},
	} {
		if _, err := adm.CreateTopic(ctx, tc.partitions, tc.factor, tc.configs, tc.topic); !errors.Is(err, tc.want) {
			t.Errorf("create, %s: %v, want %v", name, err, tc.want)
		}
	}
	if _, err := adm.UpdatePartitions(ctx, 5, "t1"); err != nil {
		t.Fatal(err)
	}
	if resp, err := adm.UpdatePartitions(ctx, 5, "t1"); err != nil || !errors.Is(resp["t1"].Err, kerr.InvalidPartitions) {
		t.Errorf("same number of partitions: %v, %v", resp["t1"].Err, err)
	}
	topics, err := adm.ListTopics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(topics["t1"].Partitions); got != 5 || len(topics) != 4 {
		t.Errorf("%d topics, t1 with %d partitions; want 4 with 5", len(topics), got)
	}
	if m, err := adm.BrokerMetadata(ctx); err != nil || m.Cluster != b.meta.ClusterID() || m.Controller != 1 {
		t.Errorf("cluster %q, controller %d, err %v", m.Cluster, m.Controller, err)
	}

	if resp, err := adm.DeleteTopics(ctx, "t1", "nope"); err != nil || resp["t1"].Err != nil || !errors.Is(resp["nope"].Err, kerr.UnknownTopicOrPartition) {
		t.Errorf("delete: %v, %v", resp, err)
	}
	byID := kmsg.NewPtrDeleteTopicsRequest()
	byID.Version = 6
	for _, id := range [][16]byte{topics["t2"].ID, {9}} {
		rt := kmsg.NewDeleteTopicsRequestTopic()
		rt.TopicID = id
		byID.Topics = append(byID.Topics, rt)
	}
	resp := b.dial(t).ask(byID).(*kmsg.DeleteTopicsResponse)
	if got := resp.Topics[0]; got.ErrorCode != 0 || *got.Topic != "t2" {
		t.Errorf("delete by id: %+v", got)
	}
	if got := resp.Topics[1]; got.ErrorCode != kerr.UnknownTopicID.Code {
		t.Errorf("delete by an unknown id: %+v", got)
	}
}

// Internal topics, of groups, of the control of tables and others, can be read, and changed only from inside:
// whoever deletes one, cuts its records off or gives it partitions hears why not, and it stays as it is.
func TestInternalTopics(t *testing.T) {
	b := start(t, Config{})
	adm := kadm.NewClient(b.client(t))
	ctx := t.Context()
	for _, name := range []string{group.Topic, "__tabletopic_control", "__internal"} {
		topic, err := b.set.EnsureInternal(ctx, metadata.NewTopic{Name: name, Partitions: 1})
		if err != nil {
			t.Fatal(err)
		}
		p, err := b.set.Partition(name, 0)
		if err == nil {
			_, err = p.AppendRecords(ctx, []record.Record{{Value: []byte("kept")}})
		}
		if err != nil {
			t.Fatal(err)
		}
		before := p.Offsets()
		refused := func(what string, err error, message string) {
			t.Helper()
			if !errors.Is(err, kerr.InvalidTopicException) || !strings.Contains(message, name) || !strings.Contains(message, "is internal: clients cannot change it") {
				t.Errorf("%s of %s: %v, %q", what, name, err, message)
			}
		}
		del, err := adm.DeleteTopics(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		refused("delete", del[name].Err, del[name].ErrMessage)
		byID := kmsg.NewPtrDeleteTopicsRequest()
		byID.Version = 6
		byID.Topics = []kmsg.DeleteTopicsRequestTopic{{TopicID: topic.ID}}
		answer := b.dial(t).ask(byID).(*kmsg.DeleteTopicsResponse).Topics[0]
		if answer.ErrorMessage == nil {
			answer.ErrorMessage = new(string)
		}
		refused("delete by id", kerr.ErrorForCode(answer.ErrorCode), *answer.ErrorMessage)
		parts, err := adm.UpdatePartitions(ctx, 50, name)
		if err != nil {
			t.Fatal(err)
		}
		refused("add partitions", parts[name].Err, parts[name].ErrMessage)
		alter, err := adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: kadm.StringPtr("1")}}, name)
		if err != nil {
			t.Fatal(err)
		}
		refused("alter", alter[0].Err, alter[0].ErrMessage)
		for _, at := range []int64{1, -1} { // the answer has a code alone
			cut, err := adm.DeleteRecords(ctx, kadm.Offsets{name: {0: {Topic: name, Partition: 0, At: at}}})
			if err != nil || !errors.Is(cut[name][0].Err, kerr.InvalidTopicException) {
				t.Errorf("delete records of %s up to %d: %v, %v", name, at, cut, err)
			}
		}
		if now, ok := b.set.Topic(name); !ok || now.ID != topic.ID || len(now.Partitions) != len(topic.Partitions) || p.Offsets() != before {
			t.Errorf("%s changed: %+v, offsets %+v, before %+v and %+v", name, now, p.Offsets(), topic, before)
		}
	}
}

func TestIdempotentProducerIDs(t *testing.T) {
	b := start(t, Config{})
	w := b.dial(t)
	seen := map[int64]bool{}
	for v := int16(0); v <= b.apis.byKey(int16(kmsg.InitProducerID)).max; v++ {
		for range 400 { // more than one block in all
			req := kmsg.NewPtrInitProducerIDRequest()
			req.Version = v
			resp := w.ask(req).(*kmsg.InitProducerIDResponse)
			if resp.ErrorCode != 0 || resp.ProducerEpoch != 0 || seen[resp.ProducerID] {
				t.Fatalf("v%d: %+v", v, resp)
			}
			seen[resp.ProducerID] = true
		}
	}
}

// After Close began, requests that were read are answered, and it waits for that.
func TestCloseAnswersWhatWasRead(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	req := fetchRequest(12, topic, 0)
	req.MaxWaitMillis = 1 << 30
	w.send(1, req)
	eventually(t, "the fetch waits", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		for c := range b.conns {
			return c.pending.Load() == 1 && len(c.frames) == 0
		}
		return false
	})
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.receive(1, req)
	if _, err := w.frame(); !errors.Is(err, io.EOF) {
		t.Fatalf("after close: %v, want EOF", err)
	}
	if _, err := net.Dial("tcp", b.Addr().String()); err == nil {
		t.Fatal("still listening")
	}
}

func deadline() time.Time { return time.Now().Add(time.Minute) }

// Batches without records, which a cleaner leaves, are not sent, but where there is nothing else:
// some clients wait for ever behind one.
func TestEmptyBatchesAreLeftOut(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	p, err := b.set.Partition("t", 0)
	if err != nil {
		t.Fatal(err)
	}
	appendEmpty := func(n int32) {
		t.Helper()
		done := make(chan error, 1)
		if err := p.AppendOwn(t.Context(), record.AppendEmpty(nil, 0, n, 0), func(_ partition.AppendResult, err error) { done <- err }); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	w := b.dial(t)
	appendEmpty(5)
	appendEmpty(2)
	w.ask(produceRequest(9, topic, 0, -1, testBatch(t, 3, 10)))
	appendEmpty(4)
	type part struct {
		base    int64
		records int
	}
	for _, tc := range []struct {
		from int64
		want []part
	}{{0, []part{{7, 3}}}, {6, []part{{7, 3}}}, {8, []part{{7, 3}}}, {10, []part{{10, 0}}}} {
		records := w.ask(fetchRequest(12, topic, tc.from)).(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches
		var got []part
		for len(records) > 0 {
			batch, rest, err := record.Split(records)
			if err != nil {
				t.Fatal(err)
			}
			got, records = append(got, part{batch.BaseOffset(), batch.NumRecords()}), rest
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("from %d: %v, want %v", tc.from, got, tc.want)
		}
	}
}

// A consumer that says in which rack it is reads from the leader, the one replica, and is sent nowhere else.
func TestConsumersWithARackReadFromTheLeader(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	cl := b.client(t, kgo.Rack("here"), kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if got := cl.PollFetches(t.Context()).Records(); len(got) != 1 || string(got[0].Value) != "x" {
		t.Errorf("consumed %v", got)
	}
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ReplicaID, req.MaxBytes, req.Rack = 12, -1, 1<<20, "here"
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic = topic.Name
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.CurrentLeaderEpoch, rp.PartitionMaxBytes = -1, 1<<20
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	p := b.dial(t).ask(req).(*kmsg.FetchResponse).Topics[0].Partitions[0]
	if p.ErrorCode != 0 || p.PreferredReadReplica != -1 || len(p.RecordBatches) == 0 {
		t.Errorf("%v, %d bytes, sent to replica %d", kerr.ErrorForCode(p.ErrorCode), len(p.RecordBatches), p.PreferredReadReplica)
	}
}
