package share

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// modelRecord is what is true of one record, whatever a State says.
type modelRecord struct {
	holder     Owner // 0: nobody
	until      time.Time
	deliveries int // since the last restart, and those before it that had ended
	ended      int // of them, that had ended
	saved      int // ended by the last time that it was saved
	accepted   bool
	rejected   bool
}

// Members fetch, acknowledge in every way, leave and fall silent, the log begins later, and the
// server restarts with what it had saved. No record is ever with two members, none is given out
// more often than the limit or after it was accepted or rejected, and in the end each was accepted,
// rejected, or given out as often as the limit: none is passed over.
func TestDeliveries(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		m := newModel(t, seed, r)
		for range 60 {
			m.step()
		}
		m.finish()
	}
}

type model struct {
	t        *testing.T
	seed     uint64
	r        *rand.Rand
	now      time.Time
	state    *State
	limits   Limits
	batches  []Batch // of the log, with gaps between
	records  map[int64]*modelRecord
	logStart int64
	saved    Saved
	owners   int
}

func newModel(t *testing.T, seed uint64, r *rand.Rand) *model {
	m := &model{t: t, seed: seed, r: r, now: time.Unix(1e9, 0), records: map[int64]*modelRecord{}, owners: 1 + r.IntN(4),
		limits: Limits{Lock: 10 * time.Second, Deliveries: 1 + r.IntN(4), InFlight: 5 + r.IntN(60)}}
	next := int64(r.IntN(3))
	for range 12 {
		next += int64(r.IntN(2) * r.IntN(4)) // compacted away
		b := Batch{First: next, Last: next + int64(r.IntN(8)), Skip: r.IntN(6) == 0}
		m.batches = append(m.batches, b)
		next = b.Last + 1
		for at := b.First; at <= b.Last && !b.Skip; at++ {
			m.records[at] = &modelRecord{}
		}
	}
	m.state = NewState(m.limits, Saved{})
	return m
}

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("seed %d: %s\nstart %d, in flight %+v", m.seed, fmt.Sprintf(format, args...), m.state.start, m.state.spans)
}

func (m *model) step() {
	switch m.r.IntN(10) {
	case 0, 1, 2, 3:
		m.fetch(Owner(1 + m.r.IntN(m.owners)))
	case 4, 5, 6:
		m.acknowledge(Owner(1 + m.r.IntN(m.owners)))
	case 7:
		m.now = m.now.Add(time.Duration(m.r.IntN(8)) * time.Second)
		m.tick()
	case 8:
		owner := Owner(1 + m.r.IntN(m.owners))
		m.state.Release(m.now, owner)
		for _, rec := range m.records {
			if rec.holder == owner {
				rec.end()
			}
		}
	case 9:
		m.rarely()
	}
	m.check()
}

func (m *model) rarely() {
	switch m.r.IntN(4) {
	case 0, 1:
		m.save()
	case 2: // the server was killed
		parsed, err := ParseSaved(m.saved.Append(nil))
		if err != nil {
			m.fail("%v", err)
		}
		m.state = NewState(m.limits, parsed)
		m.state.LogStart(m.logStart)
		for at, rec := range m.records {
			rec.holder, rec.ended = 0, rec.saved
			rec.deliveries = rec.saved
			if at >= parsed.Start && !done(parsed, at) {
				rec.accepted, rec.rejected = false, false // nobody was told that they were
			}
		}
	case 3:
		m.logStart += int64(m.r.IntN(6))
		m.state.LogStart(m.logStart)
		for at := range m.records {
			if at < m.logStart {
				delete(m.records, at)
			}
		}
	}
}

func done(s Saved, at int64) bool {
	next := s.Start
	for _, r := range s.Ranges {
		if at < next+r.Length {
			return r.State != Available
		}
		next += r.Length
	}
	return false
}

func (r *modelRecord) end() { r.holder, r.ended = 0, r.deliveries }

// save is when a store has the state: who has acknowledged before is told.
func (m *model) save() {
	m.saved = m.state.Saved()
	for _, rec := range m.records {
		rec.saved = rec.ended
	}
}

func (m *model) tick() {
	wake := m.state.Wake()
	m.state.Tick(m.now)
	for at, rec := range m.records {
		if rec.holder != 0 && rec.until.Before(wake) {
			m.fail("record %d is due at %v, before the next tick at %v", at, rec.until, wake)
		}
		if rec.holder != 0 && !m.now.Before(rec.until) {
			rec.end()
		}
	}
}

func (m *model) fetch(owner Owner) (got int) {
	from, ok := m.state.Next()
	if !ok {
		return 0
	}
	var read []Batch
	most := 1 + m.r.IntN(4)
	for _, b := range m.batches {
		if b.Last >= from && len(read) < most {
			read = append(read, b)
		}
	}
	d := Demand{Owner: owner, Records: 1 + m.r.IntN(20), Strict: m.r.IntN(3) == 0, BatchRecords: m.r.IntN(6)}
	acquired := m.state.Acquire(m.now, from, read, d)
	next := from
	for _, a := range acquired {
		if a.First < next || a.Last < a.First {
			m.fail("acquired %+v from %d", acquired, from)
		}
		next = a.Last + 1
		for at := a.First; at <= a.Last; at++ {
			rec := m.records[at]
			switch {
			case rec == nil:
				m.fail("offset %d is no record for consumers, and was given out", at)
			case rec.holder != 0:
				m.fail("record %d is with %d, and was given to %d", at, rec.holder, owner)
			case rec.accepted || rec.rejected:
				m.fail("record %d was done, and was given out again", at)
			case rec.deliveries >= m.limits.Deliveries:
				m.fail("record %d was given out %d times already", at, rec.deliveries)
			}
			rec.holder, rec.until = owner, m.now.Add(m.limits.Lock)
			if rec.deliveries++; rec.deliveries != int(a.Deliveries) {
				m.fail("record %d: delivery %d, told %d", at, rec.deliveries, a.Deliveries)
			}
			got++
		}
	}
	if d.Strict && got > d.Records {
		m.fail("%d records, %d were asked for", got, d.Records)
	}
	return got
}

