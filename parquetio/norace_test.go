//go:build !race

package parquetio

const jsonSeeds = 150
