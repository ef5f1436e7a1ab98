package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/node"
)

// Small files of a table become large ones while records come in and the server is killed, by itself
// and when it is asked for. What two engines read afterwards is what the log has.
func TestSmallFilesBecomeLarge(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	const partitions = 2
	s.createTopic("events", partitions, 200*time.Millisecond, "table.topic.compact.min.files", "4")
	header := registerSchema(t, s, "events-value", eventSchema)
	producing, stop := context.WithCancel(context.Background())
	defer stop()
	acked := &acks{places: map[place]string{}}
	var producers sync.WaitGroup
	producers.Go(func() { produceUntil(producing, t, s, "events", header, 1, 20*time.Millisecond, acked) })
	status := func() (row node.TableStatus) {
		eventually(t, 3*time.Minute, "the status of the table", func() error { return s.api("/api/tables/events", &row) })
		return row
	}
	for range 3 {
		begin := time.Now()
		eventually(t, 3*time.Minute, "a compaction by itself", func() error {
			if row := status(); row.Compacted == nil || row.Compacted.Before(begin) {
				return fmt.Errorf("the last was at %v", row.Compacted)
			}
			return nil
		})
		s.kill()
		s.start()
	}
	stop()
	producers.Wait()
	log := readLog(t, s, "events", partitions)
	checkLog(t, log, acked, &acks{places: log})
	checkTable(t, l, s, "events", log)
	out, code := s.cli("", "table", "compact", "events")
	if code != 0 {
		t.Fatalf("table compact: exit %d\n%s", code, out)
	}
	if row := status(); row.Small == nil || *row.Small > partitions {
		t.Errorf("%v small files are left after\n%s", row.Small, out)
	}
	checkTable(t, l, s, "events", log)
	checkRows(t, s, "events", l.query(t, s, "spark", "SELECT id, text, _kafka.partition AS p, _kafka.offset AS o FROM ice.default.events"), log)
	if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
	if out, code := s.cli("", "table", "compact", "nothing"); code != 1 || !strings.Contains(out, "nothing") {
		t.Errorf("compact of a topic that is not there: exit %d\n%s", code, out)
	}
}
