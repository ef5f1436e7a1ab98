package schemaregistry

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
)

// A compatCase are two schemas of a script: the lines "old …" and "new …", and for what they
// refer to "in-old NAME …" and "in-new NAME …".
type compatCase struct {
	next, older  model
	texts        map[string]string       // old, new: as they are written
	dependencies map[string][]Dependency // the same
}

func parseCase(t *testing.T, d *datadriven.TestData, schemaType string) compatCase {
	texts, dependencies := map[string]string{}, map[string][]Dependency{}
	for line := range strings.Lines(d.Input) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if which, ok := strings.CutPrefix(word, "in-"); ok {
			name, text, _ := strings.Cut(rest, " ")
			dependencies[which] = append(dependencies[which], Dependency{name, text})
			continue
		}
		if schemaType == typeProtobuf && !strings.Contains(rest, "syntax = ") && !strings.Contains(rest, "edition = ") {
			rest = `syntax = "proto3"; message M { ` + rest + ` }`
		}
		texts[word] = rest
	}
	model := func(which string) model {
		t.Helper()
		text, err := canonical(schemaType, texts[which], dependencies[which], false)
		if err != nil {
			d.Fatalf(t, "%s: %v", which, err)
		}
		m, err := parse(schemaType, text, dependencies[which])
		if err != nil {
			d.Fatalf(t, "%s: %v", which, err)
		}
		if why := m.cannotRead(m, false); len(why) > 0 {
			d.Fatalf(t, "%s cannot read itself: %+v", which, why)
		}
		return m
	}
	return compatCase{model("new"), model("old"), texts, dependencies}
}

// checkLevels proves that each level is one of the two directions, or both.
func (c compatCase) checkLevels(t *testing.T, d *datadriven.TestData, lenient bool) {
	count := func(l level) int { return len(incompatibleAt(l, lenient, c.next, c.older)) }
	want := map[level]int{levelBackward: len(c.next.cannotRead(c.older, lenient)), levelForward: len(c.older.cannotRead(c.next, lenient))}
	want[levelFull] = want[levelBackward] + want[levelForward]
	want[levelBackwardTransitive], want[levelForwardTransitive], want[levelFullTransitive] = want[levelBackward], want[levelForward], want[levelFull]
	want[levelNone] = 0
	got := map[level]int{}
	for _, l := range levels {
		got[l] = count(l)
	}
	if diff := cmp.Diff(got, want); diff != "" {
		d.Fatalf(t, "reasons of the levels (-got +want):\n%s", diff)
	}
}

// Scripts of the compatibility rules, a directory for each type. The command of a case is a
// level, and the output are the reasons; or judge, or lenient with that policy, and the output
// are kind and path of the reasons in both directions.
func TestCompatibility(t *testing.T) {
	for dir, schemaType := range map[string]string{"avro": typeAvro, "json": typeJSON, "protobuf": typeProtobuf} {
		datadriven.Walk(t, "testdata/compat/"+dir, func(t *testing.T, path string) {
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				if d.Cmd == "matrix" {
					return matrix(t, d, schemaType)
				}
				c := parseCase(t, d, schemaType)
				c.checkLevels(t, d, d.Cmd == "lenient")
				if d.Cmd == "judge" || d.Cmd == "lenient" {
					return "backward " + brief(c.next.cannotRead(c.older, d.Cmd == "lenient")) +
						"forward " + brief(c.older.cannotRead(c.next, d.Cmd == "lenient"))
				}
				l := level(strings.ToUpper(d.Cmd))
				if !slices.Contains(levels, l) {
					d.Fatalf(t, "no level")
				}
				var out strings.Builder
				for _, why := range incompatibleAt(l, false, c.next, c.older) {
					fmt.Fprintf(&out, "%s %s: %s\n", why.kind, why.path, why.reason)
				}
				if out.Len() == 0 {
					return "ok\n"
				}
				return out.String()
			})
		})
	}
}

func brief(found []incompatibility) string {
	if len(found) == 0 {
		return "ok\n"
	}
	var all []string
	for _, why := range found {
		all = append(all, why.kind+" "+why.path)
	}
	slices.Sort(all)
	return strings.Join(all, "; ") + "\n"
}

