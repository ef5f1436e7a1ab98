//go:build !race

package sim

const (
	logSeeds   = 200
	tableSeeds = 500
)

const underRace = false
