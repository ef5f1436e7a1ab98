// Package group is the coordinator of consumer groups: membership, assignments and committed
// offsets. A group speaks one of two protocols:
//
//   - classic: members rebalance together and their leader assigns; with static membership
//     (KIP-345), member ids that the coordinator gives (KIP-394) and bounded metadata;
//   - consumer (KIP-848): the coordinator assigns, by the assignors uniform and range, and each
//     member moves to its target by itself. Regular expressions are RE2 and match the whole
//     name of a topic, an internal one too, if the member may describe it. Racks are kept, and not looked at.
//
// A group without members may change its protocol, and one with members does so with the first or
// after the last member of the consumer protocol: members of the classic one stay in it (mixed.go).
//
// [State] holds the groups of one partition of __consumer_offsets and decides; it has no
// clock, goroutine or I/O. Package shard runs it: what must survive is written to that
// partition in Kafka's own record formats before anyone is answered, and a start replays it.
// Who waits in a rebalance is not written: clients join again. [Manager] finds the shard of
// a group.
package group
