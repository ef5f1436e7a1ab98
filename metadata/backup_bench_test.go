package metadata

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

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
		for i := range entries {
			if _, err := t.exec(`INSERT INTO object_range (stream, start_offset, end_offset, object) VALUES ($1, $2, $3, $4)`, i%1000, i, i+1000, i/100); err != nil {
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

// BenchmarkDifference reads and packs a database with 200,000 schemas, ten a subject, after 32 others were
// registered: a snapshot that is a difference.
func BenchmarkDifference(b *testing.B) {
	s, err := open(b.Context(), sqliteDatabase(b.TempDir()+"/metadata.db", false), nil, newClock().now)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const schemas, each, versions = 200_000, 32, 10
	n := 0
	register := func(schemas int) {
		err := s.update(b.Context(), "fill", func(t *tx) error {
			for range schemas {
				subject, text := fmt.Sprintf("events-%d-value", n/versions), fmt.Sprintf(`{"type":"record","name":"Event","fields":[{"name":"f%d","type":"string"}]}`, n)
				hash := sha256.Sum256([]byte(text))
				for _, q := range []struct {
					text string
					args []any
				}{
					{`INSERT INTO schema (id, type, text, refs, hash) VALUES ($1, 'AVRO', $2, '[]', $3)`, []any{n, text, hash[:]}},
					{`INSERT INTO subject_version (subject, version, schema_id, deleted) VALUES ($1, $2, $3, 0)`, []any{subject, n%versions + 1, n}},
					{`INSERT INTO subject (name, revision) VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET revision = subject.revision + 1`, []any{subject}},
				} {
					if _, err := t.exec(q.text, q.args...); err != nil {
						return err
					}
				}
				if err := t.change(ChangeSchema, subject); err != nil {
					return err
				}
				n++
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	register(schemas)
	k := &Backup{s: s, bucket: objectstore.NewMemory()}
	k.cfg.setDefaults()
	if err := k.claim(b.Context()); err != nil {
		b.Fatal(err)
	}
	snapshot := func() time.Duration {
		began := time.Now()
		if err := k.snapshot(b.Context()); err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}
	whole := snapshot()
	var cost time.Duration
	for b.Loop() {
		register(each)
		cost += snapshot()
	}
	b.ReportMetric(whole.Seconds(), "s/whole")
	b.ReportMetric(float64(cost.Microseconds())/float64(b.N)/1e3, "ms/difference")
	b.ReportMetric(float64(len(k.last.bases)), "bases")
}
