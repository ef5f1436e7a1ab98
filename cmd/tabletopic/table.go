package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabletopic/tabletopic/node"
)

func newTable() *cobra.Command {
	cmd := parent("table", "List, describe, watch, verify, compact and migrate the tables of topics")
	s := serverFlags(cmd)
	cmd.AddCommand(newTableList(s), newTableDescribe(s), newTableStatus(s), newTableVerify(s), newTableCompact(s), newTableMigrateMapping(s))
	return cmd
}

func newTableList(s *server) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the topics that are tables, and how far the tables are",
		Args:  usage(cobra.NoArgs),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var answer struct{ Tables []node.TableStatus }
		if err := s.api(cmd.Context(), http.MethodGet, "/api/tables", nil, &answer); err != nil {
			return err
		}
		rows := [][]string{}
		for _, t := range answer.Tables {
			rows = append(rows, []string{t.Topic, t.Table, number(t.Rows), number(t.Files), number(t.LagRecords), lag(t.LagMillis), t.Message})
		}
		return out.print(cmd.OutOrStdout(), answer.Tables, []string{"TOPIC", "TABLE", "ROWS", "FILES", "LAG", "LAG TIME", "ERROR"}, rows)
	}
	return cmd
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func lag(millis int64) string { return (time.Duration(millis) * time.Millisecond).String() }

func newTableDescribe(s *server) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "describe TOPIC",
		Short: "Show the columns of a topic's table and its position in each partition",
		Args:  usage(cobra.ExactArgs(1)),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var t node.TableStatus
		if err := s.api(cmd.Context(), http.MethodGet, "/api/tables/"+url.PathEscape(args[0]), nil, &t); err != nil {
			return err
		}
		if out.format == "table" {
			describeTable(cmd.OutOrStdout(), &t)
		}
		rows := [][]string{}
		for _, p := range t.Partitions {
			rows = append(rows, []string{number(int64(p.Partition)), number(p.LogStart), number(p.LogEnd), number(p.TableNext)})
		}
		return out.print(cmd.OutOrStdout(), t, []string{"PARTITION", "LOG START", "LOG END", "TABLE NEXT"}, rows)
	}
	return cmd
}

func describeTable(w io.Writer, t *node.TableStatus) {
	fmt.Fprintf(w, "table      %s\nlocation   %s\nrows       %d in %d files, %d snapshots\nlag        %d records, %s\n", t.Table, t.Location, t.Rows, t.Files, t.Snapshots, t.LagRecords, lag(t.LagMillis))
	if t.Message != "" {
		fmt.Fprintf(w, "message    %s\n", t.Message)
	}
	for _, c := range t.Columns {
		fmt.Fprintf(w, "column     %s %s\n", c.Name, c.Type)
	}
}
