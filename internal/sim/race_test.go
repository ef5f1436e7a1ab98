//go:build race

package sim

// logSeeds is how many seeds the simulation of the log runs, tableSeeds that of tables; fewer with the race
// detector, with which each takes three to ten times as long. make sim runs them without it.
const (
	logSeeds   = 40
	tableSeeds = 10
)

const underRace = true
