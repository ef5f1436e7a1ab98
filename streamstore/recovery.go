package streamstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/objectstore"
)

// A walReader takes over the WAL of an earlier life.
type walReader interface {
	// fence makes sure that the earlier life acknowledges nothing more. read follows it.
	fence(ctx context.Context) error
	// read calls fn with the records of each bulk from the mark to the fence, in order.
	read(ctx context.Context, fn func(seq uint64, body []byte) error) error
	// fenced returns the number after the last bulk: once fence is done or, of files, once read is.
	fenced() uint64
	// remove deletes the WAL's data, but never a fence.
	remove(ctx context.Context) error
}

// RecoveryProgress says how far the recovery of a node is.
type RecoveryProgress struct {
	Streams    int   // that the node had open
	WALs       int   // to recover
	Bulks      int64 // read of them
	TotalBulks int64 // to read
	Records    int64 // that no object held: these are uploaded
	Bytes      int64 // of their payloads
}

// Recover does for another node what its own start would do: it brings every record that the
// node acknowledged into committed objects, closes its streams, so that any node may open
// them, and takes its stream set objects over to compact them. The node acknowledges nothing
// more, should it still run; whether it may be given up is for the caller to know.
//
// Recover may be called again after it failed, here or elsewhere: what is committed is passed
// over. If several nodes recover the same one, the last to begin wins. The node itself may
// start at any moment: it recovers what is left, and Recover fails with ErrNodeFenced, which
// leaves this store as it is. A WAL in files can be recovered only by its node: it is
// refused before anything is changed.
//
// progress, if not nil, is called after each bulk. One Recover runs at a time, in UploadBytes
// of memory and a few bulks.
func (s *Store) Recover(ctx context.Context, id NodeID, progress func(RecoveryProgress)) (RecoveryProgress, error) {
	r := &recovery{s: s, progress: progress}
	if err := r.takeOver(ctx, id); err != nil {
		return r.done, fmt.Errorf("recover node %d: %w", id, err)
	}
	return r.done, nil
}

