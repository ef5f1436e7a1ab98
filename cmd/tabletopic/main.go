// Command tabletopic is a Kafka-protocol broker whose log lives on object storage, with a
// schema registry built in, that turns topics into Apache Iceberg tables; and the tools to
// run, administer and inspect it.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "tabletopic: "+strings.TrimSuffix(err.Error(), "\n"))
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

// A usageError is a command line that cannot be meant.
type usageError struct{ error }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "tabletopic",
		Short: "Kafka topics that are Iceberg tables",
		Long: `Table Topic is a Kafka-protocol broker whose log lives on object storage, with a schema
registry built in, that turns topics into Apache Iceberg tables by itself.

  tabletopic demo     see it work: a million records from Kafka producers to a queried table
  tabletopic serve    run it: Kafka on 127.0.0.1:9092, registry and Iceberg catalog on http://127.0.0.1:8081`,
		Version:       version(),
		Args:          usage(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w\nSee '%s --help'", err, cmd.CommandPath())}
	})
	root.AddCommand(newServe(), newDemo(), newTopic(), newPartition(), newProduce(), newConsume(), newSchema(), newTable(), newDLQ(), newCatalog(), newNode(), newObject(), newMetadata(), newDump(), newCatalogClient(), newUser(), newACL())
	return root
}

// version is the module's version, or the commit that a checkout was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") {
			v = s.Value
		}
	}
	return cmp.Or(v, "unknown")
}

// usage makes a positional-argument check a usage error.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{fmt.Errorf("%w\nSee '%s --help'", err, cmd.CommandPath())}
		}
		return nil
	}
}

// parent is a command that only has subcommands.
func parent(use, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError{fmt.Errorf("%s needs a subcommand\nSee '%s --help'", cmd.CommandPath(), cmd.CommandPath())}
		},
	}
	cmd.AddCommand(children...)
	return cmd
}
