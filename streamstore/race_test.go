//go:build race

package streamstore

// defaultModelSeeds is how many seeds the model tests run; fewer with the race detector, which makes each ten
// times as long. make sim runs them without it.
const defaultModelSeeds = 3

// underRace says that the race detector is on.
const underRace = true
