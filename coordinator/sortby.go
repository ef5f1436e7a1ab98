package coordinator

import (
	"fmt"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
)

// CheckSortBy refuses a value of table.topic.sort.by that a table cannot follow.
func CheckSortBy(by string, t *table.Table) error {
	_, err := orderFor(by, t.Schema(), t.Metadata())
	return err
}

// orderFor returns the sort order that table.topic.sort.by asks for; nil if the table has it, or is
// to keep what it has. Without meta the table is to be made.
func orderFor(by string, schema *iceberg.Schema, meta table.Metadata) (*table.SortOrder, error) {
	if by == "" {
		return nil, nil
	}
	list, err := partition.ParseSortBy(by)
	if err != nil {
		return nil, err
	}
	fields := make([]table.SortField, 0, len(list))
	for _, t := range list {
		column, err := findColumn(schema, t.Column)
		if err != nil {
			return nil, fmt.Errorf("table.topic.sort.by: %w", err)
		}
		f := table.SortField{SourceIDs: []int{column.ID}, Transform: transformOf(t.PartitionTransform), Direction: table.SortASC, NullOrder: table.NullsLast}
		if t.Descending {
			f.Direction = table.SortDESC
		}
		if t.NullsFirst {
			f.NullOrder = table.NullsFirst
		}
		fields = append(fields, f)
	}
	var known []table.SortOrder
	if meta != nil {
		known = meta.SortOrders()
	}
	want := table.UnsortedSortOrder
	if len(fields) > 0 {
		next := table.InitialSortOrderID
		for _, o := range known {
			next = max(next, o.OrderID()+1)
		}
		if want, err = table.NewSortOrder(next, fields); err != nil {
			return nil, fmt.Errorf("table.topic.sort.by: %w", err)
		}
	}
	if err := parquetio.CheckSortOrder(schema, want); err != nil {
		return nil, fmt.Errorf("table.topic.sort.by: %w", err)
	}
	if meta != nil && sameOrder(meta.SortOrder(), want) {
		return nil, nil
	}
	for _, o := range known {
		if sameOrder(o, want) {
			return &o, nil
		}
	}
	return &want, nil
}

func sameOrder(a, b table.SortOrder) bool {
	if a.Len() != b.Len() {
		return false
	}
	for i := range a.Len() {
		if !a.Field(i).Equals(b.Field(i)) {
			return false
		}
	}
	return true
}

func findColumn(schema *iceberg.Schema, name string) (iceberg.NestedField, error) {
	column, ok := schema.FindFieldByName(name)
	if !ok {
		column, ok = schema.FindFieldByNameCaseInsensitive(name)
	}
	if !ok {
		return column, fmt.Errorf("the table has no column %q: correct it, or add the field to the schema of the values first", name)
	}
	return column, nil
}
