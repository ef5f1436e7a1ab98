package coordinator

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// TableState says how the table of a topic is. docs/operations.md says what to do.
type TableState string

const (
	TableOK       TableState = "ok"       // records become rows
	TableWaiting  TableState = "waiting"  // for the first records, or for its first commit
	TableDegraded TableState = "degraded" // the catalog is away or refuses; tried again by itself
	TablePaused   TableState = "paused"   // until somebody acts: the message says how
	TableStuck    TableState = "stuck"    // records are read and no commit comes, for longer than patience
	TableUnknown  TableState = "unknown"  // its coordinator is with a node that is away
)

// TableStates are all states that a coordinator can tell of, from the best to the worst.
var TableStates = []TableState{TableOK, TableWaiting, TableDegraded, TablePaused, TableStuck}

// Health decides the state of a table. It has no clock, no goroutine and no I/O: its
// coordinator tells it what it meets, and whoever asks for the state brings the time. So a
// coordinator that hangs is seen all the same.
type Health struct {
	catalog Ailment            // the catalog does not answer
	refused Ailment            // it answers, and the commit does not come about
	broken  Ailment            // the coordinator cannot begin
	paused  Ailment            // it waits for an operator
	unfit   map[string]Ailment // so do records of these writers, which the table cannot hold

	calling   time.Time // since when a call to the catalog is under way; zero if none
	filled    bool      // the table holds records of this topic
	committed time.Time // the last commit, or the begin of this coordinator
	oldest    time.Time // arrival of the oldest record that waits; zero if none
	silent    map[int32]time.Time
}

// An Ailment is something that is wrong, since when; zero if it is not.
type Ailment struct {
	Message string
	Since   time.Time
}

// at notes a message. It keeps the time of an ailment that only has another message.
func (a *Ailment) at(message string, now time.Time) {
	if a.Since.IsZero() {
		a.Since = now
	}
	a.Message = message
}

// Begun says that a coordinator has begun, or again after it was broken or paused. Only a
// begin that was not due to itself gives it time for the next commit.
func (h *Health) Begun(now time.Time) {
	if h.committed.IsZero() || h.paused != (Ailment{}) {
		h.committed = now
	}
	h.broken, h.paused = Ailment{}, Ailment{}
}

// Broken says why a coordinator cannot begin.
func (h *Health) Broken(err error, now time.Time) { h.broken.at(err.Error(), now) }

// Paused says what an operator must do.
func (h *Health) Paused(err error, now time.Time) { h.paused.at(err.Error(), now) }

// Unfit says that the records of a writer wait until somebody changes the table; nil that they
// do not any more.
func (h *Health) Unfit(writer string, err error, now time.Time) {
	if err == nil {
		delete(h.unfit, writer)
		return
	}
	if h.unfit == nil {
		h.unfit = map[string]Ailment{}
	}
	if a := h.unfit[writer]; a != (Ailment{}) || len(h.unfit) < maxUnfit {
		a.at(err.Error(), now)
		h.unfit[writer] = a
	}
}

// maxUnfit bounds the writers that are remembered.
const maxUnfit = 100

// waiting returns the first of the writers that wait.
func (h *Health) waiting() Ailment {
	if len(h.unfit) == 0 {
		return Ailment{}
	}
	writer := slices.Min(slices.Collect(maps.Keys(h.unfit)))
	a := h.unfit[writer]
	a.Message = fmt.Sprintf("records of schema %s wait: %s", writer, a.Message)
	return a
}

// Calls says that a call to the catalog begins.
func (h *Health) Calls(now time.Time) { h.calling = now }

// Answered says that it has ended; err if the catalog is away.
func (h *Health) Answered(err error, now time.Time) {
	h.calling = time.Time{}
	if err == nil {
		h.catalog = Ailment{}
		return
	}
	h.catalog.at(err.Error(), now)
}

// Refused says why a commit is not in the table, or may not be. The next one that is, clears it.
func (h *Health) Refused(err error, now time.Time) { h.refused.at(err.Error(), now) }

// Committed says that a commit is in the table.
func (h *Health) Committed(now time.Time) { h.refused, h.filled, h.committed = Ailment{}, true, now }

// Filled says whether the table, which was read anew, holds records of the topic. What was
// refused before is void.
func (h *Health) Filled(yes bool) { h.refused, h.filled = Ailment{}, yes }

// Waits says since when the oldest record waits, and which partitions gave no answer in
// their last round, since when.
func (h *Health) Waits(oldest time.Time, silent map[int32]time.Time) {
	h.oldest, h.silent = oldest, maps.Clone(silent)
}

// Work is what the workers of this node know of a topic.
type Work struct {
	Oldest  time.Time // arrival of the oldest record that the table does not hold; zero if none
	Trouble Ailment   // why a partition is not read
}

// Patience is how long a table may be without a commit while the catalog, or a record, waits.
type Patience struct {
	Call  time.Duration // for the answer to one call
	Stuck time.Duration // for a commit, while records wait
}

// State returns how the table is.
func (h *Health) State(now time.Time, w Work, p Patience) (TableState, Ailment) {
	for _, a := range []Ailment{h.paused, h.catalog, h.hangs(now, p), h.refused, h.broken} {
		switch {
		case a.Message == "":
		case a == h.paused:
			return TablePaused, a
		default:
			return TableDegraded, a
		}
	}
	if a := h.waiting(); a.Message != "" {
		return TablePaused, a
	}
	if a := h.stuck(now, w, p); a.Message != "" {
		return TableStuck, a
	}
	if !h.filled {
		return TableWaiting, Ailment{}
	}
	return TableOK, Ailment{}
}

// hangs is the ailment of a catalog that has not said anything for long.
func (h *Health) hangs(now time.Time, p Patience) Ailment {
	if h.calling.IsZero() || now.Sub(h.calling) <= p.Call {
		return Ailment{}
	}
	return Ailment{fmt.Sprintf("the catalog has not answered a call for %s", rounded(now.Sub(h.calling))), h.calling}
}

// stuck is the ailment of a table that should have had a commit.
func (h *Health) stuck(now time.Time, w Work, p Patience) Ailment {
	overdue := func(since time.Time) bool { return !since.IsZero() && now.Sub(since) > p.Stuck }
	if overdue(w.Trouble.Since) {
		return w.Trouble
	}
	var quiet []string
	var since time.Time
	for _, i := range slices.Sorted(maps.Keys(h.silent)) {
		if at := h.silent[i]; overdue(at) {
			quiet = append(quiet, fmt.Sprint(i))
			since = earlier(since, at)
		}
	}
	if len(quiet) > 0 {
		const most = 10
		if len(quiet) > most {
			quiet = append(quiet[:most], fmt.Sprintf("… %d in all", len(quiet)))
		}
		return Ailment{fmt.Sprintf("partitions %s gave no answer for %s: does the node that leads them live ('tabletopic node list')?", strings.Join(quiet, ", "), rounded(now.Sub(since))), since}
	}
	oldest := earlier(h.oldest, w.Oldest)
	if !overdue(oldest) || !h.committed.IsZero() && !overdue(h.committed) {
		return Ailment{}
	}
	a := Ailment{fmt.Sprintf("records have waited for %s and no commit came", rounded(now.Sub(oldest))), later(oldest, h.committed)}
	if w.Trouble.Message != "" {
		a.Message += ": " + w.Trouble.Message
	}
	return a
}

// earlier returns the earlier of two times that are not zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if a.Compare(b) > 0 {
		return a
	}
	return b
}

func rounded(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}
