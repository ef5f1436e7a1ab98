package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tabletopic/tabletopic/node"
)

func newTableCompact(s *server) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "compact TOPIC",
		Short: "Make large data files of the small ones of a table, now",
		Long: `Compact has the server that leads partition 0 of the topic put the rows of small data files into
as few as possible, of the table's target size, until there is nothing left to do. Servers do this
by themselves, a little at a time, unless table.topic.compact.enabled=false; this command does it
in any case, and joins files however few there are.

Rows stay what they are. The old files are deleted when the snapshots expire that have them. If
the command is interrupted, what is committed stays, and the rest is as it was.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  tabletopic table compact orders
  tabletopic table compact orders --output json`,
		Args: usage(cobra.ExactArgs(1)),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		lines, err := s.open(cmd.Context(), http.MethodPost, fmt.Sprintf("/api/tables/%s/compact", url.PathEscape(args[0])), nil)
		if err != nil {
			return err
		}
		defer lines.Close()
		c, err := followCompaction(lines)
		if err != nil {
			return err
		}
		rows := [][]string{{c.Topic, c.Table, number(int64(c.Files)), number(int64(c.Into)), number(c.Rows), number(c.Bytes), number(int64(c.Small))}}
		if err := out.print(cmd.OutOrStdout(), c, []string{"TOPIC", "TABLE", "FILES", "INTO", "ROWS", "BYTES", "SMALL LEFT"}, rows); err != nil || out.format == "json" {
			return err
		}
		for _, why := range slices.Sorted(maps.Keys(c.Alone)) {
			fmt.Fprintf(cmd.OutOrStdout(), "%d small files are left alone: %s\n", c.Alone[why], why)
		}
		return nil
	}
	return cmd
}

// followCompaction shows how many files have been replaced until the compaction ends.
func followCompaction(lines io.Reader) (*node.CompactStatus, error) {
	var bar *progress
	defer func() {
		if bar != nil {
			bar.done()
		}
	}()
	for d := json.NewDecoder(lines); ; {
		var s node.CompactStatus
		if err := d.Decode(&s); err != nil {
			return nil, fmt.Errorf("the server went away in the middle of the compaction (%w): run it again", err)
		}
		switch {
		case s.Done:
			return &s, nil
		case s.Error != "":
			return nil, errors.New(s.Error)
		}
		if bar == nil {
			bar = newProgressOf(int64(s.Files+s.Small), "compacting", "files")
		}
		bar.set(int64(s.Files))
	}
}
