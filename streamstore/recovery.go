package streamstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// A walReader takes over the WAL of an earlier life.
type walReader interface {
	// fence makes sure that the earlier life acknowledges nothing more. read follows it.
	fence(ctx context.Context) error
	// read calls fn with the records of each bulk from the mark to the fence, in order.
	read(ctx context.Context, fn func(seq uint64, body []byte) error) error
	// fenced returns the number after the last bulk, once read is done.
	fenced() uint64
	// remove deletes the WAL's data, but never a fence.
	remove(ctx context.Context) error
}

// recoverWALs brings every acknowledged record of earlier lives into committed objects.
// The epoch was raised before, so no earlier life can change metadata; its WALs are fenced
// before the stream ends are read, so that no acknowledgement can follow what is read.
func (s *Store) recoverWALs(ctx context.Context, earlier []WALState, by nonce, hadFiles bool) error {
	if len(earlier) == 0 {
		return nil
	}
	patience := s.patience
	patience.starting = true
	readers := make([]walReader, len(earlier))
	for i, w := range earlier {
		switch w.Kind {
		case WALObject:
			readers[i] = &objectWALReader{bucket: s.bucket, node: s.node.ID, state: w, by: by, patience: patience}
		case WALFile:
			if !hadFiles {
				return fmt.Errorf("the WAL of epoch %d is in files, and WALDir %q holds none of node %d: start where the node ran before, "+
					"with the WAL directory that it had", w.Epoch, s.cfg.WALDir, s.node.ID)
			}
			readers[i] = &fileWALReader{fs: s.cfg.WALFS, dir: walLifeDir(s.cfg.WALDir, s.node.ID, w.Epoch), node: s.node.ID, state: w, by: s.node, nonce: by, log: s.log}
		default:
			return fmt.Errorf("the WAL of epoch %d has kind %q, which this program does not know", w.Epoch, w.Kind)
		}
	}
	late := invariant.Off("recovery-fence-before-ends")
	for i := range readers {
		if late {
			break
		}
		if err := readers[i].fence(ctx); err != nil {
			return err
		}
	}
	states, err := s.streams.Streams(ctx, s.node.ID)
	if err != nil {
		return fmt.Errorf("read streams of node %d: %w", s.node.ID, err)
	}
	r := &recovery{s: s, ends: make(map[StreamID]StreamState, len(states))}
	for _, st := range states {
		r.ends[st.ID] = st
	}
	for i, w := range earlier {
		if late {
			if err := readers[i].fence(ctx); err != nil {
				return err
			}
		}
		if err := r.replay(ctx, w, readers[i]); err != nil {
			return fmt.Errorf("replay WAL of epoch %d: %w", w.Epoch, err)
		}
		_, err := retry(ctx, s.patience, "retire WAL", func() (struct{}, error) {
			return struct{}{}, s.streams.RetireWAL(ctx, s.node, w.Epoch)
		})
		if err != nil {
			return fmt.Errorf("retire WAL of epoch %d: %w", w.Epoch, err)
		}
		if s.cfg.Settled != nil {
			continue // the sweep removes it, when the recovery is settled
		}
		if err := readers[i].remove(ctx); err != nil {
			s.log.Warn("recovered WAL not removed, it only takes space", "wal_epoch", w.Epoch, "error", err)
		}
	}
	return nil
}

// A recovery uploads what WALs hold beyond the ends of the node's streams.
type recovery struct {
	s     *Store
	ends  map[StreamID]StreamState // End moves with what is replayed
	block *cacheBlock              // waits for upload; nil if empty
	held  int64                    // bytes of the bulks that block points into
	epoch int64                    // of the WAL being replayed
}

// replay uploads one WAL, block by block, in bounded memory.
func (r *recovery) replay(ctx context.Context, w WALState, wal walReader) error {
	r.epoch = w.Epoch
	began, records := time.Now(), 0
	err := wal.read(ctx, func(seq uint64, body []byte) error {
		size := int64(len(body))
		for len(body) > 0 {
			rec, tail, err := parseRecord(body)
			if err == nil {
				err = r.add(rec)
			}
			if err != nil {
				return fmt.Errorf("record at byte %d of bulk %d: %w", walHeaderSize+size-int64(len(body)), seq, err)
			}
			body = tail
			records++
		}
		if r.block == nil {
			return nil
		}
		r.block.mark = seq + 1
		if r.held += size; r.held < r.s.cfg.UploadBytes {
			return nil
		}
		return r.flush(ctx)
	})
	if err != nil {
		return err
	}
	if err := r.flush(ctx); err != nil {
		return err
	}
	r.s.log.Info("recovered the WAL of an earlier life", "wal_epoch", w.Epoch, "from", w.Mark, "to", wal.fenced(),
		"records", records, "took", time.Since(began))
	return nil
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
		r.block = newCacheBlock(time.Time{})
	}
	r.block.add(rec.stream, rec.epoch, rec.batch)
	st.End = rec.batch.End()
	r.ends[rec.stream] = st
	return nil
}

func (r *recovery) flush(ctx context.Context) error {
	if r.block == nil {
		return nil
	}
	u, err := r.s.putBlock(ctx, r.block, r.epoch)
	if err == nil {
		err = r.s.commitUpload(ctx, u)
	}
	r.block, r.held = nil, 0
	if errors.Is(err, ErrConflict) {
		return fmt.Errorf("another process changed the streams of node %d meanwhile: %w", r.s.node.ID, err)
	}
	return err
}

// sweepWALs deletes what earlier lives of the node left although their WALs are retired: a
// recovery may have died before it deleted, and a zombie may have written above its
// fence. Fences stay.
func (s *Store) sweepWALs(ctx context.Context) error {
	if err := s.settled(ctx); err != nil {
		return err
	}
	for after := ""; ; {
		page, err := s.bucket.List(ctx, fmt.Sprintf("%s%d/", walPrefix, s.node.ID), after)
		if err != nil {
			return fmt.Errorf("list WALs of node %d: %w", s.node.ID, err)
		}
		if len(page) == 0 {
			break
		}
		var keys []string
		for _, o := range page {
			if _, epoch, _, ok := parseWALKey(o.Key); ok && epoch < s.node.Epoch && o.Size != walFenceSize {
				keys = append(keys, o.Key)
			}
		}
		if err := s.bucket.Delete(ctx, keys...); err != nil {
			return fmt.Errorf("delete WALs of node %d: %w", s.node.ID, err)
		}
		after = page[len(page)-1].Key
	}
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
			err = errors.Join(err, r.remove(ctx))
		}
	}
	return err
}
