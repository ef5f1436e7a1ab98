package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/apache/iceberg-go/table"
	"github.com/spf13/cobra"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

func newDump() *cobra.Command {
	return &cobra.Command{
		Use:   "dump FILE|URL",
		Short: "Print a persisted object, annotated",
		Long: `Dump prints what an object of the log holds: a write-ahead log object or segment, a stream
object, a stream set object, a snapshot of the metadata, a composite object, the value of a control event or a checkpoint that was saved to a
file; or what a table's metadata file says of its topic. FILE is a local path; URL is file:///…
or s3://BUCKET/KEY?region=…&endpoint=…&path-style=true, with credentials of the AWS chain.`,
		Example: `  tabletopic dump tabletopic-data/wal/1/3/00000000000000000000.wal
  tabletopic dump 's3://my-bucket/tabletopic/00000000/12?region=eu-central-1'`,
		Args: usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := readObject(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := dump(cmd.OutOrStdout(), data); err != nil {
				return fmt.Errorf("dump %s: %w", args[0], err)
			}
			return nil
		},
	}
}

func readObject(ctx context.Context, name string) ([]byte, error) {
	if !strings.Contains(name, "://") {
		abs, err := filepath.Abs(name)
		if err != nil {
			return nil, err
		}
		return os.ReadFile(abs)
	}
	var s3 objectstore.S3Config
	location, query, _ := strings.Cut(name, "?")
	if strings.HasPrefix(name, "s3://") && query != "" {
		var err error
		if s3, _, err = objectstore.ParseS3URL(name); err != nil {
			return nil, err
		}
	}
	bucket, key, err := objectstore.NewLocator(s3).Resolve(ctx, location)
	if err != nil {
		return nil, err
	}
	data, err := bucket.Get(ctx, key, 0, -1)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// dump tells the formats apart by their first bytes.
func dump(w io.Writer, data []byte) error {
	switch {
	case bytes.HasPrefix(data, []byte("TWAL")):
		return streamstore.DumpWAL(w, data)
	case bytes.HasPrefix(data, []byte("TOBJ")):
		return streamstore.DumpObject(w, data)
	case bytes.HasPrefix(data, []byte("TCMP")):
		return streamstore.DumpComposite(w, data)
	case bytes.HasPrefix(data, []byte("TCKP")):
		return partition.DumpCheckpoint(w, data)
	case bytes.HasPrefix(data, []byte("TCTL")):
		return control.Dump(w, data)
	case bytes.HasPrefix(data, []byte("TTSR")):
		return metadata.DumpRanges(w, data)
	case bytes.HasPrefix(data, []byte("TMSN")):
		return metadata.DumpSnapshot(w, data)
	case bytes.HasPrefix(data, []byte("TGEN")):
		return metadata.DumpGeneration(w, data)
	case bytes.HasPrefix(data, []byte("{")):
		meta, err := table.ParseMetadataBytes(data)
		if err != nil {
			return err
		}
		return coordinator.DumpProperties(w, meta.Properties())
	}
	return errors.New("no object of Table Topic: its first bytes are of none of its formats, which FORMATS.md lists")
}
