package sim

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/iceberg-go"

	"github.com/tabletopic/tabletopic/catalog"
)

// A record a second for an hour, committed every ten seconds, by a node that is killed every ten minutes:
// data files stay larger than a quarter of their target size on average, what the table names stays
// bounded, nothing else stays in the bucket but what the killed ones left, and each record is a row once.
func TestAnHourOfSmallCommits(t *testing.T) {
	if underRace {
		t.Skip("ten times as long with the race detector: make sim")
	}
	plainPages(t)
	synctest.Test(t, func(t *testing.T) {
		w := plannedTableWorld(t, 1, tablePlan{nodes: 1, partitions: 1, lag: 10 * time.Second, rewind: "pause", grace: 5 * time.Minute, compact: 5})
		w.simulate(24*time.Hour, func() {
			defer w.meta.Close()
			if err := w.smallCommits(time.Hour, 10*time.Minute); err != nil {
				w.fail("%v", err)
			}
		})
	})
}

const (
	hourTarget = 16 << 10         // of the size of a data file: what about 70 commits have; one has 3 KiB
	hourAge    = 10 * time.Minute // of snapshots
)

func (w *tableWorld) smallCommits(whole, life time.Duration) error {
	l := w.nodes[0].newLife()
	if err := l.open(); err != nil {
		return err
	}
	defer func() { l.end() }()
	set := false
	const gather = 10 // records at a time: each request to append is an object of the log, and takes memory here
	ten := make([]form, gather)
	for i := range ten {
		ten[i] = narrow
	}
	for i := range int(whole / time.Second / gather) {
		topic, _ := l.set.Topic(l.topic().name)
		l.append(l.ctx, topic.ID, 0, ten...)
		if err := wait(w.failing, gather*time.Second); err != nil {
			return err
		}
		if t, err := w.catalog.Load(w.failing, l.topic().table); err == nil && !set {
			_, err = w.catalog.Commit(w.failing, t, catalog.Commit{Properties: iceberg.Properties{
				"write.target-file-size-bytes": strconv.Itoa(hourTarget), "history.expire.max-snapshot-age-ms": ms(hourAge)}})
			set = err == nil
			if set {
				now, _ := w.catalog.Load(w.failing, l.topic().table)
				w.byOthers[now.MetadataLocation()] = "property"
			}
		}
		if at := time.Duration(i+1) * gather * time.Second; at%life == 0 && at < whole {
			l.end()
			l = w.nodes[0].newLife()
			if err := l.open(); err != nil {
				return err
			}
		}
	}
	if err := l.caughtUp(); err != nil {
		return err
	}
	_ = wait(l.ctx, time.Minute) // for what is to be compacted yet
	if err := l.compare(); err != nil {
		return err
	}
	t, err := w.catalog.Load(w.failing, l.topic().table)
	if err != nil {
		return err
	}
	live, err := w.files.live(t.CurrentSnapshot())
	if err != nil {
		return err
	}
	var bytes, rows int64
	for _, df := range live {
		bytes, rows = bytes+df.FileSizeBytes(), rows+df.Count()
	}
	average := bytes / int64(len(live))
	kinds := map[string]int{}
	for after := ""; ; {
		page, err := w.disk.List(w.failing, "warehouse/", after)
		if err != nil {
			return err
		}
		for _, o := range page {
			kinds[kind(o.Key)]++
			after = o.Key
		}
		if len(page) == 0 {
			break
		}
	}
	h := w.histories[l.topic().table[1]]
	said := fmt.Sprintf("%d rows in %d files of %d bytes on average, target %d; %d compactions, %d snapshots; in the bucket %v",
		rows, len(live), average, hourTarget, h.compactions, len(t.Metadata().Snapshots()), kinds)
	w.t.Log(said)
	// Snapshots of ten minutes: 60 commits, fewer compactions, and what is expired sixteen commits later.
	const snapshots = 60 + 60 + 32
	switch {
	case rows != int64(whole/time.Second):
		return fmt.Errorf("want %d rows: %s", whole/time.Second, said)
	case average <= hourTarget/4:
		return fmt.Errorf("files are small: %s", said)
	case len(t.Metadata().Snapshots()) > snapshots || kinds["metadata"] > 21+5 || kinds["manifest list"] > snapshots+5 || kinds["manifest"] > 2*snapshots || kinds["data file"] > 2*snapshots+len(live):
		return fmt.Errorf("files pile up: %s", said)
	}
	return nil
}
