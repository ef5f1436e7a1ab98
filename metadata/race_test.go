//go:build race

package metadata

// restoreSeeds is how many seeds TestRestoreAtAnyMoment runs; fewer with the race detector, which makes
// each ten times as long. make sim runs it without it.
const restoreSeeds = 2
