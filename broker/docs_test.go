package broker

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// docs/kafka.md lists what is served, in the versions that are.
func TestDocumentedAPIs(t *testing.T) {
	doc, err := os.ReadFile("../docs/kafka.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\w+) \| (\d+(?:–\d+)?) \|`).FindAllStringSubmatch(string(doc), -1) {
		documented[row[1]] = row[2]
	}
	served := map[string]string{}
	for _, a := range newAPITable().list {
		versions := fmt.Sprintf("%d–%d", a.min, a.max)
		if a.min == a.max {
			versions = fmt.Sprint(a.min)
		}
		served[a.name()] = versions
	}
	if diff := cmp.Diff(served, documented); diff != "" {
		t.Errorf("docs/kafka.md (-served +documented):\n%s", diff)
	}
}
