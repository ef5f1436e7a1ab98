package maintenance

import (
	"cmp"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
)

// A Policy says which files are small, and when it is worthwhile to make one of several.
type Policy struct {
	// Target is the size in bytes that files should have. 64 MiB if zero.
	Target int64
	// MinFiles make one, unless fewer are enough for a file that is not small any more. 5 if zero.
	MinFiles int
	// Small is the share of the target size below which a file is small. 0.75 if zero.
	Small float64
	// RowBytes is what a row takes in a large file of the table, to estimate what a file will have. Of
	// no help if zero.
	RowBytes float64
	// Eager lets two files make one, of whatever size they become.
	Eager bool
	// MaxGroups bounds the groups of one round. 32 if zero.
	MaxGroups int
	// MaxBytes bounds what one round reads. 4 times the target if zero.
	MaxBytes int64
	// MaxManifestBytes bounds the manifests that name the files of one round, all of whose entries are
	// written again. 16 MiB if zero.
	MaxManifestBytes int64
}

const (
	// maxGroupFiles bounds the files that become one.
	maxGroupFiles = 500
	// maxGrowth is how many times more rows than the largest of its files a group has, or it waits for
	// more; less if fewer files make a group.
	maxGrowth = 4
)

func (p Policy) withDefaults() Policy {
	p.Target = cmp.Or(p.Target, 64<<20)
	p.MinFiles = max(2, cmp.Or(p.MinFiles, 5))
	p.Small = cmp.Or(p.Small, 0.75)
	p.MaxGroups = cmp.Or(p.MaxGroups, 32)
	p.MaxBytes = cmp.Or(p.MaxBytes, 4*p.Target)
	p.MaxManifestBytes = cmp.Or(p.MaxManifestBytes, 16<<20)
	return p
}

func (p Policy) growth() int64 { return min(maxGrowth, int64(p.MinFiles)) }

// small is the size below which a file is.
func (p Policy) small() int64 { return int64(p.Small * float64(p.Target)) }

// A File is a small data file of a table.
type File struct {
	iceberg.DataFile
	Sequence      int64 // its data sequence number
	Manifest      string
	ManifestBytes int64

	place string // partition and directory: what belongs together
	dir   string // of the topic, "" if there is none
}

// A Group is files that become one, in order.
type Group struct {
	Files []File
	Rows  int64
	Bytes int64
}

// Plan groups small files, the best groups first: those that spare most files. It keeps within the
// bounds of a round; what is left over waits for the next.
func Plan(files []File, p Policy) []Group {
	p = p.withDefaults()
	places := map[string][]File{}
	for _, f := range files {
		places[f.place] = append(places[f.place], f)
	}
	var all []Group
	for _, of := range places {
		slices.SortFunc(of, inOrder)
		all = append(all, p.ofPlace(of)...)
	}
	slices.SortFunc(all, func(a, b Group) int {
		return cmp.Or(cmp.Compare(len(b.Files), len(a.Files)), cmp.Compare(a.Bytes, b.Bytes), strings.Compare(a.Files[0].FilePath(), b.Files[0].FilePath()))
	})
	return p.round(all)
}

// round returns the groups that one round has room for, the first at least.
func (p Policy) round(all []Group) (groups []Group) {
	manifests := map[string]bool{}
	var bytes, named int64
	for _, g := range all {
		fresh, more := g.manifests(manifests)
		if len(groups) > 0 && (len(groups) == p.MaxGroups || bytes+g.Bytes > p.MaxBytes || named+more > p.MaxManifestBytes) {
			continue
		}
		for m := range fresh {
			manifests[m] = true
		}
		bytes, named, groups = bytes+g.Bytes, named+more, append(groups, g)
	}
	return groups
}

// ofPlace groups the files of one place, oldest first: the smallest ones, then with them those that
// have a few times as many rows, and so on. What is larger than that does not part them.
func (p Policy) ofPlace(files []File) (groups []Group) {
	least, most := files[0].Count(), files[0].Count()
	for _, f := range files {
		least, most = min(least, f.Count()), max(most, f.Count())
	}
	limit := max(1, least)
	if p.Eager {
		limit = most
	}
	for ; len(files) > 1; limit = min(limit*p.growth(), most) {
		var left []File
		var g Group
		end := func() {
			if p.worthwhile(g) {
				groups = append(groups, g)
			} else {
				left = append(left, g.Files...)
			}
			g = Group{}
		}
		for _, f := range files {
			if f.Count() > limit {
				left = append(left, f)
				continue
			}
			if more := g.with(f); len(g.Files) > 0 && !p.hasRoom(more) {
				end()
			}
			g = g.with(f)
		}
		end()
		slices.SortFunc(left, inOrder)
		if files = left; limit >= most {
			return groups
		}
	}
	return groups
}

func inOrder(a, b File) int {
	return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), strings.Compare(a.FilePath(), b.FilePath()))
}

// with returns g and one file more.
func (g Group) with(f File) Group {
	return Group{Files: append(g.Files[:len(g.Files):len(g.Files)], f), Rows: g.Rows + f.Count(), Bytes: g.Bytes + f.FileSizeBytes()}
}

// becomes estimates the size of a group's file: small files are mostly footer.
func (p Policy) becomes(g Group) int64 {
	if p.RowBytes <= 0 {
		return g.Bytes
	}
	return min(g.Bytes, int64(p.RowBytes*float64(g.Rows)))
}

// hasRoom tells whether a group is within its bounds.
func (p Policy) hasRoom(g Group) bool {
	_, named := g.manifests(nil)
	return len(g.Files) <= maxGroupFiles && p.becomes(g) <= p.Target && g.Bytes <= 2*p.Target && named <= p.MaxManifestBytes
}

// manifests returns those of a group that are not among known, and their size.
func (g Group) manifests(known map[string]bool) (fresh map[string]bool, bytes int64) {
	fresh = map[string]bool{}
	for _, f := range g.Files {
		if !known[f.Manifest] && !fresh[f.Manifest] {
			fresh[f.Manifest] = true
			bytes += f.ManifestBytes
		}
	}
	return fresh, bytes
}

// worthwhile tells whether files should become one.
func (p Policy) worthwhile(g Group) bool {
	most := int64(0)
	for _, f := range g.Files {
		most = max(most, f.Count())
	}
	switch {
	case len(g.Files) < 2:
		return false
	case p.Eager || p.becomes(g) >= p.small():
		return true
	}
	return len(g.Files) >= p.MinFiles && g.Rows >= p.growth()*most
}
