package txn

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// world is a coordinator with its log, partitions and producers. Partitions follow the rules of
// KIP-98 and KIP-890 in a few lines of their own.
type world struct {
	t          testing.TB
	r          *rand.Rand
	now        time.Time
	state      *State
	log        []shard.Record // what is durable
	epoch      int32          // of the coordinator
	fresh      int64
	ticket     shard.Ticket
	sender     shard.Ticket
	decisions  []sent // that may arrive, also again and late
	partitions []*modelPartition
	latest     map[string]Identity // that a producer has been given
	committed  map[int]bool        // transactions whose producer was told so; false is aborted
	trace      []string
}

type sent struct {
	Decision
	epoch    int32 // of the coordinator that sends it
	received map[partition.ID]bool
}

type modelPartition struct {
	id        partition.ID
	producers map[int64]*modelProducer
	outcome   map[int]bool // of transactions with records here: committed or not
}

type modelProducer struct {
	epoch       int16
	coordinator int32
	open        int // transaction; 0 if none
}

type client struct {
	id       string
	version  int16
	identity Identity
	open     int // transaction; 0 if none
	ending   bool
	commit   bool
}

func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.trace[max(0, len(w.trace)-60):] {
		w.t.Log(line)
	}
	w.t.Fatalf(format, args...)
}

// do runs a handler. Its records and its answer may be lost in a crash, or its answer alone.
func (w *world) do(handle func(t shard.Ticket) shard.Step) (r Result, answered bool) {
	w.ticket++
	own := w.ticket
	step := handle(own)
	switch w.r.IntN(40) {
	case 0:
		w.crash()
		return r, false
	case 1:
		w.log = append(w.log, step.Records...)
		w.crash()
		return r, false
	}
	w.apply(step, own, func(v Result) { r, answered = v, true })
	return r, answered
}

func (w *world) apply(step shard.Step, own shard.Ticket, answer func(Result)) {
	for _, rec := range step.Records {
		if err := w.state.Replay(rec); err != nil {
			w.fail("replay: %v", err)
		}
	}
	w.log = append(w.log, step.Records...)
	for _, a := range step.Answers {
		switch {
		case a.To == own && own != 0:
			answer(a.Value.(Result))
		case a.To == w.sender:
			w.sender = 0
			for _, d := range a.Value.([]Decision) {
				w.note("decided %+v", d)
				w.decisions = append(w.decisions, sent{d, w.epoch, map[partition.ID]bool{}})
			}
		}
	}
	if w.sender == 0 {
		w.ticket++
		w.sender = w.ticket
		w.apply(w.state.Await(w.sender), 0, nil)
	}
}

// crash replays the log in a coordinator of the next epoch. The one before may still send what it
// had decided.
func (w *world) crash() {
	w.note("crash")
	w.state = NewState(Config{MaxTimeout: time.Hour})
	if w.r.IntN(3) == 0 {
		for _, rec := range w.log {
			if err := w.state.Replay(rec); err != nil {
				w.fail("replay: %v", err)
			}
		}
		w.log = w.state.Snapshot()
		w.state = NewState(Config{MaxTimeout: time.Hour})
	}
	for _, rec := range w.log {
		if err := w.state.Replay(rec); err != nil {
			w.fail("replay: %v", err)
		}
	}
	w.epoch++
	w.sender = 0
	w.apply(shard.Step{}, 0, nil)
}

// deliver brings a marker to a partition; the decision is complete once each has its own.
func (w *world) deliver(i int) {
	d := &w.decisions[i]
	if len(d.Partitions) > 0 {
		id := d.Partitions[w.r.IntN(len(d.Partitions))]
		if !d.Bumped && d.received[id] {
			// Before KIP-890 nothing tells a repeat from the marker of the next transaction: the sender
			// does not repeat what it knows to be there.
			return
		}
		w.partitions[id.Index].mark(w, d)
		d.received[id] = true
	}
	if len(d.received) == len(d.Partitions) && d.epoch == w.epoch {
		done := d.Decision
		w.do(func(t shard.Ticket) shard.Step { return w.state.Complete(w.now, t, done) })
	}
}

func (p *modelPartition) producer(id int64) *modelProducer {
	if p.producers[id] == nil {
		p.producers[id] = &modelProducer{epoch: -1, coordinator: -1}
	}
	return p.producers[id]
}

func (p *modelPartition) mark(w *world, d *sent) {
	k := p.producer(d.ProducerID)
	if d.epoch < k.coordinator || d.ProducerEpoch < k.epoch || d.Bumped && d.ProducerEpoch == k.epoch && k.open != 0 {
		return
	}
	k.coordinator, k.epoch = d.epoch, d.ProducerEpoch
	if k.open != 0 {
		w.note("%s: transaction %d committed %v by %+v", p.id, k.open, d.Commit, d.Decision)
		p.outcome[k.open] = d.Commit
		k.open = 0
	}
}

