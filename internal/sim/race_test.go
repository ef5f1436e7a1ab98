//go:build race

package sim

// tableSeeds is how many seeds the simulation of tables runs; fewer with the race detector,
// which makes each ten times as long.
const tableSeeds = 10

const underRace = true
