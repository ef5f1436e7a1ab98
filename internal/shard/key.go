package shard

// PartitionOf is the partition of an internal topic that holds a key: the Java hash of the key,
// which Kafka's tools compute too.
func PartitionOf(key string, partitions int) int32 {
	var h int32
	for _, c := range key { // UTF-16 units above the basic plane come as surrogates in Java
		if c > 0xffff {
			c -= 0x10000
			h = 31*h + 0xd800 + c>>10
			c = 0xdc00 + c&0x3ff
		}
		h = 31*h + c
	}
	return (h & 0x7fffffff) % int32(partitions)
}