func (w *world) step(c *client, id int) {
	old := c.identity != nobody && c.identity != w.latest[c.id]
	check := func(r Result, answered bool) bool {
		if answered && r.Err == nil && old {
			w.fail("%s: producer %+v was served, and %+v has the id", c.id, c.identity, w.latest[c.id])
		}
		return answered && r.Err == nil
	}
	switch {
	case c.identity == nobody:
		w.fresh++
		r, answered := w.do(func(t shard.Ticket) shard.Step { return w.state.Init(w.now, t, c.id, time.Minute, nobody, w.fresh) })
		if w.note("%s init %+v %v", c.id, r, answered); answered && r.Err == nil {
			c.identity, c.open, c.ending = r.Identity, 0, false
			w.latest[c.id] = r.Identity
		}
	case c.ending:
		w.fresh++
		r, answered := w.do(func(t shard.Ticket) shard.Step {
			return w.state.End(w.now, t, c.id, c.identity, c.commit, c.version, w.fresh)
		})
		w.note("%s end %d %+v commit %v: %+v %v", c.id, c.open, c.identity, c.commit, r, answered)
		if check(r, answered) {
			if c.open != 0 {
				w.committed[c.open] = c.commit
			}
			c.identity, c.open, c.ending = r.Identity, 0, false
			w.latest[c.id] = r.Identity
		} else if answered && r.Err != kerr.ConcurrentTransactions {
			c.identity = nobody
		}
	case c.open != 0 && w.r.IntN(3) == 0:
		c.ending, c.commit = true, w.r.IntN(2) == 0
	default:
		p := w.partitions[w.r.IntN(len(w.partitions))]
		r, answered := w.do(func(t shard.Ticket) shard.Step {
			return w.state.Add(w.now, t, c.id, c.identity, []partition.ID{p.id}, c.version)
		})
		if check(r, answered) {
			if c.open == 0 {
				c.open = id
			}
			k := p.producer(c.identity.ProducerID)
			if k.open != 0 && k.open != c.open {
				w.fail("%s: transaction %d begins, and %d is open", p.id, c.open, k.open)
			}
			if c.identity.Epoch >= k.epoch {
				k.epoch, k.open = c.identity.Epoch, c.open
				w.note("%s: transaction %d has records of %s %+v", p.id, c.open, c.id, c.identity)
			}
		} else if answered && r.Err != kerr.ConcurrentTransactions {
			c.identity = nobody
		}
	}
}

// Whatever is lost, late or repeated: a transaction ends in all of its partitions as its producer
// was told, nothing of it stays open once its time is up, and a producer whose transactional id
// another one has does nothing more. It is a model of the coordinator with seeds.
func TestStateModel(t *testing.T) {
	ended := 0
	for seed := range uint64(400) {
		w := &world{t: t, r: rand.New(rand.NewPCG(seed, 0)), now: time.Unix(1000, 0), fresh: 10,
			latest: map[string]Identity{}, committed: map[int]bool{}}
		for i := range 4 {
			w.partitions = append(w.partitions, &modelPartition{partition.ID{Topic: "t", Index: int32(i)}, map[int64]*modelProducer{}, map[int]bool{}})
		}
		w.note("seed %d", seed)
		w.crash()
		var clients []*client
		for i := range 6 {
			clients = append(clients, &client{id: fmt.Sprint("id-", i%2), version: int16(1 + (int(seed)+i%2)%2), identity: nobody})
		}
		for i := range 400 {
			switch what := w.r.IntN(20); {
			case what < 13:
				// Mostly one at a time: else nobody keeps its id.
				c := clients[w.r.IntN(2)]
				if w.r.IntN(15) == 0 {
					c = clients[w.r.IntN(len(clients))]
				}
				w.step(c, i+1)
			case what < 18 && len(w.decisions) > 0:
				w.deliver(max(len(w.decisions)-1-w.r.IntN(4), 0))
			case what == 18:
				w.now = w.now.Add(time.Duration(w.r.IntN(10)) * time.Second)
				w.apply(w.state.Tick(w.now), 0, nil)
			case what == 19 && i%7 == 0:
				w.crash()
			}
		}
		w.now = w.now.Add(2 * time.Minute)
		w.apply(w.state.Tick(w.now), 0, nil)
		for len(w.state.due) > 0 {
			for i := range w.decisions {
				if w.decisions[i].epoch == w.epoch {
					w.deliver(i)
				}
			}
		}
		for txn, commit := range w.committed {
			for _, p := range w.partitions {
				if got, here := p.outcome[txn]; here && got != commit {
					w.fail("seed %d: transaction %d is committed in %s: %v, its producer was told %v", seed, txn, p.id, got, commit)
				}
			}
		}
		for _, p := range w.partitions {
			for txn, got := range p.outcome {
				for _, other := range w.partitions {
					if o, here := other.outcome[txn]; here && o != got {
						w.fail("seed %d: transaction %d is torn", seed, txn)
					}
				}
			}
			for id, k := range p.producers {
				if k.open != 0 {
					w.fail("seed %d: transaction %d of producer %d is open in %s", seed, k.open, id, p.id)
				}
			}
		}
		ended += len(w.committed)
	}
	if ended < 400*5 {
		t.Errorf("%d transactions ended in all: the model does too little", ended)
	}
}

func FuzzReplay(f *testing.F) {
	t := &transaction{id: "id", producerID: 7, epoch: 1, previous: -1, next: 9, timeout: time.Minute, phase: prepareCommit, version: 2,
		partitions: map[partition.ID]bool{{Topic: "t", Index: 3}: true}, started: time.Unix(5, 0)}
	r := t.record(time.Unix(6, 0))
	f.Add(r.Key, r.Value)
	f.Add(r.Key, []byte(nil))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		s := NewState(Config{})
		if s.Replay(shard.Record{Record: record.Record{Key: key, Value: value}}) != nil {
			return
		}
		again := NewState(Config{})
		for _, r := range s.Snapshot() {
			if err := again.Replay(r); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := fmt.Sprint(again.Snapshot()), fmt.Sprint(s.Snapshot()); got != want {
			t.Fatalf("after a snapshot %s, want %s", got, want)
		}
	})
}
