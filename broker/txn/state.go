package txn

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/partition"
)

// Config bounds what producers may ask for.
type Config struct {
	// MaxTimeout is the longest timeout that a producer may set for its transactions. 15 min if zero.
	MaxTimeout time.Duration
	// Expiration is how long a transactional id without a transaction is known. 7 days if zero.
	Expiration time.Duration
	// MemoryBytes bounds what all transactional ids take in memory with their transactions, by estimate, in all nodes together:
	// each partition of __transaction_state has its part. New ids may fill three quarters of it. 256 MiB if zero.
	MemoryBytes int64
	// MaxPartitions bounds the partitions of one transaction. 10,000 if zero.
	MaxPartitions int
	// Partitions of __transaction_state when it is created. 16 if zero: as many as
	// __consumer_offsets has, since they spread the coordinators over nodes and do no more.
	Partitions int
}

func (c *Config) setDefaults() {
	c.MaxTimeout = cmp.Or(c.MaxTimeout, 15*time.Minute)
	c.Expiration = cmp.Or(c.Expiration, 7*24*time.Hour)
	c.MemoryBytes = cmp.Or(c.MemoryBytes, 256<<20)
	c.MaxPartitions = cmp.Or(c.MaxPartitions, 10_000)
	c.Partitions = cmp.Or(c.Partitions, 16)
}

// lastEpoch is the last epoch that a producer id is given out with: one more is left for the
// markers that fence it.
const lastEpoch = math.MaxInt16 - 1

// State is the transactional ids of one partition of __transaction_state.
type State struct {
	cfg      Config
	txns     map[string]*transaction
	ongoing  map[string]*transaction // those that are neither decided nor complete
	due      map[string]*transaction // those that are decided and not complete
	wake     time.Time               // no deadline is before it; zero if there is none
	expiry   time.Time               // next look for ids past their expiration
	sender   shard.Ticket            // waits for decisions
	bytes    int64                   // that txns take
	shown    atomic.Int64            // bytes, as others than the owner of the state see them
	refusals int                     // how often there was no room
}

// transaction is a transactional id, with its transaction if one is under way.
type transaction struct {
	id         string
	producerID int64
	epoch      int16
	previous   int64 // producer id before this one; −1 if there was none
	next       int64 // producer id after the decision; −1 if it stays
	timeout    time.Duration
	phase      kmsg.TransactionState
	partitions map[partition.ID]bool
	started    time.Time // of the transaction; zero if there is none
	updated    time.Time
	version    int16 // 2 if the epoch goes up with each transaction (KIP-890)

	waiting   []shard.Ticket // for the decision to be complete
	sending   bool           // the sender has the decision
	recovered int16          // epoch of the last producer that asked for its next one (KIP-360)
}

// A Decision is what the partitions of a transaction must learn.
type Decision struct {
	TransactionalID string
	ProducerID      int64
	ProducerEpoch   int16
	Commit          bool
	Bumped          bool // the epoch is above that of the transaction's records
	Partitions      []partition.ID
}

// NewState returns the state of an empty partition. Of MemoryBytes it has the part of one of Partitions.
func NewState(cfg Config) *State {
	cfg.setDefaults()
	cfg.MemoryBytes /= int64(cfg.Partitions)
	return &State{cfg: cfg, txns: map[string]*transaction{}, ongoing: map[string]*transaction{}, due: map[string]*transaction{}, wake: time.Unix(0, 0)}
}

// Replay implements [shard.State].
func (s *State) Replay(r shard.Record) error {
	defer func() { s.shown.Store(s.bytes) }()
	id, v, err := parseRecord(r.Record)
	if err != nil {
		return err
	}
	if v == nil {
		if t := s.txns[id]; t != nil {
			s.bytes -= t.bytes()
		}
		delete(s.txns, id)
		delete(s.ongoing, id)
		delete(s.due, id)
		return nil
	}
	t := s.txns[id]
	if t == nil {
		t = &transaction{id: id, recovered: -1}
		s.txns[id] = t
	} else {
		s.bytes -= t.bytes()
	}
	t.producerID, t.epoch, t.previous, t.next = v.ProducerID, v.ProducerEpoch, v.PreviousProducerID, v.NextProducerID
	t.timeout, t.phase, t.version = time.Duration(v.TimeoutMillis)*time.Millisecond, v.State, v.ClientTransactionVersion
	t.started, t.updated = timeOf(v.StartTimestamp), timeOf(v.LastUpdateTimestamp)
	t.partitions = map[partition.ID]bool{}
	for _, topic := range v.Topics {
		for _, p := range topic.Partitions {
			t.partitions[partition.ID{Topic: topic.Topic, Index: p}] = true
		}
	}
	s.bytes += t.bytes()
	delete(s.ongoing, id)
	delete(s.due, id)
	switch {
	case t.phase == ongoing:
		s.ongoing[id] = t
		s.wakeBy(t.deadline())
	case t.decided():
		s.due[id] = t
	}
	return nil
}

