package streamstore

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

var planNow = time.Unix(1_700_000_000, 0)

// Each file of testdata/compaction says in its first line what it proves; a command prints
// what the plan is.
func TestCompactionPlans(t *testing.T) {
	datadriven.Walk(t, "testdata/compaction", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			p := planScript{t, d}
			switch d.Cmd {
			case "groups":
				return p.groups()
			case "layout":
				return p.layout()
			case "merge":
				return p.merge()
			case "link":
				return p.link()
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

type planScript struct {
	t *testing.T
	d *datadriven.TestData
}

func (p planScript) number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		p.d.Fatalf(p.t, "%v", err)
	}
	return n
}

func (p planScript) arg(name string) (n int64) {
	if p.d.HasArg(name) {
		p.d.ScanArgs(p.t, name, &n)
	}
	return n
}

func (p planScript) limits() setLimits {
	streams := math.MaxInt
	if p.d.HasArg("streams") {
		streams = int(p.arg("streams"))
	}
	return setLimits{window: p.arg("window"), set: p.arg("set"), streams: streams, split: p.arg("split"), forceAt: time.Duration(p.arg("force-minutes")) * time.Minute}
}

// span reads start-end.
func (p planScript) span(text string) (start, end int64) {
	a, b, _ := strings.Cut(text, "-")
	return p.number(a), p.number(b)
}

// groups reads lines of "ID AGE-IN-MINUTES SIZE STREAM…".
func (p planScript) groups() string {
	var sets []LiveStreamSet
	for line := range strings.Lines(p.d.Input) {
		f := strings.Fields(line)
		s := LiveStreamSet{Oldest: planNow.Add(-time.Duration(p.number(f[1])) * time.Minute)}
		s.ID, s.Size = ObjectID(p.number(f[0])), p.number(f[2])
		for _, stream := range f[3:] {
			s.Ranges = append(s.Ranges, StreamRange{Stream: StreamID(p.number(stream))})
		}
		sets = append(sets, s)
	}
	var out strings.Builder
	for _, g := range groupSets(sets, planNow, p.limits()) {
		verb := "compact"
		if g.force {
			verb = "split"
		}
		fmt.Fprint(&out, verb)
		for _, s := range g.sets {
			fmt.Fprintf(&out, " %d", s.ID)
		}
		fmt.Fprintln(&out)
	}
	return out.String()
}

// layout reads lines of "SOURCE STREAM START-END=BYTES…", one span for each block.
func (p planScript) layout() string {
	var pieces []piece
	for line := range strings.Lines(p.d.Input) {
		f := strings.Fields(line)
		part := piece{source: int(p.number(f[0]))}
		for _, block := range f[2:] {
			offsets, size, _ := strings.Cut(block, "=")
			e := indexEntry{Stream: StreamID(p.number(f[1])), Size: uint32(p.number(size))}
			e.Start, e.End = p.span(offsets)
			part.entries = append(part.entries, e)
		}
		pieces = append(pieces, part)
	}
	l := layOut(pieces, p.d.HasArg("force"), p.limits())
	var out strings.Builder
	for i, step := range l.steps {
		for _, r := range step {
			to := "an object of its own"
			if r.set > 0 {
				to = fmt.Sprintf("set %d", r.set)
			}
			fmt.Fprintf(&out, "step %d: stream %d [%d, %d), %d bytes, to %s\n", i+1, r.stream(), r.start(), r.end(), r.bytes, to)
		}
	}
	return out.String()
}

var kindNames = map[string]ObjectKind{"set": KindStreamSet, "stream": KindStream, "composite": KindComposite}

// ranges reads lines of "KIND START-END BYTES".
func (p planScript) ranges() (all []ObjectRange) {
	for line := range strings.Lines(p.d.Input) {
		f := strings.Fields(line)
		r := ObjectRange{ObjectRef: ObjectRef{Kind: kindNames[f[0]], Size: p.number(f[2])}}
		r.Start, r.End = p.span(f[1])
		all = append(all, r)
	}
	return all
}

func (p planScript) merge() string {
	var out strings.Builder
	for _, g := range groupSmall(p.ranges(), p.arg("small")) {
		fmt.Fprintf(&out, "merge %d objects to [%d, %d)\n", len(g), g[0].Start, g[len(g)-1].End)
	}
	return out.String()
}

func (p planScript) link() string {
	var objects []linkable
	for _, r := range p.ranges() {
		objects = append(objects, linkable{r, r.Size, 1})
	}
	var out strings.Builder
	for _, g := range groupLinks(objects, p.arg("small"), p.arg("limit")) {
		fmt.Fprintf(&out, "link %d objects to [%d, %d)\n", len(g), g[0].Start, g[len(g)-1].End)
	}
	return out.String()
}

// Whatever the pieces, a layout holds each once, in contiguous runs; steps and sets keep to
// their limits; a stream is in a set once; and what is large has an object of its own.
func TestLayoutCoversItsSources(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		l := setLimits{window: 50 + r.Int64N(200), set: 20 + r.Int64N(100), streams: 1 + r.IntN(4), split: 10 + r.Int64N(20)}
		force := r.IntN(4) == 0
		var pieces []piece
		want := make(map[string]bool)
		for stream := range StreamID(1 + r.IntN(6)) {
			at := r.Int64N(1 << 40)
			for range r.IntN(8) {
				if r.IntN(3) == 0 {
					at += 1 + r.Int64N(5) // that lies in a stream object
				}
				p := piece{source: r.IntN(4)}
				for range 1 + r.IntN(4) {
					e := indexEntry{Stream: stream, Start: at, End: at + 1 + r.Int64N(1<<33), Size: uint32(1 + r.IntN(12))}
					at = e.End
					want[fmt.Sprint(e)] = true
					p.entries = append(p.entries, e)
				}
				pieces = append(pieces, p)
			}
		}
		r.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		plan := layOut(pieces, force, l)
		inSet := make(map[[2]int64]bool)
		setBytes, setStreams := make(map[int]int64), make(map[int]int)
		own, blocks, last := 0, 0, StreamID(-1)
		for _, step := range plan.steps {
			stepBytes := int64(0)
			for _, run := range step {
				if run.stream() < last {
					t.Fatalf("seed %d: stream %d after %d", seed, run.stream(), last)
				}
				last = run.stream()
				stepBytes += run.bytes
				next, size := run.start(), int64(0)
				for _, p := range run.pieces {
					for _, e := range p.entries {
						if !want[fmt.Sprint(e)] || e.Start != next || e.Stream != run.stream() {
							t.Fatalf("seed %d: block %+v again, or not after %d", seed, e, next)
						}
						delete(want, fmt.Sprint(e))
						next = e.End
						size += int64(e.Size)
						blocks++
					}
				}
				if size != run.bytes {
					t.Fatalf("seed %d: run of %d bytes says %d", seed, size, run.bytes)
				}
				if run.set == 0 {
					own++
					continue
				}
				key := [2]int64{int64(run.set), int64(run.stream())}
				if inSet[key] || force || run.bytes >= l.split {
					t.Fatalf("seed %d: run %+v in set %d", seed, run, run.set)
				}
				inSet[key] = true
				setBytes[run.set] += run.bytes
				setStreams[run.set]++
			}
			if stepBytes > l.window {
				t.Fatalf("seed %d: a step of %d bytes, window %d", seed, stepBytes, l.window)
			}
		}
		if len(want) > 0 || own != plan.own || len(setBytes) != plan.sets {
			t.Fatalf("seed %d: %d blocks left out, %d own runs and %d sets, the plan says %d and %d", seed, len(want), own, len(setBytes), plan.own, plan.sets)
		}
		for n, size := range setBytes {
			if size > max(l.set, l.split) || setStreams[n] > l.streams {
				t.Fatalf("seed %d: set %d of %d bytes and %d streams, limits %d and %d", seed, n, size, setStreams[n], l.set, l.streams)
			}
		}
	}
}

