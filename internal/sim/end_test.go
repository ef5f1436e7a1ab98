package sim

import (
	"errors"
	"strings"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// finish starts every node again, without faults, and checks what is left: all streams, first
// from wherever they are, then from objects alone; and nothing else in the bucket.
func (w *world) finish() {
	w.trace.add("world", "the end begins")
	w.plan.faults, w.plan.latency, w.plan.away, w.plan.lost = objectstore.Faults{Latency: 2 * time.Millisecond}, time.Millisecond, 0, 0
	cfg := &w.plan.config
	cfg.SweepInterval, cfg.CleanInterval, cfg.CompactionInterval, cfg.MinorInterval, cfg.MajorInterval, cfg.CleanupInterval = 30*time.Minute, 10*time.Minute, time.Hour, time.Hour, time.Hour, time.Hour
	w.plan.pace = time.Minute
	for round := range 2 {
		lives := make([]*life, len(w.nodes))
		for i, n := range w.nodes {
			l := n.newLife()
			lives[i] = l
			if err := l.open(l.ctx); err != nil {
				w.fail("%s does not start at the end: %v", l.name, err)
				l.crash()
				return
			}
		}
		w.readAll(lives)
		if w.failing.Err() == nil && round == 1 {
			w.clean(lives)
		}
		for _, l := range lives {
			l.close()
		}
	}
}

// readAll opens, reads, and closes all streams.
func (w *world) readAll(lives []*life) {
	for _, s := range w.all() {
		home, gone := s.where()
		if w.failing.Err() != nil {
			return
		}
		epoch := s.nextEpoch()
		l, open, err := w.openAnywhere(lives, s, home, epoch)
		if gone && errors.Is(err, streamstore.ErrStreamNotExist) {
			continue
		}
		if err != nil {
			w.fail("%s at the end: %v", l.name, err)
			return
		}
		st := open[0]
		start, end := st.StartOffset(), st.ConfirmOffset()
		err = errors.Join(s.opened(opening{epoch, end, l.name}, start, s.trimmedTo()), s.whole(start, end))
		var all []streamstore.RecordBatch
		for at := start; at < end && err == nil; {
			var got []streamstore.RecordBatch
			if got, err = st.Fetch(l.ctx, at, end, 64<<10); err == nil && len(got) == 0 {
				err = errors.New("no batches")
			}
			if err == nil {
				all = append(all, got...)
				at = got[len(got)-1].End()
			}
		}
		if err == nil {
			err = s.read(start, all)
		}
		if err == nil {
			err = st.Close(l.ctx)
		}
		if err != nil {
			w.fail("%s at the end: stream %d from %d to %d: %v", l.name, s.id, start, end, err)
		}
	}
}

// openAnywhere opens a stream where it is at home, or where a life had it open whose answer was lost.
func (w *world) openAnywhere(lives []*life, s *stream, home streamstore.NodeID, epoch int64) (l *life, open []*streamstore.Stream, err error) {
	for i := range lives {
		l = lives[(int(home)-1+i)%len(lives)]
		open, err = l.store.OpenStreams(l.ctx, []streamstore.OpenRequest{{ID: s.id, Epoch: epoch}})
		if !errors.Is(err, streamstore.ErrConflict) {
			break
		}
	}
	return l, open, err
}

// prepared is how long an object may be in the bucket that metadata does not name: the time
// that prepared ids live.
const prepared = time.Hour

// clean waits until all that is not needed is deleted, and compares the bucket with the metadata.
func (w *world) clean(lives []*life) {
	cfg := &w.plan.config
	_ = wait(w.failing, prepared+2*cfg.DeleteGrace+20*time.Minute)
	_ = wait(w.failing, 2*cfg.SweepInterval+cfg.SweepGrace)
	sizes := w.bucketSizes()
	meta := lives[0].line.managers
	for after := streamstore.ObjectID(-1); ; {
		page, err := meta.Objects(w.failing, after, 100)
		if err != nil || len(page) == 0 {
			w.check(err, "list objects at the end")
			break
		}
		for _, o := range page {
			after = o.ID
			key := streamstore.ObjectKey(o.ID)
			size, ok := sizes[key]
			delete(sizes, key)
			if !ok || size != o.Size || o.State != streamstore.ObjectReferenced {
				w.fail("object %d is %s, with %d bytes; the bucket has %d (%t)", o.ID, o.State, o.Size, size, ok)
			}
		}
	}
	for key := range sizes {
		w.fail("the bucket holds %s, which metadata does not know", key)
	}
}

// bucketSizes lists the data objects in the bucket. Of the WALs only fences may be there.
func (w *world) bucketSizes() map[string]int64 {
	sizes := map[string]int64{}
	for after := ""; ; {
		page, err := w.disk.List(w.failing, "", after)
		if err != nil || len(page) == 0 {
			w.check(err, "list the bucket at the end")
			return sizes
		}
		for _, o := range page {
			after = o.Key
			dir, _, _ := strings.Cut(o.Key, "/")
			switch dir {
			case "data":
				sizes[o.Key] = o.Size
			case "wal":
				if data, err := w.disk.Get(w.failing, o.Key, 0, -1); err != nil || !isFence(data) {
					w.fail("the bucket holds %s, which is no fence, %v", o.Key, err)
				}
			case "metadata", "clock":
			default:
				w.fail("the bucket holds %s", o.Key)
			}
		}
	}
}

func isFence(wal []byte) bool {
	var text strings.Builder
	return streamstore.DumpWAL(&text, wal) == nil && strings.Contains(text.String(), ": fence")
}

func (w *world) check(err error, what string) {
	if err != nil && w.failing.Err() == nil {
		w.fail("%s: %v", what, err)
	}
}
