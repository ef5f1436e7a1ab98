package streamstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/objectstore"
)

// objectWAL keeps each bulk as one object, created only if its key is free. Keys are dense,
// so whoever takes over knows the next key the writer needs, and occupies it with a fence.
type objectWAL struct {
	bucket objectstore.Bucket
	node   Node
	nonce  nonce
	hedges *hedger
	patience
	puts    sync.WaitGroup // requests under way, those that nobody waits for any more included
	trimmed uint64         // objects below are deleted; used by the loop that trims alone
}

// write creates the object of seq. An outcome that is not known is tried again: to skip it
// would leave a hole, to report it would fail appends that may be durable.
func (d *objectWAL) write(ctx context.Context, seq uint64, bulk [][]byte) (settled bool, err error) {
	key := walKey(d.node.ID, d.node.Epoch, seq)
	ctx = objectstore.For(ctx, objectstore.ForWAL)
	settled = true
	for try := 0; ; try++ {
		left, err := d.put(ctx, key, bulk)
		settled = settled && left == 0
		if err == nil {
			return settled, nil
		}
		if errors.Is(err, objectstore.ErrExists) {
			if err = d.own(ctx, key); err == nil || errors.Is(err, ErrNodeFenced) {
				return settled, err
			}
		}
		if invariant.Off("wal-unknown-retried") {
			return settled, nil
		}
		if ctx.Err() != nil {
			return settled, fmt.Errorf("write WAL object %s: %w", key, context.Cause(ctx))
		}
		d.log.Warn("WAL object not written, trying again", "key", key, "try", try+1, "error", err)
		if err := d.backoff(ctx, try); err != nil {
			return settled, fmt.Errorf("write WAL object %s: %w", key, err)
		}
	}
}

