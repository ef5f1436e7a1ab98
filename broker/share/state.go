package share

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// Limits are what a group allows of its deliveries.
type Limits struct {
	// Lock is how long a record stays with whom it was given to (group.share.record.lock.duration.ms).
	Lock time.Duration
	// Deliveries is how often a record is given out before it is archived
	// (group.share.delivery.count.limit).
	Deliveries int
	// InFlight is the most offsets from the first that is not done to the last that was given out
	// (group.share.partition.max.record.locks).
	InFlight int
}

// RecordState is what is to be done with a record; the numbers are Kafka's.
type RecordState int8

const (
	Available    RecordState = 0 // may be given to anybody
	Acquired     RecordState = 1 // is with somebody
	Acknowledged RecordState = 2 // was accepted
	Archived     RecordState = 4 // was rejected, given out too often, or is no record at all
)

// An Owner is a share session, by a number that no other has.
type Owner uint64

// A span is neighbouring offsets of one fate.
type span struct {
	first, last int64
	state       RecordState
	deliveries  int16
	owner       Owner     // of Acquired
	until       time.Time // of Acquired
}

func (s *span) alike(o *span) bool {
	return s.state == o.state && s.deliveries == o.deliveries && s.owner == o.owner && s.until.Equal(o.until)
}

// A State is the deliveries of one share-partition.
type State struct {
	Limits
	start int64  // the first offset that is not done
	spans []span // cover what is in flight, from start on, without a gap
}

// NewState begins with what was saved.
func NewState(l Limits, saved Saved) *State {
	s := &State{Limits: l, start: saved.Start}
	next := saved.Start
	for _, r := range saved.Ranges {
		s.spans = append(s.spans, span{first: next, last: next + r.Length - 1, state: r.State, deliveries: r.Deliveries})
		next += r.Length
	}
	s.settle()
	return s
}

// Start is the share-partition start offset.
func (s *State) Start() int64 { return s.start }

// end is the offset behind what is in flight.
func (s *State) end() int64 {
	if n := len(s.spans); n > 0 {
		return s.spans[n-1].last + 1
	}
	return s.start
}

// Next is the first offset that may be acquired; ok is false if there is no room for more.
func (s *State) Next() (offset int64, ok bool) {
	for i := range s.spans {
		if s.spans[i].state == Available {
			return s.spans[i].first, true
		}
	}
	return s.end(), s.end()-s.start < int64(s.InFlight)
}

// available tells whether some of the offsets first to last may be given out.
func (s *State) available(first, last int64) bool {
	for i := range s.spans {
		if sp := &s.spans[i]; sp.state == Available && sp.first <= last && sp.last >= first {
			return true
		}
	}
	return last >= s.end()
}

// A Batch is one of the log, as far as deliveries are concerned.
type Batch struct {
	First, Last int64
	Skip        bool // its records are not for consumers: a marker, or aborted
}

// AcquiredRecords are neighbouring records that were given out, as often as each other.
type AcquiredRecords struct {
	First, Last int64
	Deliveries  int16
}

// A Demand is what one fetch asks for.
type Demand struct {
	Owner Owner
	// Records is how many are enough. The batch with the last is given whole, unless Strict.
	Records int
	Strict  bool
	// BatchRecords is how many records AcquiredRecords should have, in whole batches; no matter if zero.
	BatchRecords int
}

// Acquire gives out what is available among batches, which the log has from offset from on, in
// order. Offsets between them are no records, and are archived.
func (s *State) Acquire(now time.Time, from int64, batches []Batch, d Demand) (got []AcquiredRecords) {
	until := now.Add(s.Lock)
	records, next := 0, from
	for _, b := range batches {
		if b.First > next {
			s.archive(next, b.First-1)
		}
		first := max(b.First, next)
		next = b.Last + 1
		if first > b.Last {
			continue
		}
		if b.Skip {
			s.archive(first, b.Last)
			continue
		}
		if records >= d.Records {
			break
		}
		most := int(b.Last - first + 1)
		if d.Strict {
			most = d.Records - records
		}
		part := s.acquire(first, b.Last, most, d.Owner, until)
		for _, a := range part {
			records += int(a.Last - a.First + 1)
			if n := len(got); n > 0 && got[n-1].Last+1 == a.First && got[n-1].Deliveries == a.Deliveries && (d.BatchRecords <= 0 || a.Last-got[n-1].First < int64(d.BatchRecords)) {
				got[n-1].Last = a.Last
				continue
			}
			got = append(got, a)
		}
		if s.end() <= b.Last { // no room for more
			break
		}
	}
	s.settle()
	return got
}

