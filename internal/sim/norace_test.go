//go:build !race

package sim

const tableSeeds = 500

const underRace = false
