package broker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/security"
)

func testBatchOf(t testing.TB, n int, change func(*kmsg.RecordBatch), valueBytes int) []byte {
	t.Helper()
	var records []byte
	for i := range n {
		r := kmsg.NewRecord()
		r.OffsetDelta = int32(i)
		r.Value = bytes.Repeat([]byte{byte('a' + i%26)}, valueBytes)
		r.Length = int32(len(r.AppendTo(nil)) - 1)
		for { // the length counts what follows it
			enc := r.AppendTo(nil)
			_, size := binary.Varint(enc)
			if int(r.Length) == len(enc)-size {
				break
			}
			r.Length = int32(len(enc) - size)
		}
		records = r.AppendTo(records)
	}
	b := kmsg.NewRecordBatch()
	b.Magic, b.PartitionLeaderEpoch = 2, -1
	b.NumRecords, b.LastOffsetDelta = int32(n), int32(n-1)
	b.FirstTimestamp = time.Now().UnixMilli()
	b.MaxTimestamp = b.FirstTimestamp
	b.ProducerID, b.ProducerEpoch, b.FirstSequence = -1, -1, -1
	b.Records = records
	change(&b)
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

func header(key, version int16, clientID string) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint16(b, uint16(len(clientID)))
	return append(b, clientID...)
}

func framed(parts ...[]byte) []byte {
	body := bytes.Join(parts, nil)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// What is no request closes its connection with one line in the log; the broker and its
// other connections go on.
func TestHostileInput(t *testing.T) {
	const limit = 1 << 16
	b := start(t, Config{MaxRequestBytes: limit, StallTimeout: time.Second})
	b.topic(t, "t", 1)
	int32s := func(v ...int32) (out []byte) {
		for _, v := range v {
			out = binary.BigEndian.AppendUint32(out, uint32(v))
		}
		return out
	}
	metadata9 := header(int16(kmsg.Metadata), 9, "x")
	good := kmsg.NewRequestFormatter().AppendRequest(nil, kmsg.NewPtrMetadataRequest(), 1)[4:]
	fetch := kmsg.NewPtrFetchRequest()
	fetch.Version = 4
	fetchHead := kmsg.NewRequestFormatter().AppendRequest(nil, fetch, 1)[4:]
	for _, tc := range []struct {
		name, reason string // reason is part of the line
		send         []byte
	}{
		{"HTTP", "is this a Kafka client", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		{"TLS", "is this a Kafka client", []byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}},
		{"length -1", "request of -1 bytes", int32s(-1)},
		{"length 0", "request of 0 bytes", int32s(0)},
		{"length 2^31-1", "request of 2147483647 bytes", int32s(1<<31 - 1)},
		{"limit + 1", "request of 65537 bytes", int32s(limit + 1)},
		{"length that is never sent", "stops after 0", int32s(limit)},
		{"half of the length", "stops after", append(int32s(limit), make([]byte, limit/2)...)},
		{"three bytes of length", "ends in its length", []byte{0, 0, 0}},
		{"unknown API", "unknown or unsupported type 999", framed(header(999, 0, ""))},
		{"negative API", "unknown or unsupported type -7", framed(header(-7, 0, ""))},
		{"request between brokers", "LeaderAndISR", framed(header(int16(kmsg.LeaderAndISR), 4, ""))},
		{"version above", "Metadata v99 is not supported", framed(header(int16(kmsg.Metadata), 99, ""))},
		{"version below", "Metadata v-1 is not supported", framed(header(int16(kmsg.Metadata), -1, ""))},
		{"ApiVersions below", "ApiVersions v-1", framed(header(int16(kmsg.ApiVersions), -1, ""))},
		{"no client id", "before the client id", framed(header(int16(kmsg.Metadata), 1, "")[:9])},
		{"client id longer than the frame", "client id of 16000 bytes", framed(header(int16(kmsg.Metadata), 1, "")[:8], []byte{0x3e, 0x80}, []byte("abc"))},
		{"client id of -2", "client id of -2 bytes", framed(header(int16(kmsg.Metadata), 1, "")[:8], []byte{0xff, 0xfe})},
		{"no tags", "tags", framed(metadata9)},
		{"2^31-1 tags", "tags", framed(metadata9, []byte{0xff, 0xff, 0xff, 0xff, 0x07})},
		{"2^32 tags", "tags", framed(metadata9, []byte{0xff, 0xff, 0xff, 0xff, 0x10})},
		{"varint overflow", "tags", framed(metadata9, bytes.Repeat([]byte{0xff}, 20))},
		{"tag longer than the frame", "tags", framed(metadata9, []byte{1, 0, 0x7f, 1})},
		{"array of 2^31-1", "truncated or has impossible lengths", framed(header(int16(kmsg.Metadata), 1, ""), int32s(1<<31-1))},
		{"compact array of 2^31-1", "truncated or has impossible lengths", framed(metadata9, []byte{0}, []byte{0xff, 0xff, 0xff, 0xff, 0x07})},
		{"array that the frame cannot hold", "truncated or has impossible lengths", framed(header(int16(kmsg.Metadata), 1, ""), int32s(100), make([]byte, 100))},
		{"nested arrays", "truncated or has impossible lengths", framed(fetchHead[:len(fetchHead)-4], int32s(1), []byte{0, 1, 't'}, int32s(1<<30))},
		{"truncated", "truncated or has impossible lengths", framed(good[:len(good)-1])},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := len(b.logged.String())
			w := b.dial(t)
			if _, err := w.Write(tc.send); err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Fatal(err)
			}
			if strings.Contains(tc.name, "half") || strings.Contains(tc.name, "never") {
				// kept open: the broker must not wait for ever
			} else if err := w.Conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Log(err)
			}
			if b, err := io.ReadAll(w); err != nil && !errors.Is(err, syscall.ECONNRESET) || len(b) > 0 {
				t.Fatalf("%d bytes came back, then %v; want the connection closed", len(b), err)
			}
			line := func() string { return b.logged.String()[before:] }
			eventually(t, "a line in the log", func() bool { return strings.Contains(line(), "\n") })
			got := line()
			if strings.Count(got, "\n") != 1 || !strings.Contains(got, "peer=127.0.0.1:") || !strings.Contains(got, tc.reason) {
				t.Errorf("log %q, want one line with the peer and %q", got, tc.reason)
			}
		})
	}
	if resp := b.dial(t).ask(kmsg.NewPtrMetadataRequest()).(*kmsg.MetadataResponse); len(resp.Topics) != 1 {
		t.Errorf("metadata after all: %+v", resp)
	}
	assertIdle(t, b)
}

