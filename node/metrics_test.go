package node

import (
	"bufio"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/tabletopic/tabletopic/objectstore"
)

// scrape returns the families of a node's metrics that are its own.
func scrape(t *testing.T, n *Node) map[string]*dto.MetricFamily {
	t.Helper()
	resp, err := http.Get("http://" + n.HTTPAddr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(families, func(name string, _ *dto.MetricFamily) bool { return !strings.HasPrefix(name, "tabletopic_") })
	return families
}

// documented returns the rows of docs/metrics.md: type and labels by name.
func documented(t *testing.T) map[string]string {
	t.Helper()
	f, err := os.Open("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	row := regexp.MustCompile("^\\| `(tabletopic_\\w+)` \\| (\\w+) \\| (.*?) \\|")
	rows := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if m := row.FindStringSubmatch(lines.Text()); m != nil {
			if _, twice := rows[m[1]]; twice {
				t.Errorf("docs/metrics.md has %s twice", m[1])
			}
			rows[m[1]] = m[2] + " " + m[3]
		}
	}
	return rows
}

// shown returns type and labels of a family, as the document writes them.
func shown(f *dto.MetricFamily) string {
	var labels []string
	for _, l := range f.Metric[0].Label {
		labels = append(labels, "`"+l.GetName()+"`")
	}
	slices.Sort(labels)
	return strings.ToLower(f.GetType().String()) + " " + strings.Join(labels, ", ")
}

// busyNode is a node that has served every kind of request that metrics count.
func busyNode(t *testing.T) *Node {
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir()}
	c.metadata = "sqlite:" + c.data + "/metadata.db"
	n := c.open(1)
	on := "true"
	if _, err := kadm.NewClient(c.client(n)).CreateTopic(t.Context(), 1, 1, map[string]*string{"table.topic.enable": &on}, "orders"); err != nil {
		t.Fatal(err)
	}
	c.produce(n, "orders", "not Avro: a dead letter")
	c.consume(n, "orders", "readers", 1)
	for _, path := range []string{"/iceberg/v1/config", "/subjects"} {
		resp, err := http.Get("http://" + n.HTTPAddr() + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	return n
}

// docs/metrics.md lists exactly the metrics that a server shows, with their types and labels.
func TestMetricsAreDocumented(t *testing.T) {
	n := busyNode(t)
	want := documented(t)
	until(t, "docs/metrics.md", func() string { // tables report when their first commit is done
		families := scrape(t, n)
		var wrong []string
		for name, f := range families {
			switch row, ok := want[name]; {
			case !ok:
				wrong = append(wrong, fmt.Sprintf("undocumented: | `%s` | %s | %s |", name, strings.Replace(shown(f), " ", " | ", 1), f.GetHelp()))
			case strings.TrimSpace(row) != strings.TrimSpace(shown(f)):
				wrong = append(wrong, fmt.Sprintf("%s is %q, documented as %q", name, shown(f), row))
			}
		}
		for name := range want {
			if families[name] == nil {
				wrong = append(wrong, name+" is documented, and not shown")
			}
		}
		slices.Sort(wrong)
		return strings.Join(wrong, "\n")
	})
}

// Every request to the object store says what it is for.
func TestRequestsHaveAPurpose(t *testing.T) {
	t.Parallel() // mostly waits
	n := busyNode(t)
	if err := n.store.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.store.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	families, err := n.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "tabletopic_objectstore_requests_total" {
			continue
		}
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetName() == "purpose" {
					seen[l.GetValue()] += m.GetCounter().GetValue()
				}
			}
		}
	}
	if seen[""] > 0 {
		t.Errorf("%v requests are for nothing: %v", seen[""], seen)
	}
	for _, p := range []objectstore.Purpose{objectstore.ForUpload, objectstore.ForMetadata, objectstore.ForProbe, objectstore.ForCleanup} {
		if seen[string(p)] == 0 {
			t.Errorf("no request for %s: %v", p, seen)
		}
	}
}
