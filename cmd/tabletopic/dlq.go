package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/worker"
)

func newDLQ() *cobra.Command {
	cmd := parent("dlq", "List and replay the dead letters of topics")
	s := serverFlags(cmd)
	cmd.AddCommand(newDLQList(s), newDLQReplay(s))
	return cmd
}

// A letter is a dead letter as its topic has it.
type letter struct {
	Partition       int32     `json:"partition"` // of the dead letter topic
	Offset          int64     `json:"offset"`
	SourceTopicID   string    `json:"source_topic_id"`
	SourcePartition int32     `json:"source_partition"`
	SourceOffset    int64     `json:"source_offset"`
	SourceTime      time.Time `json:"source_timestamp"`
	Cause           string    `json:"cause"`
	Detail          string    `json:"detail"`
	SchemaID        int64     `json:"schema_id,omitempty"`
	Record          string    `json:"record,omitempty"` // type of the record, of a topic with several tables
	Replayed        bool      `json:"replayed"`
	Key             []byte    `json:"key"` // these are the record's own
	Value           []byte    `json:"value"`
	Headers         []header  `json:"headers,omitempty"`
}

type header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// parseLetter reads a dead letter of topic; false if the record is none.
func parseLetter(topic string, r *kgo.Record) (l letter, ok bool) {
	l = letter{Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value}
	own := map[string]string{}
	names := []string{partition.HeaderSourceTopicID, partition.HeaderSourcePartition, partition.HeaderSourceOffset,
		worker.HeaderCause, worker.HeaderDetail, worker.HeaderTopic, worker.HeaderTimestamp, worker.HeaderSchemaID, worker.HeaderRecord}
	at := 0
	for ; at < len(r.Headers) && at < len(names) && r.Headers[at].Key == names[at]; at++ {
		own[names[at]] = string(r.Headers[at].Value)
	}
	if at < len(names)-2 || own[worker.HeaderTopic] != topic {
		return l, false // only the schema id and the type may be missing
	}
	for _, h := range r.Headers[at:] {
		l.Headers = append(l.Headers, header{h.Key, h.Value})
	}
	var errs [4]error
	var millis, index int64
	index, errs[0] = strconv.ParseInt(own[partition.HeaderSourcePartition], 10, 32)
	l.SourceOffset, errs[1] = strconv.ParseInt(own[partition.HeaderSourceOffset], 10, 64)
	millis, errs[2] = strconv.ParseInt(own[worker.HeaderTimestamp], 10, 64)
	if id := own[worker.HeaderSchemaID]; id != "" {
		l.SchemaID, errs[3] = strconv.ParseInt(id, 10, 64)
	}
	l.SourceTopicID, l.SourcePartition, l.SourceTime = own[partition.HeaderSourceTopicID], int32(index), time.UnixMilli(millis).UTC()
	l.Cause, l.Detail, l.Record = own[worker.HeaderCause], own[worker.HeaderDetail], own[worker.HeaderRecord]
	return l, errs == [4]error{}
}

// letterFilter is which letters a command is about.
type letterFilter struct {
	record     string // type of records; "" is all
	causes     []string
	partitions []int32
	limit      int
}

func (f *letterFilter) flags(cmd *cobra.Command, limit int, what string) {
	cmd.Flags().StringArrayVar(&f.causes, "cause", nil, "only letters of this `CAUSE`; may be repeated")
	cmd.Flags().Int32SliceVar(&f.partitions, "partition", nil, "only letters of these `PARTITIONS`")
	cmd.Flags().IntVarP(&f.limit, "limit", "n", limit, what)
}

func (f *letterFilter) takes(l *letter) bool {
	return (f.record == "" || l.Record == f.record) && (len(f.causes) == 0 || slices.Contains(f.causes, l.Cause)) && f.hasPartition(l.Partition)
}

func (f *letterFilter) hasPartition(p int32) bool {
	return len(f.partitions) == 0 || slices.Contains(f.partitions, p)
}

// letters is the dead letter topic of a topic.
type letters struct {
	server *server
	topic  string // the source
	name   string // of the dead letter topic
	bounds map[int32][2]int64
}

