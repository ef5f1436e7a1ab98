//go:build race

package worker

// underRace says that the race detector is on.
const underRace = true
