package streamstore

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Keys of a bucket.
//
//	wal/<node>/<node epoch, 16 hex>/<sequence, 16 hex>   WAL bulks and fences; sorted by sequence
//	data/<hh>/<object id, 16 hex>                        stream objects, stream set objects, composite objects
//	clock/<node>                                         empty; written before a sweep, to see what time the store has
//
// <hh> is the reversed low byte of the id, so that objects written together spread over
// 256 prefixes.
const (
	walPrefix  = "wal/"
	dataPrefix = "data/"
	clockDir   = "clock/"
)

// walDir is the common prefix of one life's WAL, with its slash.
func walDir(node NodeID, epoch int64) string {
	return fmt.Sprintf("%s%d/%016x/", walPrefix, node, uint64(epoch))
}

func walKey(node NodeID, epoch int64, seq uint64) string {
	return fmt.Sprintf("%s%016x", walDir(node, epoch), seq)
}

func parseWALKey(key string) (node NodeID, epoch int64, seq uint64, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 4 {
		return 0, 0, 0, false
	}
	n, err1 := strconv.ParseInt(parts[1], 10, 32)
	e, err2 := strconv.ParseUint(parts[2], 16, 64)
	s, err3 := strconv.ParseUint(parts[3], 16, 64)
	if err1 != nil || err2 != nil || err3 != nil || walKey(NodeID(n), int64(e), s) != key {
		return 0, 0, 0, false
	}
	return NodeID(n), int64(e), s, true
}

// ObjectKey is the key of a data object of any kind.
func ObjectKey(id ObjectID) string {
	return fmt.Sprintf("%s%02x/%016x", dataPrefix, bits.Reverse8(uint8(id)), uint64(id))
}

func parseObjectKey(key string) (ObjectID, bool) {
	v, err := strconv.ParseUint(key[strings.LastIndexByte(key, '/')+1:], 16, 63)
	if err != nil || ObjectKey(ObjectID(v)) != key {
		return 0, false
	}
	return ObjectID(v), true
}

func clockKey(node NodeID) string { return fmt.Sprintf("%s%d", clockDir, node) }
