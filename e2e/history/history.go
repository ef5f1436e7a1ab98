// Package history notes what clients were told, and finds what no client of Kafka may be told.
//
// A test records, in the order in which its clients learn of them, what producers sent and what
// became of it, what consumers polled, what groups have committed, and where partitions begin and
// end. [History.Check] then compares all of it with what a reader of committed records finds in
// the end.
package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// A TopicPartition is a partition of a topic.
type TopicPartition struct {
	Topic string
	Index int32
}

func (p TopicPartition) String() string { return fmt.Sprintf("%s-%d", p.Topic, p.Index) }

// An Outcome is what a client was told about something that it asked for.
type Outcome int

const (
	Unknown Outcome = iota // it may have happened, or may still
	OK
	Failed // it has not happened and never will
)

func (o Outcome) String() string { return [...]string{"of unknown outcome", "ok", "failed"}[o] }

// A Transaction is what a producer wrote as one. OK is committed, Failed is aborted.
type Transaction struct {
	Name    string
	Outcome Outcome
	Group   string                   // whose offsets are committed with it
	Offsets map[TopicPartition]int64 // next offset of each partition that it consumed
}

// A Send is a record that a producer sent. No two records have the same value.
type Send struct {
	Producer    string // what one producer sends to a partition keeps its order
	Value       string
	Partition   TopicPartition
	Outcome     Outcome
	Offset      int64        // if it is OK
	Transaction *Transaction // nil if it is of none
}

// A History is safe for concurrent use. Its zero value is empty.
type History struct {
	mu      sync.Mutex
	sends   []Send
	polls   []poll
	logs    []observation
	commits []commit
	now     int // number of the next event
}

type poll struct {
	when            int
	group, consumer string
	at              TopicPartition
	offset          int64
	value           string
}

type observation struct {
	at                  TopicPartition
	start, stable, high int64
}

type commit struct {
	when   int
	group  string
	at     TopicPartition
	offset int64
}

// event numbers what comes next.
func (h *History) event() int {
	h.now++
	return h.now
}

// Sent notes what became of a record.
func (h *History) Sent(s Send) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sends = append(h.sends, s)
}

// Polled notes that a consumer of committed records got a record. A consumer that gets a partition
// assigned anew is another consumer.
func (h *History) Polled(group, consumer string, at TopicPartition, offset int64, value string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.polls = append(h.polls, poll{h.event(), group, consumer, at, offset, value})
}

// Observed notes where a partition begins, up to where it is stable, and where it ends. Who
// observes a partition asks and notes one after the other.
func (h *History) Observed(at TopicPartition, start, stable, high int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.logs = append(h.logs, observation{at, start, stable, high})
}

// Committed notes the offset that a group has committed. Who asks for it asks and notes one after
// the other.
func (h *History) Committed(group string, at TopicPartition, offset int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.commits = append(h.commits, commit{h.event(), group, at, offset})
}

// Counts returns how many events there are of each kind.
func (h *History) Counts() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("%d records sent, %d polled, %d observations of logs and %d of committed offsets", len(h.sends), len(h.polls), len(h.logs), len(h.commits))
}

// Open returns an error if a transaction was open when a log was observed last: its last stable offset lies before its high
// watermark.
func (h *History) Open() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := map[TopicPartition]observation{}
	for _, o := range h.logs {
		last[o.at] = o
	}
	for at, o := range last {
		if o.stable < o.high {
			return fmt.Errorf("in %s a transaction is open since offset %d, the high watermark is %d", at, o.stable, o.high)
		}
	}
	return nil
}

// Unread returns what a group has not polled of a topic, or nil.
func (h *History) Unread(group, topic string, log Log) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	got := h.got(group)
	for at, records := range log {
		if at.Topic != topic {
			continue
		}
		for o, v := range records {
			if !got[place{at, o}] {
				return fmt.Errorf("group %s has not got %q in %s", group, v, place{at, o})
			}
		}
	}
	return nil
}

func (h *History) got(group string) map[place]bool {
	got := map[place]bool{}
	for _, p := range h.polls {
		if p.group == group {
			got[place{p.at, p.offset}] = true
		}
	}
	return got
}

// A Log is what a reader of committed records finds in a partition: values by offset.
type Log map[TopicPartition]map[int64]string

