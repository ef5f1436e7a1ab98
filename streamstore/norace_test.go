//go:build !race

package streamstore

const defaultModelSeeds = 10

const underRace = false
