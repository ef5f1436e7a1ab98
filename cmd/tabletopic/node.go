package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/tabletopic/tabletopic/node"
)

func newNode() *cobra.Command {
	cmd := parent("node", "List the nodes of a cluster and recover those that died")
	s := serverFlags(cmd)
	cmd.AddCommand(newNodeList(s), newNodeRecover(s))
	return cmd
}

func newNodeList(s *server) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the nodes of the cluster, whether they live, and what is to be recovered",
		Long: `List shows every node that ever started on the metadata database. STATE is

  serving     it answers at its HTTP address
  silent      nobody answers there within 2 s: it is down, or out of reach of the server asked
  unknown     it never said where it is reached
  recovering  another node recovers it, or died while it did: recover it again
  recovered   another node has recovered it, and it did not start since

WALS are write-ahead logs that may hold records which are not in objects yet; a node that
serves has one.`,
		Example: `  tabletopic node list
  tabletopic node list --http 10.0.0.2:8081 --output json`,
		Args: usage(cobra.NoArgs),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var answer struct{ Nodes []node.NodeStatus }
		if err := s.api(cmd.Context(), http.MethodGet, "/api/nodes", nil, &answer); err != nil {
			return err
		}
		rows := [][]string{}
		for _, n := range answer.Nodes {
			by := ""
			if n.RecoveredBy != nil {
				by = number(int64(*n.RecoveredBy))
			}
			rows = append(rows, []string{number(int64(n.ID)), number(n.Epoch), string(n.State), n.Kafka, n.HTTP, number(int64(n.OpenStreams)), number(int64(n.WALs)), by})
		}
		return out.print(cmd.OutOrStdout(), answer.Nodes, []string{"ID", "EPOCH", "STATE", "KAFKA", "HTTP", "OPEN STREAMS", "WALS", "RECOVERED BY"}, rows)
	}
	return cmd
}

func newNodeRecover(s *server) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "recover ID",
		Short: "Bring what a dead node acknowledged into objects, and close its streams",
		Long: `Recover asks a server to do for a node that died what the node's own start would do: its
write-ahead logs are fenced, so that it can acknowledge nothing more, should it still run;
every record in them that no object holds is uploaded; its streams are closed. The node may
start again at any time, and then goes on from there.

A node that answers at its HTTP address is refused: nothing else tells the server that a node
lives. One that never said where it is reached is refused too, for nothing tells that it does
not. With --force they are recovered all the same; one that lives stops by itself.

Recover may be ended with Ctrl-C and run again, at the same server or at another one: what is
uploaded is passed over. A node whose write-ahead log is in files (--wal file) cannot be
recovered by another one.`,
		Example: `  tabletopic node recover 1 --http 10.0.0.2:8081
  tabletopic node recover 1 --force --output json`,
		Args: usage(cobra.ExactArgs(1)),
	}
	cmd.Flags().BoolVar(&force, "force", false, "recover a node that seems to be alive; it stops by itself")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := strconv.ParseInt(args[0], 10, 32)
		if err != nil || id < 0 {
			return usageError{fmt.Errorf("node id %q: want 0 to 2147483647\nSee '%s --help'", args[0], cmd.CommandPath())}
		}
		lines, err := s.open(cmd.Context(), http.MethodPost, fmt.Sprintf("/api/nodes/%d/recover?force=%t", id, force), nil)
		if err != nil {
			return err
		}
		defer lines.Close()
		last, err := followRecovery(lines)
		if err != nil {
			return err
		}
		return out.say(cmd.OutOrStdout(), last, "node %d is recovered: %d batches of %d bytes uploaded from %d write-ahead logs, %d streams closed",
			last.Node, last.Batches, last.Bytes, last.WALs, last.Streams)
	}
	return cmd
}

// followRecovery shows how far a recovery is until it ends, and returns its last word.
func followRecovery(lines io.Reader) (last node.RecoverStatus, err error) {
	bar := newProgress(-1, "recovering")
	defer bar.done()
	for d := json.NewDecoder(lines); ; {
		if err := d.Decode(&last); err != nil {
			return last, fmt.Errorf("the server went away in the middle of the recovery (%w): run the same command again, it goes on where it stopped", err)
		}
		switch {
		case last.Done:
			return last, nil
		case last.Error != "":
			return last, errors.New(last.Error)
		}
		bar.set(last.Batches)
	}
}
