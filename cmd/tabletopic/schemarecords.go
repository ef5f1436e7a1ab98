package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/schemaregistry"
)

func newSchemaExport(s *server) *cobra.Command {
	var topic string
	cmd := &cobra.Command{
		Use:   "export [FILE]",
		Short: "Write all schemas, settings and modes as the records of Confluent's topic _schemas",
		Long: `One JSON object a line, {"key": …, "value": …}, to FILE or standard output, or as records to the topic of --topic,
which must exist and should be compacted.`,
		Example: "  tabletopic schema export schemas.jsonl\n  tabletopic schema export --topic _schemas",
		Args:    usage(cobra.MaximumNArgs(1)),
	}
	cmd.Flags().StringVar(&topic, "topic", "", "`TOPIC` to write to")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if topic != "" && len(args) > 0 {
			return usageError{errors.New("FILE and --topic exclude each other")}
		}
		write := func(r schemaregistry.Record) error {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
		}
		switch {
		case topic != "":
			cl, err := s.kafka(kgo.DefaultProduceTopic(topic))
			if err != nil {
				return err
			}
			defer cl.Close()
			write = func(r schemaregistry.Record) error { return produceRecord(cmd.Context(), cl, r) }
		case len(args) == 1:
			f, err := os.Create(args[0])
			if err != nil {
				return err
			}
			w := bufio.NewWriter(f)
			defer func() { err = errors.Join(err, w.Flush(), f.Close()) }()
			write = func(r schemaregistry.Record) error { return json.NewEncoder(w).Encode(r) }
		}
		bar := newProgressOf(-1, "exporting", "records")
		defer bar.done()
		n := int64(0)
		return s.schemaRecords(cmd.Context(), func(r schemaregistry.Record) error {
			n++
			bar.set(n)
			return write(r)
		})
	}
	return cmd
}

// schemaRecords gives all records of the registry to fn.
func (s *server) schemaRecords(ctx context.Context, fn func(schemaregistry.Record) error) error {
	for path := "/api/schemas"; path != ""; {
		var page struct {
			Records []schemaregistry.Record
			Next    string
		}
		if err := s.api(ctx, http.MethodGet, path, nil, &page); err != nil {
			return fmt.Errorf("export schemas: %w", err)
		}
		for _, r := range page.Records {
			if err := fn(r); err != nil {
				return err
			}
		}
		if path = ""; page.Next != "" {
			path = "/api/schemas?after=" + url.QueryEscape(page.Next)
		}
	}
	return nil
}

func produceRecord(ctx context.Context, cl *kgo.Client, r schemaregistry.Record) error {
	key, err := json.Marshal(r.Key)
	if err != nil {
		return err
	}
	return cl.ProduceSync(ctx, &kgo.Record{Key: key, Value: r.Value}).FirstErr()
}

func newSchemaImport(s *server) *cobra.Command {
	var topic string
	out := newOutput()
	cmd := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Take schemas, settings and modes from records of Confluent's topic _schemas",
		Long: `Reads FILE, - for standard input, with one record a line: {"key": …, "value": …}, or key and value after each other; or
the topic of --topic from its begin to its end. Ids, versions, deleted flags, references, settings and modes are kept. The same
records may be imported again. It ends with 1, and says where, at the first record that contradicts what the registry has.`,
		Example: "  tabletopic schema import schemas.jsonl\n  tabletopic schema import --topic _schemas",
		Args:    usage(cobra.MaximumNArgs(1)),
	}
	cmd.Flags().StringVar(&topic, "topic", "", "`TOPIC` to read")
	out.flag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if (topic != "") == (len(args) > 0) {
			return usageError{errors.New("want FILE or --topic")}
		}
		snapshot := schemaregistry.NewSnapshot()
		var err error
		if topic != "" {
			err = s.readTopicRecords(cmd.Context(), topic, snapshot)
		} else {
			err = readFileRecords(args[0], snapshot)
		}
		if err != nil {
			return err
		}
		records, err := snapshot.Records()
		if err != nil {
			return err
		}
		return s.importSchemas(cmd, out, records)
	}
	return cmd
}

