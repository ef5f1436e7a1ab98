package broker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	heapmetrics "runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// A neighbour is a client that produces and consumes while others are hostile.
type neighbour struct {
	rounds atomic.Int64
	heap   atomic.Int64 // most bytes of the heap that it saw
	cancel context.CancelFunc
	ended  chan error
}

// startNeighbour sends one record after another and reads each back, until it is stopped.
func startNeighbour(t *testing.T, b *testBroker) *neighbour {
	b.topic(t, "good", 1)
	cl := b.client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"good": {0: kgo.NewOffset().AtStart()}}))
	ctx, cancel := context.WithCancel(t.Context())
	n := &neighbour{cancel: cancel, ended: make(chan error, 1)}
	go func() { n.ended <- n.run(ctx, cl) }()
	t.Cleanup(func() {
		cancel()
		if err := <-n.ended; err != nil {
			t.Errorf("a client that worked beside: %v", err)
		}
	})
	return n
}

func (n *neighbour) run(ctx context.Context, cl *kgo.Client) error {
	sample := []heapmetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	for i := int64(0); ctx.Err() == nil; i++ {
		err := cl.ProduceSync(ctx, &kgo.Record{Topic: "good", Value: fmt.Append(nil, i)}).FirstErr()
		for got := false; err == nil && !got; {
			fetches := cl.PollFetches(ctx)
			err = fetches.Err()
			fetches.EachRecord(func(r *kgo.Record) {
				if r.Offset != i || string(r.Value) != fmt.Sprint(i) {
					err = fmt.Errorf("read %q at %d, want %d", r.Value, r.Offset, i)
				}
				got = true
			})
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		heapmetrics.Read(sample)
		n.heap.Store(max(n.heap.Load(), int64(sample[0].Value.Uint64())))
		n.rounds.Add(1)
	}
	return nil
}

// goesOn waits for a round that has begun after now.
func (n *neighbour) goesOn(t *testing.T) {
	t.Helper()
	before := n.rounds.Load()
	eventually(t, "a client that works beside goes on", func() bool { return n.rounds.Load() >= before+2 })
}

// bomb is a batch that decompresses to 1 GiB, or as much as its codec can do.
func bomb(t *testing.T, codec record.Codec) []byte {
	const size, part = 1 << 30, 16 << 20
	zeros := make([]byte, part)
	var out bytes.Buffer
	write := func(w io.WriteCloser) {
		if _, err := w.Write(zeros); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	repeat := func() []byte { return bytes.Repeat(out.Bytes(), size/part) } // members and frames may follow each other
	var body []byte
	switch codec {
	case record.CodecGzip:
		w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
		write(w)
		body = repeat()
	case record.CodecZstd:
		w, _ := zstd.NewWriter(&out)
		write(w)
		body = repeat()
	case record.CodecLZ4: // one frame of many blocks: a header of 7 bytes, blocks, an end of 4
		w := lz4.NewWriter(&out)
		if err := w.Apply(lz4.ChecksumOption(false)); err != nil {
			t.Fatal(err)
		}
		write(w)
		frame := out.Bytes()
		end := len(frame) - 4
		body = append(append(frame[:7:7], bytes.Repeat(frame[7:end], size/part)...), frame[end:]...)
	case record.CodecSnappy: // 128 MiB in 6, and a block that says that it is 1 GiB
		body = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1} // the framing of snappy-java
		body = append(body, bytes.Repeat(framed(snappy.Encode(nil, zeros)), 8)...)
		body = append(body, framed(binary.AppendUvarint(nil, size), make([]byte, 1000))...)
	}
	return compressedBatch(t, codec, body)
}

// compressedBatch is a sound batch of one record but for its records section.
func compressedBatch(t *testing.T, codec record.Codec, body []byte) []byte {
	return testBatchOf(t, 1, func(b *kmsg.RecordBatch) { b.Attributes, b.Records = int16(codec), body }, 1)
}

// compressed is what a codec makes of text.
func compressed(t *testing.T, codec record.Codec, text []byte) []byte {
	var out bytes.Buffer
	var w io.WriteCloser
	switch codec {
	case record.CodecGzip:
		w = gzip.NewWriter(&out)
	case record.CodecZstd:
		w, _ = zstd.NewWriter(&out)
	case record.CodecLZ4:
		w = lz4.NewWriter(&out)
	case record.CodecSnappy:
		return snappy.Encode(nil, text)
	}
	w.Write(text)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

var compressingCodecs = []record.Codec{record.CodecGzip, record.CodecSnappy, record.CodecLZ4, record.CodecZstd}

// Whatever hostile clients send is answered with an error or closes their connection. A client that works beside
// them has no error and reads what it wrote, in order, and the heap stays far below what was asked for.
func TestHostileClientsHarmNobody(t *testing.T) {
	const mostHeap = 512 << 20
	runtime.GC() // of what other tests have left
	set, meta, node := openSetWith(t, objectstore.NewMemory(), partition.Config{MaxDecompressedBytes: 16 << 20})
	b := startOn(t, Config{StallTimeout: 5 * time.Second, IdleTimeout: 5 * time.Second}, set, meta, node)
	good := startNeighbour(t, b)
	topic, err := b.set.CreateTopic(t.Context(), metadata.NewTopic{Name: "t", Partitions: 1, Config: map[string]string{"max.message.bytes": "8388608"}})
	if err != nil {
		t.Fatal(err)
	}
	attack := func(name string, do func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			do(t)
			good.goesOn(t)
			if p, err := b.set.Partition("t", 0); err != nil || p.Offsets().HighWatermark != 0 {
				t.Errorf("what is hostile was appended: %+v, %v", p.Offsets(), err)
			}
		})
	}

	type hostileBatch struct {
		batch []byte
		want  *kerr.Error
	}
	batches := map[string]hostileBatch{
		"wrong CRC":               {changed(testBatch(t, 2, 10), func(b []byte) { b[20]++ }), kerr.CorruptMessage},
		"batch length -1":         {changed(testBatch(t, 2, 10), func(b []byte) { binary.BigEndian.PutUint32(b[8:], math.MaxUint32) }), kerr.CorruptMessage},
		"batch length 2 GiB":      {changed(testBatch(t, 2, 10), func(b []byte) { binary.BigEndian.PutUint32(b[8:], math.MaxInt32) }), kerr.CorruptMessage},
		"batch length 0":          {changed(testBatch(t, 2, 10), func(b []byte) { binary.BigEndian.PutUint32(b[8:], 0) }), kerr.CorruptMessage},
		"magic 1":                 {changed(testBatch(t, 2, 10), func(b []byte) { b[16] = 1 }), kerr.UnsupportedForMessageFormat},
		"magic 3":                 {changed(testBatch(t, 2, 10), func(b []byte) { b[16] = 3 }), kerr.CorruptMessage},
		"two batches":             {append(testBatch(t, 1, 10), testBatch(t, 1, 10)...), kerr.InvalidRecord},
		"count -1":                {testBatchOf(t, 2, func(b *kmsg.RecordBatch) { b.NumRecords = -1 }, 10), kerr.CorruptMessage},
		"count 0":                 {testBatchOf(t, 2, func(b *kmsg.RecordBatch) { b.NumRecords, b.LastOffsetDelta, b.Records = 0, -1, nil }, 10), kerr.CorruptMessage},
		"count 2^31-1":            {testBatchOf(t, 2, func(b *kmsg.RecordBatch) { b.NumRecords, b.LastOffsetDelta = math.MaxInt32, math.MaxInt32-1 }, 10), kerr.CorruptMessage},
		"count of more":           {testBatchOf(t, 2, func(b *kmsg.RecordBatch) { b.NumRecords, b.LastOffsetDelta = 3, 2 }, 10), kerr.CorruptMessage},
		"count of less":           {testBatchOf(t, 2, func(b *kmsg.RecordBatch) { b.NumRecords, b.LastOffsetDelta = 1, 0 }, 10), kerr.CorruptMessage},
		"last offset delta -1":    {testBatchOf(t, 2, func(b *kmsg.RecordBatch) { b.LastOffsetDelta = -1 }, 10), kerr.CorruptMessage},
		"offsets that are spread": {testBatchOf(t, 2, func(b *kmsg.RecordBatch) { b.LastOffsetDelta = 1000 }, 10), kerr.InvalidRecord},
		"offsets not dense":       {withDeltas(t, 0, 2, 3), kerr.InvalidRecord},
		"an offset twice":         {withDeltas(t, 0, 0, 1), kerr.CorruptMessage},
		"offsets backwards":       {withDeltas(t, 1, 0), kerr.InvalidRecord},
		"a control batch":         {testBatchOf(t, 1, func(b *kmsg.RecordBatch) { b.Attributes = 0x20 }, 10), kerr.InvalidRecord},
		"a negative sequence":     {testBatchOf(t, 1, func(b *kmsg.RecordBatch) { b.ProducerID, b.ProducerEpoch, b.FirstSequence = 1, 0, -5 }, 10), kerr.InvalidRecord},
		"a header only":           {testBatch(t, 1, 10)[:61], kerr.CorruptMessage},
		"17 bytes":                {testBatch(t, 1, 10)[:17], kerr.CorruptMessage},
	}
	for codec := int16(5); codec <= 7; codec++ {
		batches[fmt.Sprint("codec ", codec)] = hostileBatch{testBatchOf(t, 1, func(b *kmsg.RecordBatch) { b.Attributes = codec }, 10), kerr.CorruptMessage}
	}
	claim := append(binary.AppendUvarint(nil, 15<<20), make([]byte, 1000)...)
	batches["snappy that says 15 MiB"] = hostileBatch{compressedBatch(t, record.CodecSnappy, claim), kerr.CorruptMessage}
	for _, codec := range compressingCodecs {
		plain := testBatch(t, 3, 100)[record.HeaderSize:]
		once := compressed(t, codec, plain)
		batches[codec.String()+" in itself"] = hostileBatch{compressedBatch(t, codec, compressed(t, codec, once)), kerr.CorruptMessage}
		batches[codec.String()+" of a whole batch"] = hostileBatch{compressedBatch(t, codec, compressed(t, codec, testBatch(t, 3, 100))), kerr.CorruptMessage}
		batches[codec.String()+" cut off"] = hostileBatch{compressedBatch(t, codec, once[:len(once)/2]), kerr.CorruptMessage}
		batches[codec.String()+" that is none"] = hostileBatch{compressedBatch(t, codec, plain), kerr.CorruptMessage}
		batches[codec.String()+" of half a record"] = hostileBatch{compressedBatch(t, codec, compressed(t, codec, plain[:len(plain)/2])), kerr.CorruptMessage}
		batches[codec.String()+" bomb"] = hostileBatch{bomb(t, codec), kerr.MessageTooLarge}
	}
	for name, tc := range batches {
		attack(name, func(t *testing.T) {
			w := b.dial(t)
			for range 2 { // the second with what the first has left
				p := w.ask(produceRequest(9, topic, 0, -1, tc.batch)).(*kmsg.ProduceResponse).Topics[0].Partitions[0]
				if p.ErrorCode != tc.want.Code || p.BaseOffset != -1 {
					t.Errorf("%d bytes: %v, offset %d, want %v", len(tc.batch), kerr.ErrorForCode(p.ErrorCode), p.BaseOffset, tc.want)
				}
				if tc.want == kerr.MessageTooLarge && !strings.Contains(*p.ErrorMessage, "decompressed") {
					t.Errorf("refused for another reason: %s", *p.ErrorMessage)
				}
			}
		})
	}

	// Requests that are answered with whatever, or close their connection.
	tags := make([]byte, 0, 5<<20)
	for i := range uint64(1_000_000) {
		tags = append(binary.AppendUvarint(tags, i), 0)
	}
	million := binary.AppendUvarint(nil, 1_000_000)
	metadata1, metadata9 := header(int16(kmsg.Metadata), 1, "x"), header(int16(kmsg.Metadata), 9, "x")
	minus5 := []byte{0xff, 0xff, 0xff, 0xfb}
	allTopics := []byte{0, 0, 0, 0} // of a flexible Metadata: no topics, three flags
	for name, frame := range map[string][]byte{
		"array of -5":                          framed(metadata1, minus5),
		"array of -5 topics to produce":        framed(header(int16(kmsg.Produce), 3, "x"), []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1}, minus5),
		"array of -5 partitions to produce":    framed(header(int16(kmsg.Produce), 3, "x"), []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 't'}, minus5),
		"records of -5 bytes":                  framed(header(int16(kmsg.Produce), 3, "x"), []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 't', 0, 0, 0, 1, 0, 0, 0, 0}, minus5),
		"1,000,000 tags in the header":         framed(metadata9, million, tags, allTopics, []byte{0}),
		"1,000,000 tags in the body":           framed(metadata9, []byte{0}, allTopics, million, tags),
		"a tag of 1 MiB":                       framed(metadata9, []byte{1, 7}, binary.AppendUvarint(nil, 1<<20), make([]byte, 1<<20), allTopics, []byte{0}),
		"client id with NUL and without UTF-8": framed(header(int16(kmsg.Metadata), 1, "a\x00b\xff"), []byte{0, 0, 0, 0}),
	} {
		attack(name, func(t *testing.T) {
			w := b.dial(t)
			if _, err := w.Write(frame); err != nil {
				t.Fatal(err)
			}
			if _, err := w.frame(); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("neither an answer nor the end of the connection")
			}
		})
	}

	// Very many partitions in one request: each is answered.
	many := make([]int32, hostilePartitions)
	for i := range many {
		many[i] = int32(i)
	}
	for _, req := range hugeRequests(topic, many) {
		attack(kmsg.NameForKey(req.Key())+" of many partitions", func(t *testing.T) {
			w := b.dial(t)
			w.send(7, req)
			if raw, err := w.frame(); err != nil || len(raw) < 6*len(many) { // a number and an error code for each at least
				t.Errorf("an answer of %d bytes, %v, want one for each partition", len(raw), err)
			}
		})
	}
	attack("CreateTopics of 2^31-1 partitions", func(t *testing.T) {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Version = 7
		req.Topics = []kmsg.CreateTopicsRequestTopic{{Topic: "huge", NumPartitions: math.MaxInt32, ReplicationFactor: 1}}
		if got := b.dial(t).ask(req).(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode; got != kerr.InvalidPartitions.Code {
			t.Errorf("%v", kerr.ErrorForCode(got))
		}
	})

	attack("names with NUL and without UTF-8", func(t *testing.T) {
		for _, name := range []string{"a\x00b", "a\xffb", "../x", ".", strings.Repeat("n", 1000)} {
			b.askWithName(t, name)
		}
	})

	attack("1,000 requests of which a part comes, 1,000 connections that say nothing", func(t *testing.T) {
		var conns []net.Conn
		for i := range 2000 {
			w := b.dial(t)
			if i%2 == 0 {
				size := []uint32{100, 64 << 10, 1 << 20, 100 << 20}[i/2%4]
				w.Write(binary.BigEndian.AppendUint32(nil, size))
				w.Write(make([]byte, min(size/2, 60<<10)))
			}
			conns = append(conns, w)
		}
		good.goesOn(t)
		for _, c := range conns {
			if n, err := io.Copy(io.Discard, c); n > 0 || err != nil && !strings.Contains(err.Error(), "reset") {
				t.Fatalf("%d bytes, %v, want the end of the connection", n, err)
			}
		}
	})
	if heap := good.heap.Load(); heap > mostHeap {
		t.Errorf("the heap had %d MiB, want at most %d", heap>>20, mostHeap>>20)
	} else {
		t.Logf("heap %d MiB, %d rounds of the client beside", heap>>20, good.rounds.Load())
	}
}

