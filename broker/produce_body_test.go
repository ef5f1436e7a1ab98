package broker

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/security"
)

// A produceBody reads what kmsg writes, in each version.
func TestProduceBodyOfEachVersion(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for version := int16(0); version <= 13; version++ {
		for range 50 {
			want := randomProduce(rng, version)
			got, err := readProduceBody(version, want.AppendTo(nil))
			if err != nil {
				t.Fatalf("v%d: %v", version, err)
			}
			if !reflect.DeepEqual(got.AppendTo(nil), want.AppendTo(nil)) {
				t.Fatalf("v%d: %+v, want %+v", version, got, want)
			}
		}
	}
}

// Whatever comes, produceBody and kmsg agree on it. (Of longer names, and more partitions, than fit into this, kmsg takes more.)
func FuzzProduceBody(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 4))
	for version := int16(0); version <= 13; version++ {
		f.Add(version, randomProduce(rng, version).AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, version int16, data []byte) {
		if version = max(0, version) % 14; len(data) > maxText {
			return
		}
		want := kmsg.NewPtrProduceRequest()
		want.SetVersion(version)
		wantErr := want.ReadFrom(data)
		got, err := readProduceBody(version, data)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("v%d: %v, want %v", version, err, wantErr)
		}
		if err == nil && !bytes.Equal(withoutTags(got).AppendTo(nil), withoutTags(want).AppendTo(nil)) {
			t.Fatalf("v%d: %+v, want %+v", version, got, want)
		}
	})
}

func withoutTags(r *kmsg.ProduceRequest) *kmsg.ProduceRequest {
	r.UnknownTags = kmsg.Tags{}
	for i := range r.Topics {
		r.Topics[i].UnknownTags = kmsg.Tags{}
		for j := range r.Topics[i].Partitions {
			p := &r.Topics[i].Partitions[j]
			p.UnknownTags = kmsg.Tags{}
			if len(p.Records) == 0 {
				p.Records = nil
			}
		}
	}
	return r
}

func randomProduce(rng *rand.Rand, version int16) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = version, int16(rng.Int32()), rng.Int32()
	if version >= 3 && rng.IntN(2) == 0 {
		id := strings.Repeat("i", rng.IntN(300))
		req.TransactionID = &id
	}
	for range rng.IntN(4) {
		topic := kmsg.NewProduceRequestTopic()
		if version < 13 {
			topic.Topic = strings.Repeat("t", rng.IntN(300))
		} else {
			binary.BigEndian.PutUint64(topic.TopicID[:], rng.Uint64())
		}
		for range rng.IntN(4) {
			p := kmsg.NewProduceRequestTopicPartition()
			p.Partition = rng.Int32()
			if rng.IntN(4) > 0 {
				p.Records = bytes.Repeat([]byte{byte(rng.IntN(256))}, 1+rng.IntN(300))
			}
			topic.Partitions = append(topic.Partitions, p)
		}
		req.Topics = append(req.Topics, topic)
	}
	return req
}

// readProduceBody reads a request that is in memory.
func readProduceBody(version int16, data []byte) (*kmsg.ProduceRequest, error) {
	req := kmsg.NewPtrProduceRequest()
	req.Version = version
	p := newProduceBody(&request{version: version, body: data, frame: &frame{}})
	head, err := p.head()
	if err != nil {
		return nil, err
	}
	req.TransactionID, req.Acks, req.TimeoutMillis = head.transactionalID, head.acks, int32(head.timeout.Milliseconds())
	err = p.each(func(t kmsg.ProduceRequestTopic) { req.Topics = append(req.Topics, t) }, func(index int32, records []byte) {
		t := &req.Topics[len(req.Topics)-1]
		one := kmsg.NewProduceRequestTopicPartition()
		one.Partition, one.Records = index, records
		if len(records) == 0 {
			one.Records = nil
		}
		t.Partitions = append(t.Partitions, one)
	})
	return req, err
}

