package metadata

import (
	"testing"

	"github.com/tabletopic/tabletopic/objectstore"
)

// BenchmarkSnapshot reads and packs a database with 100,000 entries in the index of objects.
func BenchmarkSnapshot(b *testing.B) {
	s, err := open(b.Context(), sqliteDatabase(b.TempDir()+"/metadata.db", false), nil, newClock().now)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const entries = 100_000
	err = s.update(b.Context(), "fill", func(t *tx) error {
		r := t.streams()
		defer r.close()
		for i := range entries {
			if _, err := r.exec(`INSERT INTO object_range (stream, start_offset, end_offset, object) VALUES ($1, $2, $3, $4)`, i%1000, i, i+1000, i/100); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	k := &Backup{s: s, bucket: objectstore.NewMemory()}
	if err := k.claim(b.Context()); err != nil {
		b.Fatal(err)
	}
	size := 0
	for b.Loop() {
		_, data, err := k.read(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		size = len(data)
	}
	b.ReportMetric(float64(size)/entries, "bytes/entry")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/entries, "ns/entry")
}
