package coordinator

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/coordinator/control"
)

// Each script drives a State and shows its steps; its first line says what it proves.
func TestStateScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/state", func(t *testing.T, path string) {
		var s *script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "begin":
				s = &script{now: time.Unix(0, 0).UTC()}
				partitions, lag, timeout := 2, "10s", "30s"
				d.MaybeScanArgs(t, "partitions", &partitions)
				d.MaybeScanArgs(t, "lag", &lag)
				d.MaybeScanArgs(t, "timeout", &timeout)
				s.st = NewState(1, int32(partitions), parseNext(t, d), parseDuration(t, lag), parseDuration(t, timeout))
				return ""
			case "run":
				var b strings.Builder
				for _, line := range strings.Split(d.Input, "\n") {
					b.WriteString(s.line(t, line))
				}
				return b.String()
			}
			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}

type script struct {
	st  *State
	now time.Time
	ids byte
}

func (s *script) id() uuid.UUID {
	s.ids++
	return uuid.UUID{15: s.ids}
}

func parseDuration(t *testing.T, v string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func parseNext(t *testing.T, d *datadriven.TestData) map[int32]int64 {
	t.Helper()
	next := map[int32]int64{}
	var v string
	d.MaybeScanArgs(t, "next", &v)
	for _, item := range strings.Split(v, "/") {
		if item == "" {
			continue
		}
		var p int32
		var o int64
		if _, err := fmt.Sscanf(item, "%d:%d", &p, &o); err != nil {
			t.Fatal(err)
		}
		next[p] = o
	}
	return next
}

// line runs one verb:
//
//	pending [full] [age=DURATION]
//	tick DURATION
//	answer id=N p=P,… [files=name:P:START-END[+P:START-END…][/…]] [since]
//	done | failed DURATION | reset P:OFFSET/…
func (s *script) line(t *testing.T, line string) string {
	f := strings.Fields(line)
	args := map[string]string{}
	for _, a := range f[1:] {
		k, v, _ := strings.Cut(a, "=")
		args[k] = v
	}
	_, full := args["full"]
	var step Step
	switch f[0] {
	case "pending":
		since := s.now
		if age, ok := args["age"]; ok {
			since = since.Add(-parseDuration(t, age))
		}
		step = s.st.Apply(control.Pending{Since: since, Full: full}, s.now)
	case "tick":
		s.now = s.now.Add(parseDuration(t, f[1]))
		step = s.st.Tick(s.id(), s.now)
		if len(step.Append) == 0 {
			s.ids--
		}
	case "hello":
		hello := control.Hello{}
		for _, p := range strings.Split(args["p"], ",") {
			v, _ := strconv.Atoi(p)
			hello.Partitions = append(hello.Partitions, int32(v))
		}
		step = s.st.Apply(hello, s.now)
	case "answer":
		n, _ := strconv.Atoi(args["id"])
		a := control.Answer{Epoch: 1, Commit: uuid.UUID{15: byte(n)}}
		if e, ok := args["epoch"]; ok {
			v, _ := strconv.Atoi(e)
			a.Epoch = int32(v)
		}
		for _, p := range strings.Split(args["p"], ",") {
			v, _ := strconv.Atoi(p)
			a.Partitions = append(a.Partitions, int32(v))
		}
		if _, ok := args["since"]; ok {
			a.Since = s.now
		}
		for _, item := range strings.Split(args["files"], "/") {
			if item != "" {
				a.Files = append(a.Files, parseFile(t, item))
			}
		}
		step = s.st.Apply(a, s.now)
	case "done":
		step = s.st.Done(1, nil, s.now)
	case "failed":
		step = s.st.Failed(s.now, parseDuration(t, f[1]))
	case "reset":
		next := map[int32]int64{}
		for _, item := range strings.Split(f[1], "/") {
			var p int32
			var o int64
			if _, err := fmt.Sscanf(item, "%d:%d", &p, &o); err != nil {
				t.Fatal(err)
			}
			next[p] = o
		}
		s.st.Reset(next)
	default:
		t.Fatalf("unknown verb %q", f[0])
	}
	return s.print(line, step)
}

func parseFile(t *testing.T, item string) control.File {
	t.Helper()
	name, ranges, _ := strings.Cut(item, ":")
	out := control.File{Data: []control.DataFile{{Location: name}}}
	for _, r := range strings.Split(ranges, "+") {
		var x control.Range
		format := "%d:%d-%d"
		if strings.Contains(r, "gap") {
			format = "%d:%d-%dgap%d"
			if _, err := fmt.Sscanf(r, format, &x.Partition, &x.Start, &x.End, &x.Gap); err != nil {
				t.Fatal(err)
			}
		} else if _, err := fmt.Sscanf(r, format, &x.Partition, &x.Start, &x.End); err != nil {
			t.Fatal(err)
		}
		x.Rows = x.End - x.Start
		out.Ranges = append(out.Ranges, x)
	}
	return out
}

func (s *script) print(line string, step Step) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", line)
	for _, e := range step.Append {
		switch e := e.(type) {
		case control.Request:
			fmt.Fprintf(&b, "  append request id=%d next=%v\n", e.Commit[15], e.Next)
		case control.Committed:
			fmt.Fprintf(&b, "  append committed id=%d next=%v names=%v\n", e.Commit[15], e.Next, e.Names)
		}
	}
	if c := step.Commit; c != nil {
		var names []string
		for _, f := range c.Files {
			names = append(names, strings.Join(f.Names(), "+"))
		}
		fmt.Fprintf(&b, "  commit id=%d files=%v next=%v\n", c.ID[15], names, c.Next())
	}
	if step.Ignored != "" {
		fmt.Fprintf(&b, "  ignored: %s\n", strings.ReplaceAll(step.Ignored, "00000000-0000-0000-0000-0000000000", ""))
	}
	if !step.Wake.IsZero() {
		fmt.Fprintf(&b, "  wake in %s\n", max(0, step.Wake.Sub(s.now)))
	}
	return b.String()
}