func changed(batch []byte, change func([]byte)) []byte {
	change(batch)
	return batch
}

// withDeltas is a batch of records with these offset deltas, and a header as if they were dense.
func withDeltas(t *testing.T, deltas ...int32) []byte {
	var records []byte
	for _, d := range deltas {
		r := kmsg.NewRecord()
		r.OffsetDelta, r.Length = d, 6 // attributes, time, offset, key, value and headers, of a byte each
		records = r.AppendTo(records)
	}
	return testBatchOf(t, len(deltas), func(b *kmsg.RecordBatch) { b.Records = records }, 1)
}

// hugeRequests name many partitions of a topic, of which it has one.
func hugeRequests(topic metadata.Topic, many []int32) []kmsg.Request {
	produce := produceRequest(9, topic, 0, -1, nil)
	fetch := fetchRequest(12, topic, 0)
	list := listOffsetsRequest(topic.Name, timestampLatest)
	epochs := kmsg.NewPtrOffsetForLeaderEpochRequest()
	epochs.Version, epochs.Topics = 4, []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: topic.Name}}
	records := kmsg.NewPtrDeleteRecordsRequest()
	records.Version, records.Topics = 2, []kmsg.DeleteRecordsRequestTopic{{Topic: topic.Name}}
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Version, commit.Group, commit.Generation = 8, "g", -1
	commit.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: topic.Name}}
	fetchOffsets := kmsg.NewPtrOffsetFetchRequest()
	fetchOffsets.Version, fetchOffsets.Groups = 8, []kmsg.OffsetFetchRequestGroup{{Group: "g", Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: topic.Name, Partitions: many}}}}
	producers := kmsg.NewPtrDescribeProducersRequest()
	producers.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: topic.Name, Partitions: many}}
	one, whole := fetch.Topics[0].Partitions[0], list.Topics[0].Partitions[0]
	produce.Topics[0].Partitions, fetch.Topics[0].Partitions, list.Topics[0].Partitions = nil, nil, nil
	for _, p := range many {
		one.Partition, whole.Partition = p, p
		produce.Topics[0].Partitions = append(produce.Topics[0].Partitions, kmsg.ProduceRequestTopicPartition{Partition: p})
		fetch.Topics[0].Partitions = append(fetch.Topics[0].Partitions, one)
		list.Topics[0].Partitions = append(list.Topics[0].Partitions, whole)
		epochs.Topics[0].Partitions = append(epochs.Topics[0].Partitions, kmsg.OffsetForLeaderEpochRequestTopicPartition{Partition: p, CurrentLeaderEpoch: -1})
		records.Topics[0].Partitions = append(records.Topics[0].Partitions, kmsg.DeleteRecordsRequestTopicPartition{Partition: p})
		commit.Topics[0].Partitions = append(commit.Topics[0].Partitions, kmsg.OffsetCommitRequestTopicPartition{Partition: p})
	}
	return []kmsg.Request{produce, fetch, list, epochs, records, commit, fetchOffsets, producers}
}