// acquire gives out the available ones of the offsets first to last, and those that are new, most
// at a time.
func (s *State) acquire(first, last int64, most int, owner Owner, until time.Time) (got []AcquiredRecords) {
	s.cover(min(last, s.start+int64(s.InFlight)-1))
	s.split(first)
	s.split(last + 1)
	for i := 0; i < len(s.spans) && most > 0; i++ {
		sp := &s.spans[i]
		if sp.first < first || sp.state != Available && !(invariant.Off("share-one-owner") && sp.state == Acquired) {
			continue
		}
		if sp.first > last {
			break
		}
		if n := sp.last - sp.first + 1; n > int64(most) {
			s.split(sp.first + int64(most))
			sp = &s.spans[i]
		}
		most -= int(sp.last - sp.first + 1)
		sp.state, sp.deliveries, sp.owner, sp.until = Acquired, sp.deliveries+1, owner, until
		got = append(got, AcquiredRecords{sp.first, sp.last, sp.deliveries})
	}
	return got
}

// cover makes what is in flight reach to last: what is new is available.
func (s *State) cover(last int64) {
	if end := s.end(); last >= end {
		s.spans = append(s.spans, span{first: end, last: last})
	}
}

// split makes a span begin at an offset, if one holds it.
func (s *State) split(at int64) {
	i, found := s.find(at)
	if !found || s.spans[i].first == at {
		return
	}
	rest := s.spans[i]
	rest.first = at
	s.spans[i].last = at - 1
	s.spans = slices.Insert(s.spans, i+1, rest)
}

// find returns the span that holds an offset.
func (s *State) find(offset int64) (int, bool) {
	return slices.BinarySearchFunc(s.spans, offset, func(sp span, at int64) int {
		switch {
		case sp.last < at:
			return -1
		case sp.first > at:
			return 1
		}
		return 0
	})
}

// archive is for offsets that hold no records for consumers. Those in flight stay as they are if
// they are done or acquired: who has them will say that there is nothing.
func (s *State) archive(first, last int64) {
	if last >= s.end() { // more than InFlight of them are no harm: they are done
		s.cover(last)
	}
	s.split(first)
	s.split(last + 1)
	for i := range s.spans {
		if sp := &s.spans[i]; sp.first >= first && sp.last <= last && sp.state == Available {
			sp.state = Archived
		}
	}
}

// settle moves the start over what is done, and joins spans that are alike.
func (s *State) settle() {
	for len(s.spans) > 0 && (s.spans[0].state == Acknowledged || s.spans[0].state == Archived) {
		s.start = s.spans[0].last + 1
		s.spans = s.spans[1:]
	}
	kept := s.spans[:0]
	for _, sp := range s.spans {
		if n := len(kept); n > 0 && kept[n-1].alike(&sp) {
			kept[n-1].last = sp.last
			continue
		}
		kept = append(kept, sp)
	}
	s.spans = kept
}

// LogStart archives what the log does not have any more. It reports whether that changes anything.
func (s *State) LogStart(offset int64) bool {
	if offset <= s.start {
		return false
	}
	s.split(offset)
	for len(s.spans) > 0 && s.spans[0].first < offset {
		s.spans = s.spans[1:]
	}
	s.start = offset
	s.settle()
	return true
}

// AckType is what a member says of a record; the numbers are Kafka's.
type AckType int8

const (
	Gap     AckType = 0 // there is no such record
	Accept  AckType = 1
	Release AckType = 2 // somebody else may have it
	Reject  AckType = 3
	Renew   AckType = 4 // it needs more time (KIP-1222)
)

// Acknowledgement is for the offsets First to Last: one type for all of them, or one for each.
type Acknowledgement struct {
	First, Last int64
	Types       []AckType
}

// Errors of Acknowledge.
var (
	// ErrNotAcquired says that some record is not with who acknowledges it, or not any more.
	ErrNotAcquired = errors.New("records are not acquired by this member")
	// ErrInvalidAck says that an acknowledgement cannot be understood.
	ErrInvalidAck = errors.New("invalid acknowledgement")
)

// Acknowledge does what the owner of records says of them: all of it, or nothing and an error. What is
// before the start is done, and passed over. It reports whether what is to be saved changes.
func (s *State) Acknowledge(now time.Time, owner Owner, acks []Acknowledgement) (changed bool, err error) {
	next := int64(-1)
	for _, a := range acks {
		if err := s.check(owner, a, next); err != nil {
			return false, err
		}
		next = a.Last + 1
	}
	for _, a := range acks {
		for first := max(a.First, s.start); first <= a.Last; {
			typ, last := a.Types[0], a.Last
			if len(a.Types) > 1 {
				at := first - a.First
				typ = a.Types[at]
				for last = first; last < a.Last && a.Types[last+1-a.First] == typ; {
					last++
				}
			}
			s.each(first, last, func(sp *span) { changed = s.done(now, sp, typ) || changed })
			first = last + 1
		}
	}
	s.settle()
	return changed, nil
}