// Bytes behind the end of a message are ignored, since a client in wide use sends some.
func TestTrailingBytes(t *testing.T) {
	b := start(t, Config{})
	w := b.dial(t)
	body := []byte{0, 0, 0, 0, 1, 0, 0} // as librdkafka 2.16 asks for all topics
	for _, tail := range [][]byte{nil, {1}, make([]byte, 10000)} {
		if _, err := w.Write(framed(header(int16(kmsg.Metadata), 13, "rdkafka"), []byte{0}, body, tail)); err != nil {
			t.Fatal(err)
		}
		if resp := w.receive(1, &kmsg.MetadataRequest{Version: 13}).(*kmsg.MetadataResponse); len(resp.Brokers) != 1 {
			t.Fatalf("%d bytes more: %+v", len(tail), resp)
		}
	}
}

// assertIdle checks that nothing is reserved when no request is in hand.
func assertIdle(t *testing.T, b *testBroker) {
	t.Helper()
	eventually(t, "all reserved memory is given back", func() bool {
		if !b.reqMemory.TryAcquire(b.cfg.MaxRequestMemory) {
			return false
		}
		b.reqMemory.Release(b.cfg.MaxRequestMemory)
		if !b.largeMemory.TryAcquire(b.cfg.largeMemory()) {
			return false
		}
		b.largeMemory.Release(b.cfg.largeMemory())
		if !b.ansMemory.TryAcquire(b.cfg.MaxAnswerMemory) {
			return false
		}
		b.ansMemory.Release(b.cfg.MaxAnswerMemory)
		if !b.decMemory.TryAcquire(decodeMemory) {
			return false
		}
		b.decMemory.Release(decodeMemory)
		return true
	})
}