// askWithName sends a name in requests that keep it. What goes into the metadata is refused unless every database
// can hold it; what does not is a name like others.
func (b *testBroker) askWithName(t *testing.T, name string) {
	t.Helper()
	w := b.dial(t)
	topic := kmsg.NewPtrCreateTopicsRequest()
	topic.Version, topic.Topics = 7, []kmsg.CreateTopicsRequestTopic{{Topic: name, NumPartitions: 1, ReplicationFactor: 1}}
	if got := w.ask(topic).(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode; got != kerr.InvalidTopicException.Code {
		t.Errorf("topic %.20q: %v", name, kerr.ErrorForCode(got))
	}
	want := int16(0)
	if strings.ContainsRune(name, 0) || !utf8.ValidString(name) {
		want = kerr.InvalidRequest.Code
	}
	quota := kmsg.NewPtrAlterClientQuotasRequest()
	quota.Version = 1
	quota.Entries = []kmsg.AlterClientQuotasRequestEntry{{Entity: []kmsg.AlterClientQuotasRequestEntryEntity{{Type: "client-id", Name: &name}},
		Ops: []kmsg.AlterClientQuotasRequestEntryOp{{Key: "producer_byte_rate", Value: 1e9}}}}
	if got := w.ask(quota).(*kmsg.AlterClientQuotasResponse).Entries[0].ErrorCode; got != 0 && got != want {
		t.Errorf("quota of %.20q: %v", name, kerr.ErrorForCode(got))
	}
	config := kmsg.NewPtrIncrementalAlterConfigsRequest()
	config.Version = 1
	config.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeGroupConfig, ResourceName: name,
		Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "consumer.heartbeat.interval.ms", Value: kmsg.StringPtr("6000")}}}}
	if got := w.ask(config).(*kmsg.IncrementalAlterConfigsResponse).Resources[0].ErrorCode; got != want {
		t.Errorf("group config of %.20q: %v, want %v", name, kerr.ErrorForCode(got), kerr.ErrorForCode(want))
	}
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Version, commit.Group, commit.Generation = 8, name, -1
	commit.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 5, Metadata: &name}}}}
	if got := w.ask(commit).(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode; got != 0 {
		t.Errorf("commit of group %.20q: %v", name, kerr.ErrorForCode(got))
	}
	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.Version, fetch.Groups = 8, []kmsg.OffsetFetchRequestGroup{{Group: name}}
	if got := w.ask(fetch).(*kmsg.OffsetFetchResponse).Groups[0]; len(got.Topics) != 1 || got.Topics[0].Partitions[0].Offset != 5 || *got.Topics[0].Partitions[0].Metadata != name {
		t.Errorf("offsets of group %.20q: %+v", name, got)
	}
	init := kmsg.NewPtrInitProducerIDRequest()
	init.Version, init.TransactionalID, init.TransactionTimeoutMillis = 4, &name, 10_000
	if got := w.ask(init).(*kmsg.InitProducerIDResponse).ErrorCode; got != 0 {
		t.Errorf("transactional id %.20q: %v", name, kerr.ErrorForCode(got))
	}
	join := kmsg.NewPtrJoinGroupRequest()
	join.Version, join.Group, join.ProtocolType, join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = 5, name, "consumer", 10_000, 10_000
	join.InstanceID, join.Protocols = &name, []kmsg.JoinGroupRequestProtocol{{Name: name, Metadata: []byte(name)}}
	w.ask(join) // of whatever: the instance id may be too long
}
