package node

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
)

// RestoreMetadata makes the metadata database of cfg, which must not exist, from the newest
// snapshot in the object store. The nodes of the cluster, started on it, recover their
// write-ahead logs; a node that still runs on the old database stops.
func RestoreMetadata(ctx context.Context, cfg Config, log *slog.Logger) (metadata.SnapshotInfo, error) {
	if err := cfg.complete(); err != nil {
		return metadata.SnapshotInfo{}, err
	}
	bucket, err := objectstore.Open(ctx, cfg.ObjectStore)
	if err != nil {
		return metadata.SnapshotInfo{}, fmt.Errorf("object store: %w", err)
	}
	if err := objectstore.Probe(ctx, bucket); err != nil {
		return metadata.SnapshotInfo{}, fmt.Errorf("object store %s: %w", cfg.ObjectStore, err)
	}
	return metadata.Restore(ctx, cfg.Metadata, bucket, sql.Layout(), log)
}
