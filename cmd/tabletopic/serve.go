package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/tabletopic/tabletopic/node"
)

func newServe() *cobra.Command {
	var (
		cfg        node.Config
		configFile string
		level      slog.Level
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a server until SIGTERM",
		Long: `Serve runs one server: the Kafka protocol on --kafka; on --http the schema registry at /, the
Iceberg REST catalog at /iceberg/, metrics at /metrics, health at /healthz and /readyz, and the
administration API at /api/. Everything is kept below --data unless URLs say otherwise.

Every flag is also a key of the YAML file that --config names, and an environment variable:
--wal-linger is wal-linger and TABLETOPIC_WAL_LINGER. A flag goes before the environment,
that before the file. Credentials of S3 come from the default chain of AWS.`,
		Example: `  tabletopic serve
  tabletopic serve --data /var/lib/tabletopic --kafka 127.0.0.1:9092
  tabletopic serve --object-store 's3://my-bucket/tabletopic?region=eu-central-1'
  tabletopic serve --catalog-uri https://catalog.example.com/iceberg --catalog-credential id:secret`,
		Args: usage(cobra.NoArgs),
	}
	nodeFlags(cmd.Flags(), &cfg)
	cmd.Flags().StringVar(&configFile, "config", "", "YAML `FILE` with settings")
	cmd.Flags().TextVar(&level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := loadConfig(cmd, configFile); err != nil {
			return err
		}
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
		limitGarbage(cfg.Garbage)
		n, err := node.Open(cmd.Context(), cfg, log)
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "serving Kafka on %s, registry and Iceberg catalog on http://%s and http://%s/iceberg\n", n.KafkaAddr(), n.HTTPAddr(), n.HTTPAddr())
		err = n.Wait(cmd.Context())
		return errors.Join(err, n.Close())
	}
	return cmd
}
