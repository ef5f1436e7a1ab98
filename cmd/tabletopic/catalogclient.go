package main

import (
	"github.com/spf13/cobra"

	restcatalog "github.com/tabletopic/tabletopic/catalog/server"
)

func newCatalogClient() *cobra.Command {
	return parent("catalog-client", "Manage who may use the built-in Iceberg REST catalog", newCatalogClientAdd())
}

// addedClient is the answer of `catalog-client add`.
type addedClient struct {
	ID     string `json:"id"`
	Secret string `json:"secret"`
}

func newCatalogClientAdd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add FILE ID",
		Short: "Add a client, and print its secret this one time",
		Long: `Add draws a secret for a client of the built-in Iceberg REST catalog and writes the client to
FILE, which is made if it is missing; serve takes it as --rest-catalog-clients, and sees the new
client without a restart. FILE has a hash of the secret, not the secret. All nodes of a cluster
take the same file. To remove a client delete its line: its tokens end with it.`,
		Example: `  tabletopic catalog-client add /etc/tabletopic/clients spark
  spark.sql.catalog.ice.credential = spark:SECRET`,
		Args: usage(cobra.ExactArgs(2)),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		secret, err := restcatalog.AddClient(args[0], args[1])
		if err != nil {
			return err
		}
		return out.say(cmd.OutOrStdout(), addedClient{args[1], secret}, "credential %s:%s", args[1], secret)
	}
	return cmd
}
