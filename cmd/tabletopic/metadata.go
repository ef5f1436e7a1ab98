package main

import (
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tabletopic/tabletopic/node"
)

func newMetadata() *cobra.Command {
	return parent("metadata", "Look after the metadata database", newMetadataRestore())
}

// restored is the answer of `metadata restore`.
type restored struct {
	Cluster  string    `json:"cluster"`
	Snapshot int64     `json:"snapshot"`
	Taken    time.Time `json:"taken"`
}

func newMetadataRestore() *cobra.Command {
	var (
		cfg        node.Config
		configFile string
	)
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Make a lost metadata database again from the object store",
		Long: `Restore makes the metadata database anew from the newest snapshot in the object store. Give it
the settings that the servers have. The database must not exist: of SQLite move the file away,
with those that end in -wal and -shm; of PostgreSQL name an empty database.

Nothing that was acknowledged is lost: topics, schemas and tables are in the snapshot, records
that came after it in the write-ahead logs, which the servers recover when they start. Only records
that retention or a DeleteRecords request removed in the last seconds may be there again. A server
that still runs on the old database is shut out for ever, and stops at its next change.`,
		Example: `  tabletopic metadata restore --data /var/lib/tabletopic
  tabletopic metadata restore --object-store 's3://my-bucket/tabletopic?region=eu-central-1' --metadata postgres://tabletopic@db.example.com/tabletopic`,
		Args: usage(cobra.NoArgs),
	}
	nodeFlags(cmd.Flags(), &cfg)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		// The others may be in the configuration file or the environment of a server.
		f.Hidden = !slices.Contains([]string{"data", "object-store", "metadata"}, f.Name)
	})
	cmd.Flags().StringVar(&configFile, "config", "", "YAML `FILE` with the settings of a server")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := loadConfig(cmd, configFile); err != nil {
			return err
		}
		info, err := node.RestoreMetadata(cmd.Context(), cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		answer := restored{info.Cluster, info.Number, info.Taken.UTC()}
		return out.say(cmd.OutOrStdout(), answer, "cluster %s restored from snapshot %d of %s: start its servers",
			info.Cluster, info.Number, info.Taken.UTC().Format(time.RFC3339))
	}
	return cmd
}