// Whatever is uploaded, compaction each time it comes lets no pile of objects grow, and
// rewrites a byte a number of times that is logarithmic in what a stream gathers before it is split.
func TestCompactionWritesLittle(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		streams := 1 + r.IntN(300)
		perStream := 1 + r.Int64N(40) // bytes of each in one upload, about
		l := setLimits{window: 75_000, set: 50_000, streams: 20_000, split: 8_000, forceAt: 1000 * time.Hour}
		var sets []LiveStreamSet
		bytes := make(map[ObjectID]map[StreamID]int64)
		next, uploaded, rewritten, most := ObjectID(0), int64(0), int64(0), 0
		put := func(oldest time.Time, of map[StreamID]int64) {
			next++
			s := LiveStreamSet{Oldest: oldest}
			s.ID = next
			for id, n := range of {
				s.Size += n
				s.Ranges = append(s.Ranges, StreamRange{Stream: id})
			}
			sets = append(sets, s)
			bytes[next] = of
		}
		now := planNow
		for range 60 {
			for range 5 {
				now = now.Add(time.Minute)
				of := make(map[StreamID]int64)
				for id := range StreamID(streams) {
					of[id] = 1 + r.Int64N(2*perStream)
					uploaded += of[id]
				}
				put(now, of)
			}
			for _, g := range groupSets(sets, now, l) {
				merged := make(map[StreamID]int64)
				for _, s := range g.sets {
					rewritten += s.Size
					for id, n := range bytes[s.ID] {
						merged[id] += n
					}
				}
				rest := make(map[StreamID]int64)
				size := int64(0)
				for id := range StreamID(streams) {
					if n := merged[id]; n > 0 && n < l.split {
						if size+n > l.set {
							put(g.sets[0].Oldest, rest)
							rest, size = make(map[StreamID]int64), 0
						}
						rest[id] = n
						size += n
					}
				}
				sets = slices.DeleteFunc(sets, func(s LiveStreamSet) bool {
					return slices.ContainsFunc(g.sets, func(o LiveStreamSet) bool { return o.ID == s.ID })
				})
				if len(rest) > 0 {
					put(g.sets[0].Oldest, rest)
				}
			}
			most = max(most, len(sets))
		}
		total := int64(0)
		for _, s := range sets {
			total += s.Size
		}
		if times := float64(rewritten) / float64(uploaded); times > 10 {
			t.Errorf("seed %d: %d streams of %d bytes: each byte rewritten %.1f times", seed, streams, perStream, times)
		}
		if limit := 40 + 4*int(total/l.set); most > limit {
			t.Errorf("seed %d: %d streams of %d bytes: %d objects at a time, want at most %d", seed, streams, perStream, most, limit)
		}
	}
}
