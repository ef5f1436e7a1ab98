package streamstore

import (
	"context"
	"flag"
	"fmt"
	runtimemetrics "runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
)

var (
	coldReadBytes = flag.Int("cold-read-bytes", 256<<20, "size of the stream that BenchmarkColdRead reads")
	catchUpBytes  = flag.Int("catch-up-bytes", 1<<30, "size of the stream that the reader of BenchmarkCatchUp catches up with")
)

// fillCold appends size bytes to the first stream and a little to the others, and moves all to objects.
func fillCold(b *testing.B, s *Store, streams []*Stream, size int) {
	b.Helper()
	payload := make([]byte, 64<<10)
	for i := range size / len(payload) {
		for j, st := range streams {
			if j > 0 && i%32 > 0 {
				continue
			}
			if _, err := st.Append(context.Background(), RecordBatch{Count: 1, MaxTimestamp: -1, Payload: payload}, func(error) {}); err != nil {
				b.Fatal(err)
			}
		}
	}
	acknowledged(b, s, streams)
	upload(b, s)
}

// ranges returns the parts of objects that hold the stream, of at most 4 MiB each.
func ranges(b *testing.B, s *Store, st *Stream) (parts []*request) {
	b.Helper()
	s.reader.mu.Lock()
	defer s.reader.mu.Unlock()
	place := &session{}
	for at := st.StartOffset(); at < st.ConfirmOffset(); at = place.blocks[0].End {
		if err := s.reader.locateLocked(b.Context(), place, st.id, at); err != nil {
			b.Fatal(err)
		}
		e := place.blocks[0]
		last := len(parts) - 1
		if last >= 0 && parts[last].object == e.object && parts[last].to == e.Position && parts[last].to+int64(e.Size)-parts[last].from <= maxRequestBytes {
			parts[last].to += int64(e.Size)
			continue
		}
		parts = append(parts, &request{object: e.object, from: e.Position, to: e.Position + int64(e.Size)})
	}
	return parts
}

// readThrough reads a stream in order and returns how many bytes of payload it has.
func readThrough(b *testing.B, st *Stream, from int64) (bytes int64) {
	b.Helper()
	for end := st.ConfirmOffset(); from < end; {
		batches, err := st.Fetch(context.Background(), from, end, 1<<20)
		if err != nil {
			b.Fatal(err)
		}
		for _, batch := range batches {
			bytes += int64(len(batch.Payload))
		}
		from = batches[len(batches)-1].End()
	}
	return bytes
}

// BenchmarkColdRead reads one stream in order out of an S3 server, after upload and compaction.
// In turns the bare client gets the same bytes in ranges of 4 MiB, as many at a time as the
// reader reads ahead. The ratio is that of the best rates of three turns each; one op is all of it.
func BenchmarkColdRead(b *testing.B) {
	const turns = 3
	for b.Loop() {
		client := benchS3(b)
		var count objectstore.Counter
		e := newEnv(b)
		e.bucket = objectstore.Observe(client, &count)
		cfg := quiet()
		cfg.WALLinger = 50 * time.Millisecond
		s := e.open(cfg)
		streams := e.create(s, 4, 1)
		fillCold(b, s, streams, *coldReadBytes)
		compact(b, s)
		parts := ranges(b, s, streams[0])
		bare, own := time.Duration(1<<62), time.Duration(1<<62)
		var gets int64
		for range turns {
			began := time.Now()
			next := make(chan *request)
			var wg sync.WaitGroup
			for range s.reader.maxWindow / maxRequestBytes {
				wg.Go(func() {
					for p := range next {
						if _, err := client.Get(b.Context(), ObjectKey(p.object), p.from, p.to-p.from); err != nil {
							b.Error(err)
						}
					}
				})
			}
			for _, p := range parts {
				next <- p
			}
			close(next)
			wg.Wait()
			bare = min(bare, time.Since(began))

			s.reader.forgetAll()
			before := count.Count(objectstore.OpGet)
			began = time.Now()
			if n := readThrough(b, streams[0], 0); n != int64(*coldReadBytes) {
				b.Fatalf("read %d bytes", n)
			}
			own = min(own, time.Since(began))
			gets = count.Count(objectstore.OpGet) - before
		}
		rate := func(d time.Duration) float64 { return float64(*coldReadBytes) / 1e6 / d.Seconds() }
		b.ReportMetric(rate(bare), "bare-MB/s")
		b.ReportMetric(rate(own), "MB/s")
		b.ReportMetric(bare.Seconds()/own.Seconds(), "ratio")
		b.ReportMetric(float64(gets)/(float64(*coldReadBytes)/(4<<20)), "GETs/4MiB")
		s.abandon()
	}
}