// What a transactional id takes in memory, by estimate, and each partition of its transaction, beside their names.
const (
	idBytes        = 400
	partitionBytes = 80
)

func (t *transaction) bytes() int64 {
	n := idBytes + len(t.id)
	for p := range t.partitions {
		n += partitionBytes + len(p.Topic)
	}
	return int64(n)
}

// room tells whether there is room for next in the place of t, nil for a new id. Those that are there have the last
// quarter for themselves, so that their transactions go on whatever ids strangers ask for.
func (s *State) room(t, next *transaction) bool {
	bound, now := s.cfg.MemoryBytes, next.bytes()
	if t == nil {
		bound = bound / 4 * 3
	} else {
		now -= t.bytes()
	}
	if now <= 0 || s.bytes+now <= bound || invariant.Off("transaction-memory-bounded") {
		return true
	}
	s.refusals++
	return false
}

// memory is what the transactional ids take, and may take. Any goroutine may ask.
func (s *State) memory() (bytes, bound int64) { return s.shown.Load(), s.cfg.MemoryBytes }

// Snapshot implements [shard.State].
func (s *State) Snapshot() []shard.Record {
	var out []shard.Record
	for _, id := range slices.Sorted(maps.Keys(s.txns)) {
		out = append(out, s.txns[id].record(s.txns[id].updated))
	}
	return out
}

// Wake implements [shard.State].
func (s *State) Wake() time.Time { return s.wake }

// wakeBy makes sure that Tick comes no later than t.
func (s *State) wakeBy(t time.Time) {
	if s.wake.IsZero() || t.Before(s.wake) {
		s.wake = t
	}
}

func (t *transaction) deadline() time.Time { return t.started.Add(t.timeout) }

func (t *transaction) decided() bool { return t.phase == prepareCommit || t.phase == prepareAbort }

// Tick implements [shard.State]: transactions whose time is up are aborted, and transactional ids
// that nobody uses any more are forgotten.
func (s *State) Tick(now time.Time) shard.Step {
	var step shard.Step
	s.wake = time.Time{}
	var late []string
	for id, t := range s.ongoing {
		if now.Before(t.deadline()) {
			s.wakeBy(t.deadline())
		} else {
			late = append(late, id)
		}
	}
	slices.Sort(late)
	for _, id := range late {
		s.fence(s.ongoing[id], now, &step)
	}
	if s.expiry.IsZero() || !now.Before(s.expiry) {
		for _, id := range slices.Sorted(maps.Keys(s.txns)) {
			if t := s.txns[id]; t.phase != ongoing && !t.decided() && now.Sub(t.updated) >= s.cfg.Expiration {
				step.Records = append(step.Records, tombstone(id, now))
			}
		}
		s.expiry = now.Add(s.cfg.Expiration / 100)
	}
	s.wakeBy(s.expiry)
	return step
}

// Identity is a producer as its transactional id knows it.
type Identity struct {
	ProducerID int64
	Epoch      int16
}

var nobody = Identity{-1, -1}

// A Result answers a producer; Err is nil or says why it was refused.
type Result struct {
	Identity
	Err *kerr.Error
}

func refused(t shard.Ticket, err *kerr.Error) shard.Step { return answer(t, Result{nobody, err}) }

func answer(t shard.Ticket, v any) shard.Step {
	return shard.Step{Answers: []shard.Answer{{To: t, Value: v}}}
}

// Init gives a producer its id and epoch, which fences the one that had the transactional id
// before; what that one left open is aborted, while the new one asks again. Has is the identity of a
// producer that goes on after an error (KIP-360), or nobody. Fresh is a producer id that was never
// given out.
func (s *State) Init(now time.Time, ticket shard.Ticket, id string, timeout time.Duration, has Identity, fresh int64) shard.Step {
	if timeout <= 0 || timeout > s.cfg.MaxTimeout {
		return refused(ticket, kerr.InvalidTransactionTimeout)
	}
	t := s.txns[id]
	if t == nil {
		t = &transaction{id: id, producerID: fresh, epoch: -1, previous: -1, next: -1, phase: empty}
		if !s.room(nil, t) {
			return refused(ticket, kerr.PolicyViolation)
		}
	} else if has != nobody && !t.mayRecover(has) && !invariant.Off("transaction-fenced") {
		return refused(ticket, kerr.ProducerFenced)
	}
	switch {
	case t.decided():
		return refused(ticket, kerr.ConcurrentTransactions)
	case t.phase == ongoing:
		step := refused(ticket, kerr.ConcurrentTransactions)
		s.fence(t, now, &step)
		return step
	case has != nobody && t.isNext(has): // it asks again, the answer was lost
		return answer(ticket, Result{Identity{t.producerID, t.epoch}, nil})
	}
	if has != nobody {
		t.recovered = t.epoch
	}
	next := *t
	next.timeout, next.phase, next.partitions, next.started = timeout, empty, nil, time.Time{}
	if next.epoch >= lastEpoch {
		next.previous, next.producerID, next.epoch = next.producerID, fresh, -1
	}
	next.epoch++
	step := answer(ticket, Result{Identity{next.producerID, next.epoch}, nil})
	step.Records = append(step.Records, next.record(now))
	return step
}

