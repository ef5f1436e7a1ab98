package streamstore

import (
	"cmp"
	"slices"
	"time"
)

// What compaction does is decided here, by functions of values; compaction.go acts.
//
// The rule that keeps it cheap is the same for stream set objects and for small stream
// objects: an object is rewritten only together with newer ones that hold half as much or
// more, so that a byte is rewritten a number of times that is logarithmic in what it joins.

const (
	setFanIn  = 6 // objects merged at a time when they do not all fit into memory
	linkParts = 5000
)

// setLimits are the settings of the compaction of stream set objects.
type setLimits struct {
	window  int64         // bytes read together
	set     int64         // bytes of a resulting stream set object …
	streams int           // … and streams in it; also ranges that a group of many small sets has
	split   int64         // bytes of a run that becomes a stream object
	forceAt time.Duration // age at which every run does
	apart   StreamID      // stream whose runs do, too; 0 for none
}

// A setGroup is stream set objects that are compacted together. With force set, nothing of
// them goes into a stream set object again.
type setGroup struct {
	sets  []LiveStreamSet // by age, oldest first
	force bool
	apart StreamID // gets objects of its own; 0 for none
}

func (g setGroup) bytes() (n int64) {
	for _, s := range g.sets {
		n += s.Size
	}
	return n
}

// groupSets decides which stream set objects are compacted with which: those that are old
// enough to be split, and those that share a stream with a neighbour in age.
func groupSets(sets []LiveStreamSet, now time.Time, l setLimits) []setGroup {
	sets = slices.Clone(sets)
	slices.SortFunc(sets, func(a, b LiveStreamSet) int {
		return cmp.Or(a.Oldest.Compare(b.Oldest), cmp.Compare(a.ID, b.ID))
	})
	old := 0
	for old < len(sets) && !sets[old].Oldest.After(now.Add(-l.forceAt)) {
		old++
	}
	var groups []setGroup
	for rest := sets[:old]; len(rest) > 0; {
		n, size, ranges := 0, int64(0), 0
		for n < len(rest) {
			s := rest[n]
			if n > 0 && (ranges+len(s.Ranges) > l.streams || n >= setFanIn && size+s.Size > l.window) {
				break // every range becomes an object
			}
			size += s.Size
			ranges += len(s.Ranges)
			n++
		}
		groups = append(groups, setGroup{sets: rest[:n:n], force: true})
		rest = rest[n:]
	}
	rest := sharing(sets[old:])
	for len(rest) > 0 { // from the newest back
		n, size, each, ranges := 0, int64(0), int64(0), 0
		for n < len(rest) {
			s := rest[len(rest)-1-n]
			perStream := s.Size / int64(len(s.Ranges))
			if n > 0 && (perStream > 2*each || n >= setFanIn && (size+s.Size > l.window || ranges+len(s.Ranges) > l.streams)) {
				break
			}
			size += s.Size
			ranges += len(s.Ranges)
			each += perStream
			n++
		}
		if group := sharing(rest[len(rest)-n:]); len(group) > 0 {
			groups = append(groups, setGroup{sets: group})
		}
		rest = rest[:len(rest)-n]
	}
	return groups
}

// sharing returns the sets that have a stream which another of them has too.
func sharing(sets []LiveStreamSet) []LiveStreamSet {
	if len(sets) < 2 {
		return nil
	}
	times := make(map[StreamID]int)
	for _, s := range sets {
		for _, r := range s.Ranges {
			times[r.Stream]++
		}
	}
	var some []LiveStreamSet
	for _, s := range sets {
		if slices.ContainsFunc(s.Ranges, func(r StreamRange) bool { return times[r.Stream] > 1 }) {
			some = append(some, s)
		}
	}
	return some
}

// A piece is adjacent blocks of one stream in one source.
type piece struct {
	source  int // which of the sources
	entries []indexEntry
}

func (p piece) stream() StreamID { return p.entries[0].Stream }
func (p piece) start() int64     { return p.entries[0].Start }
func (p piece) end() int64       { return p.entries[len(p.entries)-1].End }

func (p piece) bytes() (n int64) {
	for _, e := range p.entries {
		n += int64(e.Size)
	}
	return n
}

// cutPiece cuts a piece between blocks into such of at most limit bytes, or one block.
func cutPiece(p piece, limit int64) []piece {
	var parts []piece
	for begin, i, size := 0, 0, int64(0); i < len(p.entries); i++ {
		next := int64(p.entries[i].Size)
		if i > begin && size+next > limit {
			parts = append(parts, piece{p.source, p.entries[begin:i]})
			begin, size = i, 0
		}
		size += next
		if i == len(p.entries)-1 {
			parts = append(parts, piece{p.source, p.entries[begin:]})
		}
	}
	return parts
}

// A run is contiguous pieces of one stream, which stay together in one result.
type run struct {
	pieces []piece
	bytes  int64
	set    int // number, from 1, of the stream set object that it goes to; 0 for one of its own
}