// largeProduce is a Produce to all partitions of a topic, of a batch for each that has one record of so many bytes, which
// say which partition it is.
func largeProduce(t testing.TB, version int16, topic metadata.Topic, partitions, bytes int) *kmsg.ProduceRequest {
	req := produceRequest(version, topic, 0, -1, nil)
	req.Topics[0].Partitions = nil
	for i := range partitions {
		batch, err := record.AppendBatch(nil, record.BatchOptions{}, []record.Record{{Timestamp: time.Now().UnixMilli(), Value: largeValue(i, bytes)}})
		if err != nil {
			t.Fatal(err)
		}
		p := kmsg.NewProduceRequestTopicPartition()
		p.Partition, p.Records = int32(i), batch
		req.Topics[0].Partitions = append(req.Topics[0].Partitions, p)
	}
	return req
}

func largeValue(partition, n int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "partition %d;", partition), n/10)[:n]
}

// A large Produce takes the memory of one batch: 40 MB of it are appended where there is room for 4, whatever pieces they
// come in, and what is refused of it does not harm the rest.
func TestLargeProduceTakesTheMemoryOfOneBatch(t *testing.T) {
	const partitions, size = 40, 1_000_000
	b := start(t, Config{MaxRequestBytes: 64 << 20, MaxRequestMemory: 64 << 20})
	topic := b.topic(t, "t", partitions)
	other := b.topic(t, "other", 1)
	if !b.reqMemory.TryAcquire(60 << 20) {
		t.Fatal("the memory is not free")
	}
	defer b.reqMemory.Release(60 << 20)
	rng := rand.New(rand.NewPCG(5, 6))
	for _, version := range []int16{3, 8, 9, 13} {
		req := largeProduce(t, version, topic, partitions, size)
		good := req.Topics[0].Partitions
		bad := bytes.Clone(good[3].Records)
		bad[len(bad)-1]++
		req.Topics[0].Partitions = append(good,
			kmsg.ProduceRequestTopicPartition{Partition: partitions, Records: good[1].Records},
			kmsg.ProduceRequestTopicPartition{Partition: 3, Records: bad},
			kmsg.ProduceRequestTopicPartition{Partition: 3})
		last := produceRequest(version, other, 0, -1, testBatch(t, 2, 100)).Topics[0]
		unknown := last
		unknown.Topic, unknown.TopicID = "unknown", [16]byte{1}
		req.Topics = append(req.Topics, unknown, last)
		frame := kmsg.NewRequestFormatter().AppendRequest(nil, req, 7)
		frame = append(frame, make([]byte, 100_000)...) // which means nothing
		binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
		w := b.dial(t)
		sent := make(chan error, 1)
		go func() {
			defer close(sent)
			for len(frame) > 0 {
				n := min(len(frame), 1+rng.IntN(1<<(1+rng.IntN(20))))
				if _, err := w.Write(frame[:n]); err != nil {
					sent <- err
					return
				}
				frame = frame[n:]
			}
		}()
		topics := w.receive(7, req).(*kmsg.ProduceResponse).Topics
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		want := make([]int16, partitions, partitions+3)
		want = append(want, kerr.UnknownTopicOrPartition.Code, kerr.CorruptMessage.Code, kerr.CorruptMessage.Code)
		for i, p := range topics[0].Partitions {
			if p.ErrorCode != want[i] || p.Partition != req.Topics[0].Partitions[i].Partition {
				t.Errorf("v%d: result %d is of partition %d: %v, want %v", version, i, p.Partition, kerr.ErrorForCode(p.ErrorCode), kerr.ErrorForCode(want[i]))
			}
		}
		if len(topics) != 3 || topics[1].Partitions[0].ErrorCode == 0 || topics[2].Partitions[0].ErrorCode != 0 {
			t.Errorf("v%d: %+v", version, topics)
		}
		w.ask(produceRequest(version, other, 0, -1, testBatch(t, 1, 10))) // the connection goes on where the request ends
	}
	for i := range partitions {
		for n := range int64(4) {
			if got := b.value(t, topic, i, n); !bytes.Equal(got, largeValue(i, size)) {
				t.Fatalf("partition %d offset %d: %d bytes %.20q", i, n, len(got), got)
			}
		}
	}
}

