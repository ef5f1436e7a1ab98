package schemaregistry

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// A schemaGenerator draws schemas that are near each other: few names, few fields.
type schemaGenerator struct {
	*rand.Rand
	named []string // defined so far in this schema
	names int      // drawn so far
}

func (g *schemaGenerator) pick(all ...string) string { return all[g.IntN(len(all))] }

func (g *schemaGenerator) schema(depth int, inUnion bool) string {
	kinds := []string{"primitive", "primitive", "primitive", "enum", "fixed", "ref"}
	if depth > 0 {
		kinds = append(kinds, "record", "record", "array", "map")
		if !inUnion {
			kinds = append(kinds, "union", "union")
		}
	}
	switch k := g.pick(kinds...); k {
	case "array":
		return `{"type":"array","items":` + g.schema(depth-1, false) + `}`
	case "map":
		return `{"type":"map","values":` + g.schema(depth-1, false) + `}`
	case "union":
		return g.union(depth)
	case "ref":
		if len(g.named) > 0 {
			return `"` + g.pick(g.named...) + `"`
		}
	case "record", "enum", "fixed":
		return g.namedType(k, depth)
	}
	return `"` + g.pick(primitives...) + `"`
}

func (g *schemaGenerator) union(depth int) string {
	seen := map[string]bool{}
	var branches []string
	for range 1 + g.IntN(3) {
		b := g.schema(depth-1, true)
		kind := b
		if i := strings.Index(b, `"type":"`); i >= 0 {
			kind = strings.SplitN(b[i+8:], `"`, 2)[0]
		}
		if kind == "record" || kind == "enum" || kind == "fixed" {
			kind = b // named types may repeat
		}
		if !seen[kind] {
			seen[kind] = true
			branches = append(branches, b)
		}
	}
	// A reference to a type that is a branch as well would be a duplicate.
	for i, b := range branches {
		if i > 0 && strings.HasPrefix(b, `"n.`) {
			return branches[0]
		}
	}
	return "[" + strings.Join(branches, ",") + "]"
}

// namedType draws its n-th name from a pair, so that names of two schemas often agree.
func (g *schemaGenerator) namedType(kind string, depth int) string {
	g.names++
	short := fmt.Sprintf("T%d%s", g.names, g.pick("", "", "x"))
	name := g.pick("n.", "n.", "m.") + short
	head := fmt.Sprintf(`{"type":%q,"name":%q`, kind, name)
	if g.IntN(4) == 0 {
		head += fmt.Sprintf(`,"aliases":["n.T%d"]`, 1+g.IntN(g.names))
	}
	switch kind {
	case "fixed":
		g.named = append(g.named, name)
		return head + fmt.Sprintf(`,"size":%d}`, 4+g.IntN(2))
	case "enum":
		g.named = append(g.named, name)
		return head + g.pick(`,"symbols":["A","B"]}`, `,"symbols":["B","A","C"]}`, `,"symbols":["A"],"default":"A"}`)
	}
	g.named = append(g.named, name) // a record may contain itself
	var fields []string
	for _, f := range []string{"a", "b", "c"} {
		if g.IntN(3) == 0 {
			continue
		}
		field := fmt.Sprintf(`{"name":%q,"type":`, f)
		if g.IntN(3) == 0 {
			field += `["null",` + g.pick(`"int"`, `"string"`, `"double"`) + `],"default":null`
		} else {
			field += g.schema(depth-1, false)
		}
		if g.IntN(6) == 0 {
			field += fmt.Sprintf(`,"aliases":[%q]`, g.pick("a", "b", "z"))
		}
		fields = append(fields, field+"}")
	}
	return head + `,"fields":[` + strings.Join(fields, ",") + `]}`
}

// For thousands of random pairs the verdict and its kinds are those of Apache Avro, and the
// canonical form is what its Schema.toString writes.
func TestAgreesWithApacheAvro(t *testing.T) {
	if testing.Short() {
		t.Skip("runs Java")
	}
	classpath, err := os.ReadFile(lab.Path(t, "kafka-clients", "classpath"))
	if err != nil {
		t.Fatal(err)
	}
	const seed, pairs = 3, 6000
	r := rand.New(rand.NewPCG(seed, 0))
	var in strings.Builder
	var drawn []string
	for len(drawn) < 2*pairs {
		a := (&schemaGenerator{Rand: r}).schema(3, false)
		b := (&schemaGenerator{Rand: r}).schema(3, false)
		if r.IntN(3) == 0 {
			b = strings.NewReplacer(`"int"`, `"long"`, `"size":4`, `"size":5`, `"A","B"`, `"A"`).Replace(a)
		}
		_, e1 := parseAvro(a, nil)
		_, e2 := parseAvro(b, nil)
		if e1 == nil && e2 == nil {
			drawn = append(drawn, a, b)
			fmt.Fprintf(&in, "%s\n%s\n", a, b)
		}
	}
	cmd := exec.CommandContext(t.Context(), "java", "-cp", strings.TrimSpace(string(classpath)), "testdata/java/Compat.java")
	cmd.Stdin = strings.NewReader(in.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	if len(lines) != pairs {
		t.Fatalf("%d answers for %d pairs", len(lines), pairs)
	}
	verdicts, refused := map[bool]int{}, 0
	for i, line := range lines {
		theirs, text, _ := strings.Cut(line, "\t")
		reader, writer := drawn[2*i], drawn[2*i+1]
		if strings.HasPrefix(theirs, "error") {
			if !strings.Contains(theirs, "matches multiple fields") { // an exception there, a reason here
				refused++
			}
			continue
		}
		if canonical, err := canonicalAvro(reader, false); err != nil || canonical != text {
			t.Fatalf("seed %d pair %d: canonical form\n got %s, %v\nwant %s", seed, i, canonical, err, text)
		}
		rs, _ := parseAvro(reader, nil)
		ws, _ := parseAvro(writer, nil)
		ours := avroIncompatibilities(rs, ws)
		verdicts[len(ours) == 0]++
		if (len(ours) == 0) != (theirs == "") {
			t.Fatalf("seed %d pair %d:\nreader %s\nwriter %s\n got %+v\nwant %q", seed, i, reader, writer, ours, theirs)
		}
		for _, why := range ours {
			// A missing field whose enum type has a default is a TYPE_MISMATCH there.
			enum := why.kind == readerMissingDefault && strings.Contains(theirs, typeMismatch)
			if !strings.Contains(theirs, why.kind) && !enum {
				t.Fatalf("seed %d pair %d:\nreader %s\nwriter %s\n got %+v\nwant %q", seed, i, reader, writer, ours, theirs)
			}
		}
	}
	if refused > pairs/20 {
		t.Errorf("Apache Avro refuses %d schemas that are taken here", refused)
	}
	if verdicts[true] < pairs/10 || verdicts[false] < pairs/10 {
		t.Fatalf("the pairs are one-sided: %v", verdicts)
	}
}
