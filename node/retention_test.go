package node

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/streamstore"
)

// bytesBelow is the size of the files below a directory; some may go meanwhile.
func bytesBelow(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}

// metric returns the sum over the labels of a counter or gauge.
func (c *cluster) metric(n *Node, name string) (sum float64) {
	c.t.Helper()
	for _, m := range scrape(c.t, n)[name].GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return sum
}

// until waits for a condition of the node, which says what lacks.
func until(t *testing.T, what string, condition func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		lacks := condition()
		if lacks == "" {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %s", what, lacks)
		}
	}
}

// DeleteRecords, retention.bytes and retention.ms free the bucket: the bytes of the log, those
// linked by composites too, and the write-ahead log, are deleted for good, and what the
// topics still hold is read.
func TestRetentionFreesTheBucket(t *testing.T) {
	t.Parallel()
	objects := t.TempDir()
	var cfg Config
	cfg.Fields()
	cfg.Data, cfg.ObjectStore, cfg.WAL = t.TempDir(), "file://"+objects, "s3"
	cfg.Kafka, cfg.HTTP = "127.0.0.1:0", "127.0.0.1:0"
	const short = 200 * time.Millisecond
	cfg.UploadInterval, cfg.CompactionSplit, cfg.MinorBytes, cfg.CleanupBytes = short, 100<<10, 100<<10, 1
	cfg.CompactionInterval, cfg.CompactionMinor, cfg.CompactionMajor, cfg.CleanupInterval = short, short, short, short
	cfg.RetentionInterval, cfg.CleanInterval, cfg.DeleteGrace = short, short, 10*time.Second
	n, err := Open(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	c := &cluster{t: t}
	admin := kadm.NewClient(c.client(n))
	topics := []string{"deleted", "by-bytes", "by-time"}
	if _, err := admin.CreateTopics(t.Context(), 1, 1, nil, topics...); err != nil {
		t.Fatal(err)
	}
	const rounds, perRound, size = 4, 4, 64 << 10
	data, wal := filepath.Join(objects, "data"), filepath.Join(objects, "wal")
	composites := func() map[streamstore.StreamID]bool {
		found := map[streamstore.StreamID]bool{}
		if err := n.store.Survey(t.Context(), func(o streamstore.FoundObject) error {
			if o.Kind == streamstore.KindComposite && o.State == streamstore.ObjectReferenced {
				found[o.Ranges[0].Stream] = true
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return found
	}
	cl := c.client(n, kgo.ProducerBatchCompression(kgo.NoCompression()))
	for i := range rounds {
		for _, topic := range topics {
			for j := range perRound {
				r := &kgo.Record{Topic: topic, Value: []byte(fmt.Sprint(i, j, strings.Repeat("x", size)))}
				if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
		}
		until(t, "upload", func() string {
			if waits := c.metric(n, "tabletopic_stream_unuploaded_bytes"); waits > size {
				return fmt.Sprintf("%v bytes wait", waits)
			}
			return ""
		})
	}
	const all = int64(rounds * perRound * size)
	until(t, "composites", func() string {
		if got := composites(); len(got) < len(topics) {
			return fmt.Sprintf("%d streams have one, want %d", len(got), len(topics))
		}
		return ""
	})
	if got := bytesBelow(data); got < int64(len(topics))*all {
		t.Fatalf("%d bytes of data in the bucket, want %d or more", got, int64(len(topics))*all)
	}

	if _, err := admin.DeleteRecords(t.Context(), kadm.Offsets{"deleted": {0: {Topic: "deleted", At: -1}}}); err != nil {
		t.Fatal(err)
	}
	for topic, set := range map[string]kadm.AlterConfig{
		"by-bytes": {Name: "retention.bytes", Value: kadm.StringPtr(fmt.Sprint(all / 2))},
		"by-time":  {Name: "retention.ms", Value: kadm.StringPtr("1000")},
	} {
		if _, err := admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{set}, topic); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "data freed", func() string {
		if got, want := bytesBelow(data), all*3/4; got > want {
			return fmt.Sprintf("%d bytes of data in the bucket, want at most %d", got, want)
		}
		return ""
	})
	until(t, "WAL freed", func() string {
		if got := bytesBelow(wal); got > all/8 {
			return fmt.Sprintf("%d bytes of the write-ahead log in the bucket", got)
		}
		return ""
	})
	starts, err := admin.ListStartOffsets(t.Context(), topics...)
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string][2]int64{"deleted": {16, 16}, "by-bytes": {8, 9}, "by-time": {16, 16}} {
		if o, _ := starts.Lookup(topic, 0); o.Offset < want[0] || o.Offset > want[1] {
			t.Errorf("%s starts at %d, want %v", topic, o.Offset, want)
		}
	}
	if got := c.consume(n, "by-bytes", "readers", 7); len(got) < 7 {
		t.Errorf("%d records of by-bytes are left, want 7 or more", len(got))
	}
	if sum, err := n.store.Check(t.Context(), true, func(p streamstore.ObjectProblem) { t.Errorf("%+v", p) }, func(streamstore.CheckSummary) {}); err != nil || sum.Orphaned > 0 {
		t.Errorf("check: %+v, %v", sum, err)
	}
}