// value reads the one record of the batch at an offset.
func (b *testBroker) value(t testing.TB, topic metadata.Topic, index int, offset int64) []byte {
	t.Helper()
	p, err := b.set.Partition(topic.Name, int32(index))
	if err != nil {
		t.Fatal(err)
	}
	res, err := p.Read(t.Context(), offset, 1, 0)
	if err != nil || len(res.Batches) == 0 {
		t.Fatalf("%d batches, %v", len(res.Batches), err)
	}
	var reader record.Reader
	var rec record.Record
	if err := reader.Reset(res.Batches[0]); err != nil {
		t.Fatal(err)
	}
	if ok, err := reader.Next(&rec); !ok || err != nil || rec.Offset != offset {
		t.Fatalf("%v, %v, offset %d, want %d", ok, err, rec.Offset, offset)
	}
	return bytes.Clone(rec.Value)
}

// Where the client is gone in the middle of a large Produce, whole batches that came are in the log, and no part of one;
// where it stops to send, it is cut off after StallTimeout. Others go on.
func TestLargeProduceThatEndsInBetween(t *testing.T) {
	for name, end := range map[string]func(w *wire){
		"gone":  func(w *wire) { w.Close() },
		"half":  func(w *wire) { w.Conn.(*net.TCPConn).CloseWrite() },
		"stall": func(*wire) {},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, Config{StallTimeout: time.Second})
			topic := b.topic(t, "t", 10)
			req := largeProduce(t, 9, topic, 10, 1_000_000)
			frame := kmsg.NewRequestFormatter().AppendRequest(nil, req, 7)
			w := b.dial(t)
			if _, err := w.Write(frame[:4_500_000]); err != nil {
				t.Fatal(err)
			}
			end(w)
			eventually(t, "what came is there", func() bool {
				for i := range int32(10) {
					p, err := b.set.Partition("t", i)
					if err != nil || i < 4 && p.Offsets().HighWatermark != 1 {
						return false
					}
				}
				return true
			})
			if _, err := w.frame(); err == nil {
				t.Error("an answer to a request that did not end")
			}
			for i := range int32(10) {
				if p, _ := b.set.Partition("t", i); i >= 4 && p.Offsets().HighWatermark != 0 {
					t.Errorf("partition %d has %d records, want none", i, p.Offsets().HighWatermark)
				}
			}
			if code := b.dial(t).ask(req).(*kmsg.ProduceResponse).Topics[0].Partitions[9].ErrorCode; code != 0 {
				t.Error(kerr.ErrorForCode(code))
			}
			assertIdle(t, b)
		})
	}
}

// A client that takes longer for a large Produce than the timeout that the request names gets all of it appended: the time
// begins anew with each batch.
func TestSlowLargeProduceIsInTime(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 4)
	req := largeProduce(t, 9, topic, 4, 500_000)
	req.TimeoutMillis = 1
	frame := kmsg.NewRequestFormatter().AppendRequest(nil, req, 7)
	w := b.dial(t)
	for len(frame) > 0 {
		n := min(len(frame), 510_000)
		if _, err := w.Write(frame[:n]); err != nil {
			t.Fatal(err)
		}
		if frame = frame[n:]; len(frame) > 0 {
			<-time.After(minProduceTimeout / 2)
		}
	}
	for _, p := range w.receive(7, req).(*kmsg.ProduceResponse).Topics[0].Partitions {
		if p.ErrorCode != 0 {
			t.Errorf("partition %d: %v", p.Partition, kerr.ErrorForCode(p.ErrorCode))
		}
	}
}

// A panic in the middle of a large Produce closes the connection: where the next request begins is not known, and what is
// in memory is no body to make an answer from. The panic is in the log, and nothing else is harmed.
func TestPanicInALargeProduceClosesTheConnection(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 4)
	api := b.apis.byKey(int16(kmsg.Produce))
	handle := api.handle
	api.handle = func(ctx context.Context, b *Broker, r *request) (*answer, error) {
		if r.frame.rest > 0 {
			body := newProduceBody(r)
			body.next(1 << 20)
			panic("in the middle")
		}
		return handle(ctx, b, r)
	}
	w := b.dial(t)
	w.Write(kmsg.NewRequestFormatter().AppendRequest(nil, largeProduce(t, 9, topic, 4, 1_000_000), 7)) // the connection may end before
	if answer, err := w.frame(); err == nil {
		t.Errorf("an answer of %d bytes", len(answer))
	}
	if !strings.Contains(b.logged.String(), "in the middle") {
		t.Error("the log does not have the panic")
	}
	b.dial(t).ask(produceRequest(9, topic, 0, -1, testBatch(t, 1, 10)))
	assertIdle(t, b)
}

