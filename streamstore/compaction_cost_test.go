package streamstore

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/tabletopic/tabletopic/objectstore"
)

// byPurpose counts requests by what they are for.
type byPurpose struct {
	mu     sync.Mutex
	counts map[objectstore.Purpose]int64 // guarded by mu
}

func (b *byPurpose) ObserveRequest(r objectstore.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.counts == nil {
		b.counts = make(map[objectstore.Purpose]int64)
	}
	b.counts[r.Purpose]++
}

// A node that takes 33 MiB/s makes at most 400 requests for each GiB, with WAL, upload,
// compaction, deletion and everything else. To be quick the test has all sizes, and the
// rate, divided by 256; each request then stands for 256 times its bytes.
func TestRequestsPerGiB(t *testing.T) {
	if underRace {
		t.Skip("counts requests, ten times as long with the race detector: make sim")
	}
	for _, streams := range []int{30, 300} {
		synctest.Test(t, func(t *testing.T) {
			const scale = 256
			var count objectstore.Counter
			var by byPurpose
			e := newEnv(t)
			bucket := objectstore.Observe(objectstore.Observe(e.memory, &count), &by)
			cfg := Config{
				WALBytes: 8 << 20 / scale, UploadBytes: 32 << 20 / scale, LogCacheBytes: 128 << 20 / scale, SplitBytes: 8 << 20 / scale,
				BlockBytes: 512 << 10 / scale, CompactionBytes: 200 << 20 / scale, CompactionRate: 32 << 20 / scale, MinorBytes: 8 << 20 / scale,
			}
			s, err := Open(context.Background(), cfg, 1, bucket, e.meta, e.meta, newEnvLog())
			if err != nil {
				t.Fatal(err)
			}
			all := e.create(s, streams, 1)
			payload := make([]byte, 472) // a record of 512 bytes in the WAL
			begin, sent := time.Now(), 0
			for time.Since(begin) < 16*time.Minute {
				for due := int(time.Since(begin).Seconds() * (33 << 20) / scale / 512); sent < due; sent++ {
					if _, err := all[sent%streams].Append(context.Background(), RecordBatch{Count: 1, MaxTimestamp: -1, Payload: payload}, func(error) {}); err != nil {
						t.Fatal(err)
					}
				}
				<-time.After(10 * time.Millisecond)
			}
			s.abandon()
			gib := float64(sent*512*scale) / (1 << 30)
			perGiB := func(n int64) float64 { return float64(n) / gib }
			t.Logf("%d streams, %.0f GiB: %.0f requests a GiB: %.0f create, %.0f put, %.0f get, %.1f delete, %.1f list; %d objects of stream 0", streams, gib, perGiB(count.Requests()),
				perGiB(count.Count(objectstore.OpPutIfAbsent)), perGiB(count.Count(objectstore.OpPut)), perGiB(count.Count(objectstore.OpGet)),
				perGiB(count.Count(objectstore.OpDelete)), perGiB(count.Count(objectstore.OpList)), len(e.objectsOf(all[0])))
			for p, n := range by.counts {
				t.Logf("%d streams: %.1f requests a GiB for %s", streams, perGiB(n), p)
			}
			if got := perGiB(count.Requests()); got > 400 {
				t.Errorf("%d streams: %.0f requests a GiB, want at most 400", streams, got)
			}
			if by.counts[""] > 0 {
				t.Errorf("%d requests do not say what they are for", by.counts[""])
			}
		})
	}
}

