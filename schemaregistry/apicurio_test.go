package schemaregistry

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// An apicurioQuestion is what ApicurioRules reads in a line.
type apicurioQuestion struct {
	Type       string            `json:"type"`
	Reader     string            `json:"reader"`
	Writer     string            `json:"writer"`
	References map[string]string `json:"references"` // of both by their names, the reader's first
}

// A judgedCase is a case of a script with what each side says of both directions.
type judgedCase struct {
	input string
	ours  [2][]incompatibility // backward, forward
	judge [2][]string          // the rules of Apicurio by which it refuses
}

// differences says where the verdicts differ, nothing if they are the same.
func (c *judgedCase) differences() string {
	var out strings.Builder
	for i, direction := range []string{"backward", "forward"} {
		noJudge := strings.HasPrefix(strings.Join(c.judge[i], ""), "unreadable")
		if (len(c.ours[i]) == 0) == (len(c.judge[i]) == 0) && !noJudge {
			continue
		}
		theirs := "ok"
		if len(c.judge[i]) > 0 {
			theirs = strings.Join(c.judge[i], "; ")
		}
		fmt.Fprintf(&out, "%s here %s; there %s\n", direction, strings.TrimSpace(brief(c.ours[i])), theirs)
	}
	return out.String()
}

// casesOf reads the cases of the scripts of a type: those with two schemas that are compared both ways.
func casesOf(t *testing.T, dir, schemaType string) (cases []*judgedCase, questions []apicurioQuestion) {
	datadriven.Walk(t, "testdata/compat/"+dir, func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "judge" {
				return d.Expected // a policy that Apicurio does not have, or types by themselves
			}
			c := parseCase(t, d, schemaType)
			cases = append(cases, &judgedCase{
				input: inputOf(d),
				ours:  [2][]incompatibility{c.next.cannotRead(c.older, false), c.older.cannotRead(c.next, false)},
			})
			q := apicurioQuestion{Type: schemaType, Reader: asDraft7(c.texts["new"]), Writer: asDraft7(c.texts["old"]), References: map[string]string{}}
			for _, which := range []string{"old", "new"} {
				for _, d := range c.dependencies[which] {
					q.References[d.Name] = d.Text
				}
			}
			back := q
			back.Reader, back.Writer = q.Writer, q.Reader
			questions = append(questions, q, back)
			return d.Expected
		})
	})
	return cases, questions
}

// inputOf is the input of a case, whose lines may end with spaces.
func inputOf(d *datadriven.TestData) string {
	var lines []string
	for line := range strings.Lines(d.Input) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Join(lines, "\n")
}

// asDraft7 says of a JSON Schema that does not what it is, which Apicurio takes for draft 04.
func asDraft7(text string) string {
	if rest, ok := strings.CutPrefix(text, "{"); ok && !strings.Contains(text, `"$schema"`) {
		return strings.Replace(`{"$schema":"http://json-schema.org/draft-07/schema#",`+rest, ",}", "}", 1)
	}
	return text
}

// The verdicts of the scripts are those of the rules of Apicurio's registry. Where they are not,
// testdata/apicurio has the case with the reasons why: "reason NAME" says it once, "differs NAME…" is a
// case. A difference that is not there fails, and so does one that is there and is none any more.
func TestAgreesWithApicurio(t *testing.T) {
	if testing.Short() {
		t.Skip("runs Java")
	}
	classpath := lab.Path(t, "apicurio", "classes", "lib") + "/*"
	types := []struct{ dir, schemaType string }{{"protobuf", typeProtobuf}, {"json", typeJSON}}
	var in strings.Builder
	var all []*judgedCase
	byType := map[string][]*judgedCase{}
	for _, s := range types {
		cases, questions := casesOf(t, s.dir, s.schemaType)
		byType[s.dir], all = cases, append(all, cases...)
		for _, q := range questions {
			b, err := json.Marshal(q)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&in, "%s\n", b)
		}
	}
	cmd := exec.CommandContext(t.Context(), "java", "-cp", classpath, "testdata/java/ApicurioRules.java")
	cmd.Stdin = strings.NewReader(in.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	if len(lines) != 2*len(all) {
		t.Fatalf("%d answers for %d cases in two directions", len(lines), len(all))
	}
	for i, line := range lines {
		if err := json.Unmarshal([]byte(line), &all[i/2].judge[i%2]); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	for _, s := range types {
		t.Run(s.dir, func(t *testing.T) { explain(t, "testdata/apicurio/"+s.dir+".txt", byType[s.dir]) })
	}
}

// explain compares the differences of cases with those that a file explains.
func explain(t *testing.T, path string, cases []*judgedCase) {
	found, reasons := map[string]*judgedCase{}, map[string]int{}
	same := 0
	for _, c := range cases {
		if c.differences() == "" {
			same++
			continue
		}
		if found[c.input] != nil {
			t.Errorf("a case is there twice:\n%s", c.input)
		}
		found[c.input] = c
	}
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "reason":
			reasons[d.CmdArgs[0].Key] = 0
			return ""
		case "differs":
			for _, a := range d.CmdArgs {
				if _, ok := reasons[a.Key]; !ok {
					d.Fatalf(t, "there is no reason %q", a.Key)
				}
				reasons[a.Key]++
			}
			input := inputOf(d)
			c := found[input]
			if c == nil || len(d.CmdArgs) == 0 {
				d.Fatalf(t, "no case with this input differs, or no reason is given")
			}
			delete(found, input)
			return c.differences()
		}
		d.Fatalf(t, "unknown command %s", d.Cmd)
		return ""
	})
	for _, c := range cases {
		if found[c.input] != nil {
			t.Errorf("a difference without a reason; say in %s:\n\ndiffers REASON\n%s\n----\n%s", path, c.input, c.differences())
		}
	}
	for name, n := range reasons {
		if n == 0 {
			t.Errorf("%s: nothing has the reason %s", path, name)
		}
	}
	t.Logf("%s: of %d cases %d have the same verdicts both ways, %d differ", path, len(cases), same, len(cases)-same)
}