// A client with a newer ApiVersions, whatever follows its header, gets version 0 with
// error 35 and all ranges, and the connection stays.
func TestAPIVersionsFromTheFuture(t *testing.T) {
	b := start(t, Config{})
	w := b.dial(t)
	for name, send := range map[string][]byte{
		"good header":      framed(header(int16(kmsg.ApiVersions), 99, "x"), []byte{0, 2, 'a', 2, 'b', 0}),
		"truncated header": framed(header(int16(kmsg.ApiVersions), 99, "x")[:8]),
		"odd client id":    framed(header(int16(kmsg.ApiVersions), 6, "x")[:8], []byte{0x7f, 0xff}),
	} {
		if _, err := w.Write(send); err != nil {
			t.Fatal(err)
		}
		resp := w.receive(1, &kmsg.ApiVersionsRequest{Version: 0}).(*kmsg.ApiVersionsResponse)
		if resp.ErrorCode != kerr.UnsupportedVersion.Code || len(resp.ApiKeys) != len(b.apis.list) {
			t.Errorf("%s: %+v", name, resp)
		}
	}
	for v := range b.apis.byKey(int16(kmsg.ApiVersions)).max + 1 {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = v, "test", "1.0"
		resp := w.ask(req).(*kmsg.ApiVersionsResponse)
		if resp.ErrorCode != 0 || len(resp.ApiKeys) != len(b.apis.list) {
			t.Errorf("v%d: %+v", v, resp)
		}
		if v < 3 {
			continue
		}
		levels := map[string]int16{}
		for _, f := range resp.FinalizedFeatures {
			levels[f.Name] = f.MaxVersionLevel
		}
		if want := map[string]int16{"group.version": 1, "share.version": 1, "transaction.version": 2}; !maps.Equal(levels, want) || len(resp.SupportedFeatures) != len(want) {
			t.Errorf("v%d: features %v of %v, want %v", v, levels, resp.SupportedFeatures, want)
		}
	}
	for name, tc := range map[string]struct {
		change func(*kmsg.ApiVersionsRequest)
		want   *kerr.Error
	}{
		"software name":  {func(r *kmsg.ApiVersionsRequest) { r.ClientSoftwareName = "-\n-" }, kerr.InvalidRequest},
		"cluster alone":  {func(r *kmsg.ApiVersionsRequest) { r.ClusterID = kmsg.StringPtr("x") }, kerr.InvalidRequest},
		"other cluster":  {func(r *kmsg.ApiVersionsRequest) { r.ClusterID, r.NodeID = kmsg.StringPtr("x"), 1 }, kerr.RebootstrapRequired},
		"other node":     {func(r *kmsg.ApiVersionsRequest) { r.ClusterID, r.NodeID = kmsg.StringPtr(b.meta.ClusterID()), 2 }, kerr.RebootstrapRequired},
		"this very node": {func(r *kmsg.ApiVersionsRequest) { r.ClusterID, r.NodeID = kmsg.StringPtr(b.meta.ClusterID()), 1 }, &kerr.Error{}},
	} {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 5, "test", "1.0"
		tc.change(req)
		if resp := w.ask(req).(*kmsg.ApiVersionsResponse); resp.ErrorCode != tc.want.Code {
			t.Errorf("%s: %v, want %v", name, kerr.ErrorForCode(resp.ErrorCode), tc.want)
		}
	}
}

// A panic in a handler is answered with UNKNOWN_SERVER_ERROR in the form of its API and
// logged with its stack; the connection stays. Where an API has no place for an error,
// the connection is closed.
func TestPanicInAHandler(t *testing.T) {
	b := start(t, Config{})
	requests := requestsAbout("n")
	for i := range b.apis.list {
		b.apis.list[i].handle = func(context.Context, *Broker, *request) (*answer, error) { panic("thrown by the test") }
	}
	w := b.dial(t)
	for _, a := range b.apis.list {
		fill, ok := requests[a.key]
		if !ok {
			t.Fatalf("%s is not tested", a.name())
		}
		for v := a.min; v <= a.max; v++ {
			req := a.key.Request()
			req.SetVersion(v)
			if fill == nil || a.key == kmsg.DescribeLogDirs && v < 3 { // no place for an error
				continue
			}
			fill(req)
			w.send(1, req)
			raw, err := w.frame()
			if err != nil {
				t.Fatalf("%s v%d: %v", a.name(), v, err)
			}
			minusOne := []byte{0xff, 0xff} // UNKNOWN_SERVER_ERROR
			if !bytes.Contains(raw[4:], minusOne) {
				t.Errorf("%s v%d: no error in %x", a.name(), v, raw)
			}
		}
	}
	if got := b.logged.String(); !strings.Contains(got, "thrown by the test") || !strings.Contains(got, "hostile_test.go") {
		t.Errorf("log has no panic with its stack: %s", got)
	}
	all := kmsg.NewPtrMetadataRequest()
	all.Topics = nil
	all.Version = 4
	w.send(1, all)
	if _, err := w.frame(); !errors.Is(err, io.EOF) {
		t.Errorf("no place for an error: %v, want the connection closed", err)
	}
	assertIdle(t, b)
}

