//go:build !race

package partition

const cleanedSeeds = 12
