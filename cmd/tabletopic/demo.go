package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go/table"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/rest"
	"github.com/tabletopic/tabletopic/internal/clickstream"
	"github.com/tabletopic/tabletopic/node"
	"github.com/tabletopic/tabletopic/objectstore"
)

const demoTopic = "clickstream"

func newDemo() *cobra.Command {
	var (
		cfg        node.Config
		records    int
		partitions int32
		keep       bool
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See a million Kafka records become a table: one process, a temporary directory",
		Long: `Demo starts a server on a temporary directory, registers an Avro schema, produces a clickstream
to a topic through Kafka sockets, waits until the topic's Iceberg table holds every record, and
reads the table back through the REST catalog. With --keep the server goes on until Ctrl-C.`,
		Args: usage(cobra.NoArgs),
	}
	cfg.Fields()
	cmd.Flags().IntVar(&records, "records", 1_000_000, "records to produce")
	cmd.Flags().Int32Var(&partitions, "partitions", 4, "partitions of the topic")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the server running until Ctrl-C")
	cmd.Flags().StringVar(&cfg.Kafka, "kafka", cfg.Kafka, "listen address of the Kafka protocol")
	cmd.Flags().StringVar(&cfg.HTTP, "http", cfg.HTTP, "listen address of registry and catalog")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if records < 1 || partitions < 1 {
			return usageError{errors.New("--records and --partitions must be at least 1")}
		}
		dir, err := os.MkdirTemp("", "tabletopic-demo-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		cfg.Data = dir
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
		n, err := node.Open(cmd.Context(), cfg, log)
		if err != nil {
			return err
		}
		d := demo{out: cmd.OutOrStdout(), node: n, records: records, partitions: partitions}
		if err = d.run(cmd.Context()); err == nil && keep {
			d.hint(true)
			err = n.Wait(cmd.Context())
		} else if err == nil {
			d.hint(false)
		}
		return errors.Join(err, n.Close())
	}
	return cmd
}

type demo struct {
	out        io.Writer
	node       *node.Node
	records    int
	partitions int32
}

func (d *demo) run(ctx context.Context) error {
	header, err := d.prepare(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "producing %d clicks in Avro over %d partitions to Kafka on %s\n", d.records, d.partitions, d.node.KafkaAddr())
	begin := time.Now()
	if err := d.produce(ctx, header); err != nil {
		return err
	}
	produced := time.Since(begin)
	cat, err := rest.Open(objectstore.NewLocator(objectstore.S3Config{}), rest.Config{URI: "http://" + d.node.HTTPAddr() + "/iceberg"})
	if err != nil {
		return err
	}
	tbl, err := d.wait(ctx, cat)
	if err != nil {
		return err
	}
	visible := time.Since(begin)
	begin = time.Now()
	totals, err := readBack(ctx, tbl)
	if err != nil {
		return err
	}
	return d.report(tbl, totals, produced, visible, time.Since(begin))
}

// prepare registers the schema and makes the topic; it returns the header of each payload.
func (d *demo) prepare(ctx context.Context) ([]byte, error) {
	reg, err := sr.NewClient(sr.URLs("http://" + d.node.HTTPAddr()))
	if err != nil {
		return nil, err
	}
	ss, err := reg.CreateSchema(ctx, demoTopic+"-value", sr.Schema{Schema: clickstream.Schema})
	if err != nil {
		return nil, fmt.Errorf("register schema: %w", err)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(d.node.KafkaAddr()))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	resp, err := kadm.NewClient(cl).CreateTopic(ctx, d.partitions, 1, map[string]*string{
		"table.topic.enable": kadm.StringPtr("true"), "table.topic.target.lag.ms": kadm.StringPtr("1000"),
	}, demoTopic)
	if err != nil {
		return nil, kafkaError("create topic", demoTopic, err, resp.ErrMessage)
	}
	return new(sr.ConfluentHeader).AppendEncode(nil, ss.ID, nil)
}

// produce sends the records through one client, as an application would: idempotent, acks=all.
func (d *demo) produce(ctx context.Context, header []byte) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(d.node.KafkaAddr()), kgo.DefaultProduceTopic(demoTopic),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(10*time.Millisecond), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	bar := newProgress(int64(d.records), "producing")
	defer bar.done()
	gen := clickstream.NewGenerator(1, time.Now().UTC().Truncate(time.Second))
	var event clickstream.Event
	var chunk []byte // of many payloads, so that each does not cost an allocation
	acked := func(_ *kgo.Record, err error) {
		if err != nil {
			cancel(fmt.Errorf("produce: %w", err))
		}
	}
	for i := range d.records {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		gen.Next(&event)
		if cap(chunk)-len(chunk) < 1<<10 {
			chunk = make([]byte, 0, 256<<10)
		}
		start := len(chunk)
		chunk = clickstream.AppendAvro(append(chunk, header...), &event)
		key := binary.BigEndian.AppendUint64(nil, uint64(event.UserID))
		cl.Produce(ctx, &kgo.Record{Key: key, Value: chunk[start:len(chunk):len(chunk)]}, acked)
		if i%1000 == 0 {
			bar.set(int64(i))
		}
	}
	if err := cl.Flush(ctx); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return context.Cause(ctx)
}

