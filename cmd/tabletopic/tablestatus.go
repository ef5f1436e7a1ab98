package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/node"
)

func newTableStatus(s *server) *cobra.Command {
	var watch, check bool
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "status [TOPIC…]",
		Short: "Show how tables are: state and reason, lag, dead letters",
		Long: `Status shows the tables of the topics named, or of all. STATE is

  ok        records become rows
  waiting   for the first records, or for the first commit
  degraded  the catalog is away or refuses; it is tried again, and nothing is lost
  paused    until somebody acts: the message says how
  stuck     records wait and no commit came for table.topic.stuck.lags times the target lag
  unknown   its coordinator is with a server that is away: the message names it

LAG is of records that the table lacks, by number and by age; UNWRITTEN of those that no data
file has either; FILES WAITING are data files for the next commit. SMALL FILES are those that
wait to become larger, when the table was last looked through, and COMPACTED is when some did. With topics named, or
--output json, each partition is shown. DEAD LETTERS are counted by cause since the server
started.

Exit code 0; with --check 1 if a table is degraded, paused, stuck or unknown.`,
		Example: `  tabletopic table status
  tabletopic table status orders payments
  tabletopic table status --watch --every 2s
  tabletopic table status --check --output json`,
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again and again, until Ctrl-C")
	cmd.Flags().DurationVar(&every, "every", 2*time.Second, "how often --watch looks")
	cmd.Flags().BoolVar(&check, "check", false, "exit code 1 unless all tables are ok or waiting")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case every < 100*time.Millisecond:
			return usageError{fmt.Errorf("--every %s: want 100ms or more", every)}
		case watch && check:
			return usageError{errors.New("--watch never ends, and --check is an exit code: want one of them")}
		case watch && out.format == "json":
			return usageError{errors.New("--watch is for a terminal: with --output json ask again instead")}
		}
		for {
			tables, err := tableStatus(cmd.Context(), s, args)
			if err != nil && !watch {
				return err
			}
			w := cmd.OutOrStdout()
			if watch && term.IsTerminal(int(os.Stdout.Fd())) {
				fmt.Fprint(w, "\033[H\033[2J")
			}
			if err != nil {
				fmt.Fprintln(w, err)
			} else if err := printTableStatus(w, out, tables, len(args) > 0); err != nil {
				return err
			}
			if !watch {
				return checkTables(tables, check)
			}
			select {
			case <-cmd.Context().Done():
				return nil
			case <-time.After(every):
			}
		}
	}
	return cmd
}

func tableStatus(ctx context.Context, s *server, topics []string) ([]node.TableStatus, error) {
	var answer struct{ Tables []node.TableStatus }
	err := s.api(ctx, http.MethodGet, "/api/tables?"+url.Values{"topic": topics}.Encode(), nil, &answer)
	return answer.Tables, err
}

// checkTables is the exit code of --check.
func checkTables(tables []node.TableStatus, check bool) error {
	var ill []string
	for _, t := range tables {
		if t.State != coordinator.TableOK && t.State != coordinator.TableWaiting {
			ill = append(ill, fmt.Sprintf("%s is %s", t.Topic, t.State))
		}
	}
	if !check || len(ill) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d tables are not well: %s", len(ill), len(tables), strings.Join(ill[:min(len(ill), 10)], ", "))
}

func printTableStatus(w io.Writer, out *output, tables []node.TableStatus, partitions bool) error {
	rows := [][]string{}
	for _, t := range tables {
		rows = append(rows, []string{t.Topic, t.Table, orDash(t.Catalog), string(t.State), snapshotName(t.Snapshot), commitAge(&t), number(t.Rows),
			number(t.LagRecords), lag(t.LagMillis), number(t.UnwrittenRecords), number(int64(t.Waiting)), small(t.Small), compactedAt(t.Compacted), causes(t.DeadLetters)})
	}
	err := out.print(w, tables, []string{"TOPIC", "TABLE", "CATALOG", "STATE", "SNAPSHOT", "COMMITTED", "ROWS", "LAG", "LAG TIME", "UNWRITTEN", "FILES WAITING", "SMALL FILES", "COMPACTED", "DEAD LETTERS"}, rows)
	if err != nil || out.format == "json" {
		return err
	}
	for _, t := range tables {
		if t.Message != "" {
			fmt.Fprintf(w, "\n%s is %s since %s: %s\n", t.Topic, t.State, t.Since.Local().Format(time.DateTime), t.Message)
		}
	}
	if !partitions {
		return nil
	}
	rows = rows[:0]
	for _, t := range tables {
		for _, p := range t.Partitions {
			row := []string{t.Topic, number(int64(p.Partition)), number(p.LogStart), number(p.LogEnd), number(p.TableNext),
				number(p.LagRecords), lag(p.LagMillis), number(p.UnwrittenRecords), lag(p.UnwrittenMillis)}
			if p.Message != "" {
				row = []string{row[0], row[1], "unknown", "unknown", row[4], "unknown", "unknown", "unknown", "unknown"}
			}
			rows = append(rows, row)
		}
	}
	fmt.Fprintln(w)
	if err := out.print(w, nil, []string{"TOPIC", "PARTITION", "LOG START", "LOG END", "TABLE NEXT", "LAG", "LAG TIME", "UNWRITTEN", "UNWRITTEN TIME"}, rows); err != nil {
		return err
	}
	for _, t := range tables {
		for _, p := range t.Partitions {
			if p.Message != "" {
				fmt.Fprintf(w, "\n%s partition %d: %s\n", t.Topic, p.Partition, p.Message)
			}
		}
	}
	return nil
}

func snapshotName(id int64) string {
	if id == 0 {
		return "-"
	}
	return number(id)
}

// commitAge is how long ago the last commit was.
func commitAge(t *node.TableStatus) string {
	if t.Committed == nil {
		return "-"
	}
	return (time.Duration(t.CommitAge) * time.Millisecond).Round(time.Second).String() + " ago"
}

func small(files *int) string {
	if files == nil {
		return "-"
	}
	return number(int64(*files))
}

func compactedAt(at *time.Time) string {
	if at == nil {
		return "-"
	}
	return at.Local().Format(time.DateTime)
}

func causes(letters map[string]int64) string {
	var out []string
	for _, cause := range slices.Sorted(maps.Keys(letters)) {
		out = append(out, fmt.Sprintf("%s %d", cause, letters[cause]))
	}
	return orDash(strings.Join(out, ", "))
}
