package metadata

import (
	"fmt"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/streamstore"
)

// BenchmarkManyStreams is what a node with very many streams asks of metadata: to create and
// open them, to commit an upload that holds something of each, a few in one object, and to
// close them.
func BenchmarkManyStreams(b *testing.B) {
	for _, engine := range []string{"sqlite", "postgres"} {
		for _, streams := range []int{20_000, 100_000} {
			b.Run(fmt.Sprintf("%s/streams=%d", engine, streams), func(b *testing.B) { benchmarkStreams(b, engine, streams) })
		}
	}
}

func benchmarkStreams(b *testing.B, engine string, streams int) {
	url := "sqlite:" + b.TempDir() + "/metadata.db"
	if engine == "postgres" {
		url = lab.Postgres(b)
	}
	s, err := Open(b.Context(), url, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	node, _, err := s.RegisterNode(b.Context(), 1, streamstore.WALObject)
	if err != nil {
		b.Fatal(err)
	}
	spent := map[string]time.Duration{}
	step := func(name string, do func() error) {
		b.Helper()
		began := time.Now()
		if err := do(); err != nil {
			b.Fatalf("%s: %v", name, err)
		}
		spent[name] += time.Since(began)
	}
	for b.Loop() {
		var first streamstore.StreamID
		step("create", func() (err error) { first, err = s.CreateStreams(b.Context(), node, streams); return err })
		open := make([]streamstore.OpenRequest, streams)
		for i := range open {
			open[i] = streamstore.OpenRequest{ID: first + streamstore.StreamID(i), Epoch: 1}
		}
		step("open", func() error { _, err := s.OpenStreams(b.Context(), node, open); return err })
		for n := range int64(2) {
			id, err := s.PrepareObjects(b.Context(), node, 1, time.Hour)
			if err != nil {
				b.Fatal(err)
			}
			ranges := make([]streamstore.StreamRange, len(open))
			for i, o := range open {
				ranges[i] = streamstore.StreamRange{Stream: o.ID, Epoch: 1, Start: n * 10, End: n*10 + 10}
			}
			step("commit", func() error {
				return s.CommitUpload(b.Context(), node, streamstore.Upload{
					StreamSet: &streamstore.StreamSetObject{ID: id, Size: 1, Ranges: ranges}, WALEpoch: node.Epoch, WALMark: 1})
			})
		}
		step("close", func() error { return s.CloseStreams(b.Context(), node, open) })
	}
	for name, d := range spent {
		per := 1
		if name == "commit" {
			per = 2
		}
		b.ReportMetric(d.Seconds()/float64(b.N*per), "s/"+name)
	}
	b.ReportMetric(0, "ns/op")
}
