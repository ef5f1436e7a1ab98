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

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/node"
)

func newTableVerify(s *server) *cobra.Command {
	var deep, strict bool
	cmd := &cobra.Command{
		Use:   "verify TOPIC",
		Short: "Compare a topic's log with its table",
		Long: `Verify checks that each committed record that the table should hold is a row or a dead letter,
once. By itself it compares the log with what the commits say of themselves: the ranges in the
summaries of the snapshots, and the totals in the properties of the table, which outlive them.
With --deep it reads the partition and offset of every row of the current snapshot, with the
deletes of others applied, and compares offset by offset; that needs table.topic.kafka.column.

LOST        records that are nowhere
DUPLICATES  rows or dead letters too many
BEYOND      rows of offsets that the table says it does not hold yet
AHEAD       offsets that the table holds and the log never gave: it was restored from an older copy
DELETED     rows that others deleted; a difference only with --strict
GAPS        offsets that are recorded as lost, and why: retention came before the table, or a
            rewind was accepted

Rows of other writers are listed by file and snapshot, files that are missing or cannot be
read by name. All is in --output json too.

Exit codes: 0 no difference, 1 differences, or partitions that nobody answers for, 2 wrong usage.`,
		Example: `  tabletopic table verify orders
  tabletopic table verify orders --deep
  tabletopic table verify orders --deep --strict --output json`,
		Args: usage(cobra.ExactArgs(1)),
	}
	cmd.Flags().BoolVar(&deep, "deep", false, "read the data files, and compare offset by offset")
	cmd.Flags().BoolVar(&strict, "strict", false, "rows that others deleted are a difference")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if strict && !deep {
			return usageError{errors.New("--strict needs --deep: only the files tell which rows others deleted")}
		}
		path := fmt.Sprintf("/api/tables/%s/verify?deep=%t&strict=%t", url.PathEscape(args[0]), deep, strict)
		lines, err := s.open(cmd.Context(), http.MethodPost, path, nil)
		if err != nil {
			return err
		}
		defer lines.Close()
		r, err := followVerification(lines)
		if err != nil {
			return err
		}
		if err := printReport(cmd.OutOrStdout(), out, r); err != nil {
			return err
		}
		if !r.OK {
			return fmt.Errorf("table %s does not hold what topic %s says", r.Table, r.Topic)
		}
		if n := len(r.Unverified); n > 0 {
			return fmt.Errorf("no difference found, but %d partitions of topic %s are not verified", n, r.Topic)
		}
		if out.format == "table" {
			fmt.Fprintf(cmd.OutOrStdout(), "%s holds every record of %s once\n", r.Table, r.Topic)
		}
		return nil
	}
	return cmd
}

// followVerification shows how far a verification is until it ends, and returns its report.
func followVerification(lines io.Reader) (*coordinator.Report, error) {
	var bar *progress
	defer func() {
		if bar != nil {
			bar.done()
		}
	}()
	for d := json.NewDecoder(lines); ; {
		var s node.VerifyStatus
		if err := d.Decode(&s); err != nil {
			return nil, fmt.Errorf("the server went away in the middle of the verification (%w): run it again", err)
		}
		switch {
		case s.Report != nil:
			return s.Report, nil
		case s.Error != "":
			return nil, errors.New(s.Error)
		}
		if bar == nil {
			bar = newProgress(s.TotalFiles+s.Total, "verifying")
		}
		bar.set(s.Files + s.Offsets)
	}
}

func printReport(w io.Writer, out *output, r *coordinator.Report) error {
	rows := [][]string{}
	for _, p := range r.Partitions {
		rows = append(rows, []string{number(int64(p.Partition)), number(p.Start), number(p.Next), number(p.End), number(p.Rows), number(p.Dead),
			number(p.Lost), number(p.Duplicates), number(p.Beyond), number(p.Ahead), number(p.Deleted), number(p.Gaps)})
	}
	err := out.print(w, r, []string{"PARTITION", "START", "NEXT", "END", "ROWS", "DEAD", "LOST", "DUPLICATES", "BEYOND", "AHEAD", "DELETED", "GAPS"}, rows)
	if err != nil || out.format == "json" {
		return err
	}
	for _, p := range r.Partitions {
		for _, g := range p.GapRanges[:min(len(p.GapRanges), 10)] {
			fmt.Fprintf(w, "partition %d: offsets %d to %d are not in the table: %s\n", p.Partition, g.Start, g.End, g.Reason)
		}
		for _, cause := range slices.Sorted(maps.Keys(p.Causes)) {
			fmt.Fprintf(w, "partition %d: %d dead letters by %s\n", p.Partition, p.Causes[cause], cause)
		}
		if p.LeftOut > 0 {
			fmt.Fprintf(w, "partition %d: %d records were left out, as table.topic.errors.tolerance and table.topic.tombstone say, or are for other tables of the topic\n", p.Partition, p.LeftOut)
		}
		for _, e := range p.Examples {
			fmt.Fprintf(w, "partition %d: %s\n", p.Partition, e)
		}
	}
	for _, f := range r.Foreign[:min(len(r.Foreign), 10)] {
		fmt.Fprintf(w, "foreign: %d rows of %s, added by snapshot %d\n", f.Rows, f.Path, f.Snapshot)
	}
	if r.Others > 0 {
		fmt.Fprintf(w, "%d rows in %d files are of other writers\n", r.Others, r.OtherFiles)
	}
	if r.Earlier > 0 {
		fmt.Fprintf(w, "%d rows are of an earlier topic of the name\n", r.Earlier)
	}
	for _, m := range r.Missing {
		fmt.Fprintf(w, "missing: %s\n", m)
	}
	for _, b := range r.Broken {
		fmt.Fprintf(w, "broken: %s\n", b)
	}
	for _, p := range r.Unverified[:min(len(r.Unverified), 10)] {
		fmt.Fprintf(w, "partition %d: not verified: %s\n", p, r.UnverifiedReasons[p])
	}
	return nil
}
