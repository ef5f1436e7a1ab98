package node

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/schemaregistry"
	"github.com/tabletopic/tabletopic/worker"
)

// dryRunPatience is how long the catalogs may take to tell what the tables of a subject are.
const dryRunPatience = 10 * time.Second

// DryRun implements schemaregistry.Tables. What it says is what the coordinator of each topic would
// do with the table as it now is.
func (n *Node) DryRun(ctx context.Context, subject string, s schemaregistry.Schema, earlier []int32) ([]schemaregistry.TableChange, error) {
	ctx, cancel := context.WithTimeout(ctx, dryRunPatience)
	defer cancel()
	var all []schemaregistry.TableChange
	for _, t := range n.set.Topics() {
		if !n.mayUse(t, subject) {
			continue
		}
		cfg, err := n.set.TopicConfig(t)
		if err != nil || !cfg.Table.Enable {
			continue
		}
		for _, key := range []bool{false, true} {
			message, written := writtenWith(t.Name, &cfg, key, subject, registered(s))
			if !written {
				continue
			}
			for _, r := range partition.Routes(t, cfg) {
				if takes(r, key, registered(s), message) {
					all = append(all, n.dryRun(ctx, r, key, registered(s), message, earlier))
				}
			}
		}
	}
	return all, nil
}

// takes reports whether records whose value, or key, is written with a schema are rows of a table. No
// table may be to take them.
func takes(r partition.Route, key bool, s control.RegisteredSchema, message string) bool {
	if r.Table.FanOut == "" {
		return true
	}
	if key { // of a record of any type
		return r.Table.Record != "" || r.Table.Others == partition.OthersTable
	}
	name, err := control.RecordName(s, message)
	return err == nil && worker.ShareOf(r).Takes(name)
}

// mayUse tells for most topics by their names that they do not use a subject, so that a registration
// need not read the settings of all.
func (n *Node) mayUse(t metadata.Topic, subject string) bool {
	if strings.HasPrefix(subject, t.Name+"-") {
		return true
	}
	for _, settings := range []map[string]string{t.Config, n.set.Defaults(t.Name)} {
		for name := range settings {
			if strings.Contains(name, "subject") {
				return true
			}
		}
	}
	return false
}

// writtenWith tells whether values, or keys, of a topic may be written with the schema as a version
// of a subject, and with which message if it is Protobuf.
func writtenWith(topic string, cfg *partition.TopicConfig, key bool, subject string, r control.RegisteredSchema) (message string, ok bool) {
	payload, strategy := cfg.Table.Value, cfg.ValueSubject
	if key {
		payload, strategy = cfg.Table.Key, cfg.KeySubject
	}
	record := ""
	switch payload.Format {
	case partition.FormatSchemaID:
		record, ok = strategy.Record(topic, key, subject)
	case partition.FormatLatest:
		record, ok = payload.Message, payload.Of(partition.TopicNameStrategy.Subject(topic, key, "")).Subject == subject
	}
	if !ok || record == "" {
		return "", ok
	}
	if r.Type == "PROTOBUF" {
		message, err := parquetio.MessageIndexes(r.Text, record, r.References...)
		return message, err == nil
	}
	name, err := control.RecordName(r, "")
	return "", err == nil && name == record
}

// dryRun says what a schema does to the table of a route.
func (n *Node) dryRun(ctx context.Context, route partition.Route, key bool, r control.RegisteredSchema, message string, earlier []int32) schemaregistry.TableChange {
	cfg := route.Table
	c := schemaregistry.TableChange{Topic: route.Name, Part: "value", Check: cfg.SchemaCheck}
	if key {
		c.Part = "key"
	}
	id, tbl, err := n.load(ctx, route)
	c.Table = strings.Join(id, ".")
	if err != nil && !errors.Is(err, catalog.ErrNoTable) {
		c.Outcome, c.Reason = schemaregistry.TableUnknown, err.Error()
		return c
	}
	refuse := func(err error) schemaregistry.TableChange {
		c.Outcome, c.Reason = schemaregistry.TableRefuses, err.Error()
		c.Effect = "its records become dead letters"
		if cfg.OnIncompatible == coordinator.IncompatiblePause || cfg.Tolerance == partition.ToleratePause {
			c.Effect = "its records wait until somebody changes the table"
		}
		return c
	}
	rules, err := coordinator.RulesOf(coordinator.ConfigOf(cfg), tbl)
	if err != nil {
		c.Outcome, c.Reason = schemaregistry.TableUnknown, err.Error()
		return c
	}
	v, err := n.schemas.Columns(ctx, rules, r, message, earlier)
	if err != nil {
		if control.Certain(err) {
			return refuse(err)
		}
		c.Outcome, c.Reason = schemaregistry.TableUnknown, err.Error()
		return c
	}
	if key {
		v = v.AsKey()
	}
	changes, err := coordinator.DryRun(coordinator.ConfigOf(cfg), tbl, v)
	if err != nil {
		return refuse(err)
	}
	c.Columns, c.Outcome = columnsOf(changes), outcomeOf(tbl, changes)
	return c
}

func outcomeOf(t *table.Table, changes []coordinator.ColumnChange) schemaregistry.TableOutcome {
	switch {
	case t == nil:
		return schemaregistry.TableCreates
	case len(changes) > 0:
		return schemaregistry.TableEvolves
	}
	return schemaregistry.TableFits
}

func columnsOf(changes []coordinator.ColumnChange) []schemaregistry.ColumnChange {
	var all []schemaregistry.ColumnChange
	for _, c := range changes {
		out := schemaregistry.ColumnChange{Column: c.Path, Change: string(c.Change), Type: typeName(c.Type)}
		switch c.Change {
		case coordinator.ColumnWidened:
			out.From = typeName(c.Was)
		case coordinator.ColumnRenamed:
			out.From = c.From
		}
		all = append(all, out)
	}
	return all
}