// mayRecover reports whether a producer is the one that has the transactional id.
func (t *transaction) mayRecover(has Identity) bool {
	return has == Identity{t.producerID, t.epoch} || t.isNext(has)
}

// isNext reports whether the transactional id already has the epoch that the producer asks for.
func (t *transaction) isNext(has Identity) bool {
	if t.epoch == 0 && t.phase == empty {
		return has == Identity{t.previous, lastEpoch}
	}
	return has == Identity{t.producerID, t.recovered} && t.epoch == t.recovered+1
}

// check tells whether a producer is the one that has the transactional id.
func (s *State) check(id string, p Identity) (*transaction, *kerr.Error) {
	t := s.txns[id]
	switch {
	case t == nil || p.ProducerID < 0 || t.producerID != p.ProducerID && t.previous != p.ProducerID:
		return nil, kerr.InvalidProducerIDMapping
	case p != Identity{t.producerID, t.epoch} && !invariant.Off("transaction-fenced"):
		return t, kerr.ProducerFenced
	}
	return t, nil
}

// Add makes partitions part of the transaction, which begins with the first.
func (s *State) Add(now time.Time, ticket shard.Ticket, id string, p Identity, partitions []partition.ID, version int16) shard.Step {
	t, err := s.check(id, p)
	switch {
	case err != nil:
		return refused(ticket, err)
	case t.decided():
		return refused(ticket, kerr.ConcurrentTransactions)
	}
	next := *t
	next.partitions = map[partition.ID]bool{}
	if t.phase == ongoing {
		maps.Copy(next.partitions, t.partitions)
	} else {
		next.started = now
	}
	for _, id := range partitions {
		next.partitions[id] = true
	}
	switch {
	case len(next.partitions) > s.cfg.MaxPartitions:
		return refused(ticket, kerr.PolicyViolation)
	case !s.room(t, &next):
		return refused(ticket, kerr.PolicyViolation)
	case t.phase == ongoing && len(next.partitions) == len(t.partitions):
		return answer(ticket, Result{p, nil})
	}
	next.phase, next.version = ongoing, version
	step := answer(ticket, Result{p, nil})
	step.Records = append(step.Records, next.record(now))
	return step
}

// Verify tells whether all partitions are part of the transaction.
func (s *State) Verify(ticket shard.Ticket, id string, p Identity, partitions []partition.ID) shard.Step {
	t, err := s.check(id, p)
	switch {
	case err != nil:
		return refused(ticket, err)
	case t.decided():
		return refused(ticket, kerr.ConcurrentTransactions)
	case t.phase != ongoing || slices.ContainsFunc(partitions, func(id partition.ID) bool { return !t.partitions[id] }):
		return refused(ticket, kerr.InvalidTxnState)
	}
	return answer(ticket, Result{p, nil})
}

// End decides a transaction. From version 2 on the epoch goes up with each decision, and the
// answer has the identity for the next transaction; Fresh is for the id whose epochs are used up.
func (s *State) End(now time.Time, ticket shard.Ticket, id string, p Identity, commit bool, version int16, fresh int64) shard.Step {
	t := s.txns[id]
	if t != nil && version >= 2 && t.ended(p) {
		return t.endAgain(ticket, commit)
	}
	t, err := s.check(id, p)
	switch {
	case err != nil:
		return refused(ticket, err)
	case t.decided():
		if version >= 2 || (t.phase == prepareCommit) == commit {
			return refused(ticket, kerr.ConcurrentTransactions)
		}
		return refused(ticket, kerr.InvalidTxnState)
	case t.phase == ongoing:
	case version >= 2 && !commit: // nothing to abort: the epoch goes up all the same
	case version < 2 && (commit && t.phase == completeCommit || !commit && t.phase == completeAbort):
		return answer(ticket, Result{p, nil}) // it asks again, the answer was lost
	default:
		return refused(ticket, kerr.InvalidTxnState)
	}
	next := *t
	next.version = version
	if t.phase != ongoing {
		next.partitions, next.started = nil, now
	}
	after := p
	if version >= 2 {
		next.epoch++
		after = Identity{next.producerID, next.epoch}
		if next.epoch > lastEpoch {
			next.next = fresh
			after = Identity{fresh, 0}
		}
	}
	step := answer(ticket, Result{after, nil})
	s.decide(t, &next, commit, now, &step)
	return step
}

