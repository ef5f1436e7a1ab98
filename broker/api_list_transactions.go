package broker

import (
	"context"
	"regexp"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/txn"
)

// handleListTransactions lists the transactional ids that this node coordinates (KIP-664, KIP-994,
// KIP-1152).
func handleListTransactions(ctx context.Context, b *Broker, r *request, req *kmsg.ListTransactionsRequest) kmsg.Response {
	resp := kmsg.NewPtrListTransactionsResponse()
	f := txn.Filter{Producers: req.ProducerIDFilters, Duration: time.Duration(req.DurationFilterMillis) * time.Millisecond}
	known := kmsg.TransactionStateStrings()
	for _, state := range req.StateFilters {
		if slices.Contains(known, state) {
			f.States = append(f.States, state)
		} else {
			resp.UnknownStateFilters = append(resp.UnknownStateFilters, state)
		}
	}
	if len(req.StateFilters) > 0 && len(f.States) == 0 {
		return resp
	}
	if pattern := req.TransactionalIDPattern; pattern != nil && *pattern != "" {
		var err error
		if f.Pattern, err = regexp.Compile("^(?:" + *pattern + ")$"); err != nil {
			resp.ErrorCode = kerr.InvalidRegularExpression.Code
			return resp
		}
	}
	list, err := b.txns.List(ctx, f)
	if err != nil {
		resp.ErrorCode = txnCode(nil, err)
		return resp
	}
	resp.TransactionStates = slices.DeleteFunc(list, func(t kmsg.ListTransactionsResponseTransactionState) bool { return !r.sees(onTxn, t.TransactionalID) })
	return resp
}
