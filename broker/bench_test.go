package broker

import (
	"bytes"
	"io"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const benchRecordBytes = 184

// BenchmarkProduce is franz-go's producer over loopback, acks=all, 4 partitions: client
// and broker together on the cores of the machine. One op is one record.
func BenchmarkProduce(b *testing.B) {
	br := start(b, Config{})
	br.topic(b, "t", 4)
	cl := br.client(b, kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(100_000), kgo.DefaultProduceTopic("t"))
	value := bytes.Repeat([]byte{'v'}, benchRecordBytes)
	b.SetBytes(benchRecordBytes)
	b.ReportAllocs()
	for b.Loop() {
		cl.Produce(b.Context(), &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				b.Error(err)
			}
		})
	}
	if err := cl.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkProduceRequest sends encoded requests of one batch of 1 MB in a pipeline: what
// the broker alone costs. One op is one request.
func BenchmarkProduceRequest(b *testing.B) {
	const records = 5000
	br := start(b, Config{})
	topic := br.topic(b, "t", 1)
	w := br.dial(b)
	batch := testBatch(b, records, benchRecordBytes)
	frame := kmsg.NewRequestFormatter().AppendRequest(nil, produceRequest(9, topic, 0, -1, batch), 1)
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	answered := make(chan error, 1)
	inFlight := make(chan struct{}, 10)
	go func() {
		for range inFlight {
			if _, err := w.frame(); err != nil {
				answered <- err
				return
			}
		}
		answered <- nil
	}()
	for b.Loop() {
		w.SetDeadline(deadline())
		if _, err := w.Write(frame); err != nil {
			b.Fatal(err)
		}
		inFlight <- struct{}{}
	}
	close(inFlight)
	if err := <-answered; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)*records/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkFetch reads 1 MB of one partition again and again. One op is one request.
func BenchmarkFetch(b *testing.B) {
	br := start(b, Config{})
	topic := br.topic(b, "t", 1)
	w := br.dial(b)
	for range 64 {
		w.ask(produceRequest(9, topic, 0, -1, testBatch(b, 80, benchRecordBytes)))
	}
	frame := kmsg.NewRequestFormatter().AppendRequest(nil, fetchRequest(13, topic, 0), 1)
	b.ReportAllocs()
	size := 0
	for b.Loop() {
		w.SetDeadline(deadline())
		if _, err := w.Write(frame); err != nil {
			b.Fatal(err)
		}
		var head [4]byte
		if _, err := io.ReadFull(w, head[:]); err != nil {
			b.Fatal(err)
		}
		size = int(head[0])<<24 | int(head[1])<<16 | int(head[2])<<8 | int(head[3])
		if _, err := io.CopyN(io.Discard, w, int64(size)); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(size))
}