// put creates the object, and sends it once more if the answer takes unusually long. Both
// requests carry the same bytes under the same key and the same condition, so whichever
// comes second changes nothing: the first success counts, and a failure only if no other
// request is under way. Some stores fail one of two creates of a key at the same time. left
// is how many requests are under way still.
func (d *objectWAL) put(ctx context.Context, key string, bulk [][]byte) (left int, err error) {
	type answer struct {
		err   error
		hedge bool
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of the request that nobody waits for
	answers := make(chan answer, 2)
	send := func(hedge bool) {
		d.puts.Go(func() {
			err := d.bucket.PutIfAbsent(ctx, key, bulk...)
			if hedge {
				d.hedges.end()
			}
			answers <- answer{err, hedge}
		})
	}
	var size int64
	for _, b := range bulk {
		size += int64(len(b))
	}
	began, pending := time.Now(), 1
	send(false)
	var late <-chan time.Time
	if after, ok := d.hedges.after(size); ok {
		t := time.NewTimer(after)
		defer t.Stop()
		late = t.C
	}
	for {
		select {
		case <-late:
			if d.hedges.start() {
				send(true)
				pending++
			}
		case a := <-answers:
			if pending--; a.err != nil && pending > 0 && !errors.Is(a.err, objectstore.ErrExists) {
				continue
			}
			if a.err == nil {
				d.hedges.observe(size, time.Since(began))
			}
			if a.err == nil && a.hedge {
				d.hedges.won.Add(1)
			}
			return pending, a.err
		}
	}
}

// own tells, after a create met an object, whether that is this writer's, left by an
// attempt whose answer was lost. If not, the node is fenced.
func (d *objectWAL) own(ctx context.Context, key string) error {
	var h bulkHeader
	var bad error
	for range 2 { // what is right in the store may arrive wrong
		data, err := d.bucket.Get(ctx, key, 0, walHeaderSize)
		if err != nil {
			return err
		}
		if h, _, bad = parseBulkHeader(data); bad == nil {
			break
		}
	}
	if bad != nil {
		return fmt.Errorf("WAL object %s: %w: %w", key, ErrNodeFenced, bad)
	}
	if (h.kind != bulkData || h.nonce != d.nonce) && !invariant.Off("wal-nonce") {
		return fmt.Errorf("WAL object %s was written by another process: %w", key, ErrNodeFenced)
	}
	return nil
}

func (d *objectWAL) trim(ctx context.Context, mark uint64) error {
	var keys []string
	for seq := d.trimmed; seq < mark; seq++ {
		keys = append(keys, walKey(d.node.ID, d.node.Epoch, seq))
	}
	if len(keys) == 0 {
		return nil
	}
	if err := d.bucket.Delete(objectstore.For(ctx, objectstore.ForWAL), keys...); err != nil {
		return fmt.Errorf("trim WAL of node %d epoch %d below %d: %w", d.node.ID, d.node.Epoch, mark, err)
	}
	d.trimmed = mark
	return nil
}

func (d *objectWAL) close() error {
	d.puts.Wait()
	return nil
}

// objectWALReader takes over the s3 WAL of an earlier life.
type objectWALReader struct {
	bucket objectstore.Bucket
	node   NodeID
	state  WALState
	by     nonce // of the process that takes over
	patience
	end uint64 // the fence's number, after fence
}

// fence occupies the first free number from the mark on. After that the earlier life can
// acknowledge nothing more: its acknowledgements are a contiguous prefix, and the prefix
// ends at the fence. A listing finds where to begin; the conditional create decides.
func (r *objectWALReader) fence(ctx context.Context) error {
	ctx = objectstore.For(ctx, objectstore.ForRecovery)
	seq, err := r.listed(ctx)
	if err != nil {
		return err
	}
	for try := 0; ; {
		key := walKey(r.node, r.state.Epoch, seq)
		slow := r.slow("fence WAL")
		err := r.bucket.PutIfAbsent(ctx, key, appendFence(nil, r.node, r.state.Epoch, seq, r.by))
		slow.Stop()
		if err == nil {
			break
		}
		if errors.Is(err, objectstore.ErrExists) {
			var kind uint8
			if kind, err = r.kind(ctx, key); err == nil {
				if kind == bulkFence {
					break
				}
				seq, try = seq+1, 0
				continue
			}
		}
		if errors.Is(err, ErrCorrupt) || errors.Is(err, errNewer) || errors.Is(err, objectstore.ErrRefused) {
			return fmt.Errorf("fence WAL object %s: %w", key, err)
		}
		r.log.Warn("WAL not fenced, trying again", "key", key, "try", try+1, "error", err)
		if err := r.backoff(ctx, try); err != nil {
			return fmt.Errorf("fence WAL object %s: %w", key, err)
		}
		try++
	}
	r.end = seq
	return nil
}

// listed returns the end of the run of data that a listing shows from the mark on. A hole
// below a fence that is there already is a lost object: the fence was put at the first
// free number.
func (r *objectWALReader) listed(ctx context.Context) (uint64, error) {
	seq := r.state.Mark
	after := ""
	if seq > 0 {
		after = walKey(r.node, r.state.Epoch, seq-1)
	}
	for open := true; ; {
		page, err := retry(ctx, r.patience, "list WAL", func() ([]objectstore.Object, error) {
			return r.bucket.List(ctx, walDir(r.node, r.state.Epoch), after)
		})
		if err != nil || len(page) == 0 {
			return seq, err
		}
		for _, o := range page {
			next := o.Key == walKey(r.node, r.state.Epoch, seq)
			switch {
			case o.Size == walFenceSize && open && next:
				return seq, nil
			case o.Size == walFenceSize && !invariant.Off("wal-missing-is-corruption"):
				return 0, fmt.Errorf("WAL object %s is missing below the fence %s: %w", walKey(r.node, r.state.Epoch, seq), o.Key, ErrCorrupt)
			case open && next:
				seq++
			default:
				open = false
			}
			after = o.Key
		}
	}
}

func (r *objectWALReader) kind(ctx context.Context, key string) (uint8, error) {
	data, err := r.bucket.Get(ctx, key, 0, walHeaderSize)
	if err != nil {
		return 0, err
	}
	h, _, err := parseBulkHeader(data)
	if err != nil {
		return 0, fmt.Errorf("WAL object %s: %w", key, err)
	}
	return h.kind, nil
}

// recoveryReads is how many WAL objects recovery reads ahead.
const recoveryReads = 4

// read calls fn with each data bulk from the mark to the fence, in order.
func (r *objectWALReader) read(ctx context.Context, fn func(seq uint64, body []byte) error) error {
	type result struct {
		data []byte
		err  error
	}
	ctx, cancel := context.WithCancel(objectstore.For(ctx, objectstore.ForRecovery))
	defer cancel()
	pending := make(chan chan result, recoveryReads)
	go func() {
		defer close(pending)
		for seq := r.state.Mark; seq < r.end; seq++ {
			c := make(chan result, 1)
			select {
			case pending <- c:
			case <-ctx.Done():
				return
			}
			go func() {
				data, err := retry(ctx, r.patience, "read WAL", func() ([]byte, error) {
					return r.bucket.Get(ctx, walKey(r.node, r.state.Epoch, seq), 0, -1)
				})
				c <- result{data, err}
			}()
		}
	}()
	seq := r.state.Mark
	for c := range pending {
		res := <-c
		key := walKey(r.node, r.state.Epoch, seq)
		if errors.Is(res.err, objectstore.ErrNotFound) {
			if invariant.Off("wal-missing-is-corruption") {
				seq++
				continue
			}
			return fmt.Errorf("WAL object %s is missing below the fence at %d: %w", key, r.end, ErrCorrupt)
		}
		if res.err != nil {
			return fmt.Errorf("read WAL object %s: %w", key, res.err)
		}
		h, body, tail, err := parseBulk(res.data)
		if err == nil && (len(tail) > 0 || h.node != r.node || h.epoch != r.state.Epoch || h.seq != seq) {
			err = corrupt("bulk %d of node %d epoch %d, %d bytes too many", h.seq, h.node, h.epoch, len(tail))
		}
		if err != nil {
			return fmt.Errorf("WAL object %s of %d bytes: %w", key, len(res.data), err)
		}
		if h.kind == bulkFence {
			break // of an earlier takeover; what lies above is garbage
		}
		if err := fn(seq, body); err != nil {
			return fmt.Errorf("WAL object %s: %w", key, err)
		}
		seq++
	}
	return context.Cause(ctx)
}

func (r *objectWALReader) fenced() uint64 { return r.end }

// remove deletes the data of the WAL. Fences stay for ever, so that a process of that
// life, however late it wakes, meets one.
func (r *objectWALReader) remove(ctx context.Context) error {
	ctx = objectstore.For(ctx, objectstore.ForRecovery)
	for after := ""; ; {
		page, err := r.bucket.List(ctx, walDir(r.node, r.state.Epoch), after)
		if err != nil || len(page) == 0 {
			return err
		}
		var keys []string
		for _, o := range page {
			if o.Size != walFenceSize || invariant.Off("wal-fence-kept") {
				keys = append(keys, o.Key)
			}
		}
		if err := r.bucket.Delete(ctx, keys...); err != nil {
			return err
		}
		after = page[len(page)-1].Key
	}
}
