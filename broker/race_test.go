//go:build race

package broker

// hostilePartitions is how many partitions a hostile request names; fewer with the race detector, which makes each
// ten times as long.
const hostilePartitions = 10_000
