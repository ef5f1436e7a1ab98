package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
)

// CheckPartitionBy refuses a value of table.topic.partition.by that a table cannot follow.
func CheckPartitionBy(by string, t *table.Table) error {
	_, err := specFor(by, t.Schema(), t.Metadata())
	return err
}

// specFor returns the partition spec that table.topic.partition.by asks for; nil if the table
// has it, or is to keep what it has. Without meta the table is to be made. A field that the
// table has had before keeps its id and name, so that engines know it for the same.
func specFor(by string, schema *iceberg.Schema, meta table.Metadata) (*iceberg.PartitionSpec, error) {
	if by == "" {
		return nil, nil
	}
	list, err := partition.ParsePartitionBy(by)
	if err != nil {
		return nil, err
	}
	var known []iceberg.PartitionSpec
	var current iceberg.PartitionSpec
	last := 999 // Iceberg spec, "Partition Specs": ids begin at 1000
	if meta != nil {
		known, current = meta.PartitionSpecs(), meta.PartitionSpec()
		if id := meta.LastPartitionSpecID(); id != nil {
			last = max(last, *id)
		}
	}
	fields := make([]iceberg.PartitionField, 0, len(list))
	for _, t := range list {
		column, err := findColumn(schema, t.Column)
		if err != nil {
			return nil, fmt.Errorf("table.topic.partition.by: %w", err)
		}
		f := iceberg.PartitionField{SourceIDs: []int{column.ID}, Transform: transformOf(t)}
		if old := findField(known, f); old != nil {
			f.FieldID, f.Name = old.FieldID, old.Name
		} else {
			last++
			name, _ := schema.FindColumnName(column.ID)
			f.FieldID, f.Name = last, fieldName(t, name, schema, column.ID, fields)
		}
		fields = append(fields, f)
	}
	spec := iceberg.NewPartitionSpecID(nextSpec(known), fields...)
	if err := parquetio.CheckPartitions(schema, spec); err != nil {
		return nil, fmt.Errorf("table.topic.partition.by: %w", err)
	}
	if meta != nil && sameFields(current, spec) {
		return nil, nil
	}
	for _, s := range known {
		if sameFields(s, spec) {
			return &s, nil
		}
	}
	return &spec, nil
}

func transformOf(t partition.PartitionTransform) iceberg.Transform {
	switch t.Name {
	case "year":
		return iceberg.YearTransform{}
	case "month":
		return iceberg.MonthTransform{}
	case "day":
		return iceberg.DayTransform{}
	case "hour":
		return iceberg.HourTransform{}
	case "bucket":
		return iceberg.BucketTransform{NumBuckets: t.N}
	case "truncate":
		return iceberg.TruncateTransform{Width: t.N}
	case "void":
		return iceberg.VoidTransform{}
	}
	return iceberg.IdentityTransform{}
}

func findField(specs []iceberg.PartitionSpec, want iceberg.PartitionField) *iceberg.PartitionField {
	for _, s := range specs {
		for _, f := range s.Fields() {
			if f.SourceID() == want.SourceID() && f.Transform.Equals(want.Transform) {
				return &f
			}
		}
	}
	return nil
}

func nextSpec(known []iceberg.PartitionSpec) int {
	next := 0
	for _, s := range known {
		next = max(next, s.ID()+1)
	}
	return next
}

func sameFields(a, b iceberg.PartitionSpec) bool {
	if a.NumFields() != b.NumFields() {
		return false
	}
	for i := range a.NumFields() {
		if x, y := a.Field(i), b.Field(i); x.FieldID != y.FieldID || x.SourceID() != y.SourceID() || !x.Transform.Equals(y.Transform) {
			return false
		}
	}
	return true
}

// fieldName is the column's name and the transform, in letters, digits and underscores: names
// in manifests are Avro's, and not all engines know how others are written there. It is no
// other column's.
func fieldName(t partition.PartitionTransform, column string, schema *iceberg.Schema, source int, taken []iceberg.PartitionField) string {
	name := []byte(column)
	for i, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9') {
			name[i] = '_'
		}
	}
	base := string(name)
	if base[0] >= '0' && base[0] <= '9' {
		base = "_" + base
	}
	switch {
	case t.Name == "truncate":
		base += fmt.Sprintf("_trunc_%d", t.N)
	case t.N > 0:
		base += fmt.Sprintf("_%s_%d", t.Name, t.N)
	case t.Name != "identity":
		base += "_" + t.Name
	}
	for n, candidate := 2, base; ; n++ {
		f, isColumn := schema.FindFieldByNameCaseInsensitive(candidate)
		free := !isColumn || f.ID == source && t.Name == "identity"
		for _, o := range taken {
			free = free && !strings.EqualFold(o.Name, candidate)
		}
		if free {
			return candidate
		}
		candidate = fmt.Sprintf("%s_%d", base, n)
	}
}

// arrange gives the table the partitions, the sort order and the properties that the topic asks for. Where the table
// lacks a column for it, it keeps those that it has, until the column is there.
func (c *Coordinator) arrange(ctx context.Context) error {
	for attempt := 0; c.table != nil; attempt++ {
		change, what, err := c.arrangement()
		if err != nil {
			c.log.Error("table keeps the partitions and the sort order that it has", "error", err)
			return nil
		}
		if change == nil {
			return nil
		}
		t, err := c.alter(ctx, *change)
		switch {
		case err == nil:
			c.log.Info(what + " of the table changed")
			c.table = t
			continue // there may be another
		case !errors.Is(err, catalog.ErrCommitConflict) && !errors.Is(err, catalog.ErrCommitUnknown):
			return fmt.Errorf("change the %s of table %v: %w", what, c.ident, err)
		}
		if err := c.pause(ctx, attempt); err != nil {
			return err
		}
		if err := c.reload(ctx); err != nil {
			return err
		}
		if _, err := c.look(ctx); err != nil {
			return err
		}
	}
	return nil
}

// arrangement returns the next change, nil if the table is as it should be.
func (c *Coordinator) arrangement() (change *catalog.Commit, what string, err error) {
	spec, err := specFor(c.cfg.PartitionBy, c.table.Schema(), c.table.Metadata())
	if err != nil {
		return nil, "", err
	}
	if spec != nil {
		return &catalog.Commit{Spec: spec}, "partitions", nil
	}
	order, err := orderFor(c.cfg.SortBy, c.table.Schema(), c.table.Metadata())
	if err != nil {
		return nil, "", err
	}
	if order != nil {
		return &catalog.Commit{Order: order}, "sort order", nil
	}
	props, err := lackingProperties(c.cfg.Properties, c.table.Properties())
	if err != nil || props == nil {
		return nil, "", err
	}
	return &catalog.Commit{Properties: props}, "write properties", nil
}

// checkSpec refuses a table whose rows this version cannot tell apart.
func (c *Coordinator) checkSpec() error {
	if err := parquetio.CheckPartitions(c.table.Schema(), c.table.Spec()); err != nil {
		return fmt.Errorf("table %s has partitions that cannot be written to: %w; set table.topic.partition.by, or change the table", strings.Join(c.ident, "."), err)
	}
	return nil
}
