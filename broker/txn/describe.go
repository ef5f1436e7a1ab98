package txn

import (
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/shard"
)

// A Filter of ListTransactions; a field that is empty lets all pass.
type Filter struct {
	States    []string
	Producers []int64
	Duration  time.Duration  // at least so long open; −1 for all
	Pattern   *regexp.Regexp // of the whole transactional id
}

// Describe handles DescribeTransactions for one transactional id.
func (s *State) Describe(ticket shard.Ticket, id string) shard.Step {
	d := kmsg.NewDescribeTransactionsResponseTransactionState()
	d.TransactionalID = id
	t := s.txns[id]
	if t == nil {
		d.ErrorCode = kerr.TransactionalIDNotFound.Code
		return answer(ticket, d)
	}
	d.State, d.TimeoutMillis, d.StartTimestamp = t.phase.String(), int32(t.timeout.Milliseconds()), millisOf(t.started)
	d.ProducerID, d.ProducerEpoch = t.producerID, t.epoch
	for _, topic := range topics(t.partitions) {
		dt := kmsg.NewDescribeTransactionsResponseTransactionStateTopic()
		dt.Topic, dt.Partitions = topic.Topic, topic.Partitions
		d.Topics = append(d.Topics, dt)
	}
	return answer(ticket, d)
}

// List handles ListTransactions.
func (s *State) List(now time.Time, ticket shard.Ticket, f Filter) shard.Step {
	list := []kmsg.ListTransactionsResponseTransactionState{}
	for _, id := range slices.Sorted(maps.Keys(s.txns)) {
		t := s.txns[id]
		switch {
		case len(f.States) > 0 && !slices.Contains(f.States, t.phase.String()),
			len(f.Producers) > 0 && !slices.Contains(f.Producers, t.producerID),
			f.Duration >= 0 && (t.phase != ongoing && !t.decided() || now.Sub(t.started) <= f.Duration),
			f.Pattern != nil && !f.Pattern.MatchString(id):
			continue
		}
		l := kmsg.NewListTransactionsResponseTransactionState()
		l.TransactionalID, l.ProducerID, l.TransactionState = id, t.producerID, t.phase.String()
		list = append(list, l)
	}
	return answer(ticket, list)
}