// BenchmarkCatchUp has a producer append 4 MiB/s all the time, first alone and then while a reader
// catches up with catch-up-bytes on the same S3 server. It reports the 99th percentile of the
// time until an append is durable in both, and how much more live heap there was at most: what
// reads may hold, 96 MiB, and what the producer added to the log cache.
func BenchmarkCatchUp(b *testing.B) {
	for b.Loop() {
		e := newEnv(b)
		e.bucket = benchS3(b)
		s := e.open(Config{CleanInterval: -1})
		streams := e.create(s, 3, 1)
		fillCold(b, s, streams[:2], *catchUpBytes)
		stop := make(chan struct{})
		produced := make(chan struct{})
		var took percentile
		go func() {
			defer close(produced)
			payload := make([]byte, 16<<10)
			tick := time.NewTicker(4 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-stop:
					return
				}
				began := time.Now()
				done := func(error) { took.add(time.Since(began)) }
				if _, err := streams[2].Append(context.Background(), RecordBatch{Count: 1, MaxTimestamp: -1, Payload: payload}, done); err != nil {
					b.Error(err)
					return
				}
			}
		}()
		const alone = 15 * time.Second
		<-time.After(2 * time.Second) // until the rate is steady
		took.take()
		<-time.After(alone)
		without := took.take()

		before, peak := heap(), atomic.Uint64{}
		watched := make(chan struct{})
		watch := make(chan struct{})
		go func() {
			defer close(watched)
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				live := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
				runtimemetrics.Read(live)
				peak.Store(max(peak.Load(), live[0].Value.Uint64()))
				select {
				case <-tick.C:
				case <-watch:
					return
				}
			}
		}()
		began := time.Now()
		read := int64(0)
		for read < int64(*catchUpBytes) || time.Since(began) < alone/3 {
			read += readThrough(b, streams[0], 0)
		}
		seconds := time.Since(began).Seconds()
		with := took.take()
		close(watch)
		<-watched
		close(stop)
		<-produced
		b.ReportMetric(float64(without.Milliseconds()), "alone-p99-ms")
		b.ReportMetric(float64(with.Milliseconds()), "p99-ms")
		b.ReportMetric(with.Seconds()/without.Seconds(), "ratio")
		b.ReportMetric(float64(read)/1e6/seconds, "MB/s")
		b.ReportMetric(float64(peak.Load()-min(before, peak.Load()))/(1<<20), "more-MiB")
		s.abandon()
	}
}

// A percentile gathers times from several goroutines.
type percentile struct {
	mu   sync.Mutex
	list []time.Duration // guarded by mu
}

func (l *percentile) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, d)
}

// take returns the 99th percentile and forgets all.
func (l *percentile) take() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == 0 {
		return 0
	}
	slices.Sort(l.list)
	p99 := l.list[len(l.list)*99/100]
	l.list = nil
	return p99
}

// BenchmarkFindStream asks for one stream among so many stream set objects, with no cache: the
// look-up in metadata is one by (stream, offset), so its cost does not grow with them. Package
// metadata has the same for the databases.
func BenchmarkFindStream(b *testing.B) {
	for _, objects := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("objects=%d", objects), func(b *testing.B) {
			e := newEnv(b)
			s := e.open(quiet())
			streams := e.create(s, 4, 1)
			for range objects {
				for _, st := range streams {
					appendAll(b, st, "r")
				}
				upload(b, s)
			}
			before := e.gets.Load()
			for i := 0; b.Loop(); i++ {
				s.reader.forgetAll()
				at := int64(i) * 7919 % int64(objects)
				if _, err := streams[i%4].Fetch(b.Context(), at, int64(objects), 1); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(e.gets.Load()-before)/float64(b.N), "GETs/op")
		})
	}
}