// A Violation is something that may not be.
type Violation struct {
	Property string // its name below
	Text     string
}

// Names of the properties that [History.Check] looks for.
const (
	Lost           = "acknowledged and committed, and not in the log"
	NotSeen        = "in the log, and never polled by a group that read to the end"
	TwoValues      = "one offset, two values"
	Duplicate      = "one record of a producer twice"
	Reordered      = "records of a producer in another order"
	NotCommitted   = "read, and not committed"
	Torn           = "a part of a transaction"
	Skipped        = "a consumer passed over a record, or went back"
	Regressed      = "an offset went back"
	NotDelivered   = "committed beyond what was delivered"
	OffsetsMissing = "offsets of a committed transaction are not committed"
)

// most violations of one property that are worth telling.
const most = 5

// Check returns what may not be, when log is all that there is to read in the end, and committed is
// what groups have committed in the end. Groups that read are those which have polled all.
func (h *History) Check(log Log, groupsThatRead map[string][]string, committed map[string]map[TopicPartition]int64) []Violation {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := check{History: h, log: log, offsets: map[TopicPartition][]int64{}, values: map[string]place{}, told: map[string]int{}}
	for at, records := range log {
		c.offsets[at] = slices.Sorted(maps.Keys(records))
	}
	c.index()
	c.producers()
	c.transactions(committed)
	c.consumers()
	c.groups(groupsThatRead)
	c.positions()
	return c.found
}

type place struct {
	TopicPartition
	offset int64
}

func (p place) String() string { return fmt.Sprintf("%s at %d", p.TopicPartition, p.offset) }

type check struct {
	*History // locked
	log      Log
	offsets  map[TopicPartition][]int64 // of log, in order
	values   map[string]place           // where each value is in the log
	told     map[string]int
	found    []Violation
}

func (c *check) report(property, format string, args ...any) {
	if c.told[property]++; c.told[property] <= most {
		c.found = append(c.found, Violation{property, fmt.Sprintf(format, args...)})
	}
}

// between returns the first offset with a record above one and below another.
func (c *check) between(at TopicPartition, above, below int64) (int64, bool) {
	offsets := c.offsets[at]
	i, _ := slices.BinarySearch(offsets, above+1)
	if i < len(offsets) && offsets[i] < below {
		return offsets[i], true
	}
	return 0, false
}

func (c *check) index() {
	for at, offsets := range c.offsets {
		for _, o := range offsets {
			v, here := c.log[at][o], place{at, o}
			if other, twice := c.values[v]; twice {
				c.report(Duplicate, "%q is in %s and in %s", v, other, here)
			}
			c.values[v] = here
		}
	}
}

// producers checks each record against what became of it.
func (c *check) producers() {
	type stream struct {
		producer string
		at       TopicPartition
	}
	last := map[stream]place{}
	for _, s := range c.sends {
		where, there := c.values[s.Value]
		outcome := s.Outcome
		if t := s.Transaction; t != nil {
			outcome = min(outcome, t.Outcome)
			if t.Outcome == Failed || s.Outcome == Failed {
				outcome = Failed
			}
		}
		switch {
		case outcome == Failed && there:
			c.report(NotCommitted, "%q of %s, which failed, is in %s", s.Value, s.Producer, where)
		case outcome == OK && !there:
			c.report(Lost, "%q of %s, acknowledged in %s at %d", s.Value, s.Producer, s.Partition, s.Offset)
		case outcome == OK && where != place{s.Partition, s.Offset}:
			c.report(TwoValues, "%q of %s was acknowledged in %s at %d and is in %s", s.Value, s.Producer, s.Partition, s.Offset, where)
		}
		if there {
			id := stream{s.Producer, where.TopicPartition}
			if before, some := last[id]; some && before.offset > where.offset {
				c.report(Reordered, "%q of %s is in %s, before what was sent before it", s.Value, s.Producer, where)
			}
			last[id] = where
		}
	}
}