// After compaction a sequential reader needs at most 1.3 requests for each 4 MiB, those with which
// its read-ahead grows included.
func TestRequestsPerColdRead(t *testing.T) {
	if underRace {
		t.Skip("counts requests, ten times as long with the race detector: make sim")
	}
	e := newEnv(t)
	var count objectstore.Counter
	cfg := Config{WALBytes: 1 << 20, UploadBytes: 16 << 20, LogCacheBytes: 32 << 20, CompactionInterval: -1, CleanupInterval: -1, MinorInterval: -1, MajorInterval: -1}
	s, err := Open(context.Background(), cfg, 1, objectstore.Observe(e.memory, &count), e.meta, e.meta, newEnvLog())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.abandon)
	streams := e.create(s, 3, 1)
	payload := make([]byte, 64<<10)
	const size = 128 << 20
	for i := range size / len(payload) {
		if i%80 == 0 { // what an object holds is for the test to say, not for the machine's speed
			acknowledged(t, s, streams)
			upload(t, s)
		}
		for _, st := range streams {
			if st != streams[1] && i%16 > 0 {
				continue
			}
			if _, err := st.Append(context.Background(), RecordBatch{Count: 1, MaxTimestamp: -1, Payload: payload}, func(error) {}); err != nil {
				t.Fatal(err)
			}
		}
	}
	acknowledged(t, s, streams)
	upload(t, s)
	scattered := len(e.objectsOf(streams[1]))
	compact(t, s)
	if got := kinds(e.objectsOf(streams[1])); len(got) > 3 || !slices.Contains(got, KindComposite) {
		t.Fatalf("stream 1 lay in %d objects, and now in those of kinds %v", scattered, got)
	}
	before := count.Count(objectstore.OpGet)
	read := 0
	for at := int64(0); at < streams[1].ConfirmOffset(); {
		batches, err := streams[1].Fetch(context.Background(), at, streams[1].ConfirmOffset(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range batches {
			read += len(b.Payload)
		}
		at = batches[len(batches)-1].End()
	}
	gets := count.Count(objectstore.OpGet) - before
	t.Logf("%d objects before compaction; %d requests for %d MiB", scattered, gets, read>>20)
	if limit := 1.3 * float64(read) / (4 << 20); read != size || float64(gets) > limit {
		t.Fatalf("%d requests for %d bytes, want at most %.1f for %d", gets, read, limit, size)
	}
}

// A heldBucket measures the heap when an object is put: then most is held.
type heldBucket struct {
	objectstore.Bucket
	mu   sync.Mutex
	most uint64 // guarded by mu
}

func (b *heldBucket) Put(ctx context.Context, key string, body ...[]byte) error {
	b.mu.Lock()
	b.most = max(b.most, heap())
	b.mu.Unlock()
	return b.Bucket.Put(ctx, key, body...)
}

// take returns the most since it was called before.
func (b *heldBucket) take() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.most
	b.most = 0
	return most
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Compaction of much more data than CompactionBytes holds no more than that in memory, small
// records and large ones alike.
func TestCompactionMemory(t *testing.T) {
	for _, size := range []int{200, 40_000} {
		e := newEnv(t)
		dir, err := objectstore.OpenDir(vfs.Default, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		held := &heldBucket{Bucket: dir}
		cfg := e.compacting()
		cfg.WALBytes, cfg.UploadBytes, cfg.LogCacheBytes, cfg.BlockBytes = 1<<20, 4<<20, 8<<20, 64<<10
		cfg.SplitBytes, cfg.MinorBytes, cfg.CompactionBytes, cfg.BlockCacheBytes = 1<<20, 1<<20, 8<<20, 1<<20
		e.bucket = held
		s := e.open(cfg)
		streams := e.create(s, 24, 1)
		payload := make([]byte, size)
		for i := range 40 << 20 / size {
			if _, err := streams[i%len(streams)].Append(context.Background(), RecordBatch{Count: 1, MaxTimestamp: -1, Payload: payload}, func(error) {}); err != nil {
				t.Fatal(err)
			}
		}
		upload(t, s)
		before := heap()
		held.take()
		compact(t, s)
		used := int64(held.take()) - int64(before)
		t.Logf("records of %d bytes: %d KiB held", size, used>>10)
		if used > cfg.CompactionBytes {
			t.Errorf("records of %d bytes: compaction held %d bytes, want at most %d", size, used, cfg.CompactionBytes)
		}
		s.abandon()
	}
}
