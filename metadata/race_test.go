//go:build race

package metadata

// restoreSeeds is how many seeds TestRestoreAtAnyMoment runs, differenceSeeds TestDifferencesAreTheWhole;
// fewer with the race detector, which makes each ten times as long. make sim runs the first without it.
const (
	restoreSeeds    = 2
	differenceSeeds = 1
)