// Announced bytes do not hold memory: many connections that announce the most and send
// nothing leave room for the others, and are closed.
func TestWithheldRequests(t *testing.T) {
	b := start(t, Config{StallTimeout: time.Second})
	for range 200 {
		w := b.dial(t)
		w.Write(binary.BigEndian.AppendUint32(nil, uint32(b.cfg.MaxRequestBytes)))
	}
	b.dial(t).ask(kmsg.NewPtrMetadataRequest())
	if !b.reqMemory.TryAcquire(b.cfg.MaxRequestMemory - 201*frameStage) {
		t.Errorf("the announced bytes are reserved")
	} else {
		b.reqMemory.Release(b.cfg.MaxRequestMemory - 201*frameStage)
	}
}

// A peer that sends a byte now and then is cut off as one that sends nothing, for it could
// hold a request open for ever. So it is when the handler reads the request, field by field.
func TestTricklingRequest(t *testing.T) {
	topic := metadata.Topic{Name: "t"}
	for name, c := range map[string]struct {
		begin []byte
		part  int
	}{
		"a byte":                    {wholeRequest(topic, 1<<20)[:100], 1},
		"less than it should be of": {wholeRequest(topic, 64<<20)[:100], 300 << 10}, // 64 MiB in 16 times 200 ms are 2 MiB each 100 ms
		"a byte of tags":            {beforeTags(), 1},
		"a byte behind the message": {behindProduce(), 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, Config{StallTimeout: 200 * time.Millisecond})
			w := b.dial(t)
			w.Write(c.begin)
			closed := make(chan error, 1)
			go func() { _, err := w.Read(make([]byte, 1)); closed <- err }()
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			part := make([]byte, c.part)
			for sent := 0; ; sent++ {
				select {
				case <-tick.C:
					w.Write(part) // an error shows in closed
					if sent < 300 {
						continue
					}
					t.Error("the connection was not closed")
				case err := <-closed:
					if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("the connection was not closed: %v", err)
					}
				}
				break
			}
			eventually(t, "a line in the log", func() bool { return strings.Contains(b.logged.String(), "stops after") })
			assertIdle(t, b)
		})
	}
}

// beforeTags is the beginning of a Produce of 4 MiB, which is read by its handler: up to a million tags of a partition.
func beforeTags() []byte {
	frame := produceHeader(4 << 20)
	frame = append(frame, 2, 2, 't', 2, 0, 0, 0, 0) // a topic, a partition
	frame = binary.AppendUvarint(frame, 100_000+1)
	frame = append(frame, make([]byte, 100_000)...)
	return binary.AppendUvarint(frame, 1_000_000)
}

// behindProduce is a Produce to no topic, of which 4 MiB say nothing.
func behindProduce() []byte { return append(produceHeader(4<<20), 1, 0) }

// produceHeader is the beginning of a Produce v9 of a size, up to its topics.
func produceHeader(size uint32) []byte {
	frame := binary.BigEndian.AppendUint32(nil, size)
	frame = append(frame, 0, 0, 0, 9, 0, 0, 0, 7, 0xff, 0xff, 0) // key, version, correlation, no client id, no tags
	return append(frame, 0, 0, 1, 0, 0, 0, 1)                    // no transaction, acks, timeout
}

// A fetch of the largest numbers from a partition that is named a thousand times stays within
// the limit.
func TestFetchOfEverything(t *testing.T) {
	b := start(t, Config{MaxFetchBytes: 5000})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	for range 4 {
		w.ask(produceRequest(9, topic, 0, -1, testBatch(t, 1, 2000)))
	}
	req := fetchRequest(12, topic, 0)
	req.MaxBytes, req.MinBytes, req.MaxWaitMillis = math.MaxInt32, math.MaxInt32, 1
	one := req.Topics[0].Partitions[0]
	one.PartitionMaxBytes = math.MaxInt32
	for range 999 {
		req.Topics[0].Partitions = append(req.Topics[0].Partitions, one)
	}
	total := 0
	for _, p := range w.ask(req).(*kmsg.FetchResponse).Topics[0].Partitions {
		total += len(p.RecordBatches)
	}
	if total == 0 || total > 5000+2200 {
		t.Errorf("%d bytes, the limit is 5000 and a batch", total)
	}
	w.Close()
	assertIdle(t, b)
}

// One connection more than the limit is closed at once, and logged.
func TestConnectionLimit(t *testing.T) {
	b := start(t, Config{MaxConnections: 2})
	for range 2 {
		b.dial(t).ask(kmsg.NewPtrMetadataRequest())
	}
	if _, err := b.dial(t).frame(); err == nil {
		t.Fatal("a third connection was served")
	}
	eventually(t, "a line in the log", func() bool { return strings.Contains(b.logged.String(), "connection refused: too many") })
}

