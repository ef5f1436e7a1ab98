package history

import (
	"maps"
	"slices"
	"testing"
)

var p0, p1 = TopicPartition{"a", 0}, TopicPartition{"a", 1}

// A story is a history without a fault, which each case spoils.
type story struct {
	History
	log       Log
	committed map[string]map[TopicPartition]int64
}

func tell() *story {
	s := &story{log: Log{
		p0: {0: "one", 1: "two", 3: "t1", 5: "three"},
		p1: {0: "t2", 2: "t3"},
	}, committed: map[string]map[TopicPartition]int64{"copy": {p0: 2}, "watch": {p0: 6, p1: 3}}}
	ok := &Transaction{Name: "first", Outcome: OK, Group: "copy", Offsets: map[TopicPartition]int64{p0: 2}}
	perhaps := &Transaction{Name: "second", Outcome: Unknown}
	aborted := &Transaction{Name: "third", Outcome: Failed}
	for _, r := range []Send{
		{"x", "one", p0, OK, 0, nil},
		{"x", "two", p0, Unknown, 0, nil},
		{"y", "t1", p0, OK, 3, ok},
		{"y", "t2", p1, OK, 0, ok},
		{"y", "t3", p1, OK, 2, perhaps},
		{"y", "t4", p1, OK, 4, aborted},
		{"x", "three", p0, OK, 5, nil},
		{"x", "four", p0, Failed, 0, nil},
		{"x", "five", p0, Unknown, 0, nil},
	} {
		s.Sent(r)
	}
	for at, records := range map[TopicPartition][]int64{p0: {0, 1, 3, 5}, p1: {0, 2}} {
		for _, o := range records {
			s.Polled("watch", "w1", at, o, s.log[at][o])
			s.Committed("watch", at, o+1)
		}
	}
	s.Observed(p0, 0, 3, 3)
	s.Observed(p0, 0, 3, 5)
	s.Observed(p0, 1, 6, 6)
	return s
}

func (s *story) check() []Violation {
	return s.Check(s.log, map[string][]string{"watch": {"a"}}, s.committed)
}

func TestNothingIsFoundWhereNothingIsWrong(t *testing.T) {
	if found := tell().check(); len(found) > 0 {
		t.Error(found)
	}
}

func TestFindsWhatMayNotBe(t *testing.T) {
	for name, c := range map[string]struct {
		want  string
		spoil func(*story)
	}{
		"acknowledged and lost":           {Lost, func(s *story) { s.Sent(Send{"z", "gone", p0, OK, 4, nil}) }},
		"committed and lost":              {Lost, func(s *story) { s.Sent(Send{"z", "gone", p0, OK, 4, &Transaction{Name: "t", Outcome: OK}}) }},
		"never polled":                    {NotSeen, func(s *story) { s.log[p1][3] = "unseen" }},
		"another place than acknowledged": {TwoValues, func(s *story) { s.sends[0].Offset = 4 }},
		"two values polled":               {TwoValues, func(s *story) { s.Polled("other", "o", p0, 0, "else") }},
		"twice":                           {Duplicate, func(s *story) { s.log[p1][3] = "one" }},
		"another order":                   {Reordered, func(s *story) { s.sends[0], s.sends[1] = s.sends[1], s.sends[0] }},
		"aborted and there":               {NotCommitted, func(s *story) { s.log[p1][4] = "t4" }},
		"failed and there":                {NotCommitted, func(s *story) { s.log[p0][6] = "four" }},
		"polled and not there":            {NotCommitted, func(s *story) { s.Polled("other", "o", p0, 4, "dirty") }},
		"half a transaction":              {Torn, func(s *story) { s.Sent(Send{"y", "t5", p1, OK, 3, s.sends[4].Transaction}) }},
		"transaction without offsets":     {OffsetsMissing, func(s *story) { s.committed["copy"][p0] = 1 }},
		"skipped":                         {Skipped, func(s *story) { s.Polled("other", "o", p0, 0, "one"); s.Polled("other", "o", p0, 3, "t1") }},
		"back":                            {Skipped, func(s *story) { s.Polled("watch", "w1", p0, 3, "t1") }},
		"start went back":                 {Regressed, func(s *story) { s.Observed(p0, 0, 6, 6) }},
		"stable went back":                {Regressed, func(s *story) { s.Observed(p0, 1, 5, 6) }},
		"high watermark went back":        {Regressed, func(s *story) { s.Observed(p0, 1, 6, 4) }},
		"a record above the end":          {Regressed, func(s *story) { s.Observed(p1, 0, 1, 1) }},
		"committed went back":             {Regressed, func(s *story) { s.Committed("watch", p0, 0) }},
		"committed and not delivered":     {NotDelivered, func(s *story) { s.Committed("other", p0, 1) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell()
			c.spoil(s)
			found := s.check()
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Property == c.want }) {
				t.Errorf("found %v, want one of %q", found, c.want)
			}
		})
	}
}

// A consumer that is assigned a partition anew may get again what the one before it got.
func TestNewAssignmentMayGoBack(t *testing.T) {
	s := tell()
	for _, o := range slices.Sorted(maps.Keys(s.log[p0])) {
		s.Polled("watch", "w2", p0, o, s.log[p0][o])
	}
	if found := s.check(); len(found) > 0 {
		t.Error(found)
	}
}

// A transaction that is open keeps the last stable offset below the high watermark; the last observation of each log counts.
func TestOpenTransactionIsFound(t *testing.T) {
	s := tell()
	if err := s.Open(); err != nil {
		t.Error(err)
	}
	s.Observed(p1, 0, 2, 3)
	if s.Open() == nil {
		t.Error("a log whose last stable offset lies before its high watermark has no open transaction")
	}
	s.Observed(p1, 0, 4, 4)
	if err := s.Open(); err != nil {
		t.Error(err)
	}
}
