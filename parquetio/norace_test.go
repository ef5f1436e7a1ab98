//go:build !race

package parquetio

const (
	jsonSeeds     = 150
	protobufSeeds = 150
	rowSeeds      = 60
)