func (r *recovery) takeOver(ctx context.Context, id NodeID) error {
	s := r.s
	if id == s.node.ID {
		return errors.New("it is this node, which recovered its own WALs when it started")
	}
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	select {
	case s.rescue <- struct{}{}:
		defer func() { <-s.rescue }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := r.look(ctx, id); err != nil {
		return err
	}
	as, earlier, err := s.streams.TakeOverNode(ctx, s.node, id)
	if err != nil {
		return err
	}
	r.as, r.log = as, s.log.With("recovered", as.ID, "recovered_epoch", as.Epoch)
	r.log.Info("recovering another node", "wals", len(earlier), "streams", r.done.Streams)
	if err = r.recoverWALs(ctx, earlier, false); err == nil {
		_, err = retry(ctx, s.patience, "release node", func() (struct{}, error) {
			return struct{}{}, s.streams.ReleaseNode(ctx, s.node, as)
		})
	}
	if err != nil && s.run.Err() != nil {
		return context.Cause(s.run)
	}
	if errors.Is(err, ErrNodeFenced) {
		return fmt.Errorf("it started again, or another node recovers it: %w", err)
	}
	if err != nil {
		return err
	}
	r.log.Info("recovered another node", "records", r.done.Records, "bytes", r.done.Bytes)
	s.sweepDue.Store(true)
	return nil
}

// look refuses a node that cannot be recovered from here.
func (r *recovery) look(ctx context.Context, id NodeID) error {
	nodes, err := r.s.streams.Nodes(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(nodes, func(n NodeState) bool { return n.ID == id })
	if i < 0 {
		return ErrNodeNotExist
	}
	for _, w := range nodes[i].WALs {
		if w.Kind == WALFile {
			return errForeignFiles(w)
		}
	}
	r.done.Streams = nodes[i].Open
	return nil
}

func errForeignFiles(w WALState) error {
	return fmt.Errorf("the WAL of epoch %d is in files of the machine where the node ran, out of reach for every other node: "+
		"start the node there, with the WAL directory that it had", w.Epoch)
}

// A recovery brings what WALs of a node hold beyond the ends of its streams into objects.
type recovery struct {
	s   *Store
	as  Node // the life that recovers: this store's own, or one that it leads
	by  nonce
	log *slog.Logger

	progress func(RecoveryProgress) // may be nil
	done     RecoveryProgress

	ends    map[StreamID]StreamState // End moves with what is replayed
	epoch   int64                    // of the WAL being replayed
	block   *cacheBlock              // grows; nil if empty
	held    int64                    // bytes of the bulks that block points into
	pending chan error               // outcome of the block that is uploaded; nil if there is none
}

// recoverWALs brings every acknowledged record of earlier lives into committed objects.
// The epoch was raised before, so no earlier life can change metadata; its WALs are fenced
// before the stream ends are read, so that no acknowledgement can follow what is read.
// hadFiles says that this machine has the WAL files of the node.
func (r *recovery) recoverWALs(ctx context.Context, earlier []WALState, hadFiles bool) error {
	if len(earlier) == 0 {
		return nil
	}
	rand.Read(r.by[:])
	readers, err := r.readers(earlier, hadFiles)
	if err != nil {
		return err
	}
	late := invariant.Off("recovery-fence-before-ends")
	for i := range readers {
		if late {
			break
		}
		if err := readers[i].fence(ctx); err != nil {
			return r.overtaken(ctx, err)
		}
	}
	states, err := r.s.streams.Streams(ctx, r.as.ID)
	if err != nil {
		return fmt.Errorf("read streams of node %d: %w", r.as.ID, err)
	}
	r.ends = make(map[StreamID]StreamState, len(states))
	for _, st := range states {
		r.ends[st.ID] = st
	}
	r.done.WALs = len(earlier)
	for i, w := range earlier {
		r.done.TotalBulks += max(0, int64(readers[i].fenced())-int64(w.Mark))
	}
	for i, w := range earlier {
		if late {
			if err := readers[i].fence(ctx); err != nil {
				return err
			}
		}
		if err := r.replay(ctx, w, readers[i]); err != nil {
			return r.overtaken(ctx, fmt.Errorf("replay WAL of epoch %d: %w", w.Epoch, err))
		}
		_, err := retry(ctx, r.s.patience, "retire WAL", func() (struct{}, error) {
			return struct{}{}, r.s.streams.RetireWAL(ctx, r.as, w.Epoch)
		})
		if err != nil {
			return fmt.Errorf("retire WAL of epoch %d: %w", w.Epoch, err)
		}
		if r.s.cfg.Settled != nil {
			continue // the sweep removes it, when the recovery is settled
		}
		if err := readers[i].remove(ctx); err != nil {
			r.log.Warn("recovered WAL not removed, it only takes space", "wal_epoch", w.Epoch, "error", err)
		}
	}
	return nil
}

// overtaken tells a WAL that lost objects from one that was recovered and removed by whoever
// took the node over meanwhile.
func (r *recovery) overtaken(ctx context.Context, err error) error {
	if !errors.Is(err, ErrCorrupt) {
		return err
	}
	nodes, nerr := r.s.streams.Nodes(ctx)
	for _, n := range nodes {
		if n.ID == r.as.ID && n.Epoch > r.as.Epoch {
			return fmt.Errorf("epoch %d of node %d has begun: %w", n.Epoch, n.ID, ErrNodeFenced)
		}
	}
	return errors.Join(err, nerr)
}

func (r *recovery) readers(earlier []WALState, hadFiles bool) ([]walReader, error) {
	s, patience := r.s, r.s.patience
	patience.starting = true
	readers := make([]walReader, len(earlier))
	for i, w := range earlier {
		switch {
		case w.Kind == WALObject:
			readers[i] = &objectWALReader{bucket: s.bucket, node: r.as.ID, state: w, by: r.by, patience: patience}
		case w.Kind == WALFile && r.as != s.node:
			return nil, errForeignFiles(w)
		case w.Kind == WALFile && !hadFiles:
			return nil, fmt.Errorf("the WAL of epoch %d is in files, and WALDir %q holds none of node %d: start where the node ran before, "+
				"with the WAL directory that it had", w.Epoch, s.cfg.WALDir, s.node.ID)
		case w.Kind == WALFile:
			readers[i] = &fileWALReader{fs: s.cfg.WALFS, dir: walLifeDir(s.cfg.WALDir, r.as.ID, w.Epoch), node: r.as.ID, state: w, by: r.as, nonce: r.by, log: s.log}
		default:
			return nil, fmt.Errorf("the WAL of epoch %d has kind %q, which this program does not know", w.Epoch, w.Kind)
		}
	}
	return readers, nil
}

// replay uploads one WAL, block by block: while one is uploaded, the next is read.
func (r *recovery) replay(ctx context.Context, w WALState, wal walReader) error {
	r.epoch = w.Epoch
	began, records := time.Now(), r.done.Records
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := wal.read(ctx, func(seq uint64, body []byte) error { return r.bulk(ctx, seq, body) })
	if err == nil {
		err = r.flush(ctx)
	}
	if err != nil {
		cancel()
		r.wait()
		return err
	}
	if err := r.wait(); err != nil {
		return err
	}
	r.log.Info("recovered the WAL of an earlier life", "wal_epoch", w.Epoch, "from", w.Mark, "to", wal.fenced(),
		"records", r.done.Records-records, "took", time.Since(began))
	return nil
}

// bulk takes the records of one bulk.
func (r *recovery) bulk(ctx context.Context, seq uint64, body []byte) error {
	size := int64(len(body))
	for at := skipFilling(body, 0); at < len(body); {
		rec, tail, err := parseRecord(body[at:])
		if err == nil && r.block != nil && len(r.block.spans) >= r.s.cfg.UploadStreams && r.block.spans[rec.stream] == nil {
			r.block.mark = seq // the rest of the bulk comes with the next block
			err = r.flush(ctx)
		}
		if err == nil {
			err = r.add(rec)
		}
		if err != nil {
			return fmt.Errorf("record at byte %d of bulk %d: %w", walHeaderSize+at, seq, err)
		}
		at = skipFilling(body, len(body)-len(tail))
	}
	r.done.Bulks++
	if r.progress != nil {
		r.progress(r.done)
	}
	if r.block == nil {
		return nil
	}
	r.block.mark = seq + 1
	if r.held += size; r.held < r.s.cfg.UploadBytes/2 {
		return nil
	}
	return r.flush(ctx)
}

// add takes one record: it is dropped if its stream is closed or deleted, or if it is
// committed; a gap would be a lost acknowledged record.
func (r *recovery) add(rec walRecord) error {
	st, ok := r.ends[rec.stream]
	if !ok {
		return nil
	}
	if rec.batch.End() <= st.End && !invariant.Off("recovery-skips-committed") {
		return nil
	}
	if rec.epoch != st.Epoch || rec.batch.BaseOffset != st.End {
		return corrupt("stream %d ends at %d in epoch %d, and the next record has base %d and epoch %d",
			rec.stream, st.End, st.Epoch, rec.batch.BaseOffset, rec.epoch)
	}
	if r.block == nil {
		r.block = newCacheBlock(time.Time{}, nil)
	}
	r.block.add(rec.stream, rec.epoch, rec.batch, 0)
	st.End = rec.batch.End()
	r.ends[rec.stream] = st
	r.done.Records++
	r.done.Bytes += int64(len(rec.batch.Payload))
	return nil
}

// flush starts the upload of the block, once the one before is committed.
func (r *recovery) flush(ctx context.Context) error {
	if err := r.wait(); err != nil || r.block == nil {
		return err
	}
	block, epoch, pending := r.block, r.epoch, make(chan error, 1)
	r.block, r.held, r.pending = nil, 0, pending
	go func() {
		u, err := r.s.putBlock(ctx, r.as, block, epoch)
		if err == nil {
			err = r.s.commitUpload(ctx, r.as, u)
		}
		pending <- err
	}()
	return nil
}

// wait returns when no block is being uploaded.
func (r *recovery) wait() error {
	if r.pending == nil {
		return nil
	}
	err := <-r.pending
	r.pending = nil
	if errors.Is(err, ErrConflict) {
		return fmt.Errorf("another process changed the streams of node %d meanwhile: %w", r.as.ID, err)
	}
	return err
}

// sweepWALs deletes what lives of any node left although their WALs are retired: a recovery
// may have died before it deleted, and a zombie may have written above its fence. Fences stay.
func (s *Store) sweepWALs(ctx context.Context) error {
	ctx = objectstore.For(ctx, objectstore.ForCleanup)
	nodes, err := s.streams.Nodes(ctx)
	if err != nil {
		return err
	}
	if err := s.settled(ctx); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := s.sweepNode(ctx, n); err != nil {
			return fmt.Errorf("sweep WALs of node %d: %w", n.ID, err)
		}
	}
	return s.sweepFiles()
}

func (s *Store) sweepNode(ctx context.Context, n NodeState) error {
	later := n.Epoch // of lives that begin meanwhile metadata has not told
	if invariant.Off("wal-sweep-later") {
		later = 1<<63 - 1
	}
	needed := make(map[int64]bool, len(n.WALs))
	for _, w := range n.WALs {
		needed[w.Epoch] = !invariant.Off("wal-sweep-retired")
	}
	for after := ""; ; {
		page, err := s.bucket.List(ctx, fmt.Sprintf("%s%d/", walPrefix, n.ID), after)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return nil
		}
		var keys []string
		for _, o := range page {
			if _, epoch, _, ok := parseWALKey(o.Key); ok && epoch < later && !needed[epoch] && o.Size != walFenceSize {
				keys = append(keys, o.Key)
			}
		}
		if err := s.bucket.Delete(ctx, keys...); err != nil {
			return err
		}
		after = page[len(page)-1].Key
	}
}

// sweepFiles does the same with the files of the node's own earlier lives.
func (s *Store) sweepFiles() error {
	if s.cfg.WALDir == "" {
		return nil
	}
	dir := walNodeDir(s.cfg.WALDir, s.node.ID)
	names, err := s.cfg.WALFS.List(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, name := range names {
		if epoch, perr := strconv.ParseUint(name, 16, 64); perr == nil && int64(epoch) < s.node.Epoch {
			r := &fileWALReader{fs: s.cfg.WALFS, dir: walLifeDir(s.cfg.WALDir, s.node.ID, int64(epoch))}
			err = errors.Join(err, r.remove(context.Background()))
		}
	}
	return err
}
