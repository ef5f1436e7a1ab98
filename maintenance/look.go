package maintenance

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/parquetio"
)

// maxSmall bounds the small files that one look remembers.
const maxSmall = 20_000

// A Survey is what a look at a table found.
type Survey struct {
	Sequence int64 // the table's last sequence number
	Files    []File
	Small    int   // files that are, also those that are left alone
	Live     int64 // data files in all, as the manifests count them
	// RowBytes is what a row takes in the file with most rows that was looked at.
	RowBytes float64
	// Alone counts the small files that are left alone, by reason.
	Alone map[string]int
}

// Why small files are left alone.
const (
	AloneDeletes = "delete files may apply to them"
	AloneSpec    = "they are of an earlier partition spec"
	AloneFormat  = "they are not Parquet"
	AloneLineage = "their rows have no ids"
)

// A Looker looks at one table again and again. It remembers which manifests name no small file.
type Looker struct {
	target int64
	most   iceberg.DataFile // rows, of all that were looked at
	large  map[string]int64 // manifests by location
}

// Look finds the small data files of the head of main. An error says why the table is left alone as
// a whole, or what could not be read.
func (l *Looker) Look(ctx context.Context, t *table.Table, p Policy) (*Survey, error) {
	p = p.withDefaults()
	if l.target != p.small() {
		l.target, l.large = p.small(), nil
	}
	s := &Survey{Sequence: t.Metadata().LastSequenceNumber(), Alone: map[string]int{}}
	if err := parquetio.CheckCopy(t.Schema()); err != nil {
		return nil, err
	}
	head := t.CurrentSnapshot()
	if head == nil {
		return s, nil
	}
	fs, err := catalog.FilesOf(ctx, t)
	if err != nil {
		return nil, err
	}
	manifests, err := head.Manifests(fs)
	if err != nil {
		return nil, fmt.Errorf("manifests of snapshot %d: %w", head.SnapshotID, err)
	}
	deletes, err := deletesOf(ctx, fs, t, manifests)
	if err != nil {
		return nil, err
	}
	large := map[string]int64{}
	for _, m := range manifests {
		if m.ManifestContent() != iceberg.ManifestContentData {
			continue
		}
		s.Live += int64(max(0, m.AddedDataFiles())) + int64(max(0, m.ExistingDataFiles()))
		if _, known := l.large[m.FilePath()]; known {
			large[m.FilePath()] = 0
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		entries, err := catalog.LiveEntries(fs, m)
		if err != nil {
			return nil, err
		}
		any := false
		for _, e := range entries {
			if l.most == nil || e.DataFile().Count() > l.most.Count() {
				l.most = e.DataFile()
			}
			if e.DataFile().FileSizeBytes() >= p.small() {
				continue
			}
			any = true
			s.add(t, m, e, deletes)
		}
		if !any {
			large[m.FilePath()] = 0
		}
	}
	l.large = large
	if l.most != nil && l.most.Count() > 0 {
		s.RowBytes = float64(l.most.FileSizeBytes()) / float64(l.most.Count())
	}
	return s, nil
}

// add takes a small file in, or notes why not.
func (s *Survey) add(t *table.Table, m iceberg.ManifestFile, e iceberg.ManifestEntry, d deletes) {
	df := e.DataFile()
	s.Small++
	f := File{DataFile: df, Sequence: e.SequenceNum(), Manifest: m.FilePath(), ManifestBytes: m.Length(), dir: topicDir(df.FilePath())}
	partition := placeOf(int(df.SpecID()), df.Partition())
	f.place = partition + " " + f.dir
	switch {
	case int(m.PartitionSpecID()) != t.Metadata().DefaultPartitionSpec():
		s.Alone[AloneSpec]++
	case !strings.EqualFold(string(df.FileFormat()), string(iceberg.ParquetFile)):
		s.Alone[AloneFormat]++
	case t.Metadata().Version() >= 3 && df.FirstRowID() == nil: // from before an upgrade of the table
		s.Alone[AloneLineage]++
	case f.Sequence <= d.last(partition) && !invariant.Off("compaction-leaves-deleted"):
		s.Alone[AloneDeletes]++
	case len(s.Files) < maxSmall:
		s.Files = append(s.Files, f)
	}
}

// placeOf names a partition of the table.
func placeOf(spec int, values map[int]any) string {
	if len(values) == 0 {
		return fmt.Sprint(spec)
	}
	return fmt.Sprintf("%d %#v", spec, values)
}

// topicDir returns the directory of a file if its name is a topic's id: rows of several topics are
// told apart by it.
func topicDir(location string) string {
	dir := path.Base(path.Dir(location))
	if id, err := uuid.Parse(dir); err != nil || id.String() != dir {
		return ""
	}
	return dir
}

// deletes are the last sequence numbers of delete files.
type deletes struct {
	everywhere int64            // of those that may apply to all files
	in         map[string]int64 // by partition
}

// last returns the sequence number of the last delete file that may apply in a partition, -1 if there is none.
func (d deletes) last(partition string) int64 {
	if at, ok := d.in[partition]; ok {
		return max(at, d.everywhere)
	}
	return d.everywhere
}

func deletesOf(ctx context.Context, fs *catalog.IO, t *table.Table, manifests []iceberg.ManifestFile) (deletes, error) {
	d := deletes{everywhere: -1, in: map[string]int64{}}
	for _, m := range manifests {
		if m.ManifestContent() != iceberg.ManifestContentDeletes {
			continue
		}
		if err := ctx.Err(); err != nil {
			return d, err
		}
		entries, err := catalog.LiveEntries(fs, m)
		if err != nil {
			return d, err
		}
		spec := t.Metadata().PartitionSpecByID(int(m.PartitionSpecID()))
		for _, e := range entries {
			if spec == nil || spec.IsUnpartitioned() || spec.ID() != t.Metadata().DefaultPartitionSpec() {
				d.everywhere = max(d.everywhere, e.SequenceNum())
				continue
			}
			at := placeOf(spec.ID(), e.DataFile().Partition())
			d.in[at] = max(d.in[at], e.SequenceNum())
		}
	}
	return d, nil
}