func TestConfigRefused(t *testing.T) {
	set, meta, node := openSet(t)
	groups := openGroups(t, set)
	for name, cfg := range map[string]Config{
		"any address":       {},
		"no port":           {},
		"request memory":    {MaxRequestMemory: 10},
		"default above max": {DefaultPartitions: 5, MaxPartitions: 2},
		"negative":          {MaxConnections: -1},
	} {
		l := Listener{Listener: listen(t)}
		switch name {
		case "any address":
			var err error
			if l.Listener, err = net.Listen("tcp", ":0"); err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		case "no port":
			l.Advertised = "host"
		}
		if b, err := Open(cfg, []Listener{l}, openAccess(t, security.Config{}, meta), set, groups, nil, meta, node, slog.New(slog.DiscardHandler), nil); err == nil {
			b.Close(t.Context())
			t.Errorf("%s: accepted", name)
		}
	}
}

func counterValue(t testing.TB, c prometheus.Counter) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// Whatever the bytes, a connection ends, and without a panic.
func FuzzConnection(f *testing.F) {
	set, meta, node := openSet(f)
	groups := openGroups(f, set)
	txns := openTransactions(f, set, groups)
	b, err := Open(Config{MaxRequestBytes: 1 << 16, MaxPartitions: 3, NoAutoCreate: true}, []Listener{{Listener: listen(f)}}, openAccess(f, security.Config{}, meta), set, groups, txns, meta, node, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { b.Close(context.Background()) })
	panics := func() float64 { return counterValue(f, b.m.panics) }
	for _, a := range b.apis.list {
		for v := a.min; v <= a.max; v++ {
			req := a.key.Request()
			req.SetVersion(v)
			f.Add(kmsg.NewRequestFormatter(kmsg.FormatterClientID("x")).AppendRequest(nil, req, 1))
		}
	}
	f.Add(framed(header(int16(kmsg.ApiVersions), 99, "x")))
	f.Fuzz(func(t *testing.T, data []byte) {
		client, server := net.Pipe()
		done := make(chan struct{})
		go func() { b.ServeConn(server); close(done) }()
		go func() { client.Write(data); client.Close() }()
		io.Copy(io.Discard, client)
		<-done
		if panics() > 0 {
			t.Fatal("a handler panicked")
		}
	})
}

