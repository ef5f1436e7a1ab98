package coordinator

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// State decides what is committed and when. It has no clock, no goroutine and no I/O.
//
// A round begins when records have waited for the lag, less the time that rounds have
// taken lately, or when a file is full: State asks the workers, gathers their answers until every partition has one or the time is up, and hands
// over one commit with what continues the table. Partitions that gave nothing stay where
// they are, and their files are asked for again. A partition that let the time of a round run
// out is not waited for again until its worker says something, or another one begins with it.
type State struct {
	epoch      int32
	partitions int32
	lag        time.Duration
	timeout    time.Duration

	next    map[int32]int64 // what the table holds
	since   time.Time       // arrival of the oldest record that waits; zero if none
	full    bool            // a file has its full size
	round   *round          // nil between rounds
	pending *Commit         // handed over and not yet known
	begun   time.Time       // when that round, or the one of that commit, began
	ahead   time.Duration   // a round begins this long before the lag is over

	oldest time.Time           // arrival of the oldest record that the table does not hold; zero if none
	silent map[int32]time.Time // partitions without an answer when the time of a round was up, since when
}

// round is a request that waits for answers.
type round struct {
	id       uuid.UUID
	deadline time.Time
	answered map[int32]bool
	reached  map[int32]int64 // by the files so far
	files    []control.File
	named    time.Time // when the oldest of their answers was given, which is an entry of the journal
	since    time.Time // of the records that the answers left for the next round
}

// A Step is what the caller must do, in field order, before the next call.
type Step struct {
	Append  []control.Event // append to the control log
	Commit  *Commit         // then hand to the catalog
	Wake    time.Time       // then call Tick no later than this; never if zero
	Ignored string          // why an event counts for nothing, if so
}

// Commit is what one snapshot adds to the table.
type Commit struct {
	ID     uuid.UUID
	Epoch  int32
	Files  []control.File
	Ranges []control.Range // by partition, one each
	From   map[int32]int64 // next offsets that the ranges continue; absent if not begun
	Named  time.Time       // when the oldest answer with files was given: from then on the journal has kept them
}

// Next returns where the table is after c.
func (c *Commit) Next() []control.Offset {
	next := make([]control.Offset, len(c.Ranges))
	for i, r := range c.Ranges {
		next[i] = control.Offset{Partition: r.Partition, Offset: r.End}
	}
	return next
}

// names returns the locations of c's data files.
func (c *Commit) names() (names []string) {
	for _, f := range c.Files {
		names = append(names, f.Names()...)
	}
	return names
}

// NewState begins with a table that holds everything below next. Rounds begin after lag,
// and end after timeout.
func NewState(epoch, partitions int32, next map[int32]int64, lag, timeout time.Duration) *State {
	return &State{epoch: epoch, partitions: partitions, next: clone(next), lag: lag, timeout: timeout, silent: map[int32]time.Time{}}
}

// Waits returns since when the oldest record waits for a commit, as far as the workers have
// said, and which partitions have given no answer since a round had to end without, since when.
func (s *State) Waits() (oldest time.Time, silent map[int32]time.Time) { return s.oldest, s.silent }

// Next returns where the table is.
func (s *State) Next() []control.Offset { return offsets(s.next) }

// Reset gives up the round and begins again from a table that holds everything below next.
func (s *State) Reset(next map[int32]int64) {
	s.next = clone(next)
	s.round, s.pending, s.full = nil, nil, false
	s.oldest = s.since
}

// Apply folds one control event into s. It is the only way answers arrive.
func (s *State) Apply(e control.Event, now time.Time) Step {
	step := Step{}
	switch e := e.(type) {
	case control.Hello:
		for _, p := range e.Partitions {
			delete(s.silent, p)
		}
		step = s.hello(e, now)
	case control.Pending:
		s.waits(e.Since)
		s.full = s.full || e.Full
	case control.Answer:
		if s.late(e) && !invariant.Off("late-answer-waits") {
			s.waits(cmp.Or(e.Since, now))
		}
		if e.Epoch == s.epoch {
			for _, p := range e.Partitions {
				delete(s.silent, p)
			}
		}
		step = s.answer(e)
	}
	step.Wake = s.wake()
	return step
}

// late reports whether an answer comes when its round is over, with files, or with word of
// records that it left. The worker thinks that this was heard, and says it to no other round.
func (s *State) late(a control.Answer) bool {
	return a.Epoch == s.epoch && (s.round == nil || s.round.id != a.Commit) && (len(a.Files) > 0 || !a.Since.IsZero())
}

// waits notes records that arrived at since.
func (s *State) waits(since time.Time) {
	if !since.IsZero() && (s.since.IsZero() || since.Before(s.since)) {
		s.since = since
	}
	s.oldest = earlier(s.oldest, since)
}

// Tick begins a round with id if one is due, or ends the one whose time is up.
func (s *State) Tick(id uuid.UUID, now time.Time) Step {
	step := Step{}
	switch {
	case s.pending != nil:
	case s.round != nil:
		if !now.Before(s.round.deadline) {
			s.miss(now)
			step = s.finish()
		}
	case s.due(now):
		s.round = &round{
			id:       id,
			deadline: now.Add(s.timeout),
			answered: map[int32]bool{},
			reached:  maps.Clone(s.next),
		}
		s.since, s.full, s.begun = time.Time{}, false, now
		step.Append = []control.Event{control.Request{Epoch: s.epoch, Commit: id, Next: s.Next()}}
	}
	step.Wake = s.wake()
	return step
}

// miss notes the partitions that gave no answer.
func (s *State) miss(now time.Time) {
	for p := range s.partitions {
		if _, known := s.silent[p]; !known && !s.round.answered[p] {
			s.silent[p] = now
		}
	}
}

