package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/record"
)

func transactional(o *record.BatchOptions) { o.Transactional = true }

// inTransaction appends a batch of a transaction as a client whose coordinator agrees.
func inTransaction(t testing.TB, p *Partition, b produced) int64 {
	t.Helper()
	b.attr = transactional
	v, _ := p.Verification(b.producer, b.epoch)
	done := make(chan answer, 1)
	err := p.AppendTransactional(context.Background(), b.bytes(t), v, func(r AppendResult, err error) { done <- answer{r, err} })
	if err != nil {
		t.Fatal(err)
	}
	a := <-done
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.BaseOffset
}

func appendMarker(t testing.TB, p *Partition, m record.Marker, bumped bool) {
	t.Helper()
	if err := p.AppendMarker(context.Background(), m, bumped); err != nil {
		t.Fatal(err)
	}
}

func readCommitted(t testing.TB, p *Partition, from int64, size int) (values []string) {
	t.Helper()
	for _, r := range committed(t, p, from, size) {
		values = append(values, string(r.Value))
	}
	return values
}

// committed reads from an offset on as KIP-98 tells a consumer to, about size bytes at a time.
func committed(t testing.TB, p *Partition, from int64, size int) (records []record.Record) {
	t.Helper()
	for {
		res, err := p.Read(context.Background(), from, size, ReadCommitted)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Batches) == 0 {
			return records
		}
		open := map[int64]bool{}
		aborted := res.Aborted
		var r record.Reader
		for _, b := range res.Batches {
			if err := b.Check(); err != nil {
				t.Fatal(err)
			}
			for len(aborted) > 0 && aborted[0].FirstOffset <= b.LastOffset() {
				open[aborted[0].ProducerID] = true
				aborted = aborted[1:]
			}
			if b.IsControl() {
				m, err := record.ParseMarker(&r, b)
				if err != nil {
					t.Fatal(err)
				}
				if !m.Commit {
					delete(open, b.ProducerID())
				}
			} else if !b.IsTransactional() || !open[b.ProducerID()] {
				if err := r.Reset(b); err != nil {
					t.Fatal(err)
				}
				var rec record.Record
				for ok, err := r.Next(&rec); ok; ok, err = r.Next(&rec) {
					if err != nil {
						t.Fatal(err)
					}
					if rec.Offset >= from {
						rec.Key, rec.Value, rec.Headers = bytes.Clone(rec.Key), bytes.Clone(rec.Value), nil
						records = append(records, rec)
					}
				}
			}
			from = b.NextOffset()
		}
	}
}

// What is committed is read in the order of the log, nothing of an aborted or an open transaction,
// wherever a reader begins; through crashes, checkpoints and removed records.
func TestTransactionsModel(t *testing.T) {
	type entry struct {
		offset int64
		value  string
		kept   bool // committed, or not of a transaction
	}
	type client struct {
		id       int64
		epoch    int16
		sequence int32
		first    int64 // of its open transaction, −1
		entries  []int // of the log
	}
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 0))
		c := newCluster(t)
		n := c.start()
		p := n.create(t, "t", 1, nil)
		var log []entry
		var clients []*client
		for i := range 4 {
			clients = append(clients, &client{id: int64(i + 1), first: -1})
		}
		for step := range 150 {
			k := clients[r.IntN(len(clients))]
			switch what := r.IntN(20); {
			case what < 9:
				value := fmt.Sprint(step)
				at := inTransaction(t, p, produced{producer: k.id, epoch: k.epoch, sequence: k.sequence, values: []string{value}})
				k.sequence++
				if k.first < 0 {
					k.first = at
				}
				k.entries = append(k.entries, len(log))
				log = append(log, entry{at, value, false})
			case what < 14:
				commit, bump := r.IntN(2) == 0, r.IntN(2) == 0
				if bump {
					k.epoch++
					k.sequence = 0
				}
				appendMarker(t, p, record.Marker{ProducerID: k.id, ProducerEpoch: k.epoch, Commit: commit}, bump)
				for _, i := range k.entries {
					log[i].kept = commit
				}
				k.first, k.entries = -1, nil
			case what < 16:
				value := fmt.Sprint("plain ", step)
				log = append(log, entry{mustAppend(t, p, produced{values: []string{value}}), value, true})
			case what == 16:
				if err := p.checkpoint(context.Background()); err != nil {
					t.Fatal(err)
				}
			case what == 17:
				n = c.start()
				p = n.partition(t, "t", 0)
			case what == 18 && step%4 == 0:
				o := p.Offsets()
				if _, err := p.DeleteRecords(context.Background(), o.LogStart+r.Int64N(1+(o.HighWatermark-o.LogStart)/3)); err != nil {
					t.Fatal(err)
				}
			}
			o := p.Offsets()
			stable := o.HighWatermark
			for _, k := range clients {
				if k.first >= 0 {
					stable = min(stable, k.first)
				}
			}
			if stable = max(stable, o.LogStart); o.LastStable != stable {
				t.Fatalf("seed %d step %d: last stable offset %d, want %d", seed, step, o.LastStable, stable)
			}
			if step%10 > 0 {
				continue
			}
			from := o.LogStart + r.Int64N(o.HighWatermark-o.LogStart+1)
			var want []string
			for _, e := range log {
				if e.kept && e.offset >= from && e.offset < stable {
					want = append(want, e.value)
				}
			}
			if d := cmp.Diff(want, readCommitted(t, p, from, 1+r.IntN(2000))); d != "" {
				t.Fatalf("seed %d step %d from %d: want, got: %s", seed, step, from, d)
			}
		}
	}
}

