package schemaregistry

import (
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