// Counts that are larger than the bytes of a request, or than any sensible request, and names that are longer than any, end the
// connection before there is memory for them.
func TestProduceWithImpossibleCounts(t *testing.T) {
	b := start(t, Config{MaxRequestMemory: 200 << 20})
	head := []byte{0xff, 0xff, 0, 1, 0, 0, 0, 1} // no transactional id, acks, timeout
	topics := func(n uint32) []byte { return binary.BigEndian.AppendUint32(slices.Clone(head), n) }
	partitions := func(n uint32) []byte {
		body := topics(4)
		for range 4 {
			body = binary.BigEndian.AppendUint32(append(body, 0, 1, 't'), n)
			body = append(body, make([]byte, 8*n)...)
		}
		return body
	}
	for name, c := range map[string]struct {
		version byte
		body    []byte
	}{
		"topics":                {8, topics(1 << 30)},
		"topics beyond all":     {8, append(topics(maxProduceResults+1), make([]byte, 8<<20)...)},
		"partitions":            {8, append(topics(1), 0, 1, 't', 0x7f, 0xff, 0xff, 0xff)},
		"partitions beyond all": {8, partitions(maxProduceResults / 4)},
		"records":               {8, append(topics(1), 0, 1, 't', 0, 0, 0, 1, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff)},
		"negative topic length": {8, append(topics(1), 0xff, 0xff, 0, 0, 0, 0)},
		"topic of a megabyte":   {9, append(append(binary.AppendUvarint([]byte{0, 0, 0, 1, 0, 0, 0, 1, 2}, 1<<20+1), make([]byte, 1<<20)...), 1, 0, 0)},
	} {
		w := b.dial(t)
		frame := append([]byte{0, 0, 0, 0, 0, 0, 0, c.version, 0, 0, 0, 7, 0xff, 0xff}, c.body...)
		if c.version >= 9 {
			frame = slices.Insert(frame, 14, 0)
		}
		binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
		w.Write(frame) // the connection may end before
		if answer, err := w.frame(); err == nil {
			t.Errorf("%s: an answer of %d bytes", name, len(answer))
		}
	}
	assertIdle(t, b)
}

// Results of many partitions count as memory of the request, and then of answers: who asks for more of them at a time than there is
// room for waits or is cut off.
func TestResultsOfAProduceTakeItsMemory(t *testing.T) {
	const memory = 8 << 20
	b := start(t, Config{MaxRequestBytes: memory, MaxRequestMemory: memory, StallTimeout: 200 * time.Millisecond})
	body := append(produceHeader(0), 2, 2, 't')
	body = binary.AppendUvarint(body, 100_000+1)
	body = append(body, make([]byte, 100_000*6)...)
	body = append(body, 0, 0)
	binary.BigEndian.PutUint32(body, uint32(len(body)-4))
	w := b.dial(t)
	w.Write(body)
	if answer, err := w.frame(); err == nil { // 25 MB of results
		t.Errorf("an answer of %d bytes", len(answer))
	}
	if log := b.logged.String(); !strings.Contains(log, "no memory for the rest of it") {
		t.Error(log)
	}
	assertIdle(t, b)
}

// Batches of a request whose end is malformed are in the log: they count for the quota of their client as others do.
func TestMalformedEndOfAProduceCountsForItsQuota(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 4)
	setQuota(t, b.dial(t), security.ProducerByteRate, 100_000, quotaOf("user", nil))
	req := largeProduce(t, 9, topic, 4, 1_000_000)
	frame := kmsg.NewRequestFormatter().AppendRequest(nil, req, 7)
	frame[len(frame)-1] = 1 // a tag, of which nothing follows
	w := b.dial(t)
	w.Write(frame)
	if answer, err := w.frame(); err == nil {
		t.Fatalf("an answer of %d bytes", len(answer))
	}
	resp := b.dial(t).ask(produceRequest(9, topic, 0, -1, testBatch(t, 1, 10))).(*kmsg.ProduceResponse)
	if resp.ThrottleMillis == 0 || resp.Topics[0].Partitions[0].BaseOffset != 1 {
		t.Errorf("%+v, want a wait, and offset 1", resp)
	}
}
