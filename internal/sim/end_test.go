package sim

import (
	"bytes"
	"context"
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// finish starts every node again, without faults, and checks what is left: all streams, first
// from wherever they are, then from objects alone; and nothing else in the bucket.
func (w *world) finish() {
	w.trace.add("world", "the end begins")
	w.plan.faults, w.plan.latency, w.plan.away, w.plan.lost = objectstore.Faults{Latency: 2 * time.Millisecond}, 0, 0, 0
	cfg := &w.plan.config
	cfg.CleanInterval, cfg.CompactionInterval, cfg.MinorInterval, cfg.MajorInterval, cfg.CleanupInterval = 10*time.Minute, time.Hour, time.Hour, time.Hour, time.Hour
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
	_ = wait(w.failing, prepared+2*w.plan.config.DeleteGrace+20*time.Minute)
	for _, l := range lives {
		if _, err := l.store.Clean(l.ctx); err != nil {
			w.fail("%s: clean at the end: %v", l.name, err)
			return
		}
	}
	named := map[string]bool{}
	for _, s := range w.all() {
		w.name(lives[0].line.managers, s, named)
	}
	for after := ""; ; {
		page, err := w.disk.List(w.failing, "", after)
		if err != nil || len(page) == 0 {
			break
		}
		for _, o := range page {
			after = o.Key
			switch {
			case strings.HasPrefix(o.Key, "data/"):
				// What was uploaded between the last snapshot and the loss of the database is an orphan.
				if !named[o.Key] && w.plan.restores == 0 {
					w.fail("the bucket holds %s, which nothing names", o.Key)
				}
				delete(named, o.Key)
			case strings.HasPrefix(o.Key, "wal/"):
				data, _ := w.disk.Get(w.failing, o.Key, 0, -1)
				var text bytes.Buffer
				if err := streamstore.DumpWAL(&text, data); err != nil || !strings.Contains(text.String(), ": fence") {
					w.fail("the bucket holds %s, which is no fence: %v", o.Key, err)
				}
			case !strings.HasPrefix(o.Key, "meta"):
				w.fail("the bucket holds %s", o.Key)
			}
		}
	}
	for key := range named {
		w.fail("the bucket lacks %s", key)
	}
}

// name adds the objects that hold a stream, and the parts of composites.
func (w *world) name(meta managers, s *stream, named map[string]bool) {
	ranges, err := meta.StreamObjects(context.Background(), s.id, s.start(), math.MaxInt64, math.MaxInt)
	if err != nil {
		if _, gone := s.where(); !gone || !errors.Is(err, streamstore.ErrStreamNotExist) {
			w.fail("objects of stream %d: %v", s.id, err)
		}
		return
	}
	for _, r := range ranges {
		named[streamstore.ObjectKey(r.ID)] = true
		if r.Kind != streamstore.KindComposite {
			continue
		}
		data, err := w.disk.Get(w.failing, streamstore.ObjectKey(r.ID), 0, -1)
		if err != nil {
			continue // told by the caller
		}
		for _, id := range compositeParts(data) {
			named[streamstore.ObjectKey(id)] = true
		}
	}
}

var objectIDs = regexp.MustCompile(`object id (\d+)`)

// compositeParts reads which objects a composite links.
func compositeParts(data []byte) (parts []streamstore.ObjectID) {
	var text bytes.Buffer
	if err := streamstore.DumpComposite(&text, data); err != nil {
		return nil
	}
	for _, m := range objectIDs.FindAllStringSubmatch(text.String(), -1)[1:] { // the first is its own
		id, _ := strconv.ParseInt(m[1], 10, 64)
		parts = append(parts, streamstore.ObjectID(id))
	}
	return parts
}