// requestsAbout fills one request of each API, with the given name for all that has one.
func requestsAbout(name string) map[kmsg.Key]func(kmsg.Request) {
	return map[kmsg.Key]func(kmsg.Request){
		kmsg.Produce: func(r kmsg.Request) {
			p := r.(*kmsg.ProduceRequest)
			p.Topics = []kmsg.ProduceRequestTopic{{Topic: name, Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: 3}}}}
		},
		kmsg.Fetch: func(r kmsg.Request) {
			p := r.(*kmsg.FetchRequest)
			p.Topics = []kmsg.FetchRequestTopic{{Topic: name, Partitions: []kmsg.FetchRequestTopicPartition{{Partition: 3}}}}
		},
		kmsg.ListOffsets: func(r kmsg.Request) {
			p := r.(*kmsg.ListOffsetsRequest)
			p.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: name, Partitions: []kmsg.ListOffsetsRequestTopicPartition{{Partition: 3}}}}
		},
		kmsg.Metadata: func(r kmsg.Request) { r.(*kmsg.MetadataRequest).Topics = []kmsg.MetadataRequestTopic{{Topic: &name}} },
		kmsg.CreateTopics: func(r kmsg.Request) {
			r.(*kmsg.CreateTopicsRequest).Topics = []kmsg.CreateTopicsRequestTopic{{Topic: name}}
		},
		kmsg.DeleteTopics: func(r kmsg.Request) {
			r.(*kmsg.DeleteTopicsRequest).TopicNames = []string{name}
			r.(*kmsg.DeleteTopicsRequest).Topics = []kmsg.DeleteTopicsRequestTopic{{Topic: &name}}
		},
		kmsg.DeleteRecords: func(r kmsg.Request) {
			p := r.(*kmsg.DeleteRecordsRequest)
			p.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: name, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Partition: 3}}}}
		},
		kmsg.OffsetForLeaderEpoch: func(r kmsg.Request) {
			p := r.(*kmsg.OffsetForLeaderEpochRequest)
			p.Topics = []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: name, Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{{Partition: 3}}}}
		},
		kmsg.DescribeConfigs: func(r kmsg.Request) {
			r.(*kmsg.DescribeConfigsRequest).Resources = []kmsg.DescribeConfigsRequestResource{{ResourceName: name}}
		},
		kmsg.AlterConfigs: func(r kmsg.Request) {
			r.(*kmsg.AlterConfigsRequest).Resources = []kmsg.AlterConfigsRequestResource{{ResourceName: name}}
		},
		kmsg.IncrementalAlterConfigs: func(r kmsg.Request) {
			r.(*kmsg.IncrementalAlterConfigsRequest).Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceName: name}}
		},
		kmsg.CreatePartitions: func(r kmsg.Request) {
			r.(*kmsg.CreatePartitionsRequest).Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: name}}
		},
		kmsg.DescribeTopicPartitions: func(r kmsg.Request) {
			r.(*kmsg.DescribeTopicPartitionsRequest).Topics = []kmsg.DescribeTopicPartitionsRequestTopic{{Topic: name}}
		},
		kmsg.FindCoordinator: func(r kmsg.Request) { r.(*kmsg.FindCoordinatorRequest).CoordinatorKeys = []string{name} },
		kmsg.InitProducerID:  func(kmsg.Request) {},
		kmsg.DescribeCluster: func(kmsg.Request) {},
		kmsg.JoinGroup:       func(kmsg.Request) {},
		kmsg.SyncGroup:       func(kmsg.Request) {},
		kmsg.Heartbeat:       func(kmsg.Request) {},
		kmsg.LeaveGroup:      func(kmsg.Request) {},
		kmsg.ListGroups:      func(kmsg.Request) {},
		kmsg.DescribeGroups:  func(r kmsg.Request) { r.(*kmsg.DescribeGroupsRequest).Groups = []string{name} },
		kmsg.DeleteGroups:    func(r kmsg.Request) { r.(*kmsg.DeleteGroupsRequest).Groups = []string{name} },
		kmsg.OffsetCommit: func(r kmsg.Request) {
			p := r.(*kmsg.OffsetCommitRequest)
			p.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: name, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: 3}}}}
		},
		kmsg.OffsetFetch: func(r kmsg.Request) {
			p := r.(*kmsg.OffsetFetchRequest)
			p.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: name, Partitions: []int32{3}}}
			p.Groups = []kmsg.OffsetFetchRequestGroup{{Group: name}}
		},
		kmsg.AddPartitionsToTxn: func(r kmsg.Request) {
			p := r.(*kmsg.AddPartitionsToTxnRequest)
			p.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: name, Partitions: []int32{3}}}
		},
		kmsg.AddOffsetsToTxn: func(kmsg.Request) {},
		kmsg.EndTxn:          func(kmsg.Request) {},
		kmsg.WriteTxnMarkers: func(r kmsg.Request) {
			p := r.(*kmsg.WriteTxnMarkersRequest)
			p.Markers = []kmsg.WriteTxnMarkersRequestMarker{{Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: name, Partitions: []int32{3}}}}}
		},
		kmsg.TxnOffsetCommit: func(r kmsg.Request) {
			p := r.(*kmsg.TxnOffsetCommitRequest)
			p.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: name, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: 3}}}}
		},
		kmsg.DescribeProducers: func(r kmsg.Request) {
			p := r.(*kmsg.DescribeProducersRequest)
			p.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: name, Partitions: []int32{3}}}
		},
		kmsg.DescribeTransactions: func(r kmsg.Request) { r.(*kmsg.DescribeTransactionsRequest).TransactionalIDs = []string{name} },
		kmsg.ListTransactions:     func(kmsg.Request) {},
		kmsg.OffsetDelete:         func(kmsg.Request) {},
		kmsg.SASLHandshake:        func(kmsg.Request) {},
		kmsg.SASLAuthenticate:     func(kmsg.Request) {},
		kmsg.DescribeACLs:         func(kmsg.Request) {},
		kmsg.CreateACLs: func(r kmsg.Request) {
			r.(*kmsg.CreateACLsRequest).Creations = []kmsg.CreateACLsRequestCreation{{ResourceName: name}}
		},
		kmsg.DeleteACLs:                   func(r kmsg.Request) { r.(*kmsg.DeleteACLsRequest).Filters = []kmsg.DeleteACLsRequestFilter{{}} },
		kmsg.DescribeUserSCRAMCredentials: func(kmsg.Request) {},
		kmsg.DescribeClientQuotas:         func(kmsg.Request) {},
		kmsg.AlterClientQuotas: func(r kmsg.Request) {
			r.(*kmsg.AlterClientQuotasRequest).Entries = []kmsg.AlterClientQuotasRequestEntry{{Entity: []kmsg.AlterClientQuotasRequestEntryEntity{{Type: "user", Name: &name}}}}
		},
		kmsg.ConsumerGroupHeartbeat: func(kmsg.Request) {},
		kmsg.ConsumerGroupDescribe: func(r kmsg.Request) {
			r.(*kmsg.ConsumerGroupDescribeRequest).Groups = []string{name}
		},
		kmsg.ShareGroupHeartbeat: func(kmsg.Request) {},
		kmsg.ShareGroupDescribe: func(r kmsg.Request) {
			r.(*kmsg.ShareGroupDescribeRequest).GroupIDs = []string{name}
		},
		kmsg.ShareFetch: func(r kmsg.Request) {
			p := r.(*kmsg.ShareFetchRequest)
			p.GroupID, p.MemberID = &name, &name
			p.Topics = []kmsg.ShareFetchRequestTopic{{TopicID: [16]byte{1}, Partitions: []kmsg.ShareFetchRequestTopicPartition{{Partition: 3}}}}
		},
		kmsg.ShareAcknowledge: func(r kmsg.Request) {
			p := r.(*kmsg.ShareAcknowledgeRequest)
			p.GroupID, p.MemberID = &name, &name
			p.Topics = []kmsg.ShareAcknowledgeRequestTopic{{TopicID: [16]byte{1}, Partitions: []kmsg.ShareAcknowledgeRequestTopicPartition{{Partition: 3}}}}
		},
		kmsg.DescribeShareGroupOffsets: func(r kmsg.Request) {
			r.(*kmsg.DescribeShareGroupOffsetsRequest).Groups = []kmsg.DescribeShareGroupOffsetsRequestGroup{{GroupID: name}}
		},
		kmsg.AlterShareGroupOffsets: func(r kmsg.Request) {
			r.(*kmsg.AlterShareGroupOffsetsRequest).Topics = []kmsg.AlterShareGroupOffsetsRequestTopic{{Topic: name, Partitions: []kmsg.AlterShareGroupOffsetsRequestTopicPartition{{Partition: 3}}}}
		},
		kmsg.DeleteShareGroupOffsets: func(r kmsg.Request) {
			r.(*kmsg.DeleteShareGroupOffsetsRequest).Topics = []kmsg.DeleteShareGroupOffsetsRequestTopic{{Topic: name}}
		},
		kmsg.AlterUserSCRAMCredentials: func(r kmsg.Request) {
			r.(*kmsg.AlterUserSCRAMCredentialsRequest).Upsertions = []kmsg.AlterUserSCRAMCredentialsRequestUpsertion{{Name: name}}
		},
		kmsg.AlterReplicaLogDirs: nil,
		kmsg.DescribeLogDirs:     func(kmsg.Request) {},
		kmsg.ElectLeaders: func(r kmsg.Request) {
			r.(*kmsg.ElectLeadersRequest).Topics = []kmsg.ElectLeadersRequestTopic{{Topic: name, Partitions: []int32{3}}}
		},
		kmsg.AlterPartitionAssignments:  func(kmsg.Request) {},
		kmsg.ListPartitionReassignments: func(kmsg.Request) {},
		kmsg.DescribeQuorum:             func(kmsg.Request) {},
		kmsg.UpdateFeatures:             func(kmsg.Request) {},
		kmsg.UnregisterBroker:           func(kmsg.Request) {},
		kmsg.GetTelemetrySubscriptions:  func(kmsg.Request) {},
		kmsg.PushTelemetry:              func(kmsg.Request) {},
		kmsg.ListConfigResources:        func(kmsg.Request) {},
		kmsg.ApiVersions: func(r kmsg.Request) {
			p := r.(*kmsg.ApiVersionsRequest)
			p.ClientSoftwareName, p.ClientSoftwareVersion = "x", "1"
		},
	}
}