// A transaction is not decided for readers before its marker is durable.
func TestMarkerIsDurableBeforeItCounts(t *testing.T) {
	c := newCluster(t)
	n := c.start()
	p := n.create(t, "t", 1, nil)
	inTransaction(t, p, produced{producer: 1, values: []string{"a"}})
	hold := c.now.Hold(objectstore.Before, isWALWrite)
	marked := make(chan error, 1)
	go func() {
		marked <- p.AppendMarker(context.Background(), record.Marker{ProducerID: 1, Commit: true}, false)
	}()
	<-hold.Reached()
	if o := p.Offsets(); o.LastStable != 0 {
		t.Fatalf("last stable offset %d while the marker is on its way, want 0", o.LastStable)
	}
	hold.Release(nil)
	if err := <-marked; err != nil {
		t.Fatal(err)
	}
	if o := p.Offsets(); o.LastStable != 2 {
		t.Fatalf("last stable offset %d, want 2", o.LastStable)
	}
}

// A marker of an older coordinator, of an older epoch, or of the transaction before the open one
// is refused, and the transaction stays open; also by the next leader.
func TestLateMarkersAreRefused(t *testing.T) {
	c := newCluster(t)
	p := c.start().create(t, "t", 1, nil)
	inTransaction(t, p, produced{producer: 1, epoch: 5, values: []string{"a"}})
	appendMarker(t, p, record.Marker{ProducerID: 1, ProducerEpoch: 6, CoordinatorEpoch: 3, Commit: true}, true)
	inTransaction(t, p, produced{producer: 1, epoch: 6, values: []string{"b"}})
	for _, crash := range []bool{false, true} {
		if crash {
			p = c.start().partition(t, "t", 0)
		}
		for _, test := range []struct {
			name   string
			m      record.Marker
			bumped bool
			want   error
		}{
			{"coordinator", record.Marker{ProducerID: 1, ProducerEpoch: 7, CoordinatorEpoch: 2}, true, ErrCoordinatorFenced},
			{"epoch", record.Marker{ProducerID: 1, ProducerEpoch: 5, CoordinatorEpoch: 3}, false, ErrInvalidProducerEpoch},
			{"transaction before", record.Marker{ProducerID: 1, ProducerEpoch: 6, CoordinatorEpoch: 3}, true, ErrInvalidProducerEpoch},
		} {
			if err := p.AppendMarker(context.Background(), test.m, test.bumped); !errors.Is(err, test.want) {
				t.Errorf("%s: %v, want %v", test.name, err, test.want)
			}
		}
		if o := p.Offsets(); o.LastStable != 2 {
			t.Fatalf("last stable offset %d, want 2, where the open transaction begins", o.LastStable)
		}
	}
	if got := readCommitted(t, p, 0, 1<<20); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("read %v, want a", got)
	}
}