// transactions checks that each is there as a whole, with the offsets that it committed.
func (c *check) transactions(committed map[string]map[TopicPartition]int64) {
	there, missing := map[*Transaction]string{}, map[*Transaction]string{}
	var all []*Transaction
	for _, s := range c.sends {
		t := s.Transaction
		if t == nil {
			continue
		}
		if there[t] == "" && missing[t] == "" {
			all = append(all, t)
		}
		if _, is := c.values[s.Value]; is {
			there[t] = s.Value
		} else {
			missing[t] = s.Value
		}
	}
	for _, t := range all {
		if there[t] != "" && missing[t] != "" {
			c.report(Torn, "of %s, which is %s, %q is there and %q is not", t.Name, t.Outcome, there[t], missing[t])
		}
		if t.Outcome != OK && there[t] == "" {
			continue
		}
		for at, offset := range t.Offsets {
			if got, some := committed[t.Group][at]; !some || got < offset {
				c.report(OffsetsMissing, "%s committed offset %d of %s, group %s has %d", t.Name, offset, at, t.Group, got)
			}
		}
	}
}

// consumers checks what each consumer got, in its order.
func (c *check) consumers() {
	type reader struct {
		group, consumer string
		at              TopicPartition
	}
	last := map[reader]int64{}
	values := map[place]string{}
	for _, p := range c.polls {
		here := place{p.at, p.offset}
		if v, before := values[here]; before && v != p.value {
			c.report(TwoValues, "in %s %q and %q were read", here, v, p.value)
		}
		values[here] = p.value
		if v, is := c.log[p.at][p.offset]; !is {
			c.report(NotCommitted, "%s got %q in %s, which is not there in the end", p.consumer, p.value, here)
		} else if v != p.value {
			c.report(TwoValues, "%s got %q in %s, in the end %q is there", p.consumer, p.value, here, v)
		}
		id := reader{p.group, p.consumer, p.at}
		before, some := last[id]
		last[id] = p.offset
		if !some {
			continue
		}
		if p.offset <= before {
			c.report(Skipped, "%s got offset %d of %s after %d", p.consumer, p.offset, p.at, before)
		} else if o, skipped := c.between(p.at, before, p.offset); skipped {
			c.report(Skipped, "%s got offset %d of %s after %d, without %d", p.consumer, p.offset, p.at, before, o)
		}
	}
}

// groups checks that a group has read all of its topics, and committed nothing that it had not read.
func (c *check) groups(read map[string][]string) {
	type member struct {
		group string
		at    TopicPartition
	}
	for group, topics := range read {
		got := c.got(group)
		for at, offsets := range c.offsets {
			if !slices.Contains(topics, at.Topic) {
				continue
			}
			for _, o := range offsets {
				if !got[place{at, o}] {
					c.report(NotSeen, "group %s never got %q in %s", group, c.log[at][o], place{at, o})
				}
			}
		}
	}

	delivered := map[member]int64{}
	polls := c.polls
	last := map[member]int64{}
	slices.SortStableFunc(c.commits, func(a, b commit) int { return cmp.Compare(a.when, b.when) })
	for _, k := range c.commits {
		for len(polls) > 0 && polls[0].when < k.when {
			id := member{polls[0].group, polls[0].at}
			delivered[id] = max(delivered[id], polls[0].offset+1)
			polls = polls[1:]
		}
		id := member{k.group, k.at}
		if before, some := last[id]; some && k.offset < before {
			c.report(Regressed, "group %s had committed %d in %s, and then %d", k.group, before, k.at, k.offset)
		}
		last[id] = k.offset
		if o, beyond := c.between(k.at, delivered[id]-1, k.offset); beyond {
			c.report(NotDelivered, "group %s committed %d in %s, and had not got offset %d", k.group, k.offset, k.at, o)
		}
	}
}

// positions checks that the ends of partitions only go forward, and are in their order.
func (c *check) positions() {
	last := map[TopicPartition]observation{}
	for _, o := range c.logs {
		before := last[o.at]
		last[o.at] = o
		if o.start < before.start || o.stable < before.stable || o.high < before.high {
			c.report(Regressed, "%s went from start %d, stable %d, high watermark %d to %d, %d, %d", o.at, before.start, before.stable, before.high, o.start, o.stable, o.high)
		}
	}
	for at, offsets := range c.offsets {
		if o, some := last[at]; some && len(offsets) > 0 && offsets[len(offsets)-1] >= o.high {
			c.report(Regressed, "%s has offset %d, its high watermark was %d at last", at, offsets[len(offsets)-1], o.high)
		}
	}
}
