// Package group is the coordinator of consumer groups: membership, assignments and committed
// offsets. A group speaks one of two protocols, and may change it while it has no members:
//
//   - classic: members rebalance together and their leader assigns; with static membership
//     (KIP-345), member ids that the coordinator gives (KIP-394) and bounded metadata;
//   - consumer (KIP-848): the coordinator assigns, by the assignors uniform and range, and each
//     member moves to its target by itself. Regular expressions are RE2 and match the whole
//     name of a topic, an internal one too. Racks are kept, and not looked at. Members of the
//     two protocols are not in one group at a time.
//
// [State] holds the groups of one partition of __consumer_offsets and decides; it has no
// clock, goroutine or I/O. Package shard runs it: what must survive is written to that
// partition in Kafka's own record formats before anyone is answered, and a start replays it.
// Who waits in a rebalance is not written: clients join again. [Manager] finds the shard of
// a group.
package group