// A producer that was fenced by a marker appends nothing more, and one with an open transaction
// nothing outside of it. A batch that was verified before a marker came begins nothing.
func TestFencedProducers(t *testing.T) {
	p := newCluster(t).start().create(t, "t", 1, nil)
	late, open := p.Verification(1, 0)
	if open {
		t.Fatal("a producer that is not known has a transaction")
	}
	inTransaction(t, p, produced{producer: 1, values: []string{"a"}})
	if _, open := p.Verification(1, 0); !open {
		t.Fatal("the transaction is not open")
	}
	wantRefused(t, p, produced{producer: 1, sequence: 1, values: []string{"v"}}, ErrInvalidTxnState)
	appendMarker(t, p, record.Marker{ProducerID: 1, Commit: true}, false)
	data := produced{producer: 1, sequence: 1, values: []string{"late"}, attr: transactional}.bytes(t)
	if err := p.AppendTransactional(context.Background(), data, late, func(AppendResult, error) {}); !errors.Is(err, ErrInvalidTxnState) {
		t.Fatalf("a batch that was verified before the marker: %v, want ErrInvalidTxnState", err)
	}
	appendMarker(t, p, record.Marker{ProducerID: 1, ProducerEpoch: 1}, true)
	wantRefused(t, p, produced{producer: 1, sequence: 1, values: []string{"v"}, attr: transactional}, ErrInvalidProducerEpoch)
	if o := p.Offsets(); o.LastStable != o.HighWatermark {
		t.Fatalf("last stable offset %d, high watermark %d: something is open", o.LastStable, o.HighWatermark)
	}
}

// Producers with open transactions are not forgotten, whatever their number or age, and their
// number has a bound.
func TestOpenTransactionsAreKept(t *testing.T) {
	c := newCluster(t)
	c.cfg.MaxProducers = 10
	p := c.start().create(t, "t", 1, nil)
	for id := range int64(10) {
		inTransaction(t, p, produced{producer: id + 1, values: []string{"v"}})
	}
	v, _ := p.Verification(11, 0)
	data := produced{producer: 11, values: []string{"v"}, attr: transactional}.bytes(t)
	if err := p.AppendTransactional(context.Background(), data, v, func(AppendResult, error) {}); !errors.Is(err, ErrTooManyTransactions) {
		t.Fatalf("one transaction more: %v, want ErrTooManyTransactions", err)
	}
	p.state.expire(1 << 60)
	if n := len(p.Producers()); n != 10 {
		t.Fatalf("%d producers are known, want 10", n)
	}
	appendMarker(t, p, record.Marker{ProducerID: 1, Commit: true}, false)
	inTransaction(t, p, produced{producer: 11, values: []string{"v"}})
	if o := p.Offsets(); o.LastStable != 1 {
		t.Fatalf("last stable offset %d, want 1", o.LastStable)
	}
}

// Aborted transactions whose records the log holds have a bound, with those that are open: none begins beyond it, after a
// restart either, until their records are deleted.
func TestAbortedTransactionsAreBounded(t *testing.T) {
	c := newCluster(t)
	c.cfg.MaxAborted = 3
	n := c.start()
	p := n.create(t, "t", 1, nil)
	for id := range int64(2) {
		inTransaction(t, p, produced{producer: id + 1, values: []string{"v"}})
		appendMarker(t, p, record.Marker{ProducerID: id + 1}, false)
	}
	inTransaction(t, p, produced{producer: 3, values: []string{"v"}})
	begin := func(id int64) error {
		v, _ := p.Verification(id, 0)
		return p.AppendTransactional(context.Background(), produced{producer: id, values: []string{"v"}, attr: transactional}.bytes(t), v, func(AppendResult, error) {})
	}
	if err := begin(4); !errors.Is(err, ErrTooManyTransactions) {
		t.Errorf("one transaction more: %v, want %v", err, ErrTooManyTransactions)
	}
	inTransaction(t, p, produced{producer: 3, sequence: 1, values: []string{"the one that is open goes on"}})
	appendMarker(t, p, record.Marker{ProducerID: 3, Commit: true}, false)
	inTransaction(t, p, produced{producer: 4, values: []string{"in the place of one that was committed"}})
	appendMarker(t, p, record.Marker{ProducerID: 4}, false)
	n.stop()
	p = c.start().partition(t, "t", 0)
	if err := begin(5); !errors.Is(err, ErrTooManyTransactions) {
		t.Errorf("one transaction more after a restart: %v, want %v", err, ErrTooManyTransactions)
	}
	if _, err := p.DeleteRecords(t.Context(), p.Offsets().HighWatermark); err != nil {
		t.Fatal(err)
	}
	if err := begin(5); err != nil {
		t.Errorf("after the records of all others are deleted: %v", err)
	}
}
