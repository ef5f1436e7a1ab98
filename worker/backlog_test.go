package worker

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/tabletopic/tabletopic/coordinator/control"
)

// produceAt appends n events with a timestamp to each partition.
func (p *path) produceAt(n int, at time.Time) {
	p.t.Helper()
	for i, l := range p.logs {
		for range n {
			r := event(p.t, int64(i))
			r.Timestamp = at.UnixMilli()
			l.append(p.t, r)
		}
	}
}

// Records that are older than the target lag when they are read are committed as soon as all
// of them are read; those that come later wait for the target lag, whatever timestamps they have.
func TestBacklogIsCommittedWhenItIsRead(t *testing.T) {
	p := newPath(t, 3)
	p.cfg.Lag = time.Hour
	old := time.Now().Add(-2 * time.Hour)
	p.produceAt(500, old)
	p.start()
	p.committed()
	p.exact(1500, 0)

	// What comes now is as old as its arrival, and its rows wait.
	for n := range 3 {
		p.produceAt(10, old)
		p.wait(func() bool { return p.rowsRead() == 1500+30*(n+1) }, func() string { return "the rows to be read" })
	}
	requests, backlogs := 0, 0
	for _, e := range p.control.All(p.topic) {
		switch e := e.(type) {
		case control.Request:
			requests++
		case control.Pending:
			if time.Since(e.Since) > time.Hour {
				backlogs++
			}
		}
	}
	if requests != 1 || backlogs != 1 {
		t.Errorf("%d rounds for %d backlogs, want one for one", requests, backlogs)
	}
}

// rowsRead is how many rows the worker has made.
func (p *path) rowsRead() int { return counted(p.t, p.running.metrics.rows) }

// counted is what a counter says.
func counted(t *testing.T, c prometheus.Counter) int {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return int(m.GetCounter().GetValue())
}

// gathered returns the value of a counter that a registry has, of one topic if it is by topic.
func gathered(t *testing.T, registry *prometheus.Registry, name string) int {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return int(f.GetMetric()[0].GetCounter().GetValue())
		}
	}
	t.Fatalf("there is no counter %s", name)
	return 0
}
