package shard

import "testing"

// Kafka's own tools find a group in the partition that its Java hash tells.
func TestPartitionOfIsJavaHash(t *testing.T) {
	for key, want := range map[string]int32{"": 0, "a": 97 % 50, "my-group": 36, "consumer-group-1": 20, "日本": 47} {
		if got := PartitionOf(key, 50); got != want {
			t.Errorf("PartitionOf(%q) = %d, want %d", key, got, want)
		}
	}
}
