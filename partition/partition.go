// Package partition gives streams the meaning of Kafka partitions: leader epochs, offsets,
// producer state, the high watermark, reads by isolation level, offsets by time.
//
// A [Set] holds the partitions that this node leads and is the only way to them, also for
// the parts of Table Topic that keep their state in internal topics. A partition is a
// mutex, not a goroutine: an append checks the batch, assigns its offsets and hands it to
// the stream, and the stream's ordered acknowledgement moves the high watermark.
package partition
