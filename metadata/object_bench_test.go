package metadata

import (
	"fmt"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/streamstore"
)

// fill commits stream set objects that each hold a range of every stream.
func fill(tb testing.TB, s *Store, objects, streams int) (streamstore.Node, streamstore.StreamID) {
	tb.Helper()
	node, _, err := s.RegisterNode(tb.Context(), 1, streamstore.WALObject)
	if err != nil {
		tb.Fatal(err)
	}
	first, err := s.CreateStreams(tb.Context(), node, streams)
	if err != nil {
		tb.Fatal(err)
	}
	var open []streamstore.OpenRequest
	for i := range streams {
		open = append(open, streamstore.OpenRequest{ID: first + streamstore.StreamID(i), Epoch: 1})
	}
	if _, err := s.OpenStreams(tb.Context(), node, open); err != nil {
		tb.Fatal(err)
	}
	for o := range objects {
		commitAll(tb, s, node, first, streams, int64(o))
	}
	return node, first
}

func commitAll(tb testing.TB, s *Store, node streamstore.Node, first streamstore.StreamID, streams int, o int64) {
	id, err := s.PrepareObjects(tb.Context(), node, 1, time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	set := &streamstore.StreamSetObject{ID: id, Size: 1 << 20}
	for i := range streams {
		set.Ranges = append(set.Ranges, streamstore.StreamRange{Stream: first + streamstore.StreamID(i), Epoch: 1, Start: 100 * o, End: 100 * (o + 1)})
	}
	if err := s.CommitUpload(tb.Context(), node, streamstore.Upload{StreamSet: set, WALEpoch: node.Epoch, WALMark: uint64(o)}); err != nil {
		tb.Fatal(err)
	}
}

// A cold read asks where a stream is; the answer must not grow with the objects. With
// -timeout 0 and -bench 10000x1000 the size is that of a node that never compacts.
func BenchmarkStreamObjects(b *testing.B) {
	for _, size := range [][2]int{{100, 1000}, {1000, 1000}, {10000, 1000}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			if size[0] > 1000 && testing.Short() {
				b.Skip("fills for minutes")
			}
			s, err := Open(b.Context(), "sqlite:"+b.TempDir()+"/metadata.db", nil)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			_, first := fill(b, s, size[0], size[1])
			i := 0
			for b.Loop() {
				id := first + streamstore.StreamID(i%size[1])
				start := int64(i*7919%size[0]) * 100
				i++
				found, err := s.StreamObjects(b.Context(), id, start, 1<<62, 4)
				if err != nil || len(found) == 0 || found[0].Start != start {
					b.Fatalf("got %v, %v", found, err)
				}
			}
		})
	}
}

// Finding a stream among so many stream set objects, of which each holds ten streams, costs
// the same for a hundred and for a hundred thousand: the index is by (stream, offset). Its rows
// are inserted directly, as uploads would take minutes.
func BenchmarkFindAmongStreamSets(b *testing.B) {
	const streams = 10
	for _, objects := range []int64{100, 100_000} {
		b.Run(fmt.Sprint(objects), func(b *testing.B) {
			s, err := Open(b.Context(), "sqlite:"+b.TempDir()+"/metadata.db", nil)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			node, first := fill(b, s, 0, streams)
			err = s.updateAs(b.Context(), node, "insert objects", func(t *tx) error {
				const count = `WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < $1) `
				_, err := t.exec(count+`INSERT INTO object (id, kind, size, state, node, since, committed, refs)
					SELECT 1000000 + i, $2, 1048576, $3, $4, 0, 1, 1 FROM n`, objects, streamstore.KindStreamSet, objectCommitted, node.ID)
				if err != nil {
					return err
				}
				for i := range streams {
					if _, err := t.exec(count+`INSERT INTO object_range (stream, start_offset, end_offset, object)
						SELECT $2, 100 * i, 100 * i + 100, 1000000 + i FROM n`, objects, first+streamstore.StreamID(i)); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
			for i := int64(0); b.Loop(); i++ {
				start := i * 7919 % objects * 100
				found, err := s.StreamObjects(b.Context(), first+streamstore.StreamID(i%streams), start, 1<<62, 4)
				if err != nil || len(found) == 0 || found[0].Start != start {
					b.Fatalf("got %v, %v", found, err)
				}
			}
		})
	}
}

// One upload of a node with so many streams.
func BenchmarkCommitUpload(b *testing.B) {
	for _, streams := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(streams), func(b *testing.B) {
			s, err := Open(b.Context(), "sqlite:"+b.TempDir()+"/metadata.db", nil)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			node, first := fill(b, s, 0, streams)
			o := int64(0)
			for b.Loop() {
				commitAll(b, s, node, first, streams, o)
				o++
			}
		})
	}
}

// A node starts: it takes its partitions and opens all their streams.
func BenchmarkOpenStreams(b *testing.B) {
	s, err := Open(b.Context(), "sqlite:"+b.TempDir()+"/metadata.db", nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const streams = 100_000
	node, first := fill(b, s, 0, streams)
	epoch := int64(1)
	open := make([]streamstore.OpenRequest, streams)
	for b.Loop() {
		epoch++
		for i := range open {
			open[i] = streamstore.OpenRequest{ID: first + streamstore.StreamID(i), Epoch: epoch}
		}
		if _, err := s.OpenStreams(b.Context(), node, open); err != nil {
			b.Fatal(err)
		}
	}
}
