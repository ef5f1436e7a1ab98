package main

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/tabletopic/tabletopic/node"
)

func newTableMigrateMapping(s *server) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "migrate-mapping TOPIC",
		Short: "Have a table follow the newest type mapping, and the topic's table.topic.mapping settings",
		Long: `A table follows the version of the type mapping with which it was made, and the choices that
table.topic.mapping.… then were. This command records the newest version, and the settings as they
are now, in the table: the records that follow become rows by it. Rows that are there stay as they are.

It lists what becomes of the columns when the next record of the latest schema comes. A column whose
type cannot change gets another beside it, x__v2 of x, with table.topic.on.incompatible=new-column;
without that the migration is refused.

Servers of an earlier release do not know the newest version: update all of them first.`,
		Example: `  tabletopic table migrate-mapping orders --dry-run
  tabletopic table migrate-mapping orders`,
		Args: usage(cobra.ExactArgs(1)),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only list what would change")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var m node.MappingStatus
		path := fmt.Sprintf("/api/tables/%s/migrate-mapping?dry-run=%t", url.PathEscape(args[0]), dryRun)
		if err := s.api(cmd.Context(), http.MethodPost, path, nil, &m); err != nil {
			return err
		}
		if out.format == "table" {
			what := "migrated"
			switch {
			case m.From == m.To:
				what = "nothing to do"
			case dryRun:
				what = "would be migrated"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "table      %s\nmapping    %s to %s: %s\n", m.Table, m.From, m.To, what)
		}
		rows := [][]string{}
		for _, c := range m.Columns {
			rows = append(rows, []string{c.Column, c.Change, c.From, c.Type})
		}
		return out.print(cmd.OutOrStdout(), m, []string{"COLUMN", "CHANGE", "FROM", "TYPE"}, rows)
	}
	return cmd
}
