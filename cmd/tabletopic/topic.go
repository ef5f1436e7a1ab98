package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
)

func newTopic() *cobra.Command {
	cmd := parent("topic", "Create, list, describe, alter and delete topics")
	s := serverFlags(cmd)
	cmd.AddCommand(newTopicCreate(s), newTopicList(s), newTopicDescribe(s), newTopicAlter(s), newTopicDelete(s))
	return cmd
}

func newTopicCreate(s *server) *cobra.Command {
	var (
		partitions int32
		configs    []string
		table      bool
		out        = newOutput()
	)
	cmd := &cobra.Command{
		Use:   "create TOPIC",
		Short: "Create a topic",
		Example: `  tabletopic topic create clicks --partitions 4 --table
  tabletopic topic create clicks --config table.topic.enable=true --config table.topic.target.lag.ms=1000`,
		Args: usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := keyValues(configs)
			if err != nil {
				return err
			}
			if table {
				set["table.topic.enable"] = kadm.StringPtr("true")
			}
			adm, err := s.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			resp, err := adm.CreateTopic(cmd.Context(), partitions, 1, set, args[0])
			if err != nil {
				return kafkaError("create topic", args[0], err, resp.ErrMessage)
			}
			return out.say(cmd.OutOrStdout(), map[string]any{"topic": args[0], "id": resp.ID.String(), "partitions": resp.NumPartitions},
				"created topic %s with %d partitions", args[0], resp.NumPartitions)
		},
	}
	cmd.Flags().Int32VarP(&partitions, "partitions", "p", 1, "number of partitions")
	cmd.Flags().StringArrayVarP(&configs, "config", "c", nil, "topic configuration `KEY=VALUE`; may be repeated")
	cmd.Flags().BoolVar(&table, "table", false, "make it a table: table.topic.enable=true")
	out.flag(cmd)
	return cmd
}

func keyValues(pairs []string) (map[string]*string, error) {
	out := map[string]*string{}
	for _, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return nil, usageError{fmt.Errorf("--config %q: want KEY=VALUE", p)}
		}
		out[k] = &v
	}
	return out, nil
}

type topicRow struct {
	Name       string            `json:"name"`
	ID         string            `json:"id"`
	Internal   bool              `json:"internal"`
	Partitions []partitionRow    `json:"partitions"`
	Config     map[string]string `json:"config,omitempty"`
}

type partitionRow struct {
	Partition   int32 `json:"partition"`
	Leader      int32 `json:"leader"`
	LeaderEpoch int32 `json:"leader_epoch"`
	Start       int64 `json:"log_start_offset"`
	End         int64 `json:"log_end_offset"`
}

func newTopicList(s *server) *cobra.Command {
	var internal bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List topics",
		Args:  usage(cobra.NoArgs),
	}
	out := outputFlag(cmd)
	cmd.Flags().BoolVar(&internal, "internal", false, "internal topics too")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		adm, err := s.admin()
		if err != nil {
			return err
		}
		defer adm.Close()
		topics, err := adm.ListTopicsWithInternal(cmd.Context())
		if err != nil {
			return err
		}
		if !internal {
			topics.FilterInternal()
		}
		var starts, ends kadm.ListedOffsets
		if names := topics.Names(); out.format == "json" && len(names) > 0 {
			if starts, err = adm.ListStartOffsets(cmd.Context(), names...); err != nil {
				return err
			}
			if ends, err = adm.ListEndOffsets(cmd.Context(), names...); err != nil {
				return err
			}
		}
		values, rows := []topicRow{}, [][]string{}
		for _, t := range topics.Sorted() {
			values = append(values, describeTopic(t, starts, ends))
			rows = append(rows, []string{t.Topic, strconv.Itoa(len(t.Partitions)), t.ID.String()})
		}
		return out.print(cmd.OutOrStdout(), values, []string{"TOPIC", "PARTITIONS", "ID"}, rows)
	}
	return cmd
}

func describeTopic(t kadm.TopicDetail, starts, ends kadm.ListedOffsets) topicRow {
	row := topicRow{Name: t.Topic, ID: t.ID.String(), Internal: t.IsInternal, Partitions: []partitionRow{}}
	for _, p := range t.Partitions.Sorted() {
		pr := partitionRow{Partition: p.Partition, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch}
		if o, ok := starts.Lookup(t.Topic, p.Partition); ok {
			pr.Start = o.Offset
		}
		if o, ok := ends.Lookup(t.Topic, p.Partition); ok {
			pr.End = o.Offset
		}
		row.Partitions = append(row.Partitions, pr)
	}
	return row
}

