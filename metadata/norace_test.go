//go:build !race

package metadata

const (
	restoreSeeds    = 6
	differenceSeeds = 4
)
