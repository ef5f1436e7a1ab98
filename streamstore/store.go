package streamstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/objectstore"
)

// ErrStoreClosed says that the store was closed.
var ErrStoreClosed = errors.New("stream store closed")

// Store is one life of a node: its WAL, its log cache and the streams that it has open.
// It is safe for concurrent use.
type Store struct {
	cfg     Config
	node    Node
	bucket  objectstore.Bucket
	streams StreamManager
	objects ObjectManager
	log     *slog.Logger

	patience patience

	device  walDevice
	hedges  *hedger
	wal     *wal
	cache   *logCache
	reader  *reader
	upload  *uploader
	compact *compactor

	metrics *metrics

	run    context.Context         // of every goroutine of the store
	cancel context.CancelCauseFunc // … which this ends
	work   sync.WaitGroup          // … and this waits for
	rescue chan struct{}           // cap 1: held while another node is recovered

	sweepDue atomic.Bool   // retired WALs may have left something
	fenced   chan struct{} // closed when the node may acknowledge nothing more

	mu     sync.Mutex
	err    error                // guarded by mu; why fenced is closed
	closed bool                 // guarded by mu
	open   map[StreamID]*Stream // guarded by mu; handles not closed
}

// Open starts a new life of node id. It registers it, which fences earlier lives in
// metadata; fences and recovers their WALs; and then serves. It returns when every record
// that an earlier life acknowledged is in committed objects.
func Open(ctx context.Context, cfg Config, id NodeID, bucket objectstore.Bucket, streams StreamManager, objects ObjectManager, log *slog.Logger) (*Store, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("stream store: %w", err)
	}
	pool := newBufferPool(cfg.UploadBytes)
	s := &Store{
		cfg: cfg, bucket: bucket, streams: streams, objects: objects, log: log,
		hedges: newHedger(cfg), cache: newLogCache(pool), fenced: make(chan struct{}), open: make(map[StreamID]*Stream), rescue: make(chan struct{}, 1),
	}
	s.metrics = newMetrics(s)
	var by nonce
	rand.Read(by[:])
	hadFiles, err := prepareFileWAL(cfg, id)
	if err != nil {
		return nil, err
	}
	node, earlier, err := streams.RegisterNode(ctx, id, cfg.WAL)
	if err != nil {
		return nil, fmt.Errorf("register node %d: %w", id, err)
	}
	s.node = node
	s.log = log.With("node", node.ID, "node_epoch", node.Epoch)
	s.patience = patience{log: s.log, jitter: cfg.Jitter}
	own := &recovery{s: s, as: node, log: s.log}
	if err := own.recoverWALs(ctx, earlier, hadFiles); err != nil {
		return nil, fmt.Errorf("recover node %d: %w", id, err)
	}
	if cfg.WAL == WALFile {
		s.device, err = openFileWAL(cfg.WALFS, cfg.WALDir, node, log)
	} else {
		s.device = &objectWAL{bucket: bucket, node: node, nonce: by, hedges: s.hedges, patience: s.patience}
	}
	if err != nil {
		return nil, err
	}

	run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	s.run, s.cancel = run, cancel
	s.sweepDue.Store(true)
	s.compact = newCompactor(s)
	s.wal = newWAL(node, by, s.device, cfg, pool)
	s.upload = newUploader(s)
	s.wal.ack, s.wal.failed, s.wal.evict, s.wal.pressed = s.acknowledge, s.fail, s.cache.evict, s.upload.force
	s.wal.seconds, s.wal.lost = s.metrics.walSeconds, s.metrics.append.failed
	s.reader = newReader(run, cfg, bucket, objects, &s.work, s.metrics, pool)
	s.work.Go(func() { s.wal.run(run) })
	s.work.Go(func() { s.upload.run(run) })
	s.work.Go(func() { s.upload.trim(run) })
	s.work.Go(func() { s.compact.run(run) })
	if cfg.CleanInterval > 0 {
		s.work.Go(func() { s.cleanLoop(run) })
	}
	if cfg.SweepInterval > 0 {
		s.work.Go(func() { s.sweepLoop(run) })
	}
	return s, nil
}

