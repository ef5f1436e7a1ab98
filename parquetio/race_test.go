//go:build race

package parquetio

// jsonSeeds is how many seeds the random tests of JSON run; fewer with the race detector, which makes
// each ten times as long. make sim runs them without it.
const jsonSeeds = 20
