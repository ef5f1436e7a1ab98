package broker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/record"
)

// The memory of a produce request is used again for the next, of any connection, as soon as the batch is appended:
// what is stored is what was sent, compressed, brought into another codec, or as it came, while many are under way.
func TestMemoryOfRequestsIsUsedAgain(t *testing.T) {
	const connections, requests, values = 6, 30, 40
	b := start(t, Config{})
	var all sync.WaitGroup
	for i := range connections {
		stored := "producer"
		if i%3 == 2 {
			stored = "zstd"
		}
		topic, err := b.set.CreateTopic(t.Context(), metadata.NewTopic{Name: fmt.Sprint("t", i), Partitions: 1, Config: map[string]string{"compression.type": stored}})
		if err != nil {
			t.Fatal(err)
		}
		value := func(request, n int) []byte {
			return bytes.Repeat(fmt.Appendf(nil, "%d/%d/%d ", i, request, n), 500+100*i)
		}
		w := b.dial(t)
		all.Go(func() {
			for r := range requests { // all are sent before the first is answered
				var records []record.Record
				for n := range values {
					records = append(records, record.Record{Value: value(r, n)})
				}
				batch, err := record.AppendBatch(nil, record.BatchOptions{Codec: record.Codec(i % 2 * int(record.CodecLZ4))}, records)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := w.Write(kmsg.NewRequestFormatter().AppendRequest(nil, produceRequest(9, topic, 0, -1, batch), int32(r))); err != nil {
					t.Error(err)
					return
				}
			}
		})
		all.Go(func() {
			for range requests {
				answer, err := w.frame()
				if err != nil {
					t.Error(err)
					return
				}
				resp := kmsg.NewPtrProduceResponse()
				resp.SetVersion(9)
				if err := resp.ReadFrom(answer[5:]); err != nil || resp.Topics[0].Partitions[0].ErrorCode != 0 {
					t.Errorf("produce %d: %v, %v", binary.BigEndian.Uint32(answer), err, kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode))
				}
			}
			p, err := b.set.Partition(topic.Name, 0)
			if err != nil {
				t.Error(err)
				return
			}
			var reader record.Reader
			for offset := int64(0); offset < requests*values; {
				res, err := p.Read(t.Context(), offset, 1<<20, 0)
				if err != nil {
					t.Error(err)
					return
				}
				for _, batch := range res.Batches {
					if err := reader.Reset(batch); err != nil {
						t.Error(err)
						return
					}
					var rec record.Record
					for ok, err := reader.Next(&rec); ok || err != nil; ok, err = reader.Next(&rec) {
						if want := value(int(rec.Offset/values), int(rec.Offset%values)); err != nil || !bytes.Equal(rec.Value, want) {
							t.Errorf("topic %s offset %d: %v, %.20q, want %.20q", topic.Name, rec.Offset, err, rec.Value, want)
							return
						}
					}
					offset = batch.NextOffset()
				}
			}
		})
	}
	all.Wait()
	assertIdle(t, b)
}

// Memory that is counted for a request is what its buffer has, and no more than a request may have.
func TestFrameRoom(t *testing.T) {
	for _, c := range []struct{ size, room int64 }{
		{1, 1}, {32 << 10, 32 << 10}, {32<<10 + 1, 64 << 10}, {64 << 10, 64 << 10}, {64<<10 + 1, 128 << 10}, {1_000_012, 1 << 20}, {8 << 20, 8 << 20}, {8<<20 + 1, 16 << 20}, {64 << 20, 64 << 20}, {64<<20 + 1, 64<<20 + 1},
	} {
		if got := frameRoom(c.size); got != c.room {
			t.Errorf("a frame of %d bytes takes %d, want %d", c.size, got, c.room)
		}
		var f frameBuffers
		data := f.get(c.size, c.room)
		if len(data) != int(c.size) || cap(data) < len(data) {
			t.Errorf("%d bytes of %d for a frame of %d", len(data), cap(data), c.size)
		}
		f.put(data)
	}
}
