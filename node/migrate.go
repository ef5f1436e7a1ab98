package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/schemaregistry"
	"github.com/tabletopic/tabletopic/worker"
)

// MappingStatus is what a migration of the type mapping does, or would do, to a table.
type MappingStatus struct {
	Topic    string                        `json:"topic"`
	Table    string                        `json:"table"`
	From     string                        `json:"from"` // rules, as parquetio.Rules writes them
	To       string                        `json:"to"`
	Migrated bool                          `json:"migrated"`
	Columns  []schemaregistry.ColumnChange `json:"columns"` // when the next record of the latest schemas comes
}

// migrateMapping has a table follow the newest version of the type mapping, with the choices of the
// topic's settings.
func (n *Node) migrateMapping(w http.ResponseWriter, r *http.Request) {
	route, err := n.tableOf(r.PathValue("topic"))
	if err != nil {
		answer(w, http.StatusNotFound, message(err))
		return
	}
	status, err := n.migrate(r.Context(), route, r.URL.Query().Get("dry-run") == "true")
	if err != nil {
		answer(w, http.StatusConflict, message(fmt.Errorf("table of topic %s: %w", route.Name, err)))
		return
	}
	answer(w, http.StatusOK, status)
}

// migrationAttempts is how often a migration begins again because somebody else changed the table.
const migrationAttempts = 20

func (n *Node) migrate(ctx context.Context, r partition.Route, dryRun bool) (*MappingStatus, error) {
	cfg := r.Table
	for attempt := 1; ; attempt++ {
		id, tbl, err := n.load(ctx, r)
		if err != nil && !errors.Is(err, catalog.ErrNoTable) { // it is made as the settings say
			return nil, err
		}
		from, err := coordinator.RulesOf(coordinator.ConfigOf(cfg), tbl)
		if err != nil {
			return nil, err
		}
		s := &MappingStatus{Topic: r.Name, Table: strings.Join(id, "."), From: from.String(), To: cfg.Mapping.String(), Columns: []schemaregistry.ColumnChange{}}
		if tbl != nil && cfg.Mapping.Nanos && tbl.Metadata().Version() < 3 {
			return nil, fmt.Errorf("table.topic.format.version is 3 and the table has format version %d: upgrade the table with an engine, or set table.topic.format.version=2", tbl.Metadata().Version())
		}
		for _, key := range []bool{false, true} {
			changes, err := n.remapped(ctx, r, tbl, key)
			if err != nil {
				return nil, err
			}
			s.Columns = append(s.Columns, columnsOf(changes)...)
		}
		if dryRun || from == cfg.Mapping {
			return s, nil
		}
		cat, err := n.catalog(cfg.Catalog)
		if err != nil {
			return nil, err
		}
		change := catalog.Commit{Properties: iceberg.Properties{parquetio.MappingProperty: cfg.Mapping.String()}, Attempt: uuid.New()}
		// The sweep knows the metadata file by this, whatever comes of the commit.
		entry := control.Journal{At: time.Now(), Table: tbl.Metadata().TableUUID(), Names: catalog.Names(tbl, change)}
		if err := n.control.Append(ctx, r.ID, entry); err != nil {
			return nil, fmt.Errorf("name the file that the migration writes: %w", err)
		}
		_, err = cat.Commit(ctx, tbl, change)
		if err == nil {
			s.Migrated = true
			return s, nil
		}
		// Whatever came of it, the next attempt reads.
		if attempt == migrationAttempts || !errors.Is(err, catalog.ErrCommitConflict) && !errors.Is(err, catalog.ErrCommitUnknown) {
			return nil, err
		}
	}
}

// remapped returns how the table changes with the next record of the latest schema of values, or of
// keys, under the rules of the settings.
func (n *Node) remapped(ctx context.Context, r partition.Route, tbl *table.Table, key bool) ([]coordinator.ColumnChange, error) {
	topic, cfg := r.Topic.Name, r.Table
	payload := cfg.Value
	if key {
		payload = cfg.Key
	}
	if payload.Format != partition.FormatSchemaID && payload.Format != partition.FormatLatest {
		return nil, nil
	}
	subject := payload.Of(partition.TopicNameStrategy.Subject(topic, key, "")).Subject
	w, err := n.schemas.Latest(ctx, subject, payload.Message)
	if errors.Is(err, metadata.ErrSchemaNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if cfg.FanOut != "" && !key {
		if name, err := n.schemas.Record(ctx, w); err != nil || !worker.ShareOf(r).Takes(name) {
			return nil, err
		}
	}
	v, err := n.schemas.Value(ctx, w, cfg.Mapping)
	if err != nil {
		return nil, err
	}
	if key {
		v = v.AsKey()
	}
	changes, err := coordinator.DryRun(coordinator.ConfigOf(cfg), tbl, v)
	if err != nil && !control.Certain(err) {
		err = fmt.Errorf("records of subject %s would not fit any more: %w; with table.topic.on.incompatible=new-column they get columns of their own", subject, err)
	}
	return changes, err
}
