package metadata

import (
	"fmt"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/streamstore"
)

// A compaction replaces six stream set objects, each with a range of every stream. While it
// commits, uploads wait.
func BenchmarkCommitCompaction(b *testing.B) {
	const objects = 6
	for _, streams := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("%d", streams), func(b *testing.B) {
			s, err := Open(b.Context(), "sqlite:"+b.TempDir()+"/metadata.db", nil)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			node, first := fill(b, s, 0, streams)
			o := int64(0)
			for b.Loop() {
				b.StopTimer()
				for range objects {
					commitAll(b, s, node, first, streams, o)
					o++
				}
				id, err := s.PrepareObjects(b.Context(), node, 1, time.Hour)
				if err != nil {
					b.Fatal(err)
				}
				set := streamstore.StreamSetObject{ID: id, Size: 1 << 20}
				for i := range streams {
					set.Ranges = append(set.Ranges, streamstore.StreamRange{Stream: first + streamstore.StreamID(i), Start: 100 * (o - objects), End: 100 * o})
				}
				c := streamstore.Compaction{StreamSets: []streamstore.StreamSetObject{set}}
				sets, err := s.StreamSetObjects(b.Context(), node.ID, id-objects*2, 100)
				if err != nil {
					b.Fatal(err)
				}
				for _, old := range sets[max(0, len(sets)-objects):] {
					c.Sources = append(c.Sources, old.ID)
				}
				b.StartTimer()
				if err := s.CommitCompaction(b.Context(), node, c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