func (m *model) acknowledge(owner Owner) {
	for at := m.state.start; at < m.state.end(); at++ {
		rec := m.records[at]
		if rec == nil || rec.holder != owner || m.r.IntN(2) == 0 {
			continue
		}
		if other := owner%Owner(m.owners) + 1; other != owner {
			if _, err := m.state.Acknowledge(m.now, other, []Acknowledgement{{at, at, []AckType{Accept}}}); err == nil {
				m.fail("record %d is with %d, and %d could accept it", at, owner, other)
			}
		}
		last := at
		types := []AckType{AckType(m.r.IntN(5))}
		for m.records[last+1] != nil && m.records[last+1].holder == owner && m.r.IntN(3) > 0 {
			last++
			types = append(types, AckType(m.r.IntN(5)))
		}
		if m.r.IntN(3) == 0 {
			types = types[:1]
		}
		if _, err := m.state.Acknowledge(m.now, owner, []Acknowledgement{{at, last, types}}); err != nil {
			m.fail("acknowledge %d to %d: %v", at, last, err)
		}
		for i := at; i <= last; i++ {
			typ, rec := types[0], m.records[i]
			if len(types) > 1 {
				typ = types[i-at]
			}
			switch typ {
			case Accept:
				rec.accepted = true
			case Gap, Reject:
				rec.rejected = true
			case Renew:
				rec.until = m.now.Add(m.limits.Lock)
				continue
			}
			rec.end()
		}
		at = last
	}
}

// check compares the State with itself.
func (m *model) check() {
	next := m.state.start
	for _, sp := range m.state.spans {
		if sp.first != next || sp.last < sp.first {
			m.fail("spans are not neighbours")
		}
		next = sp.last + 1
	}
	if n := len(m.state.spans); n > 0 && (m.state.spans[0].state == Acknowledged || m.state.spans[0].state == Archived) {
		m.fail("the start has not moved")
	}
	for at, rec := range m.records {
		if at < m.state.start && !rec.accepted && !rec.rejected && rec.ended < m.limits.Deliveries {
			m.fail("record %d was passed over: %+v", at, *rec)
		}
	}
}

// finish consumes what is left.
func (m *model) finish() {
	for end := m.batches[len(m.batches)-1].Last; m.state.start <= end; {
		m.now = m.now.Add(m.limits.Lock)
		m.tick()
		before := m.state.Saved()
		if m.fetch(1) == 0 && cmp.Equal(before, m.state.Saved()) && m.state.start <= end {
			m.fail("nothing is given out any more, and the log goes on to %d", end)
		}
		m.acknowledge(1)
		m.check()
	}
	for at, rec := range m.records {
		if !rec.accepted && !rec.rejected && rec.ended < m.limits.Deliveries {
			m.fail("record %d was never done: %+v", at, *rec)
		}
	}
}

// An acknowledgement that does not hold for all its records holds for none.
func TestAcknowledgesAllOrNothing(t *testing.T) {
	now := time.Unix(0, 0)
	s := NewState(Limits{Lock: time.Minute, Deliveries: 5, InFlight: 100}, Saved{})
	log := []Batch{{First: 0, Last: 9}}
	s.Acquire(now, 0, log, Demand{Owner: 1, Records: 5, Strict: true})
	s.Acquire(now, 5, log, Demand{Owner: 2, Records: 2, Strict: true})
	before := s.Saved()
	for name, acks := range map[string][]Acknowledgement{
		"another's":         {{0, 4, []AckType{Accept}}, {5, 6, []AckType{Accept}}},
		"nobody's":          {{0, 4, []AckType{Accept}}, {7, 7, []AckType{Accept}}},
		"never given out":   {{0, 4, []AckType{Accept}}, {20, 30, []AckType{Accept}}},
		"backwards":         {{3, 4, []AckType{Accept}}, {0, 1, []AckType{Accept}}},
		"too few types":     {{0, 4, []AckType{Accept, Accept}}},
		"no type":           {{0, 4, nil}},
		"unknown type":      {{0, 4, []AckType{7}}},
		"end before start":  {{4, 3, []AckType{Accept}}},
		"negative":          {{-1, 3, []AckType{Accept}}},
		"end of all offset": {{0, 1<<63 - 1, []AckType{Accept}}},
	} {
		if _, err := s.Acknowledge(now, 1, acks); err == nil {
			t.Errorf("%s: no error", name)
		}
		if diff := cmp.Diff(before, s.Saved()); diff != "" {
			t.Errorf("%s: changed\n%s", name, diff)
		}
	}
}

// Whoever restarts with what was saved never skips a record, however saved states are cut or changed.
func FuzzParseSaved(f *testing.F) {
	f.Add(Saved{Start: 7, Ranges: []Range{{3, Available, 2}, {1, Acknowledged, 1}, {200, Archived, 5}}}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSaved(b)
		if err != nil {
			return
		}
		again, err := ParseSaved(s.Append(nil))
		if diff := cmp.Diff(s, again); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	})
}
