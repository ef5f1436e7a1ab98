package broker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

const (
	// coldBytes is how much of a partition one of these reads brings into memory; the
	// stream store reads ahead of a consumer that goes on.
	coldBytes = 1 << 20
	// maxColdReads bounds the partitions that one connection reads from objects at a time.
	maxColdReads = 16
	// coldWait is how long a fetch waits at least when there are records for it, but none in
	// memory, even if its client would wait less for new ones.
	coldWait = time.Second
)

// coldReads are the reads of objects on behalf of the fetches of one connection. They go on
// when a fetch is answered without them, so that the next one finds their records in
// memory. They belong to the goroutine that handles requests.
type coldReads struct {
	c       *conn
	reads   map[coldKey]*coldRead
	running int
	direct  *coldRead      // see start
	done    chan *coldRead // capacity maxColdReads: never blocks its sender
	work    sync.WaitGroup
}

type coldKey struct {
	p      *partition.Partition
	offset int64
}

type coldRead struct {
	key      coldKey
	since    time.Time // when it was first asked for
	maxBytes int
	running  bool
	loaded   bool // it was brought into memory once
	wanted   bool // by the fetch under way
	res      partition.ReadResult
	err      error
}

func newColdReads(c *conn) *coldReads {
	return &coldReads{c: c, reads: make(map[coldKey]*coldRead), done: make(chan *coldRead, maxColdReads)}
}

// want notes what a fetch did not find in memory, and forgets all else that is not under
// way. It starts as many reads as may run, those that were asked for first before others, so
// that each has its turn however many there are. urgent says that the fetch must wait for
// one of them, that could else miss it for ever.
func (r *coldReads) want(f *fetch) (urgent bool) {
	for _, read := range r.reads {
		read.wanted = false
	}
	var idle []*coldRead
	for _, fp := range f.cold {
		key := coldKey{fp.p, fp.next}
		read := r.reads[key]
		if read == nil {
			read = &coldRead{key: key, since: time.Now()}
			r.reads[key] = read
		}
		read.wanted = true
		if !read.running {
			read.maxBytes = min(fp.maxBytes, f.maxBytes, coldBytes)
			idle = append(idle, read)
		}
	}
	for key, read := range r.reads {
		if !read.wanted && !read.running {
			delete(r.reads, key)
			if r.direct == read {
				r.direct = nil
			}
		}
	}
	slices.SortStableFunc(idle, func(a, b *coldRead) int { return a.since.Compare(b.since) })
	for _, read := range idle[:min(len(idle), maxColdReads-r.running)] {
		r.start(read, f.isolation)
	}
	return r.direct != nil && r.direct.wanted
}

// start brings records into memory. Those that were there already, and left it before they were
// fetched, are read for the next fetch to take: of one partition at a time, a batch.
func (r *coldReads) start(read *coldRead, isolation partition.Isolation) {
	direct := read.loaded && (r.direct == nil || r.direct == read)
	if direct {
		r.direct = read
	}
	read.running = true
	r.running++
	r.work.Go(func() {
		ctx := streamstore.WithReader(r.c.ctx, r.c)
		if direct {
			read.res, read.err = read.key.p.Read(ctx, read.key.offset, 1, isolation)
		} else {
			read.err = read.key.p.Load(ctx, read.key.offset, read.maxBytes)
		}
		r.done <- read
	})
}

// ended takes a read from done.
func (r *coldReads) ended(read *coldRead) {
	read.running, read.loaded = false, true
	r.running--
}

// settle takes all that has ended.
func (r *coldReads) settle() {
	for {
		select {
		case read := <-r.done:
			r.ended(read)
		default:
			return
		}
	}
}

// take returns what a read has for the partition itself, or why it failed; once. Else it has
// nothing.
func (r *coldReads) take(fp *fetchPartition) (res partition.ReadResult, err error) {
	read := r.reads[coldKey{fp.p, fp.next}]
	if read == nil || read.running || len(read.res.Batches) == 0 && read.err == nil {
		return res, partition.ErrNotInMemory
	}
	delete(r.reads, read.key)
	if r.direct == read {
		r.direct = nil
	}
	if errors.Is(read.err, context.Canceled) { // the peer is gone, or the broker stops
		return res, partition.ErrNotInMemory
	}
	return read.res, read.err
}
