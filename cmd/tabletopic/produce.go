package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hamba/avro/v2"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
)

func newProduce() *cobra.Command {
	var (
		schemaFile, key string
		raw             bool
	)
	cmd := &cobra.Command{
		Use:   "produce TOPIC",
		Short: "Produce one record for each line of standard input",
		Long: `Produce reads one JSON value a line from standard input, encodes it by the Avro schema of
the topic, and produces it with acks=all. The schema is --schema FILE, which is registered
under TOPIC-value, or else the latest version there. With --raw a line is produced as it is.

JSON is plain: unions without branch names, bytes in base64, timestamps as RFC 3339 text or
as a number, decimals as number or text; fields with a default may be left out.`,
		Example: `  echo '{"user": "ada", "amount": 3}' | tabletopic produce payments --schema payment.avsc --key user
  tabletopic produce events --raw < lines.txt`,
		Args: usage(cobra.ExactArgs(1)),
	}
	s := serverFlags(cmd)
	out := outputFlag(cmd)
	cmd.Flags().StringVar(&schemaFile, "schema", "", "Avro schema `FILE` to register and use")
	cmd.Flags().StringVar(&key, "key", "", "use this `FIELD` of the value as the record key, as text")
	cmd.Flags().BoolVar(&raw, "raw", false, "lines are the payloads")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if raw && (schemaFile != "" || key != "") {
			return usageError{errors.New("--raw goes with neither --schema nor --key")}
		}
		encode := func(line []byte) (key, value []byte, err error) { return nil, line, nil }
		if !raw {
			reg, err := s.registry()
			if err != nil {
				return err
			}
			enc, err := newAvroEncoder(cmd.Context(), reg, args[0]+"-value", schemaFile, key)
			if err != nil {
				return err
			}
			encode = enc.encode
		}
		cl, err := s.kafka(kgo.DefaultProduceTopic(args[0]))
		if err != nil {
			return err
		}
		defer cl.Close()
		n, err := produceLines(cmd.Context(), cl, cmd.InOrStdin(), encode)
		if perr := out.say(cmd.OutOrStdout(), map[string]any{"topic": args[0], "produced": n}, "produced %d records to %s", n, args[0]); err == nil {
			return perr
		}
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			return kafkaError("produce to", args[0], err, "")
		}
		if errors.Is(err, context.Canceled) {
			return errors.New("interrupted: records that are not counted may have been stored")
		}
		return err
	}
	return cmd
}

// produceLines returns how many records were acknowledged, and the first error.
func produceLines(ctx context.Context, cl *kgo.Client, in io.Reader, encode func([]byte) (key, value []byte, err error)) (int64, error) {
	var (
		acked atomic.Int64
		once  sync.Once
		first error
	)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fail := func(err error) { once.Do(func() { first = err; cancel() }) }
	bar := newProgress(-1, "produced")
	defer bar.done()
	lines := bufio.NewReaderSize(in, 1<<20)
	for number := 1; ctx.Err() == nil; number++ {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 && err != nil {
			if err != io.EOF {
				fail(err)
			}
			break
		}
		line = []byte(strings.TrimRight(string(line), "\r\n"))
		if len(line) == 0 {
			continue
		}
		key, value, err := encode(line)
		if err != nil {
			// What was read before stays produced; the bad line stops the run.
			if ferr := cl.Flush(ctx); ferr == nil {
				fail(fmt.Errorf("line %d: %w", number, err))
			}
			break
		}
		cl.Produce(ctx, &kgo.Record{Key: key, Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				fail(err)
				return
			}
			bar.set(acked.Add(1))
		})
	}
	if err := cl.Flush(ctx); err != nil {
		fail(err)
	}
	return acked.Load(), first
}

// avroEncoder turns JSON lines into payloads in Confluent's wire format.
type avroEncoder struct {
	id     int
	schema avro.Schema
	key    string
}

func newAvroEncoder(ctx context.Context, reg *sr.Client, subject, schemaFile, key string) (*avroEncoder, error) {
	var text string
	var id int
	if schemaFile != "" {
		b, err := os.ReadFile(schemaFile)
		if err != nil {
			return nil, err
		}
		ss, err := reg.CreateSchema(ctx, subject, sr.Schema{Schema: string(b)})
		if err != nil {
			return nil, fmt.Errorf("register %s under %s: %w", schemaFile, subject, err)
		}
		text, id = string(b), ss.ID
	} else {
		ss, err := reg.SchemaByVersion(ctx, subject, -1)
		if err != nil {
			return nil, fmt.Errorf("latest schema of %s: %w; give one with --schema FILE, or --raw for lines as they are", subject, err)
		}
		text, id = ss.Schema.Schema, ss.ID
	}
	schema, err := avro.ParseWithCache(text, "", &avro.SchemaCache{})
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", subject, err)
	}
	return &avroEncoder{id, schema, key}, nil
}

func (e *avroEncoder) encode(line []byte) (key, value []byte, err error) {
	d := json.NewDecoder(strings.NewReader(string(line)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, nil, fmt.Errorf("not JSON: %w", err)
	}
	if e.key != "" {
		m, _ := v.(map[string]any)
		k, ok := m[e.key]
		if !ok {
			return nil, nil, fmt.Errorf("no field %q for the key", e.key)
		}
		key = []byte(fmt.Sprint(k))
	}
	w := avro.NewWriter(nil, 256)
	if err := encodeJSON(w, e.schema, v, ""); err != nil {
		return nil, nil, err
	}
	value, err = new(sr.ConfluentHeader).AppendEncode(nil, e.id, nil)
	return key, append(value, w.Buffer()...), err
}
