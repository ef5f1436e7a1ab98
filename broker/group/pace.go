package group

import "time"

// A pace is how often a group is assigned partitions (KIP-1263, consumer.assignment.interval.ms and
// share.assignment.interval.ms). The first assignment comes at once, and so does one that comes an interval after the
// last. What changes before that raises the group's epoch, and waits: the first heartbeat after the
// interval makes one assignment of it all. Until then the group is in the state Assigning, and members go on with what they were
// assigned, new ones with nothing.
//
// As no member sends a heartbeat for seconds, those who send one meanwhile are told to send the next when the
// interval is over. Kafka does not do that.
type pace struct {
	last     time.Time     // when the group was last assigned partitions; zero: never, or nobody knows
	interval time.Duration // of the group, as last told; zero: at once. Not durable
}

// wait is how long the next assignment has to wait. A last one in the future is by another clock, and does not count.
func (p *pace) wait(now time.Time) time.Duration {
	if p.last.IsZero() || p.last.After(now) {
		return 0
	}
	return max(p.last.Add(p.interval).Sub(now), 0)
}

// heartbeatMillis is when a member is to send its next heartbeat: sooner than usual if an assignment waits.
func (t *Timeouts) heartbeatMillis(wait time.Duration) int32 {
	next := t.Heartbeat
	if wait > 0 {
		next = min(next, wait.Truncate(time.Millisecond)+time.Millisecond)
	}
	return int32(next.Milliseconds())
}