func (s *State) due(now time.Time) bool {
	return s.full || !s.since.IsZero() && !now.Before(s.since.Add(s.lag-s.ahead))
}

// wake returns when Tick has something to do.
func (s *State) wake() time.Time {
	switch {
	case s.pending != nil:
		return time.Time{}
	case s.round != nil:
		return s.round.deadline
	case s.full:
		return time.Unix(0, 0)
	case !s.since.IsZero():
		return s.since.Add(s.lag - s.ahead)
	}
	return time.Time{}
}

// answer takes the files that continue the table. The first answer for a partition counts.
func (s *State) answer(a control.Answer) Step {
	r := s.round
	if r == nil || (a.Commit != r.id || a.Epoch != s.epoch) && !invariant.Off("answer-of-this-round") {
		return Step{Ignored: "commit " + a.Commit.String() + " is not collecting"}
	}
	spoken := map[int32]bool{}
	for _, p := range a.Partitions {
		if p >= 0 && p < s.partitions && !r.answered[p] {
			spoken[p] = true
		}
	}
	if len(spoken) == 0 {
		return Step{Ignored: "its partitions have answered"}
	}
	left := 0
	for _, f := range a.Files {
		if !s.take(f, spoken) {
			left++
		}
	}
	if left < len(a.Files) && (r.named.IsZero() || a.At.Before(r.named)) {
		r.named = a.At
	}
	for p := range spoken {
		r.answered[p] = true
	}
	if !a.Since.IsZero() && (r.since.IsZero() || a.Since.Before(r.since)) {
		r.since = a.Since
	}
	step := Step{}
	if s.heard() {
		step = s.finish()
	}
	if left > 0 {
		step.Ignored = "files that do not continue the table"
	}
	return step
}

// hello does not let the round wait for a worker that has just begun: it has nothing, and did
// not hear the request. A round follows for what it will have.
func (s *State) hello(e control.Hello, now time.Time) Step {
	r := s.round
	if r == nil {
		return Step{}
	}
	for _, p := range e.Partitions {
		if p >= 0 && p < s.partitions {
			r.answered[p] = true
		}
	}
	if r.since.IsZero() {
		r.since = now
	}
	if !s.heard() {
		return Step{}
	}
	return s.finish()
}

// heard reports whether the round has nobody to wait for: each partition answered, or is
// silent from an earlier round on.
func (s *State) heard() bool {
	n := len(s.round.answered)
	for p := range s.silent {
		if !s.round.answered[p] {
			n++
		}
	}
	return n == int(s.partitions)
}

// take adds f to the round if each of its ranges continues what the round reached.
func (s *State) take(f control.File, spoken map[int32]bool) bool {
	r := s.round
	for _, x := range f.Ranges {
		at, begun := r.reached[x.Partition]
		continues := spoken[x.Partition] && x.Gap >= 0 && x.End >= x.Start && (!begun || x.Start-x.Gap == at)
		if !continues && !invariant.Off("ranges-continue") {
			return false
		}
	}
	for _, x := range f.Ranges {
		r.reached[x.Partition] = x.End
	}
	r.files = append(r.files, f)
	return true
}

// finish ends the round: with a commit if any partition moved.
func (s *State) finish() Step {
	r := s.round
	s.round = nil
	s.waits(r.since)
	if len(r.files) == 0 {
		s.oldest = s.since
		return Step{}
	}
	s.pending = &Commit{ID: r.id, Epoch: s.epoch, Files: r.files, Ranges: merge(r.files), From: map[int32]int64{}, Named: r.named}
	for _, x := range s.pending.Ranges {
		if at, ok := s.next[x.Partition]; ok {
			s.pending.From[x.Partition] = at
		}
	}
	return Step{Commit: s.pending}
}

// merge joins the ranges of files, which follow each other, to one per partition.
func merge(files []control.File) []control.Range {
	by := map[int32]control.Range{}
	for _, f := range files {
		for _, x := range f.Ranges {
			m, ok := by[x.Partition]
			if !ok {
				by[x.Partition] = x
				continue
			}
			m.End, m.Gap = x.End, m.Gap+x.Gap
			m.Rows, m.Dead = m.Rows+x.Rows, m.Dead+x.Dead
			by[x.Partition] = m
		}
	}
	return slices.SortedFunc(maps.Values(by), func(a, b control.Range) int { return cmp.Compare(a.Partition, b.Partition) })
}

// Done says that the commit is in the table, as that snapshot. Names are of the files that it
// brought with it besides data, as far as they are known.
func (s *State) Done(snapshot int64, names []string, now time.Time) Step {
	c := s.pending
	s.pending = nil
	s.oldest = s.since
	s.ahead = min((s.ahead+now.Sub(s.begun))/2, s.lag/2)
	for _, x := range c.Ranges {
		s.next[x.Partition] = x.End
	}
	return Step{
		Append: []control.Event{control.Committed{Epoch: s.epoch, Commit: c.ID, Snapshot: snapshot, Next: c.Next(), Names: append(c.names(), names...)}},
		Wake:   s.wake(),
	}
}

// Failed says that the commit is not in the table. Its records wait, for a round after delay.
func (s *State) Failed(now time.Time, delay time.Duration) Step {
	s.pending = nil
	s.since = earlier(s.since, now.Add(delay-s.lag+s.ahead))
	return Step{Wake: s.wake()}
}

func clone(next map[int32]int64) map[int32]int64 {
	if next == nil {
		return map[int32]int64{}
	}
	return maps.Clone(next)
}

func offsets(next map[int32]int64) []control.Offset {
	out := make([]control.Offset, 0, len(next))
	for _, p := range slices.Sorted(maps.Keys(next)) {
		out = append(out, control.Offset{Partition: p, Offset: next[p]})
	}
	return out
}