// importBytes bounds the values in one request of an import, which a single larger one fills alone.
const importBytes = 256 << 10

func (s *server) importSchemas(cmd *cobra.Command, out *output, records []schemaregistry.Record) error {
	var total struct {
		Added int `json:"added"`
		There int `json:"there"`
		GUIDs int `json:"guids"`
	}
	bar := newProgressOf(int64(len(records)), "importing", "records")
	defer bar.done()
	for len(records) > 0 {
		n, bytes := 0, 0
		for n < len(records) && (n == 0 || bytes+len(records[n].Value) <= importBytes) {
			bytes += len(records[n].Value)
			n++
		}
		part := total
		if err := s.api(cmd.Context(), http.MethodPost, "/api/schemas", map[string]any{"records": records[:n]}, &part); err != nil {
			return fmt.Errorf("import schemas: after %d records, which can be imported again: %w", total.Added+total.There, err)
		}
		total.Added, total.There, total.GUIDs = total.Added+part.Added, total.There+part.There, total.GUIDs+part.GUIDs
		records = records[n:]
		bar.set(int64(total.Added + total.There))
	}
	text := fmt.Sprintf("%d records added, %d were there", total.Added, total.There)
	if total.GUIDs > 0 {
		text += fmt.Sprintf("; %d schemas were here before under another GUID, which they keep: consumers find them by id alone", total.GUIDs)
	}
	return out.say(cmd.OutOrStdout(), total, "%s", text)
}

func readFileRecords(name string, snapshot *schemaregistry.Snapshot) error {
	in := os.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	d := json.NewDecoder(bufio.NewReader(in))
	for n := 1; ; n++ {
		r, err := readRecord(d)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = snapshot.Apply(r)
		}
		if err != nil {
			return fmt.Errorf("%s, record %d: %w", name, n, err)
		}
	}
}

// readRecord reads an object of key and value, or a key and then its value.
func readRecord(d *json.Decoder) (r schemaregistry.Record, err error) {
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return r, err
	}
	if err := json.Unmarshal(raw, &r.Key); err != nil {
		return r, err
	}
	if r.Key.Type == "" {
		err = json.Unmarshal(raw, &r)
		return r, err
	}
	if err = d.Decode(&r.Value); errors.Is(err, io.EOF) {
		err = fmt.Errorf("the key %s has no value behind it", raw)
	}
	return r, err
}

// readTopicRecords reads a topic, whose one partition has all records in their order.
func (s *server) readTopicRecords(ctx context.Context, topic string, snapshot *schemaregistry.Snapshot) error {
	adm, err := s.admin()
	if err != nil {
		return err
	}
	defer adm.Close()
	ends, err := adm.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("topic %s: %w", topic, err)
	}
	if n := len(ends.Offsets()[topic]); n != 1 {
		return fmt.Errorf("topic %s has %d partitions: records of schemas are in one, for their order", topic, n)
	}
	end, _ := ends.Lookup(topic, 0)
	begins, err := adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return fmt.Errorf("topic %s: %w", topic, err)
	}
	begin, _ := begins.Lookup(topic, 0)
	cl, err := s.kafka(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return err
	}
	defer cl.Close()
	bar := newProgressOf(end.Offset-begin.Offset, "reading", "records")
	defer bar.done()
	for next := begin.Offset; next < end.Offset; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read topic %s: %w", topic, err)
		}
		for _, record := range fetches.Records() {
			if record.Offset >= end.Offset {
				return nil
			}
			next = record.Offset + 1
			bar.set(next - begin.Offset)
			r := schemaregistry.Record{Value: record.Value}
			err := json.Unmarshal(record.Key, &r.Key)
			if err == nil {
				err = snapshot.Apply(r)
			}
			if err != nil {
				return fmt.Errorf("topic %s, offset %d: %w", topic, record.Offset, err)
			}
		}
	}
	return nil
}
