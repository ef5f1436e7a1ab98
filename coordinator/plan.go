package coordinator

import (
	"errors"
	"fmt"
	"slices"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/parquetio"
)

// errUnfit says that the table cannot hold a writer schema.
var errUnfit = errors.New("table cannot hold the schema")

// plan returns the schema that a table, nil if there is none yet, must have to hold v, and whether
// that is another one than it has. It decides by what it is given alone. An error wraps errUnfit if
// the schema of the writer is the reason.
func plan(cfg Config, t *table.Table, v *parquetio.ValueSchema) (next *iceberg.Schema, changed bool, err error) {
	m := mapping(cfg, t)
	if t != nil {
		if next, changed, err = m.Evolve(t.Schema(), t.Metadata().LastColumnID(), v); err != nil {
			return nil, false, fmt.Errorf("%w: %w", errUnfit, err)
		}
		return next, changed, nil
	}
	if next, err = m.TableSchema(v); err != nil {
		return nil, false, fmt.Errorf("%w: %w", errUnfit, err)
	}
	if len(v.Fields) == 0 || cfg.Takes != "" {
		return next, true, nil // partitions and order come with the columns, and tables of other types may have these
	}
	if _, err := specFor(cfg.PartitionBy, next, nil); err != nil {
		return nil, false, fmt.Errorf("create table: %w", err)
	}
	if _, err := orderFor(cfg.SortBy, next, nil); err != nil {
		return nil, false, fmt.Errorf("create table: %w", err)
	}
	return next, true, nil
}

// RulesOf returns the rules of the type mapping that a table follows, which it keeps. Those of the
// settings are of a table that is to be made, and of one that no topic has filled yet.
func RulesOf(cfg Config, t *table.Table) (parquetio.Rules, error) {
	if t == nil {
		return cfg.Rules, nil
	}
	text, has := t.Properties()[keyMapping]
	if _, filled := t.Properties()[keyState]; !has && !filled || invariant.Off("mapping-of-the-table") {
		rules := cfg.Rules
		if t.Metadata().Version() < 3 { // somebody else made it
			rules.Nanos, rules.Variant, rules.Defaults = false, false, false
		}
		return rules, nil
	}
	return parquetio.ParseRules(text)
}

// maxFormer bounds how many schemas before its current one tell the former names of a table's columns.
const maxFormer = 100

// mapping says how schemas become columns of a table, nil if there is none yet.
func mapping(cfg Config, t *table.Table) parquetio.Mapping {
	m := parquetio.Mapping{KafkaColumn: cfg.KafkaColumn, KeyColumn: cfg.KeyColumn, NewColumns: cfg.OnIncompatible == IncompatibleNewColumn, Case: cfg.ColumnCase, Former: map[int][]string{}}
	m.Engines, _ = parquetio.ParseEngines(cfg.Engines) // [CheckSettings] refuses others
	if t == nil {
		return m
	}
	schemas := t.Metadata().Schemas()
	now, err := iceberg.IndexByID(t.Schema())
	if err != nil {
		return m
	}
	for _, s := range schemas[max(0, len(schemas)-maxFormer):] {
		before, err := iceberg.IndexByID(s)
		if err != nil {
			continue
		}
		for id, f := range before {
			if n, ok := now[id]; ok && n.Name != f.Name && !slices.Contains(m.Former[id], f.Name) {
				m.Former[id] = append(m.Former[id], f.Name)
			}
		}
	}
	return m
}

// A ColumnChange is one way in which a column of a table becomes another.
type ColumnChange struct {
	Path   string // dotted, with element, key and value inside lists and maps; as it then is
	Change Change
	From   string       // the name that a renamed column had
	Was    iceberg.Type // of a widened column
	Type   iceberg.Type // then
}

// A Change is a kind of [ColumnChange].
type Change string

const (
	ColumnAdded    Change = "added"
	ColumnWidened  Change = "widened"
	ColumnOptional Change = "optional" // it was required
	ColumnRenamed  Change = "renamed"
)

// DryRun returns what a coordinator with cfg would do to a table, nil if there is none yet, whose
// records are written with v: nothing if it holds them as it is. An error says why it would do
// nothing of the kind, and the records have nowhere to go.
func DryRun(cfg Config, t *table.Table, v *parquetio.ValueSchema) ([]ColumnChange, error) {
	cfg.setDefaults()
	next, _, err := plan(cfg, t, v)
	if err != nil {
		return nil, err
	}
	if _, err := mapping(cfg, t).Compile(v, next); err != nil { // as the workers do next
		return nil, err
	}
	before := iceberg.NewSchema(0)
	if t != nil {
		before = t.Schema()
	}
	return columnChanges(before, next)
}

// columnChanges compares two schemas of a table, of which the second is the later one. Of what is
// added only the outermost column is told, for its type has the rest.
func columnChanges(before, after *iceberg.Schema) ([]ColumnChange, error) {
	was, err := iceberg.IndexByID(before)
	if err != nil {
		return nil, err
	}
	now, err := iceberg.IndexByID(after)
	if err != nil {
		return nil, err
	}
	paths, err := iceberg.IndexNameByID(after)
	if err != nil {
		return nil, err
	}
	parents, err := iceberg.IndexParents(after)
	if err != nil {
		return nil, err
	}
	ids := make([]int, 0, len(now))
	for id := range now {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	var all []ColumnChange
	for _, id := range ids {
		old, then := was[id], now[id]
		tell := func(c Change) {
			all = append(all, ColumnChange{Path: paths[id], Change: c, From: old.Name, Was: old.Type, Type: then.Type})
		}
		if _, there := was[id]; !there {
			parent, inner := parents[id]
			if _, there := was[parent]; !inner || there {
				tell(ColumnAdded)
			}
			continue
		}
		if old.Name != then.Name {
			tell(ColumnRenamed)
		}
		if _, primitive := then.Type.(iceberg.PrimitiveType); primitive && !old.Type.Equals(then.Type) {
			tell(ColumnWidened)
		}
		if old.Required && !then.Required {
			tell(ColumnOptional)
		}
	}
	return all, nil
}
