package metadata

import (
	"fmt"
	"strconv"
	"strings"
)

// Keys of a bucket.
//
//	metadata/generation/<generation, 16 hex>                      who may write; created once, kept for ever
//	metadata/snapshot/<generation, 16 hex>/<number, 16 hex>       all tables at one moment; dense numbers
const (
	generationPrefix = "metadata/generation/"
	snapshotPrefix   = "metadata/snapshot/"
)

func generationKey(generation int64) string {
	return fmt.Sprintf("%s%016x", generationPrefix, uint64(generation))
}

func parseGenerationKey(key string) (generation int64, ok bool) {
	g, err := strconv.ParseUint(strings.TrimPrefix(key, generationPrefix), 16, 63)
	if err != nil || generationKey(int64(g)) != key {
		return 0, false
	}
	return int64(g), true
}

// snapshotDir is the common prefix of one generation's snapshots, with its slash.
func snapshotDir(generation int64) string {
	return fmt.Sprintf("%s%016x/", snapshotPrefix, uint64(generation))
}

func snapshotKey(generation, number int64) string {
	return fmt.Sprintf("%s%016x", snapshotDir(generation), uint64(number))
}

func parseSnapshotKey(key string) (generation, number int64, ok bool) {
	dir, name, _ := strings.Cut(strings.TrimPrefix(key, snapshotPrefix), "/")
	g, err1 := strconv.ParseUint(dir, 16, 63)
	n, err2 := strconv.ParseUint(name, 16, 63)
	if err1 != nil || err2 != nil || snapshotKey(int64(g), int64(n)) != key {
		return 0, 0, false
	}
	return int64(g), int64(n), true
}
