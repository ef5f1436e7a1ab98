package streamstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/objectstore"
)

// prepareTTL is how long prepared object ids live. An upload that takes half of it starts
// again with new ids.
const prepareTTL = time.Hour

// An uploader moves the log cache's blocks to objects. It writes several blocks at a time
// and commits them in order, each together with the WAL mark that it allows; only then the
// WAL is trimmed.
type uploader struct {
	s       *Store
	wake    chan struct{} // cap 1
	forced  atomic.Bool   // archive the active block, whatever its size
	stopped chan struct{} // closed when run has returned

	mark   atomic.Uint64 // the WAL may be trimmed below this …
	marked chan struct{} // … which trim learns here; cap 1
}

func newUploader(s *Store) *uploader {
	return &uploader{s: s, wake: make(chan struct{}, 1), stopped: make(chan struct{}), marked: make(chan struct{}, 1)}
}

func (u *uploader) signal() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// force uploads what there is: appends wait for the room.
func (u *uploader) force() {
	u.forced.Store(true)
	u.signal()
}

type uploadTask struct {
	block  *cacheBlock
	began  time.Time
	upload Upload
	err    error
	put    chan struct{} // closed when the objects are written
}

// run uploads archived blocks until ctx ends. A commit that metadata refuses fences the store.
func (u *uploader) run(ctx context.Context) {
	defer close(u.stopped)
	ctx, cancel := context.WithCancel(ctx)
	var tasks []*uploadTask // in order; at most UploadInflight
	defer func() {
		cancel()
		for _, t := range tasks {
			<-t.put
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for len(tasks) < u.s.cfg.UploadInflight {
			block := u.s.cache.take()
			if block == nil {
				break
			}
			t := &uploadTask{block: block, began: time.Now(), put: make(chan struct{})}
			tasks = append(tasks, t)
			go func() {
				defer close(t.put)
				t.upload, t.err = u.s.putBlock(ctx, u.s.node, block, u.s.node.Epoch)
			}()
		}
		var due <-chan time.Time
		var first <-chan struct{}
		if len(tasks) > 0 {
			first = tasks[0].put
		}
		if born, ok := u.s.cache.born(); ok {
			timer.Reset(time.Until(born.Add(u.s.cfg.UploadInterval)))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-u.wake:
			if u.forced.CompareAndSwap(true, false) {
				u.s.cache.archive(time.Now())
			}
		case now := <-due:
			u.s.cache.archive(now.Add(-u.s.cfg.UploadInterval))
		case <-first:
			t := tasks[0]
			if err := u.commit(ctx, t); err != nil {
				if ctx.Err() == nil {
					u.s.fail(fmt.Errorf("upload: %w", errors.Join(ErrStreamFenced, err)))
				}
				return
			}
			tasks = tasks[1:]
		}
	}
}

// commit makes the objects of a task visible, then lets the WAL be trimmed. The order matters:
// what metadata has not recorded must stay in the WAL.
func (u *uploader) commit(ctx context.Context, t *uploadTask) (err error) {
	defer u.s.metrics.upload.since(t.began, &err)
	if t.err != nil {
		return t.err
	}
	early := invariant.Off("wal-mark-before-delete")
	if early {
		u.s.device.trim(ctx, t.upload.WALMark)
	}
	if err := u.s.commitUpload(ctx, u.s.node, t.upload); err != nil {
		return err
	}
	close(t.block.uploaded)
	u.s.compact.noteUpload(t.upload)
	for _, o := range uploaded(t.upload) {
		u.s.metrics.uploadBytes.Add(float64(o.Size))
	}
	u.s.wal.release(t.block.bytes)
	if !early {
		u.mark.Store(t.upload.WALMark)
		select {
		case u.marked <- struct{}{}:
		default:
		}
	}
	return nil
}

// trim deletes what the WAL need not keep, when the commits that allow it are settled, until
// ctx ends. Uploads do not wait for it.
func (u *uploader) trim(ctx context.Context) {
	for {
		select {
		case <-u.marked:
		case <-ctx.Done():
			return
		}
		mark := u.mark.Load()
		err := u.s.settled(ctx)
		if err == nil {
			err = u.s.device.trim(ctx, mark)
		}
		if err != nil && ctx.Err() == nil {
			u.s.log.Warn("WAL not trimmed, the next upload tries again", "error", err)
		}
	}
}

// Settled returns when metadata as it is now survives the loss of its database; see [Config].
func (s *Store) Settled(ctx context.Context) error {
	if s.cfg.Settled == nil {
		return nil
	}
	return s.cfg.Settled(ctx)
}

// settled returns when what metadata does not name any more may be deleted.
func (s *Store) settled(ctx context.Context) error {
	if invariant.Off("delete-settled") {
		return nil
	}
	return s.Settled(ctx)
}

// flush archives what the cache holds and returns when it is committed.
func (u *uploader) flush(ctx context.Context) error {
	last := u.s.cache.archive(time.Now())
	if last == nil {
		return nil
	}
	u.signal()
	select {
	case <-last.uploaded:
		return nil
	case <-u.stopped:
		if isClosed(last.uploaded) {
			return nil
		}
		return u.s.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Store) commitUpload(ctx context.Context, node Node, u Upload) error {
	_, err := retry(ctx, s.patience, "commit upload", func() (struct{}, error) {
		return struct{}{}, s.objects.CommitUpload(ctx, node, u)
	})
	return err
}

// putBlock writes the objects of a block as node and returns their commit. Streams with SplitBytes
// or more get an object of their own, the others share one.
func (s *Store) putBlock(ctx context.Context, node Node, block *cacheBlock, walEpoch int64) (Upload, error) {
	ctx = objectstore.For(ctx, objectstore.ForUpload)
	var single [][]*streamSpan // one object each
	var shared []*streamSpan
	for _, span := range block.sorted() {
		if span.bytes >= s.cfg.SplitBytes {
			single = append(single, []*streamSpan{span})
		} else {
			shared = append(shared, span)
		}
	}
	if len(shared) == 1 {
		single, shared = append(single, shared), nil
	}
	n := len(single)
	if len(shared) > 0 {
		n++
	}
	for {
		first, err := retry(ctx, s.patience, "prepare objects", func() (ObjectID, error) {
			return s.objects.PrepareObjects(ctx, node, n, prepareTTL)
		})
		if err != nil {
			return Upload{}, fmt.Errorf("prepare %d objects: %w", n, err)
		}
		u, err := s.putObjects(ctx, first, single, shared)
		u.WALEpoch, u.WALMark = walEpoch, block.mark
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			continue // the ids are about to expire
		}
		return u, err
	}
}

func (s *Store) putObjects(ctx context.Context, first ObjectID, single [][]*streamSpan, shared []*streamSpan) (u Upload, err error) {
	limit, cancel := context.WithTimeout(ctx, prepareTTL/2)
	defer cancel()
	g, ctx := errgroup.WithContext(limit)
	g.SetLimit(4)
	u.Streams = make([]StreamObject, len(single))
	for i, spans := range single {
		g.Go(func() error {
			id := first + ObjectID(i)
			size, err := s.putObject(ctx, KindStream, id, spans)
			u.Streams[i] = StreamObject{ID: id, Size: size, Range: spans[0].streamRange()}
			return err
		})
	}
	if len(shared) > 0 {
		g.Go(func() error {
			id := first + ObjectID(len(single))
			size, err := s.putObject(ctx, KindStreamSet, id, shared)
			u.StreamSet = &StreamSetObject{ID: id, Size: size}
			for _, span := range shared {
				u.StreamSet.Ranges = append(u.StreamSet.Ranges, span.streamRange())
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return u, errors.Join(err, limit.Err())
	}
	return u, nil
}

func (s *streamSpan) streamRange() StreamRange {
	return StreamRange{Stream: s.stream, Epoch: s.epoch, Start: s.start(), End: s.end()}
}

func (s *Store) putObject(ctx context.Context, kind ObjectKind, id ObjectID, spans []*streamSpan) (int64, error) {
	b := newObjectBuilder(kind, id)
	for _, span := range spans {
		b.addStream(span.stream, span.batches, span.sums, s.cfg.BlockBytes)
	}
	body, size := b.finish()
	_, err := retry(ctx, s.patience, "put object", func() (struct{}, error) {
		return struct{}{}, s.bucket.Put(ctx, ObjectKey(id), body...)
	})
	if err != nil {
		return 0, fmt.Errorf("put object %d of %d bytes: %w", id, size, err)
	}
	return size, nil
}
