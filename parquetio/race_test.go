//go:build race

package parquetio

// How many seeds the random tests run: jsonSeeds those of JSON, protobufSeeds those of Protobuf, rowSeeds those of
// rows of any types; fewer with the race detector, which makes each ten times as long. make sim runs them without it.
const (
	jsonSeeds     = 20
	protobufSeeds = 20
	rowSeeds      = 10
)
