package worker

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
)

// However often the catalog refuses a commit, no data file is written again: the store has the
// files that the table names, each of which took one request, and no other.
func TestConflictsRewriteNoDataFiles(t *testing.T) {
	p := newPath(t, 2)
	p.cfg.Compact = coordinator.CompactFalse // which writes files of its own, and may be cut off
	refused := 0
	p.catalog.fault = func(n int) fault {
		if n%4 != 3 {
			refused++
			return faultConflict
		}
		return faultNone
	}
	p.start()
	for range 5 {
		p.produce(20)
		p.committed()
	}
	p.crash()
	p.exact(200, 0)
	written := 0
	for after := ""; ; {
		page, err := p.bucket.List(t.Context(), "", after)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, o := range page {
			after = o.Key
			if strings.HasSuffix(o.Key, ".parquet") {
				written++
			}
		}
	}
	table, err := p.load()
	if err != nil {
		t.Fatal(err)
	}
	named := table.CurrentSnapshot().Summary.Properties.GetInt("total-data-files", -1)
	if written != named || refused < 15 {
		t.Errorf("%d data files were written, the table has %d, after %d conflicts", written, named, refused)
	}
}

// quietPath has a partition whose first record is in the table, and whose second was just read:
// what follows waits for a request. Reads counts reads of the log from the second record on.
func quietPath(t *testing.T, cfg Config) (p *path, reads func() int) {
	t.Helper()
	p = newPath(t, 1)
	p.start()
	p.produce(1)
	p.committed() // there is a table
	p.crash()
	p.cfg.Lag, p.worker = time.Hour, cfg
	p.worker.Retry, p.worker.Gather, p.worker.Offer = 5*time.Millisecond, time.Hour, time.Hour
	p.start()
	p.wait(func() bool { return p.running.Lag(time.Now())[0].Committed == 1 }, func() string { return "the worker to know the table" })
	log := p.logs[0]
	before := 0
	reads = func() int {
		log.mu.Lock()
		defer log.mu.Unlock()
		return log.reads - before
	}
	before = reads()
	p.produce(1)
	p.wait(func() bool { return reads() > 0 }, func() string { return "the second record to be read" })
	return p, reads
}

// ask requests a commit of what the table lacks behind its first record, and returns the rows of
// the answer.
func (p *path) ask() (rows int64) {
	p.t.Helper()
	commit := uuid.New()
	if err := p.control.Append(p.t.Context(), p.topic, control.Request{Epoch: p.epoch, Commit: commit, Next: []control.Offset{{Partition: 0, Offset: 1}}}); err != nil {
		p.t.Fatal(err)
	}
	p.wait(func() (answered bool) {
		for _, e := range p.control.All(p.topic) {
			if a, ok := e.(control.Answer); ok && a.Commit == commit {
				answered, rows = true, 0
				for _, f := range a.Files {
					rows += f.Rows
				}
			}
		}
		return answered
	}, func() string { return "an answer" })
	return rows
}

// A request gets all records of a quiet partition, also when they are more than a task of one
// reads: what it leaves would wait for the next request, and always more behind it.
func TestQuietPartitionIsReadToItsEnd(t *testing.T) {
	p, _ := quietPath(t, Config{ChunkBytes: quietShare * 200})
	const more = 50
	p.produce(more)
	// The task of the second record may not have ended when the first request comes.
	for n, rows := 0, int64(0); rows != 1+more; n++ {
		if n == 3 {
			t.Fatalf("%d of %d rows are in the answers to %d requests", rows, 1+more, n)
		}
		rows = p.ask()
	}
}

// The records of a quiet partition are read together, when a request asks for them, and the
// answer has all of them.
func TestQuietPartitionIsReadForTheRequest(t *testing.T) {
	p, reads := quietPath(t, Config{})
	const more = 20
	for range more {
		p.produce(1)
	}
	for rows := int64(0); rows != 1+more; {
		rows = p.ask()
		if n := reads(); n > 2 {
			t.Fatalf("%d reads, want one of the second record and one of the others; the answer has %d rows", n, rows)
		}
	}
}
