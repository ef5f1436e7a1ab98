//go:build race

package partition

// cleanedSeeds is how many logs the model of the cleaner has; fewer with the race detector, which
// makes each ten times as long.
const cleanedSeeds = 2
