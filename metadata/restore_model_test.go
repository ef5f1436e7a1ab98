package metadata

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A lifetime is a stream store on a database of its own, which both go at once.
type lifetime struct {
	meta    *Store
	backup  *Backup
	bucket  *objectstore.Faulty
	store   *streamstore.Store
	streams []*streamstore.Stream
}

// restoreModel is a node whose database is lost again and again, and what it was told.
type restoreModel struct {
	t      *testing.T
	bucket *objectstore.Memory
	random *rand.Rand

	mu    sync.Mutex
	acked map[streamstore.StreamID]map[int64]string // guarded by mu; by base offset
}

func (m *restoreModel) open(meta *Store, open []streamstore.OpenRequest) *lifetime {
	m.t.Helper()
	l := &lifetime{meta: meta, bucket: objectstore.NewFaulty(m.bucket, objectstore.Faults{})}
	l.backup = startBackup(m.t, meta, l.bucket, BackupConfig{Interval: time.Duration(5+m.random.IntN(60)) * time.Millisecond})
	short := 15 * time.Millisecond
	var err error
	l.store, err = streamstore.Open(m.t.Context(), streamstore.Config{
		WAL: streamstore.WALObject, WALLinger: time.Millisecond, WALBytes: 2 << 10, UploadBytes: 8 << 10, LogCacheBytes: 64 << 10, SplitBytes: 4 << 10,
		UploadInterval: short, CleanInterval: short, DeleteGrace: time.Nanosecond,
		CompactionInterval: short, MinorInterval: short, MajorInterval: 2 * short, CleanupInterval: short, ForceSplit: short,
		SweepInterval: short, SweepGrace: time.Nanosecond,
		Settled: meta.Settled,
	}, 1, l.bucket, meta, meta, slog.New(slog.DiscardHandler))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { l.crash() })
	if l.streams, err = l.store.OpenStreams(m.t.Context(), open); err != nil {
		m.t.Fatal(err)
	}
	return l
}

// crash leaves the bucket as it is at this moment.
func (l *lifetime) crash() {
	l.bucket.Cut(true)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.store.Close(ctx)
	_ = l.backup.Close(ctx)
	_ = l.meta.Close()
}

// work appends and trims at random.
func (m *restoreModel) work(l *lifetime, life int) {
	for i := range 50 + m.random.IntN(300) {
		st := l.streams[m.random.IntN(len(l.streams))]
		if m.random.IntN(20) == 0 {
			if start, end := st.StartOffset(), st.ConfirmOffset(); end > start {
				if err := st.Trim(m.t.Context(), start+m.random.Int64N(end-start)); err != nil {
					m.t.Fatal(err)
				}
			}
			continue
		}
		payload := fmt.Sprintf("%d-%d-%d-%0*d", life, st.ID(), i, m.random.IntN(400), 0)
		var base int64
		ready := make(chan struct{}) // the callback may be faster than Append
		base, err := st.Append(m.t.Context(), streamstore.RecordBatch{Count: 1, Payload: []byte(payload)}, func(err error) {
			<-ready
			if err != nil {
				return
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			m.acked[st.ID()][base] = payload
		})
		close(ready)
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

// check reads every stream from its start to its end: dense, and what was acknowledged is there.
func (m *restoreModel) check(l *lifetime) {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, st := range l.streams {
		at, end := st.StartOffset(), st.ConfirmOffset()
		first := at
		for at < end {
			batches, err := st.Fetch(m.t.Context(), at, end, 64<<10)
			if err != nil || len(batches) == 0 {
				m.t.Fatalf("stream %d [%d, %d): %d batches at %d, %v", st.ID(), first, end, len(batches), at, err)
			}
			for _, b := range batches {
				if b.BaseOffset != at {
					m.t.Fatalf("stream %d: batch %d, want %d", st.ID(), b.BaseOffset, at)
				}
				if want, ok := m.acked[st.ID()][at]; ok && want != string(b.Payload) {
					m.t.Fatalf("stream %d offset %d: %.20q, acknowledged was %.20q", st.ID(), at, b.Payload, want)
				}
				m.acked[st.ID()][at] = string(b.Payload) // it was read: it stays
				at = b.End()
			}
		}
		for offset := range m.acked[st.ID()] {
			if offset >= end {
				m.t.Fatalf("stream %d ends at %d, acknowledged was %d", st.ID(), end, offset)
			}
		}
	}
}

// checkOrphans sweeps and finds no data object in the bucket that the database does not know:
// those of uploads and compactions that came after a snapshot are gone.
func (m *restoreModel) checkOrphans(l *lifetime) {
	m.t.Helper()
	for {
		r, err := l.store.Sweep(m.t.Context())
		if err != nil {
			m.t.Fatal(err)
		}
		if r.Mine {
			break
		}
	}
	for after := ""; ; {
		page, err := m.bucket.List(m.t.Context(), "data/", after)
		if err != nil {
			m.t.Fatal(err)
		}
		if len(page) == 0 {
			return
		}
		for _, o := range page {
			var id streamstore.ObjectID
			if _, err := fmt.Sscanf(o.Key[len("data/00/"):], "%x", &id); err != nil {
				m.t.Fatal(err)
			}
			// Asked after the listing: it may have come since the sweep, and even be deleted again.
			known, err := l.meta.FindObjects(m.t.Context(), []streamstore.ObjectID{id})
			if err != nil {
				m.t.Fatal(err)
			}
			if _, err := m.bucket.Get(m.t.Context(), o.Key, 0, 1); len(known) == 0 && err == nil {
				m.t.Fatalf("%s is an orphan after the sweep", o.Key)
			}
			after = o.Key
		}
	}
}

// Whenever the process and its database go, in the middle of uploads, compactions, trims,
// deletes and sweeps, what is restored from the bucket has every acknowledged record, and
// every object that it names; and what it does not name is swept.
func TestRestoreAtAnyMoment(t *testing.T) {
	seeds := uint64(restoreSeeds)
	if testing.Short() {
		seeds = min(seeds, 3)
	}
	first := uint64(time.Now().UnixNano())
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			m := &restoreModel{t: t, bucket: objectstore.NewMemory(), random: rand.New(rand.NewPCG(seed, 0)), acked: map[streamstore.StreamID]map[int64]string{}}
			l := m.open(openStore(t, newSQLite(t), nil), nil)
			const streams = 3
			id, err := l.store.CreateStreams(t.Context(), streams)
			if err != nil {
				t.Fatal(err)
			}
			var open []streamstore.OpenRequest
			for i := range streamstore.StreamID(streams) {
				m.acked[id+i] = map[int64]string{}
				open = append(open, streamstore.OpenRequest{ID: id + i, Epoch: 1})
			}
			if l.streams, err = l.store.OpenStreams(t.Context(), open); err != nil {
				t.Fatal(err)
			}
			for life := range 6 {
				m.work(l, life)
				l.crash()
				path := filepath.Join(t.TempDir(), "metadata.db")
				if _, err := Restore(t.Context(), "sqlite:"+path, m.bucket, icebergTables, nil); err != nil {
					t.Fatal(err)
				}
				for i := range open {
					open[i].Epoch++
				}
				l = m.open(openStore(t, sqliteDatabase(path, false), nil), open)
				m.check(l)
			}
			m.checkOrphans(l)
			m.check(l)
		})
	}
}