// Whatever the order of answers, repeats, late ones and ones from workers that no longer
// lead, the commits of a partition follow each other without hole or overlap.
func TestStateCommitsEachOffsetOnce(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		if err := stateRun(r); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func stateRun(r *rand.Rand) error {
	partitions := int32(1 + r.IntN(4))
	now := time.Unix(0, 0)
	st := NewState(1, partitions, nil, time.Second, 5*time.Second)
	table := map[int32]int64{}
	var old []control.Answer
	var request *control.Request
	var handed *Commit
	do := func(step Step) error {
		for _, e := range step.Append {
			if q, ok := e.(control.Request); ok {
				request = &q
			}
		}
		if step.Commit != nil {
			if handed != nil {
				return fmt.Errorf("commit %s handed over while %s is", step.Commit.ID, handed.ID)
			}
			handed = step.Commit
		}
		return nil
	}
	for range 300 {
		now = now.Add(time.Duration(r.IntN(1500)) * time.Millisecond)
		var step Step
		switch r.IntN(8) {
		case 0:
			step = st.Apply(control.Pending{Since: now, Full: r.IntN(4) == 0}, now)
		case 1, 2:
			step = st.Tick(uuid.UUID{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), 1}, now)
		case 3, 4:
			if request == nil {
				continue
			}
			a := answerFor(r, *request, partitions)
			old = append(old, a)
			step = st.Apply(a, now)
		case 5, 6:
			if len(old) == 0 {
				continue
			}
			step = st.Apply(old[r.IntN(len(old))], now) // again, or late
		case 7:
			if handed == nil {
				continue
			}
			if r.IntN(4) == 0 {
				step, handed = st.Failed(now, time.Second), nil
				break
			}
			seen := map[int32]bool{}
			for _, f := range handed.Files {
				for _, x := range f.Ranges {
					if table[x.Partition] != x.Start && (seen[x.Partition] || table[x.Partition] != 0) {
						return fmt.Errorf("commit %s: partition %d at %d gets [%d, %d)", handed.ID, x.Partition, table[x.Partition], x.Start, x.End)
					}
					seen[x.Partition] = true
					table[x.Partition] = x.End
				}
			}
			handed = nil
			step = st.Done(1, nil, now)
		}
		if err := do(step); err != nil {
			return err
		}
	}
	return nil
}

// answerFor is what a worker could answer: some of the partitions, files that continue,
// and now and then ones that do not.
func answerFor(r *rand.Rand, q control.Request, partitions int32) control.Answer {
	a := control.Answer{Epoch: q.Epoch, Commit: q.Commit}
	at := map[int32]int64{}
	for _, o := range q.Next {
		at[o.Partition] = o.Offset
	}
	for p := range partitions {
		if r.IntN(3) > 0 {
			a.Partitions = append(a.Partitions, p)
		}
	}
	for n := range r.IntN(3) {
		f := control.File{Data: []control.DataFile{{Location: fmt.Sprintf("%s-%d", q.Commit, n)}}}
		for p := range partitions {
			if r.IntN(2) == 0 {
				continue
			}
			start := at[p]
			if r.IntN(10) == 0 {
				start += int64(r.IntN(5)) - 2
			}
			end := start + 1 + int64(r.IntN(10))
			f.Ranges = append(f.Ranges, control.Range{Partition: p, Start: start, End: end, Rows: end - start})
			at[p] = end
		}
		if len(f.Ranges) > 0 {
			a.Files = append(a.Files, f)
		}
	}
	return a
}

// Idle tables take turns: however many there are, their catalogs are asked so often and no more.
func TestTurnsBoundGlances(t *testing.T) {
	var all turns
	now := time.Unix(1000, 0)
	for i := range 1000 {
		if got, want := all.next(now), time.Duration(i)*time.Second/glancesPerSecond; got != want {
			t.Fatalf("glance %d waits %s, want %s", i, got, want)
		}
	}
	if got := all.next(now.Add(time.Hour)); got != 0 {
		t.Errorf("a glance after an idle hour waits %s", got)
	}
}