func newTopicDescribe(s *server) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "describe TOPIC",
		Short: "Show the partitions and the configuration of a topic",
		Args:  usage(cobra.ExactArgs(1)),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		adm, err := s.admin()
		if err != nil {
			return err
		}
		defer adm.Close()
		ctx, name := cmd.Context(), args[0]
		topics, err := adm.ListTopicsWithInternal(ctx, name)
		if err == nil {
			err = topics.Error()
		}
		if err != nil {
			return kafkaError("describe topic", name, err, "")
		}
		starts, err := adm.ListStartOffsets(ctx, name)
		if err != nil {
			return err
		}
		ends, err := adm.ListEndOffsets(ctx, name)
		if err != nil {
			return err
		}
		configs, err := adm.DescribeTopicConfigs(ctx, name)
		if err != nil {
			return err
		}
		row := describeTopic(topics[name], starts, ends)
		row.Config = map[string]string{}
		var rows [][]string
		for _, p := range row.Partitions {
			rows = append(rows, []string{strconv.Itoa(int(p.Partition)), strconv.Itoa(int(p.Leader)), strconv.FormatInt(p.Start, 10), strconv.FormatInt(p.End, 10)})
		}
		for _, c := range configs {
			for _, kv := range c.Configs {
				if kv.Value != nil && kv.Source.String() == "DYNAMIC_TOPIC_CONFIG" {
					row.Config[kv.Key] = *kv.Value
				}
			}
		}
		if err := out.print(cmd.OutOrStdout(), row, []string{"PARTITION", "LEADER", "START", "END"}, rows); err != nil || out.format == "json" {
			return err
		}
		var keys []string
		for k := range row.Config {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			fmt.Fprintf(cmd.OutOrStdout(), "%s=%s\n", k, row.Config[k])
		}
		return nil
	}
	return cmd
}

func newTopicAlter(s *server) *cobra.Command {
	var (
		configs, remove []string
		partitions      int
		out             = newOutput()
	)
	cmd := &cobra.Command{
		Use:     "alter TOPIC",
		Short:   "Change the configuration or the number of partitions of a topic",
		Example: "  tabletopic topic alter clicks --config table.topic.enable=true\n  tabletopic topic alter clicks --partitions 8",
		Args:    usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := keyValues(configs)
			if err != nil {
				return err
			}
			if len(set)+len(remove) == 0 && partitions == 0 {
				return usageError{fmt.Errorf("nothing to alter: give --config, --remove or --partitions")}
			}
			adm, err := s.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			var changes []kadm.AlterConfig
			for k, v := range set {
				changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: k, Value: v})
			}
			for _, k := range remove {
				changes = append(changes, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: k})
			}
			if len(changes) > 0 {
				resps, err := adm.AlterTopicConfigs(cmd.Context(), changes, args[0])
				if err != nil {
					return err
				}
				for _, r := range resps {
					if r.Err != nil {
						return kafkaError("alter topic", args[0], r.Err, r.ErrMessage)
					}
				}
			}
			if partitions > 0 {
				resps, err := adm.UpdatePartitions(cmd.Context(), partitions, args[0])
				if err != nil {
					return err
				}
				for _, r := range resps {
					if r.Err != nil {
						return kafkaError("alter topic", args[0], r.Err, r.ErrMessage)
					}
				}
			}
			return out.say(cmd.OutOrStdout(), map[string]any{"topic": args[0]}, "altered topic %s", args[0])
		},
	}
	cmd.Flags().StringArrayVarP(&configs, "config", "c", nil, "set `KEY=VALUE`; may be repeated")
	cmd.Flags().StringArrayVar(&remove, "remove", nil, "return `KEY` to its default; may be repeated")
	cmd.Flags().IntVarP(&partitions, "partitions", "p", 0, "new number of partitions, more than now")
	out.flag(cmd)
	return cmd
}

func newTopicDelete(s *server) *cobra.Command {
	out := newOutput()
	cmd := &cobra.Command{
		Use:   "delete TOPIC…",
		Short: "Delete topics; their tables stay",
		Args:  usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			adm, err := s.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			resps, err := adm.DeleteTopics(cmd.Context(), args...)
			if err != nil {
				return err
			}
			var errs []error
			for _, r := range resps.Sorted() {
				if r.Err != nil {
					errs = append(errs, kafkaError("delete topic", r.Topic, r.Err, r.ErrMessage))
				} else {
					errs = append(errs, out.say(cmd.OutOrStdout(), map[string]any{"topic": r.Topic}, "deleted topic %s", r.Topic))
				}
			}
			return errors.Join(errs...)
		},
	}
	out.flag(cmd)
	return cmd
}