// prepareFileWAL makes the directory of the node's file WALs. It reports whether it was
// there before: if not, the WAL of an earlier life is on another disk.
func prepareFileWAL(cfg Config, id NodeID) (had bool, err error) {
	if cfg.WALDir == "" {
		return false, nil
	}
	dir := walNodeDir(cfg.WALDir, id)
	if _, err := cfg.WALFS.Stat(dir); err == nil {
		return true, nil
	}
	if cfg.WAL != WALFile {
		return false, nil
	}
	if err := makeDir(cfg.WALFS, dir); err != nil {
		return false, fmt.Errorf("make WAL directory %s: %w", dir, err)
	}
	return false, nil
}

// Node returns the node in this life.
func (s *Store) Node() Node { return s.node }

// Fenced is closed once this node may acknowledge nothing more: a newer process runs under
// its id, its WAL failed, or the store was closed. Err says which.
func (s *Store) Fenced() <-chan struct{} { return s.fenced }

// Err returns why the store is fenced, nil while it is not.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Replaced fences the store: somebody has read that a later life of the node has begun. The store itself finds out when it writes,
// or cleans.
func (s *Store) Replaced(err error) { s.fail(err) }

// fail fences the store.
func (s *Store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	if !errors.Is(err, ErrStoreClosed) {
		s.log.Error("this node acknowledges nothing more", "error", err)
	}
	close(s.fenced)
	s.cancel(err)
}

// enter makes the caller one of those whom Close waits for; ctx then ends with the store.
func (s *Store) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, nil, s.err
	}
	s.work.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.run, func() { cancel(context.Cause(s.run)) })
	return ctx, func() { stop(); cancel(nil); s.work.Done() }, nil
}

// CreateStreams makes n closed streams with consecutive ids.
func (s *Store) CreateStreams(ctx context.Context, n int) (first StreamID, err error) {
	return s.streams.CreateStreams(ctx, s.node, n)
}

// OpenStreams opens the streams with the epochs given, all or none, in one transaction. A
// handle that this store already has of one of them is closed first.
func (s *Store) OpenStreams(ctx context.Context, open []OpenRequest) (_ []*Stream, err error) {
	defer s.metrics.open.since(time.Now(), &err)
	if err := s.Err(); err != nil {
		return nil, err
	}
	if err := s.flushHandles(ctx, open); err != nil {
		return nil, err
	}
	states, err := s.streams.OpenStreams(ctx, s.node, open)
	if err != nil {
		return nil, fmt.Errorf("open %d streams: %w", len(open), err)
	}
	invariant.Check(len(states) == len(open), "opened %d streams, asked for %d", len(states), len(open))
	handles := make([]*Stream, len(states))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, st := range states {
		invariant.Check(st.ID == open[i].ID && st.Epoch == open[i].Epoch, "opened %+v, asked for %+v", st, open[i])
		s.cache.forget(st.ID)
		s.reader.refresh(st.ID)
		handles[i] = newStream(s, st)
		s.open[st.ID] = handles[i]
	}
	s.compact.noteOpened(open)
	return handles, nil
}

// flushHandles closes what this store has open of the streams and uploads it, so that the
// ends in metadata are the true ones.
func (s *Store) flushHandles(ctx context.Context, open []OpenRequest) error {
	s.mu.Lock()
	var old []*Stream
	for _, o := range open {
		if h := s.open[o.ID]; h != nil {
			old = append(old, h)
		}
	}
	s.mu.Unlock()
	if len(old) == 0 {
		return nil
	}
	return s.finish(ctx, old)
}

// finish stops appends to the streams, waits for those before and uploads them.
func (s *Store) finish(ctx context.Context, streams []*Stream) error {
	for _, st := range streams {
		st.stop(ErrStreamClosed)
	}
	s.wal.flush()
	for _, st := range streams {
		if err := st.waitAcknowledged(ctx); err != nil {
			return fmt.Errorf("close stream %d: %w", st.id, err)
		}
	}
	return s.upload.flush(ctx)
}

// CloseStreams closes the streams: it stops appends, uploads what is pending and releases
// them, in one transaction.
func (s *Store) CloseStreams(ctx context.Context, streams []*Stream) (err error) {
	if len(streams) == 0 {
		return nil
	}
	defer s.metrics.close.since(time.Now(), &err)
	if err := s.finish(ctx, streams); err != nil {
		return err
	}
	requests := make([]OpenRequest, len(streams))
	for i, st := range streams {
		requests[i] = OpenRequest{ID: st.id, Epoch: st.epoch}
	}
	if err := s.streams.CloseStreams(ctx, s.node, requests); err != nil {
		return fmt.Errorf("close %d streams: %w", len(streams), err)
	}
	s.forget(streams)
	return nil
}