// Requests that wait for as long as their clients say, for a group or for records, hold none of the
// memory that others need to be read.
func TestWaitingRequestsHoldNoRequestMemory(t *testing.T) {
	const memory = 4 << 20
	b := start(t, Config{MaxRequestBytes: memory, MaxRequestMemory: memory})
	topic := b.topic(t, "t", 1)
	padded := func(req kmsg.Request, key, version int16) []byte {
		req.SetVersion(version)
		frame := kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)
		frame = append(frame, make([]byte, 3<<20)...) // as Kafka does, the broker ignores what is behind the message
		binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
		return frame
	}
	join := kmsg.NewPtrJoinGroupRequest()
	join.Group, join.ProtocolType, join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = "g", "consumer", 10_000, math.MaxInt32
	join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range"}}
	join.Version = 3
	b.dial(t).ask(join) // who comes next waits for this member, which never joins again
	fetch := fetchRequest(12, topic, 0)
	fetch.MinBytes, fetch.MaxWaitMillis = math.MaxInt32, math.MaxInt32
	for name, frame := range map[string][]byte{"JoinGroup": padded(join, 11, 3), "Fetch": padded(fetch, 1, 12)} {
		b.dial(t).Write(frame)
		eventually(t, name+" waits without memory", func() bool {
			if !b.reqMemory.TryAcquire(memory) {
				return false
			}
			b.reqMemory.Release(memory)
			return true
		})
		b.dial(t).ask(produceRequest(9, topic, 0, -1, testBatch(t, 1, 3<<20))) // and one of the same size goes on
	}
}