func (s *State) check(owner Owner, a Acknowledgement, from int64) error {
	if a.First < from || a.First < 0 || a.Last < a.First {
		return fmt.Errorf("%w: offsets %d to %d, behind %d", ErrInvalidAck, a.First, a.Last, from)
	}
	if n := int64(len(a.Types)); n != 1 && n != a.Last-a.First+1 {
		return fmt.Errorf("%w: %d types for the offsets %d to %d", ErrInvalidAck, n, a.First, a.Last)
	}
	for _, t := range a.Types {
		if t < Gap || t > Renew {
			return fmt.Errorf("%w: type %d", ErrInvalidAck, t)
		}
	}
	if a.Last < s.start {
		return nil
	}
	if a.Last >= s.end() {
		return fmt.Errorf("%w: offset %d, and only those up to %d were given out", ErrInvalidAck, a.Last, s.end()-1)
	}
	i, _ := s.find(max(a.First, s.start))
	for ; i < len(s.spans) && s.spans[i].first <= a.Last; i++ {
		if sp := &s.spans[i]; (sp.state != Acquired || sp.owner != owner) && !invariant.Off("share-ack-owner") {
			return fmt.Errorf("%w: offsets %d to %d", ErrNotAcquired, max(sp.first, a.First), min(sp.last, a.Last))
		}
	}
	return nil
}

// each calls fn for the spans that make up the offsets first to last.
func (s *State) each(first, last int64, fn func(*span)) {
	s.split(first)
	s.split(last + 1)
	i, found := s.find(first)
	for ; found && i < len(s.spans) && s.spans[i].last <= last; i++ {
		fn(&s.spans[i])
	}
}

// done ends a delivery, or makes it longer. It reports whether what is to be saved changes.
func (s *State) done(now time.Time, sp *span, typ AckType) bool {
	switch typ {
	case Renew:
		sp.until = now.Add(s.Lock)
		return false
	case Accept:
		sp.state = Acknowledged
	case Release:
		sp.state = Available
		if int(sp.deliveries) >= s.Deliveries && !invariant.Off("share-delivery-limit") {
			sp.state = Archived
		}
	default:
		sp.state = Archived
	}
	sp.owner, sp.until = 0, time.Time{}
	return true
}

// Release ends all deliveries to an owner who is gone. It reports whether there were any.
func (s *State) Release(now time.Time, owner Owner) (changed bool) {
	for i := range s.spans {
		if sp := &s.spans[i]; sp.state == Acquired && sp.owner == owner {
			changed = s.done(now, sp, Release) || changed
		}
	}
	s.settle()
	return changed
}

// Tick ends the deliveries whose time is up. It reports whether there were any.
func (s *State) Tick(now time.Time) (changed bool) {
	for i := range s.spans {
		if sp := &s.spans[i]; sp.state == Acquired && !now.Before(sp.until) {
			changed = s.done(now, sp, Release) || changed
		}
	}
	s.settle()
	return changed
}

// Wake is when Tick is next due; zero means never.
func (s *State) Wake() (wake time.Time) {
	for i := range s.spans {
		if sp := &s.spans[i]; sp.state == Acquired && (wake.IsZero() || sp.until.Before(wake)) {
			wake = sp.until
		}
	}
	return wake
}

// Saved is what must survive: a delivery under way is as if it had not begun.
func (s *State) Saved() Saved {
	out := Saved{Start: s.start}
	for _, sp := range s.spans {
		r := Range{Length: sp.last - sp.first + 1, State: sp.state, Deliveries: sp.deliveries}
		if r.State == Acquired {
			r.State, r.Deliveries = Available, r.Deliveries-1
		}
		if n := len(out.Ranges); n > 0 && out.Ranges[n-1].State == r.State && out.Ranges[n-1].Deliveries == r.Deliveries {
			out.Ranges[n-1].Length += r.Length
			continue
		}
		out.Ranges = append(out.Ranges, r)
	}
	if n := len(out.Ranges); n > 0 && out.Ranges[n-1].State == Available && out.Ranges[n-1].Deliveries == 0 {
		out.Ranges = out.Ranges[:n-1] // as good as never given out
	}
	return out
}
