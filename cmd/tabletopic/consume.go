package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/hamba/avro/v2"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
)

func newConsume() *cobra.Command {
	var (
		from, group string
		count       int64
		meta        bool
		follow      bool
	)
	cmd := &cobra.Command{
		Use:   "consume TOPIC",
		Short: "Print the records of a topic, one JSON value a line",
		Long: `Consume prints the value of each record as a line of JSON: Avro is decoded by the schema
that the record names, text is quoted, other bytes are base64. It ends at the end of the
topic as it is at the start, or after --count records; with --follow it waits for more.`,
		Example: `  tabletopic consume clicks --count 10
  tabletopic consume clicks --from end --follow --meta`,
		Args: usage(cobra.ExactArgs(1)),
	}
	s := serverFlags(cmd)
	cmd.Flags().StringVar(&from, "from", "start", "start, end, or an `OFFSET` in each partition")
	cmd.Flags().StringVar(&group, "group", "", "consume as a member of this `GROUP` and commit what was printed")
	cmd.Flags().Int64VarP(&count, "count", "n", 0, "stop after this many records")
	cmd.Flags().BoolVar(&meta, "meta", false, "wrap each value with its topic, partition, offset, timestamp, key and headers")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for new records")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		start, err := parseFrom(from)
		if err != nil {
			return err
		}
		reg, err := s.registry()
		if err != nil {
			return err
		}
		adm, err := s.admin()
		if err != nil {
			return err
		}
		defer adm.Close()
		ends, err := adm.ListEndOffsets(cmd.Context(), args[0])
		if err == nil {
			err = ends.Error()
		}
		if err != nil {
			return kafkaError("consume", args[0], err, "")
		}
		opts := []kgo.Opt{kgo.ConsumeTopics(args[0]), kgo.ConsumeResetOffset(start)}
		if group != "" {
			opts = append(opts, kgo.ConsumerGroup(group), kgo.DisableAutoCommit())
			follow = true // where a group stands is its own business
		}
		cl, err := s.kafka(opts...)
		if err != nil {
			return err
		}
		defer cl.Close()
		p := printer{registry: reg, meta: meta, schemas: map[int]avro.Schema{}, out: bufio.NewWriter(cmd.OutOrStdout())}
		bounds := map[int32]int64{}
		ends.Each(func(o kadm.ListedOffset) { bounds[o.Partition] = o.Offset })
		if !follow {
			starts, err := adm.ListStartOffsets(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			for partition, end := range bounds {
				first, _ := starts.Lookup(args[0], partition)
				if first.Offset >= end || from == "end" {
					delete(bounds, partition)
				}
			}
			if n, err := strconv.ParseInt(from, 10, 64); err == nil {
				for partition, end := range bounds {
					if n >= end {
						delete(bounds, partition)
					}
				}
			}
		}
		return p.run(cmd.Context(), cl, count, follow, bounds, group != "")
	}
	return cmd
}

func parseFrom(from string) (kgo.Offset, error) {
	switch from {
	case "start":
		return kgo.NewOffset().AtStart(), nil
	case "end":
		return kgo.NewOffset().AtEnd(), nil
	}
	n, err := strconv.ParseInt(from, 10, 64)
	if err != nil || n < 0 {
		return kgo.Offset{}, usageError{fmt.Errorf("--from %q: want start, end or an offset", from)}
	}
	return kgo.NewOffset().At(n), nil
}

// printer writes records as JSON lines.
type printer struct {
	registry *sr.Client
	meta     bool
	schemas  map[int]avro.Schema
	out      *bufio.Writer
	line     []byte
}

// run prints until count records, or until every partition in bounds is past its end, or ctx ends.
func (p *printer) run(ctx context.Context, cl *kgo.Client, count int64, follow bool, bounds map[int32]int64, commit bool) error {
	defer p.out.Flush()
	for printed := int64(0); follow || len(bounds) > 0; {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil // interrupted: what was printed is printed
		}
		if err := fetches.Err0(); err != nil {
			return err
		}
		for _, e := range fetches.Errors() {
			return fmt.Errorf("partition %d: %w", e.Partition, e.Err)
		}
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			if end, bounded := bounds[r.Partition]; !follow && (!bounded || r.Offset >= end) {
				continue
			}
			if err := p.print(ctx, r); err != nil {
				return fmt.Errorf("partition %d offset %d: %w", r.Partition, r.Offset, err)
			}
			printed++
			if !follow && r.Offset+1 >= bounds[r.Partition] {
				delete(bounds, r.Partition)
			}
			if count > 0 && printed == count {
				if commit {
					return cl.CommitRecords(ctx, r)
				}
				return nil
			}
		}
		if err := p.out.Flush(); err != nil {
			return err
		}
		if commit {
			if err := cl.CommitUncommittedOffsets(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *printer) print(ctx context.Context, r *kgo.Record) error {
	p.line = p.line[:0]
	if p.meta {
		p.line = fmt.Appendf(p.line, `{"topic":%q,"partition":%d,"offset":%d,"timestamp":%q,"key":`, r.Topic, r.Partition, r.Offset, r.Timestamp.UTC().Format(time.RFC3339Nano))
		p.line = appendPayload(p.line, r.Key)
		p.line = append(p.line, `,"headers":[`...)
		for i, h := range r.Headers {
			if i > 0 {
				p.line = append(p.line, ',')
			}
			p.line = append(appendText(append(p.line, `{"key":`...), h.Key), `,"value":`...)
			p.line = append(appendPayload(p.line, h.Value), '}')
		}
		p.line = append(p.line, `],"value":`...)
	}
	if err := p.value(ctx, r.Value); err != nil {
		return err
	}
	if p.meta {
		p.line = append(p.line, '}')
	}
	p.line = append(p.line, '\n')
	_, err := p.out.Write(p.line)
	return err
}

// value appends a payload: Avro if it names a schema that exists and decodes, else its bytes.
func (p *printer) value(ctx context.Context, payload []byte) error {
	id, body, err := new(sr.ConfluentHeader).DecodeID(payload)
	if err != nil {
		p.line = appendPayload(p.line, payload)
		return nil
	}
	schema, err := p.schema(ctx, id)
	if err != nil {
		return err
	}
	if schema != nil {
		mark := len(p.line)
		r := avro.NewReader(nil, 0).Reset(body)
		if p.line = appendJSON(p.line, r, schema); r.Error == nil {
			return nil
		}
		p.line = p.line[:mark]
	}
	p.line = appendPayload(p.line, payload)
	return nil
}

// schema returns nil if the registry has no such schema, or one that is not Avro.
func (p *printer) schema(ctx context.Context, id int) (avro.Schema, error) {
	if s, ok := p.schemas[id]; ok {
		return s, nil
	}
	text, err := p.registry.SchemaByID(ctx, id)
	var re *sr.ResponseError
	if errors.As(err, &re) && re.StatusCode == 404 {
		p.schemas[id] = nil
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("schema %d: %w", id, err)
	}
	s, err := avro.ParseWithCache(text.Schema, "", &avro.SchemaCache{})
	if err != nil {
		s = nil
	}
	p.schemas[id] = s
	return s, nil
}

func appendPayload(dst, b []byte) []byte {
	if b == nil {
		return append(dst, "null"...)
	}
	if utf8.Valid(b) {
		return appendText(dst, string(b))
	}
	text, _ := json.Marshal(b) // base64
	return append(dst, text...)
}