func (s *Store) forget(streams []*Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range streams {
		if s.open[st.id] == st {
			delete(s.open, st.id)
		}
	}
}

// acknowledge makes a durable bulk readable and answers its appends. It runs on the WAL's
// goroutine.
func (s *Store) acknowledge(b *bulk) {
	s.metrics.bulks.Inc()
	s.metrics.walBytes.Add(float64(b.whole()))
	s.metrics.append.ok.Add(float64(len(b.entries)))
	if s.cache.add(b, s.cfg.UploadBytes, s.cfg.UploadStreams, time.Now()) {
		s.upload.signal()
	}
	for i := range b.entries {
		e := &b.entries[i]
		e.stream.confirm.Store(e.batch.End())
	}
	for i := range b.entries {
		b.entries[i].done(nil)
	}
	s.metrics.append.seconds.Observe(time.Since(b.opened).Seconds())
	s.wal.wakeIdle(b)
}

// Close makes what was appended durable, uploads it and closes the store. Streams stay
// assigned to the node. If ctx ends before, the WAL keeps what is not uploaded, and
// the next Open recovers it.
func (s *Store) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	failed := s.err
	s.mu.Unlock()

	var err error
	if failed == nil {
		if err = s.wal.close(ctx, ErrStoreClosed); err == nil {
			err = s.upload.flush(ctx)
		}
	}
	s.fail(ErrStoreClosed)
	s.reader.close()
	s.work.Wait()
	err = errors.Join(err, s.device.close())
	if err != nil {
		return fmt.Errorf("close stream store: %w", err)
	}
	return nil
}

// abandon ends the store as a crash would: nothing more is written. Tests use it.
func (s *Store) abandon() {
	s.fail(ErrStoreClosed)
	s.reader.close()
	s.work.Wait()
	s.device.close()
}

// countShare bounds what counting costs: after a count that takes a while, so many times as
// long passes until the next.
const countShare = 200

// cleanLoop deletes objects that nothing names any more, until ctx ends.
func (s *Store) cleanLoop(ctx context.Context) {
	t := time.NewTicker(s.cfg.CleanInterval)
	defer t.Stop()
	var count time.Time // when objects are counted next
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		if s.sweepDue.Swap(false) {
			if err := s.sweepWALs(ctx); err != nil {
				s.sweepDue.Store(true)
				if ctx.Err() == nil {
					s.log.Warn("remains of earlier WALs not removed, trying again later", "error", err)
				}
			}
		}
		_, err := s.Clean(ctx)
		if errors.Is(err, ErrNodeFenced) {
			s.fail(err) // an idle node learns here that a newer process took its place
			return
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("deletable objects not removed, trying again later", "error", err)
		}
		if now := time.Now(); !now.Before(count) {
			if counts, err := s.objects.CountObjects(ctx); err == nil {
				s.metrics.objects.set(counts)
			}
			count = now.Add(countShare * time.Since(now))
		}
	}
}

// Clean deletes the objects that nothing has named for DeleteGrace, and returns how many.
// The store does so each CleanInterval.
func (s *Store) Clean(ctx context.Context) (total int, err error) {
	const page = 1000
	ctx = objectstore.For(ctx, objectstore.ForCleanup)
	defer s.metrics.clean.since(time.Now(), &err)
	for {
		refs, err := s.objects.DeletableObjects(ctx, s.node, s.cfg.DeleteGrace, page)
		if err != nil || len(refs) == 0 {
			return total, err
		}
		if err := s.settled(ctx); err != nil {
			return total, err
		}
		keys := make([]string, len(refs))
		ids := make([]ObjectID, len(refs))
		bytes := int64(0)
		for i, r := range refs {
			keys[i], ids[i] = ObjectKey(r.ID), r.ID
			bytes += r.Size
		}
		if err := s.bucket.Delete(ctx, keys...); err != nil {
			return total, fmt.Errorf("delete %d objects: %w", len(keys), err)
		}
		if err := s.objects.ForgetObjects(ctx, s.node, ids); err != nil {
			return total, fmt.Errorf("forget %d objects: %w", len(ids), err)
		}
		total += len(refs)
		s.metrics.deletedObjects.Add(float64(len(refs)))
		s.metrics.deletedBytes.Add(float64(bytes))
		if len(refs) < page {
			return total, nil
		}
	}
}