func (r run) stream() StreamID { return r.pieces[0].stream() }
func (r run) start() int64     { return r.pieces[0].start() }
func (r run) end() int64       { return r.pieces[len(r.pieces)-1].end() }

// A layout says where the data of sources goes.
type layout struct {
	steps [][]run // by stream; the runs of a step are read together
	own   int     // runs with a stream object of their own
	sets  int     // stream set objects for the others
}

// layOut decides where pieces go. A run of at least split bytes gets a stream object, as does
// every run if force is set, and one that others of its stream follow in stream objects; the
// rest shares stream set objects. No step is larger than the window unless one block is.
func layOut(pieces []piece, force bool, l setLimits) layout {
	var cut []piece
	for _, p := range pieces {
		cut = append(cut, cutPiece(p, l.window/2)...)
	}
	slices.SortStableFunc(cut, func(a, b piece) int {
		return cmp.Or(cmp.Compare(a.stream(), b.stream()), cmp.Compare(a.start(), b.start()))
	})
	var runs []run
	for _, p := range cut {
		if n := len(runs); n > 0 && runs[n-1].stream() == p.stream() && runs[n-1].end() == p.start() && runs[n-1].bytes+p.bytes() <= l.window {
			runs[n-1].pieces = append(runs[n-1].pieces, p)
			runs[n-1].bytes += p.bytes()
		} else {
			runs = append(runs, run{pieces: []piece{p}, bytes: p.bytes()})
		}
	}
	var out layout
	stepBytes, setBytes, setStreams := int64(0), int64(0), 0
	for i, r := range runs {
		last := i+1 == len(runs) || runs[i+1].stream() != r.stream()
		if force || !last || r.bytes >= l.split || r.stream() == l.apart {
			out.own++
		} else {
			if out.sets == 0 || setBytes+r.bytes > l.set || setStreams == l.streams {
				out.sets++
				setBytes, setStreams = 0, 0
			}
			setBytes += r.bytes
			setStreams++
			r.set = out.sets
		}
		if len(out.steps) == 0 || stepBytes+r.bytes > l.window {
			out.steps = append(out.steps, nil)
			stepBytes = 0
		}
		stepBytes += r.bytes
		out.steps[len(out.steps)-1] = append(out.steps[len(out.steps)-1], r)
	}
	return out
}

// groupSmall decides which objects of a stream are merged: adjacent stream objects under
// small bytes, until the result is as large.
func groupSmall(ranges []ObjectRange, small int64) [][]ObjectRange {
	var groups [][]ObjectRange
	for j := len(ranges); j > 0; {
		n, size := 0, int64(0)
		for n < j && size < small {
			r := ranges[j-1-n]
			if r.Kind != KindStream || r.Size >= small || n > 0 && r.Size > 2*size {
				break
			}
			size += r.Size
			n++
		}
		if n > 1 {
			groups = append(groups, ranges[j-n:j])
		}
		j -= max(n, 1)
	}
	return groups
}

// A linkable is a stream object, or a composite with its parts.
type linkable struct {
	ObjectRange
	bytes int64 // of the data in it or in its parts
	parts int
}

// groupRewrite decides which of the first objects of a stream are rewritten together: one composite, or
// stream objects of up to limit bytes.
func groupRewrite(ranges []ObjectRange, limit int64) []ObjectRange {
	n, size := 0, int64(0)
	for n < len(ranges) && ranges[n].Kind == KindStream && (n == 0 || size+ranges[n].Size <= limit) {
		size += ranges[n].Size
		n++
	}
	if n == 0 && len(ranges) > 0 && ranges[0].Kind == KindComposite {
		n = 1
	}
	return ranges[:n]
}

// groupLinks decides which objects of a stream a composite links: adjacent ones up to limit
// bytes. Small ones at the end of the stream wait until they are merged.
func groupLinks(objects []linkable, small, limit int64) [][]linkable {
	end := len(objects)
	for end > 0 && objects[end-1].Kind == KindStream && objects[end-1].bytes < small {
		end--
	}
	var groups [][]linkable
	for i := 0; i < end; {
		n, size, parts := 0, int64(0), 0
		for i+n < end {
			o := objects[i+n]
			if o.Kind == KindStreamSet || n > 0 && (size+o.bytes > limit || parts+o.parts > linkParts) {
				break
			}
			size += o.bytes
			parts += o.parts
			n++
		}
		if n > 1 {
			groups = append(groups, objects[i:i+n])
		}
		i += max(n, 1)
	}
	return groups
}

// trimmedParts returns how many leading parts of a composite lie below start, 0 if they hold
// less than dirty bytes together.
func trimmedParts(c composite, start, dirty int64) int {
	n, size := 0, int64(0)
	for n < len(c.parts) && c.parts[n].end() <= start {
		size += c.parts[n].size
		n++
	}
	if size < dirty {
		return 0
	}
	return n
}
