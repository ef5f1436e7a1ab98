package broker

import (
	"encoding/binary"
	"fmt"
	"io"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/record"
)

// What the server allocates to take a batch, and to give it out, does not depend on how many records it has:
// the same bytes in ten records and in ten thousand, in each codec, and brought into another codec.
func TestAllocationsAreOfBatchesNotOfRecords(t *testing.T) {
	const bytes, few, many, more = 160_000, 10, 10_000, 500 // a twentieth of the records
	b := start(t, Config{})
	w := b.dial(t)
	answer := make([]byte, 1<<20)
	ask := func(frame []byte) []byte {
		w.SetDeadline(deadline())
		if _, err := w.Write(frame); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(w, answer[:4]); err != nil {
			t.Fatal(err)
		}
		size := binary.BigEndian.Uint32(answer)
		if _, err := io.ReadFull(w, answer[:size]); err != nil {
			t.Fatal(err)
		}
		return answer[:size]
	}
	for _, stored := range []string{"producer", "lz4"} {
		for _, codec := range []record.Codec{record.CodecNone, record.CodecGzip, record.CodecSnappy, record.CodecLZ4, record.CodecZstd} {
			produce, fetch := map[int]float64{}, map[int]float64{}
			for _, n := range []int{few, many} {
				topic, err := b.set.CreateTopic(t.Context(), metadata.NewTopic{Name: fmt.Sprintf("%s-to-%s-%d", codec, stored, n), Partitions: 1,
					Config: map[string]string{"compression.type": stored}})
				if err != nil {
					t.Fatal(err)
				}
				records := make([]record.Record, n)
				for i := range records {
					records[i] = record.Record{Value: fmt.Appendf(nil, "%0*d", bytes/n, i)}
				}
				batch, err := record.AppendBatch(nil, record.BatchOptions{Codec: codec}, records)
				if err != nil {
					t.Fatal(err)
				}
				req := produceRequest(9, topic, 0, -1, batch)
				frame := kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)
				produced := func() {
					resp := kmsg.NewPtrProduceResponse()
					resp.SetVersion(9)
					if err := resp.ReadFrom(ask(frame)[5:]); err != nil || resp.Topics[0].Partitions[0].ErrorCode != 0 {
						t.Fatalf("produce: %v, %v", err, kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode))
					}
				}
				produce[n] = testing.AllocsPerRun(20, produced)
				frame = kmsg.NewRequestFormatter().AppendRequest(nil, fetchRequest(11, topic, 0), 1)
				fetched := 0
				fetch[n] = testing.AllocsPerRun(20, func() { fetched = len(ask(frame)) })
				if fetched < len(batch)/2 && stored == "producer" {
					t.Fatalf("a fetch has %d bytes, the batch %d", fetched, len(batch))
				}
			}
			for what, allocs := range map[string]map[int]float64{"produce": produce, "fetch": fetch} {
				t.Logf("%s of %s stored as %s: %.0f allocations for a batch of %d records, %.0f for one of %d", what, codec, stored, allocs[few], few, allocs[many], many)
				if allocs[many] > allocs[few]+more {
					t.Errorf("%s of %s stored as %s: %.0f allocations for a batch of %d records, %.0f for one of %d", what, codec, stored, allocs[few], few, allocs[many], many)
				}
			}
		}
	}
}