// openLetters finds the dead letters of a topic, as far as they go now.
func openLetters(ctx context.Context, s *server, adm *kadm.Client, topic string) (*letters, error) {
	l := &letters{server: s, topic: topic, bounds: map[int32][2]int64{}}
	configs, err := adm.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return nil, err
	}
	for _, c := range configs {
		if c.Err != nil {
			return nil, kafkaError("dead letters of", topic, c.Err, c.ErrMessage)
		}
		for _, kv := range c.Configs {
			if kv.Key == "table.topic.dlq" && kv.Value != nil {
				l.name = *kv.Value
			}
		}
	}
	if l.name == "" {
		l.name = topic + partition.DeadLetterSuffix
	}
	starts, err := adm.ListStartOffsets(ctx, l.name)
	if err != nil {
		return nil, err
	}
	if kerr.IsRetriable(starts.Error()) || starts.Error() != nil {
		for _, t := range starts[l.name] {
			if t.Err == kerr.UnknownTopicOrPartition {
				return l, nil // it comes with the first letter
			}
		}
		return nil, kafkaError("dead letters in", l.name, starts.Error(), "")
	}
	ends, err := adm.ListEndOffsets(ctx, l.name)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, kafkaError("dead letters in", l.name, err, "")
	}
	ends.Each(func(o kadm.ListedOffset) {
		start, _ := starts.Lookup(l.name, o.Partition)
		l.bounds[o.Partition] = [2]int64{start.Offset, o.Offset}
	})
	return l, nil
}

// each calls fn with the records of [from, to) of a partition of the dead letter topic.
func (l *letters) each(ctx context.Context, index int32, from, to int64, fn func(*kgo.Record) error) error {
	if from >= to {
		return nil
	}
	cl, err := l.server.kafka(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{l.name: {index: kgo.NewOffset().At(from)}}), kgo.FetchMaxPartitionBytes(4<<20))
	if err != nil {
		return err
	}
	defer cl.Close()
	for from < to {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, e := range fetches.Errors() {
			return fmt.Errorf("read %s-%d: %w", l.name, index, e.Err)
		}
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			if from = r.Offset + 1; from > to {
				break
			}
			if err := fn(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// partitions returns those that the filter takes.
func (l *letters) partitions(f *letterFilter) (out []int32) {
	for p := range l.bounds {
		if f.hasPartition(p) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

func newDLQList(s *server) *cobra.Command {
	var f letterFilter
	cmd := &cobra.Command{
		Use:   "list TOPIC",
		Short: "List the dead letters of a topic: the records that could not become rows",
		Long: `List shows the dead letters of a topic, of all its tables. Of a topic with table.topic.fan.out
TOPIC:RECORD shows those of one type of records, whether it has a table or not.`,
		Example: "  tabletopic dlq list clicks\n  tabletopic dlq list clicks --cause undecodable --partition 0 --output json",
		Args:    usage(cobra.ExactArgs(1)),
	}
	out := outputFlag(cmd)
	f.flags(cmd, 100, "list at most this many")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.limit < 1 || f.limit > 100_000 {
			return usageError{fmt.Errorf("--limit %d: want 1 to 100000", f.limit)}
		}
		ctx := cmd.Context()
		adm, err := s.admin()
		if err != nil {
			return err
		}
		defer adm.Close()
		topic, record := partition.SplitRoute(args[0])
		f.record = record
		l, err := openLetters(ctx, s, adm, topic)
		if err != nil {
			return err
		}
		list, rows, more := []letter{}, [][]string{}, int64(0)
		for _, p := range l.partitions(&f) {
			known, err := l.replays(ctx, p)
			if err != nil {
				return err
			}
			err = l.each(ctx, p, l.bounds[p][0], l.bounds[p][1], func(r *kgo.Record) error {
				d, ok := parseLetter(l.topic, r)
				if !ok || !f.takes(&d) {
					return nil
				}
				if len(list) == f.limit {
					more++
					return nil
				}
				d.Replayed = known.done[d.Offset]
				list = append(list, d)
				rows = append(rows, []string{strconv.Itoa(int(d.Partition)), number(d.Offset), number(d.SourceOffset), d.SourceTime.Format(time.RFC3339), d.Cause,
					strconv.FormatBool(d.Replayed), strconv.Itoa(len(d.Value)), strings.Join(strings.Fields(d.Detail), " ")})
				return nil
			})
			if err != nil {
				return err
			}
		}
		if err := out.print(cmd.OutOrStdout(), list, []string{"PARTITION", "OFFSET", "SOURCE OFFSET", "TIME", "CAUSE", "REPLAYED", "BYTES", "DETAIL"}, rows); err != nil {
			return err
		}
		if more > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "tabletopic: %d more: raise --limit\n", more)
		}
		return nil
	}
	return cmd
}
