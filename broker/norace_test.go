//go:build !race

package broker

const hostilePartitions = 100_000
