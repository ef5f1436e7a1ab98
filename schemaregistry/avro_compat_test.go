package schemaregistry

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// Scripts of the canonical form: two texts of one schema become one.
func TestCanonical(t *testing.T) {
	datadriven.Walk(t, "testdata/canonical", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			text, err := canonicalAvro(d.Input, d.Cmd == "normalize")
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			again, err := canonicalAvro(text, d.Cmd == "normalize")
			if err != nil || again != text {
				d.Fatalf(t, "the form of the form differs: %s, %v", again, err)
			}
			if _, err := parse(typeAvro, text, nil); err != nil {
				return text + "\nrefused: " + err.Error() + "\n"
			}
			return text + "\n"
		})
	})
}

// Types that contain themselves, and unions of thousands, end in time.
func TestCompatibilityEnds(t *testing.T) {
	var symbols []string
	for i := range 3000 {
		symbols = append(symbols, fmt.Sprintf(`{"type":"enum","name":"E%d","symbols":["A"]}`, i))
	}
	for _, text := range []string{
		`{"type":"record","name":"A","fields":[{"name":"b","type":["null",{"type":"record","name":"B","fields":[{"name":"a","type":["null","A","B"]},{"name":"m","type":{"type":"map","values":"A"}}]}]}]}`,
		"[" + strings.Join(symbols, ",") + "]",
	} {
		s, err := parseAvro(text, nil)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseAvro(text, nil)
		if err != nil {
			t.Fatal(err)
		}
		if why := avroIncompatibilities(s, again); len(why) > 0 {
			t.Fatalf("a schema cannot read itself: %+v", why[0])
		}
	}
}