// ended reports whether the producer is the one whose transaction was decided last, with an epoch
// that the decision has raised.
func (t *transaction) ended(p Identity) bool {
	if t.version < 2 || t.phase == empty || t.phase == ongoing {
		return false
	}
	return p == Identity{t.producerID, t.epoch - 1} || t.epoch == 0 && p == Identity{t.previous, lastEpoch}
}

// endAgain answers a producer that asks again because an answer was lost.
func (t *transaction) endAgain(ticket shard.Ticket, commit bool) shard.Step {
	switch {
	case commit != (t.phase == prepareCommit || t.phase == completeCommit):
		return refused(ticket, kerr.InvalidTxnState)
	case t.decided():
		return refused(ticket, kerr.ConcurrentTransactions)
	case t.epoch > lastEpoch:
		return refused(ticket, kerr.ProducerFenced)
	}
	return answer(ticket, Result{Identity{t.producerID, t.epoch}, nil})
}

// fence aborts what is open in an epoch that no producer has, so that the one that had the
// transactional id can do nothing more (KIP-588).
func (s *State) fence(t *transaction, now time.Time, step *shard.Step) {
	next := *t
	next.epoch++
	s.decide(t, &next, false, now, step)
}

// decide writes a decision, and gives it to the sender once it is durable.
func (s *State) decide(t, next *transaction, commit bool, now time.Time, step *shard.Step) {
	next.phase = prepareAbort
	if commit {
		next.phase = prepareCommit
	}
	step.Records = append(step.Records, next.record(now))
	if s.sender != 0 {
		t.sending = true
		step.Answers = append(step.Answers, shard.Answer{To: s.sender, Value: []Decision{next.decision()}})
		s.sender = 0
	}
}

func (t *transaction) decision() Decision {
	d := Decision{TransactionalID: t.id, ProducerID: t.producerID, ProducerEpoch: t.epoch, Commit: t.phase == prepareCommit, Bumped: t.version >= 2}
	for _, topic := range topics(t.partitions) {
		for _, p := range topic.Partitions {
			d.Partitions = append(d.Partitions, partition.ID{Topic: topic.Topic, Index: p})
		}
	}
	return d
}

// Await answers the sender with the decisions that it does not have, as soon as there are any.
func (s *State) Await(ticket shard.Ticket) shard.Step {
	var decisions []Decision
	for _, id := range slices.Sorted(maps.Keys(s.due)) {
		if t := s.due[id]; !t.sending {
			t.sending = true
			decisions = append(decisions, t.decision())
		}
	}
	if len(decisions) == 0 {
		s.sender = ticket
		return shard.Step{}
	}
	return answer(ticket, decisions)
}

// Settle answers once the decision of a transaction is complete, at once if none is under way.
func (s *State) Settle(ticket shard.Ticket, id string) shard.Step {
	t := s.due[id]
	if t == nil || len(t.waiting) >= maxWaiting {
		return answer(ticket, Result{nobody, nil})
	}
	t.waiting = append(t.waiting, ticket)
	return shard.Step{}
}

// maxWaiting bounds those who wait for the decision of one transaction.
const maxWaiting = 1000

// Complete notes that every partition of a decision has its marker.
func (s *State) Complete(now time.Time, ticket shard.Ticket, d Decision) shard.Step {
	step := answer(ticket, Result{nobody, nil})
	t := s.txns[d.TransactionalID]
	if t == nil || !t.decided() || t.producerID != d.ProducerID || t.epoch != d.ProducerEpoch {
		return step
	}
	for _, waiting := range t.waiting {
		step.Answers = append(step.Answers, shard.Answer{To: waiting, Value: Result{nobody, nil}})
	}
	t.sending, t.waiting = false, nil
	next := *t
	next.phase, next.partitions = completeAbort, nil
	if d.Commit {
		next.phase = completeCommit
	}
	if next.next >= 0 {
		next.previous, next.producerID, next.next, next.epoch = next.producerID, next.next, -1, 0
	}
	step.Records = append(step.Records, next.record(now))
	return step
}
