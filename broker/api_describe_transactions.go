package broker

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleDescribeTransactions describes the transactional ids that this node coordinates (KIP-664).
func handleDescribeTransactions(ctx context.Context, b *Broker, r *request, req *kmsg.DescribeTransactionsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeTransactionsResponse()
	for _, id := range once(req.TransactionalIDs, itself) {
		var d kmsg.DescribeTransactionsResponseTransactionState
		var err error = kerr.TransactionalIDAuthorizationFailed
		if r.may(opDescribe, onTxn, id) {
			d, err = b.txns.Describe(ctx, id)
		}
		d.Topics = slices.DeleteFunc(d.Topics, func(t kmsg.DescribeTransactionsResponseTransactionStateTopic) bool { return !r.sees(onTopic, t.Topic) })
		if err != nil {
			d = kmsg.NewDescribeTransactionsResponseTransactionState()
			d.TransactionalID, d.ErrorCode = id, txnCode(nil, err)
		}
		resp.TransactionStates = append(resp.TransactionStates, d)
	}
	return resp
}