// matrix compares each of the schemas, one a line, with each: a row for each reader, a column
// for each writer, x if it cannot read.
func matrix(t *testing.T, d *datadriven.TestData, schemaType string) string {
	var out strings.Builder
	lines := strings.Split(strings.TrimSpace(d.Input), "\n")
	for _, reader := range lines {
		for _, writer := range lines {
			pair := *d
			pair.Input = "new " + reader + "\nold " + writer
			c := parseCase(t, &pair, schemaType)
			mark := "."
			if len(c.next.cannotRead(c.older, false)) > 0 {
				mark = "x"
			}
			out.WriteString(mark)
		}
		fmt.Fprintf(&out, " %s\n", reader)
	}
	return out.String()
}

// Types that contain themselves, unions of thousands, and what has exponentially many
// paths: comparisons end, and a schema reads itself unless that is said to be too complex.
func TestComparisonsEnd(t *testing.T) {
	list := func(n int, separator string, item func(i int) string) string {
		var all []string
		for i := range n {
			all = append(all, item(i))
		}
		return strings.Join(all, separator)
	}
	for _, test := range []struct {
		name, schemaType, text string
		tooComplex             bool
	}{
		{"recursive records", typeAvro, `{"type":"record","name":"A","fields":[{"name":"b","type":["null",{"type":"record","name":"B","fields":[{"name":"a","type":["null","A","B"]},{"name":"m","type":{"type":"map","values":"A"}}]}]}]}`, false},
		{"a union of 3,000", typeAvro, "[" + list(3000, ",", func(i int) string { return fmt.Sprintf(`{"type":"enum","name":"E%d","symbols":["A"]}`, i) }) + "]", false},
		{"messages that each use two others", typeProtobuf, `syntax = "proto3"; ` + list(500, "\n", func(i int) string {
			return fmt.Sprintf("message M%d { M%d a = 1; M%d b = 2; }", i, (i+1)%500, (2*i+7)%500)
		}), false},
		{"definitions that each use two others", typeJSON, `{"$ref":"#/definitions/d0","definitions":{` + list(400, ",", func(i int) string {
			return fmt.Sprintf(`"d%d":{"oneOf":[{"properties":{"a":{"$ref":"#/definitions/d%d"}}},{"items":{"$ref":"#/definitions/d%d"}},{"const":%d}]}`, i, (i+1)%400, (2*i+7)%400, i)
		}) + "}}", false},
		{"1,000 branches", typeJSON, `{"oneOf":[` + list(1000, ",", func(i int) string { return fmt.Sprintf(`{"properties":{"k%d":{}},"title":"%d"}`, i, i) }) + "]}", true},
		{"a chain of 3,000 references", typeJSON, `{"$ref":"#/definitions/d0","definitions":{"d3000":{"type":"string"},` + list(3000, ",", func(i int) string {
			return fmt.Sprintf(`"d%d":{"$ref":"#/definitions/d%d"}`, i, i+1)
		}) + "}}", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var models [2]model
			for i := range models {
				text, err := canonical(test.schemaType, test.text, nil, false)
				if err != nil {
					t.Fatal(err)
				}
				if models[i], err = parse(test.schemaType, text, nil); err != nil {
					t.Fatal(err)
				}
			}
			why := models[0].cannotRead(models[1], false)
			if tooComplex := len(why) == 1 && why[0].kind == "TOO_COMPLEX"; tooComplex != test.tooComplex || len(why) > 0 && !tooComplex {
				t.Fatalf("got %+v", why)
			}
		})
	}
}

// A type that contains itself below a choice: what is refuted of it further out counts where it
// was assumed.
func TestRecursionIsNotAssumedAway(t *testing.T) {
	tree := func(value string) model {
		m, err := parse(typeJSON, `{"type":"object","properties":{"left":{"anyOf":[{"$ref":"#"},{"type":"null"}]},"right":{"anyOf":[{"$ref":"#"},{"type":"null"}]},"value":{"type":"`+value+`"}}}`, nil)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	var paths []string
	for _, why := range tree("string").cannotRead(tree("integer"), false) {
		paths = append(paths, why.path)
	}
	want := []string{"#/properties/left", "#/properties/right", "#/properties/value"}
	if diff := cmp.Diff(paths, want); diff != "" {
		t.Fatalf("paths (-got +want):\n%s", diff)
	}
}
