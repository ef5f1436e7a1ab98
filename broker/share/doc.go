// Package share delivers the records of a partition to the members of a share group (KIP-932), each
// record to one member at a time, until one has accepted it.
//
// [State] decides. It knows of each record that is in flight, which is from the first that is not
// done (the share-partition start offset) to the last that was ever given out, whether it is
// available, acquired by someone until a moment, acknowledged or archived, and how often it was
// delivered. It has no clock, goroutine or I/O, and does not read the log: who fetches shows it what
// was read. [Partition] is the State of one share-partition that is in use, with the lock and the
// goroutine that it needs; [Manager] holds those of a node.
//
// What is done, and how often the rest was delivered, survives: a [Store] has it before anyone is
// told. Who has acquired what does not: after a restart these records are available again, and
// the delivery that was under way does not count. A Store that refuses ends the Partition, and the
// next to use it loads it again.
package share
