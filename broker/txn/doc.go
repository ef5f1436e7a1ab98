// Package txn is the coordinator of transactions (KIP-98, KIP-360, KIP-447, KIP-588, KIP-890):
// which producer has a transactional id, what its transaction spans, and how that ended.
//
// [State] holds the transactional ids of one partition of __transaction_state and decides; it has
// no clock, goroutine or I/O. Package shard runs it: every decision is in that partition, in
// Kafka's own record formats, before anyone is answered, and a start replays it. [Manager] finds
// the shard of an id, and writes the markers of what is decided, in this node and in others, until
// every partition of the transaction has its own. A decision is not taken back: who reads it
// again after a crash writes the same markers.
//
// Markers carry the leader epoch of the coordinator's partition, so that partitions refuse those
// of a coordinator that was replaced.
package txn