// Many requests of which only a part comes hold most of the memory of requests, but not all: small ones go on.
func TestLargeRequestsLeaveRoomForSmallOnes(t *testing.T) {
	b := start(t, Config{MaxRequestBytes: 1 << 20, MaxRequestMemory: 8 << 20})
	for range 20 {
		w := b.dial(t)
		w.Write(binary.BigEndian.AppendUint32(nil, 1<<20))
		w.Write(make([]byte, frameStage+1)) // from here on it has room for all of it, or waits for that
	}
	eventually(t, "what large requests may have is taken", func() bool {
		if b.largeMemory.TryAcquire(1 << 20) {
			b.largeMemory.Release(1 << 20)
			return false
		}
		return true
	})
	for range 100 {
		b.dial(t).ask(kmsg.NewPtrMetadataRequest())
	}
}

// wholeRequest is a large request that is in memory as a whole: a Produce of a transaction, in which nothing follows but
// bytes that mean nothing.
func wholeRequest(topic metadata.Topic, size int) []byte {
	req, id := produceRequest(9, topic, 0, -1, nil), "id"
	req.TransactionID = &id
	frame := kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)
	frame = append(frame, make([]byte, size-len(frame)+4)...)
	binary.BigEndian.PutUint32(frame, uint32(size))
	return frame
}

// A large request behind one that waits holds no memory: others have it meanwhile, and it is answered in its turn.
func TestLargeRequestsWaitOutsideForThoseBefore(t *testing.T) {
	const size = frameAlone + 1<<20
	b := start(t, Config{MaxRequestBytes: size, MaxRequestMemory: size * 4 / 3}) // room for one
	topic := b.topic(t, "t", 1)
	frame := wholeRequest(topic, size)

	waiting := b.dial(t)
	fetch := fetchRequest(11, topic, 0)
	fetch.MaxWaitMillis, fetch.MinBytes = 60_000, 1
	if _, err := waiting.Write(kmsg.NewRequestFormatter().AppendRequest(nil, fetch, 1)); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := waiting.Write(frame)
		sent <- err
	}()
	other := b.dial(t)
	for i := range 20 { // a request that waits for memory gets it after the first
		if _, err := other.Write(frame); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if _, err := other.frame(); err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
	}
	b.dial(t).ask(produceRequest(9, topic, 0, -1, testBatch(t, 1, 100)))
	for _, what := range []string{"fetch", "large request"} {
		if _, err := waiting.frame(); err != nil {
			t.Errorf("answer to the %s: %v", what, err)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// Requests that have a part of the memory that they need, and wait for the rest of it, do not wait for each other
// for ever: some are cut off, and the broker goes on.
func TestLargeRequestsDoNotWaitForEachOther(t *testing.T) {
	const size, stage = 20 << 20, 16 << 20
	b := start(t, Config{MaxRequestBytes: size, MaxRequestMemory: 4 * stage, StallTimeout: 5 * time.Second})
	topic := b.topic(t, "t", 1)
	frame := wholeRequest(topic, size)
	// Three hold 16 MiB each, which is all that large requests may have, before any gets the last 4.
	var wires []*wire
	for range 3 {
		w := b.dial(t)
		if _, err := w.Write(frame[:stage]); err != nil {
			t.Fatal(err)
		}
		wires = append(wires, w)
	}
	eventually(t, "three have a part", func() bool {
		if b.largeMemory.TryAcquire(1 << 20) {
			b.largeMemory.Release(1 << 20)
			return false
		}
		return true
	})
	answered := make(chan bool)
	for _, w := range wires {
		go func() {
			w.Write(frame[stage:]) // an error shows in the answer
			_, err := w.frame()
			answered <- err == nil
		}()
	}
	n := 0
	for range wires {
		if <-answered {
			n++
		}
	}
	if log := b.logged.String(); n == len(wires) || !strings.Contains(log, "no memory for the rest of it") {
		t.Errorf("%d of %d answered: the case was not met; log: %s", n, len(wires), log)
	}
	b.dial(t).ask(produceRequest(9, topic, 0, -1, testBatch(t, 1, 900<<10)))
	for _, w := range wires {
		w.Close()
	}
	assertIdle(t, b)
}
