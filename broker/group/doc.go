// Package group is the coordinator of classic consumer groups: membership, rebalances and
// committed offsets, by the classic group protocol with static membership (KIP-345), member
// ids that the coordinator gives (KIP-394) and bounded metadata.
//
// [State] holds the groups of one partition of __consumer_offsets and decides; it has no
// clock, goroutine or I/O. Package shard runs it: what must survive is written to that
// partition in Kafka's own record formats before anyone is answered, and a start replays it.
// Who waits in a rebalance is not written: clients join again. [Manager] finds the shard of
// a group.
package group
