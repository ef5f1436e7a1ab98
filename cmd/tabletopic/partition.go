package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/tabletopic/tabletopic/node"
)

func newPartition() *cobra.Command {
	cmd := parent("partition", "List who leads the partitions, and move them to other nodes")
	s := serverFlags(cmd)
	cmd.AddCommand(newPartitionList(s), newPartitionMove(s))
	return cmd
}

func newPartitionList(s *server) *cobra.Command {
	var topic string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the partitions of the cluster with their leaders",
		Long: `List shows each partition with the node that leads it, as any node of the cluster knows it.
EPOCH rises with each start of the leader and with each move. A leader with a "!" does not
answer: its partitions take no records until it starts, or is recovered and they are moved.
LOG END is the offset of the next record; "-" where the leader did not say.`,
		Example: `  tabletopic partition list
  tabletopic partition list --topic clicks --output json`,
		Args: usage(cobra.NoArgs),
	}
	cmd.Flags().StringVar(&topic, "topic", "", "only the partitions of this `TOPIC`")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var answer struct{ Partitions []node.PartitionRow }
		if err := s.api(cmd.Context(), http.MethodGet, "/api/partitions?topic="+url.QueryEscape(topic), nil, &answer); err != nil {
			return err
		}
		rows := [][]string{}
		for _, p := range answer.Partitions {
			leader, end := number(int64(p.Leader)), "-"
			if !p.Alive {
				leader += " !"
			}
			if p.LogEnd >= 0 {
				end = number(p.LogEnd)
			}
			rows = append(rows, []string{p.Topic, number(int64(p.Partition)), leader, number(int64(p.Epoch)), p.Address, end})
		}
		return out.print(cmd.OutOrStdout(), answer.Partitions, []string{"TOPIC", "PARTITION", "LEADER", "EPOCH", "ADDRESS", "LOG END"}, rows)
	}
	return cmd
}

func newPartitionMove(s *server) *cobra.Command {
	var to, from int32
	var recoverFirst bool
	cmd := &cobra.Command{
		Use:   "move [TOPIC PARTITION] --to NODE",
		Short: "Make another node the leader of a partition, or of all that a node leads",
		Long: `Move makes another node the leader: the present one stops appends, uploads what no object holds
and closes the partition; the new one opens it. No records are copied. Producers and consumers
notice a short pause and go on. Ask any node of the cluster.

Whatever sits with the partition moves with it: the worker of its table, the table's coordinator
with partition 0, the consumer groups with a partition of __consumer_offsets.

With --all-from everything that a node leads moves, internal topics too, 64 partitions at a time.
If it ends in the middle, run it again: what has moved is passed over.

A leader that is dead has to be recovered first, for it may have acknowledged records that no
object holds: by 'tabletopic node recover', or here with --recover. It is refused for a node that
answers.`,
		Example: `  tabletopic partition move clicks 0 --to 2
  tabletopic partition move --all-from 1 --to 2
  tabletopic partition move --all-from 1 --to 2 --recover`,
		Args: func(cmd *cobra.Command, args []string) error {
			want := 2
			if cmd.Flags().Changed("all-from") {
				want = 0
			}
			return usage(cobra.ExactArgs(want))(cmd, args)
		},
	}
	cmd.Flags().Int32Var(&to, "to", 0, "id of the `NODE` that leads from then on")
	cmd.Flags().Int32Var(&from, "all-from", 0, "move everything that this `NODE` leads")
	cmd.Flags().BoolVar(&recoverFirst, "recover", false, "recover the node of --all-from first, if it is dead")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("to") {
			return usageError{fmt.Errorf("--to is missing: the id of the node that is to lead\nSee '%s --help'", cmd.CommandPath())}
		}
		request, err := moveRequest(args, from, to)
		if err != nil {
			return usageError{fmt.Errorf("%w\nSee '%s --help'", err, cmd.CommandPath())}
		}
		if recoverFirst {
			if len(args) > 0 {
				return usageError{fmt.Errorf("--recover goes with --all-from\nSee '%s --help'", cmd.CommandPath())}
			}
			if err := s.recoverDead(cmd.Context(), from); err != nil {
				return err
			}
		}
		lines, err := s.open(cmd.Context(), http.MethodPost, "/api/partitions/move", request)
		if err != nil {
			return err
		}
		defer lines.Close()
		last, err := followMove(lines)
		if err != nil {
			return err
		}
		return out.say(cmd.OutOrStdout(), last, "node %d leads %d more partitions; they paused for %d ms at most", last.To, last.Moved, last.Pause)
	}
	return cmd
}

func moveRequest(args []string, from, to int32) (map[string]any, error) {
	if len(args) == 0 {
		return map[string]any{"From": from, "To": to}, nil
	}
	index, err := strconv.ParseInt(args[1], 10, 32)
	if err != nil || index < 0 {
		return nil, fmt.Errorf("partition %q: want a number from 0 on", args[1])
	}
	return map[string]any{"Partitions": []map[string]any{{"Topic": args[0], "Index": index}}, "To": to}, nil
}

// recoverDead recovers a node unless it serves or was recovered.
func (s *server) recoverDead(ctx context.Context, id int32) error {
	var answer struct{ Nodes []node.NodeStatus }
	if err := s.api(ctx, http.MethodGet, "/api/nodes", nil, &answer); err != nil {
		return err
	}
	for _, n := range answer.Nodes {
		if n.ID == id && (n.State == node.NodeServing || n.State == node.NodeRecovered) {
			return nil
		}
	}
	lines, err := s.open(ctx, http.MethodPost, fmt.Sprintf("/api/nodes/%d/recover", id), nil)
	if err != nil {
		return err
	}
	defer lines.Close()
	_, err = followRecovery(lines)
	return err
}

// followMove shows how far a move is until it ends, and returns its last word.
func followMove(lines io.Reader) (last node.MoveStatus, err error) {
	var bar *progress
	for d := json.NewDecoder(lines); ; {
		if err := d.Decode(&last); err != nil {
			return last, fmt.Errorf("the server went away in the middle of the move (%w): run the same command again, what has moved is passed over", err)
		}
		if bar == nil {
			bar = newProgressOf(int64(last.Total), "moving", "partitions")
			defer bar.done()
		}
		switch {
		case last.Error != "":
			return last, errors.New(last.Error)
		case last.Done:
			return last, nil
		}
		bar.set(int64(last.Moved))
	}
}
