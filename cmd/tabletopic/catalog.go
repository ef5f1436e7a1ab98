package main

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabletopic/tabletopic/catalog/named"
	"github.com/tabletopic/tabletopic/node"
)

func newCatalog() *cobra.Command {
	cmd := parent("catalog", "Add, test, list and remove the catalogs that topics can name")
	s := serverFlags(cmd)
	cmd.AddCommand(newCatalogAdd(s), newCatalogTest(s), newCatalogList(s), newCatalogRemove(s))
	return cmd
}

func newCatalogAdd(s *server) *cobra.Command {
	var set []string
	cmd := &cobra.Command{
		Use:   "add NAME KIND",
		Short: "Register a catalog, or replace the one of that name",
		Long: `Add registers an Iceberg catalog after trying it. Topics name it in table.topic.catalog; all
servers of the cluster know it at once. Adding it again replaces it: tables follow at their
next commit.

Settings are given as --set KEY=VALUE, or --set KEY=@FILE for the content of a file, which
keeps secrets out of the shell's history. Secrets are stored encrypted with the key that the
servers are given by --secrets-key-file.

` + kindsHelp(),
		Example: `  tabletopic catalog add lake glue --set region=eu-central-1 --set warehouse=s3://my-lake/tables
  tabletopic catalog add polaris rest --set uri=https://polaris.example.com/api/catalog --set warehouse=main --set credential=@/run/secrets/polaris
  tabletopic topic alter clicks --config table.topic.catalog=lake`,
		Args: usage(cobra.ExactArgs(2)),
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "a setting, as `KEY=VALUE` or KEY=@FILE; may be repeated")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		spec := node.CatalogSpec{Kind: args[1], Settings: map[string]string{}}
		for _, kv := range set {
			key, value, ok := strings.Cut(kv, "=")
			if !ok || key == "" {
				return usageError{fmt.Errorf("--set %q: want KEY=VALUE", kv)}
			}
			if path, file := strings.CutPrefix(value, "@"); file {
				text, err := os.ReadFile(path)
				if err != nil {
					return fmt.Errorf("--set %s: %w", key, err)
				}
				value = strings.TrimRight(string(text), "\r\n")
			}
			spec.Settings[key] = value
		}
		var answer struct{}
		if err := s.api(cmd.Context(), http.MethodPut, "/api/catalogs/"+url.PathEscape(args[0]), spec, &answer); err != nil {
			return err
		}
		return out.say(cmd.OutOrStdout(), map[string]string{"name": args[0], "kind": args[1]},
			"catalog %s added: topics get their tables there with 'tabletopic topic alter TOPIC --config table.topic.catalog=%s'", args[0], args[0])
	}
	return cmd
}

// kindsHelp lists the kinds and their settings.
func kindsHelp() string {
	var b strings.Builder
	for _, k := range named.Kinds() {
		fmt.Fprintf(&b, "%s: %s\n", k.Name, k.Usage)
		for _, s := range k.Settings {
			var marks []string
			if s.Required {
				marks = append(marks, "required")
			}
			if s.Secret {
				marks = append(marks, "secret")
			}
			note := ""
			if len(marks) > 0 {
				note = " (" + strings.Join(marks, ", ") + ")"
			}
			fmt.Fprintf(&b, "  %-18s %s%s\n", s.Name, s.Usage, note)
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

func newCatalogTest(s *server) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "test NAME",
		Short: "Tell whether a catalog answers",
		Args:  usage(cobra.ExactArgs(1)),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var answer struct{}
		begin := time.Now()
		if err := s.api(cmd.Context(), http.MethodPost, "/api/catalogs/"+url.PathEscape(args[0])+"/test", nil, &answer); err != nil {
			return err
		}
		took := time.Since(begin).Round(time.Millisecond)
		return out.say(cmd.OutOrStdout(), map[string]any{"name": args[0], "ms": took.Milliseconds()}, "catalog %s answers, in %v", args[0], took)
	}
	return cmd
}

func newCatalogList(s *server) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the catalogs that topics can name",
		Args:  usage(cobra.NoArgs),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var answer struct{ Catalogs []node.CatalogStatus }
		if err := s.api(cmd.Context(), http.MethodGet, "/api/catalogs", nil, &answer); err != nil {
			return err
		}
		rows := [][]string{}
		for _, c := range answer.Catalogs {
			var settings []string
			for _, key := range slices.Sorted(maps.Keys(c.Settings)) {
				value, _, more := strings.Cut(c.Settings[key], "\n") // certificates are long
				if more {
					value += " …"
				}
				settings = append(settings, key+"="+value)
			}
			rows = append(rows, []string{c.Name, c.Kind, strings.Join(c.Topics, ","), strings.Join(settings, " ")})
		}
		return out.print(cmd.OutOrStdout(), answer.Catalogs, []string{"NAME", "KIND", "TOPICS", "SETTINGS"}, rows)
	}
	return cmd
}

func newCatalogRemove(s *server) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Take a catalog from the list; its tables stay as they are",
		Args:  usage(cobra.ExactArgs(1)),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var answer struct{}
		if err := s.api(cmd.Context(), http.MethodDelete, "/api/catalogs/"+url.PathEscape(args[0]), nil, &answer); err != nil {
			return err
		}
		return out.say(cmd.OutOrStdout(), map[string]string{"name": args[0]}, "catalog %s removed", args[0])
	}
	return cmd
}
