package maintenance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/apache/iceberg-go"
)

func planned(t *testing.T, path string, rows, size, sequence int64, place string) File {
	t.Helper()
	b, err := iceberg.NewDataFileBuilder(*iceberg.UnpartitionedSpec, iceberg.EntryContentData, path, iceberg.ParquetFile, nil, nil, nil, rows, size)
	if err != nil {
		t.Fatal(err)
	}
	return File{DataFile: b.Build(), Sequence: sequence, Manifest: fmt.Sprint("m", sequence/10), ManifestBytes: 1000, place: place}
}

// Whatever files there are, each is in one group at most, with files of its place that it follows, and
// a round keeps within its bounds, unless one group alone does not.
func TestPlanKeepsFilesInOrderAndWithinBounds(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		p := Policy{Target: 1000, MinFiles: 2 + r.IntN(5), Eager: r.IntN(2) == 0, MaxGroups: 1 + r.IntN(4), MaxBytes: 1 + r.Int64N(5000), MaxManifestBytes: 2000 + r.Int64N(4000)}
		var files []File
		inPlace := map[string][]string{}
		for i := range 1 + r.IntN(80) {
			place := fmt.Sprint("p", r.IntN(3))
			f := planned(t, fmt.Sprintf("%05d", i), 1+r.Int64N(50), 1+r.Int64N(740), int64(i), place)
			files, inPlace[place] = append(files, f), append(inPlace[place], f.FilePath())
		}
		r.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
		groups := Plan(files, p)
		used := map[string]bool{}
		var bytes int64
		manifests := map[string]bool{}
		for _, g := range groups {
			var rows, size int64
			place := g.Files[0].place
			last := -1
			for _, f := range g.Files {
				at := slices.Index(inPlace[place], f.FilePath())
				if used[f.FilePath()] || f.place != place || at <= last {
					t.Fatalf("seed %d: file %s is out of order, or twice", seed, f.FilePath())
				}
				last = at
				used[f.FilePath()], manifests[f.Manifest] = true, true
				rows, size = rows+f.Count(), size+f.FileSizeBytes()
			}
			if len(g.Files) < 2 || rows != g.Rows || size != g.Bytes || size > p.Target {
				t.Fatalf("seed %d: group of %d files, %d rows and %d bytes: %+v", seed, len(g.Files), rows, size, g)
			}
			bytes += g.Bytes
		}
		if len(groups) > p.MaxGroups || len(groups) > 1 && (bytes > p.MaxBytes || int64(len(manifests))*1000 > p.MaxManifestBytes) {
			t.Fatalf("seed %d: %d groups, %d bytes, %d manifests: %+v", seed, len(groups), bytes, len(manifests), p)
		}
		if p.Eager && len(groups) == 0 && len(files) > 50 {
			t.Fatalf("seed %d: of %d files none can become one", seed, len(files))
		}
	}
}

// A row a second, committed each ten seconds for an hour: files stay larger than a quarter of the
// target on average, and rows are written few times, though each file has more of its footer than of rows.
func TestSmallCommitsBecomeLargeFiles(t *testing.T) {
	const commits, rows, footer, width = 360, 10, 3000, 60
	size := func(rows int64) int64 { return footer + rows*width }
	p := Policy{Target: size(400), MinFiles: 5}
	var files []File
	var rewritten int64
	n := 0
	for i := range int64(commits) {
		n++
		files = append(files, planned(t, fmt.Sprintf("%06d", n), rows, size(rows), i, ""))
		for {
			most := slices.MaxFunc(files, func(a, b File) int { return int(a.Count() - b.Count()) })
			p.RowBytes = float64(most.FileSizeBytes()) / float64(most.Count())
			small := slices.DeleteFunc(slices.Clone(files), func(f File) bool { return f.FileSizeBytes() >= p.withDefaults().small() })
			groups := Plan(small, p)
			if len(groups) == 0 {
				break
			}
			for _, g := range groups {
				for _, f := range g.Files {
					files = slices.DeleteFunc(files, func(o File) bool { return o.FilePath() == f.FilePath() })
				}
				n++
				rewritten += g.Rows
				files = append(files, planned(t, fmt.Sprintf("%06d", n), g.Rows, size(g.Rows), i, ""))
			}
		}
	}
	var bytes int64
	for _, f := range files {
		bytes += f.FileSizeBytes()
	}
	average := bytes / int64(len(files))
	t.Logf("%d files, %d bytes on average, target %d; each row was written %.1f times more", len(files), average, p.Target, float64(rewritten)/(commits*rows))
	if average <= p.Target/4 {
		t.Errorf("%d files have %d bytes on average, want more than %d", len(files), average, p.Target/4)
	}
	if rewritten > 4*commits*rows {
		t.Errorf("%d rows were written for %d", rewritten, commits*rows)
	}
}
