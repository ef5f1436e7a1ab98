//go:build !race

package metadata

const restoreSeeds = 6