// wait returns the table once it holds every record.
func (d *demo) wait(ctx context.Context, cat catalog.Catalog) (*table.Table, error) {
	bar := newProgress(int64(d.records), "in the table")
	defer bar.done()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		tbl, err := cat.Load(ctx, table.Identifier{"default", demoTopic})
		if err == nil {
			rows := tableRows(tbl)
			bar.set(rows)
			if rows >= int64(d.records) {
				return tbl, nil
			}
			err = fmt.Errorf("it holds %d of %d records", rows, d.records)
		}
		last = err
		select {
		case <-tick.C:
		case <-deadline.C:
			return nil, fmt.Errorf("the table is not complete after two minutes: %w", last)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func tableRows(tbl *table.Table) int64 {
	snap := tbl.CurrentSnapshot()
	if snap == nil || snap.Summary == nil {
		return 0
	}
	rows, _ := strconv.ParseInt(snap.Summary.Properties["total-records"], 10, 64)
	return rows
}

// total is one row of the demo's result.
type total struct {
	eventType string
	clicks    int64
	mobile    int64
	revenue   float64
}

// readBack scans three columns of the table and adds them up by event type.
func readBack(ctx context.Context, tbl *table.Table) ([]total, error) {
	_, records, err := tbl.Scan(table.WithSelectedFields("event_type", "price", "device.mobile")).ToArrowRecords(ctx)
	if err != nil {
		return nil, fmt.Errorf("scan table: %w", err)
	}
	var mu sync.Mutex
	sums := map[string]*total{}
	for batch, err := range records {
		if err != nil {
			return nil, fmt.Errorf("scan table: %w", err)
		}
		mu.Lock()
		err = addUp(sums, batch)
		mu.Unlock()
		batch.Release()
		if err != nil {
			return nil, err
		}
	}
	var out []total
	for _, s := range sums {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b total) int { return int(b.clicks - a.clicks) })
	return out, nil
}

func addUp(sums map[string]*total, batch arrow.RecordBatch) error {
	column := func(name string) arrow.Array {
		if i := batch.Schema().FieldIndices(name); len(i) == 1 {
			return batch.Column(i[0])
		}
		return nil
	}
	types, ok1 := column("event_type").(array.StringLike)
	price, ok2 := column("price").(*array.Float64)
	device, ok3 := column("device").(*array.Struct)
	if !ok1 || !ok2 || !ok3 {
		return fmt.Errorf("scan table: unexpected columns %s", batch.Schema())
	}
	mobile, ok := device.Field(0).(*array.Boolean)
	if !ok {
		return fmt.Errorf("scan table: unexpected type of device.mobile: %s", device.DataType())
	}
	for i := range int(batch.NumRows()) {
		t := sums[types.Value(i)]
		if t == nil {
			t = &total{eventType: types.Value(i)}
			sums[t.eventType] = t
		}
		t.clicks++
		if mobile.Value(i) {
			t.mobile++
		}
		if !price.IsNull(i) {
			t.revenue += price.Value(i)
		}
	}
	return nil
}

func (d *demo) report(tbl *table.Table, totals []total, produced, visible, read time.Duration) error {
	var rows [][]string
	var sum int64
	for _, t := range totals {
		sum += t.clicks
		rows = append(rows, []string{t.eventType, strconv.FormatInt(t.clicks, 10), strconv.FormatInt(t.mobile, 10), strconv.FormatFloat(t.revenue, 'f', 2, 64)})
	}
	rows = append(rows, []string{"total", strconv.FormatInt(sum, 10), "", ""})
	fmt.Fprintf(d.out, "\nSELECT event_type, count(*), count(*) FILTER (WHERE device.mobile), sum(price) FROM default.%s GROUP BY 1\n\n", demoTopic)
	table := &output{format: "table"}
	if err := table.print(d.out, nil, []string{"EVENT_TYPE", "CLICKS", "MOBILE", "REVENUE"}, rows); err != nil {
		return err
	}
	if sum != int64(d.records) {
		return fmt.Errorf("the table holds %d rows, %d were produced", sum, d.records)
	}
	round := func(t time.Duration) time.Duration { return t.Round(time.Millisecond) }
	fmt.Fprintf(d.out, "\nproduced in %s, all in the table %s after the first record, read back in %s; %d snapshots\n",
		round(produced), round(visible), round(read), len(tbl.Metadata().Snapshots()))
	return nil
}

func (d *demo) hint(keep bool) {
	if !keep {
		fmt.Fprintf(d.out, "\nRun it again with --keep and query the table yourself, or start a server with 'tabletopic serve'.\n")
		return
	}
	fmt.Fprintf(d.out, `
The server goes on until Ctrl-C. In DuckDB (INSTALL iceberg; LOAD iceberg;):
  ATTACH '' AS ice (TYPE iceberg, ENDPOINT 'http://%s/iceberg', AUTHORIZATION_TYPE 'none', ACCESS_DELEGATION_MODE 'none');
  SELECT * FROM ice.default.%s LIMIT 10;
`, d.node.HTTPAddr(), demoTopic)
}
