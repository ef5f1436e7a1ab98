package partition

import (
	"fmt"
	"strconv"
	"strings"
)

// A PartitionTransform is an element of table.topic.partition.by.
type PartitionTransform struct {
	Name   string // identity, year, month, day, hour, bucket, truncate or void
	Column string // a field within structs is behind dots
	N      int    // of bucket and truncate
}

// maxPartitionWidth bounds N of bucket and truncate.
const maxPartitionWidth = 1 << 20

// maxPartitionFields bounds the transforms of a table.
const maxPartitionFields = 16

// ParsePartitionBy reads a list of columns and transforms, as "day(ts), bucket(id, 8), region",
// also in brackets. Names of transforms go without regard to case. A column may be partitioned by
// one of year, month, day and hour, because each holds those before it.
func ParsePartitionBy(v string) ([]PartitionTransform, error) {
	items, err := splitList(v)
	if err != nil {
		return nil, err
	}
	var out []PartitionTransform
	for _, item := range items {
		t, err := parseTransform(item)
		if err != nil {
			return nil, err
		}
		for _, o := range out {
			if o.Column == t.Column && (o == t || o.inTime() && t.inTime()) {
				return nil, fmt.Errorf("%s and %s say the same of one column: keep one", o, t)
			}
		}
		out = append(out, t)
	}
	if len(out) > maxPartitionFields {
		return nil, fmt.Errorf("%d transforms are too many, %d are allowed", len(out), maxPartitionFields)
	}
	return out, nil
}

// splitList returns the elements of a list, which may be in brackets.
func splitList(v string) ([]string, error) {
	v = strings.TrimSpace(v)
	if strings.HasPrefix(v, "[") != strings.HasSuffix(v, "]") {
		return nil, fmt.Errorf("brackets do not match")
	}
	v = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(v, "["), "]"))
	if v == "" {
		return nil, nil
	}
	items := splitOutside(v)
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return items, nil
}

// splitOutside splits at the commas that are in no parentheses.
func splitOutside(v string) (items []string) {
	depth, from := 0, 0
	for i, r := range v {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth <= 0:
			items = append(items, v[from:i])
			from = i + 1
		}
	}
	return append(items, v[from:])
}

func parseTransform(item string) (PartitionTransform, error) {
	name, args, call := strings.Cut(item, "(")
	if !call {
		return checkColumn(PartitionTransform{Name: "identity", Column: item})
	}
	args, closed := strings.CutSuffix(args, ")")
	if !closed || strings.ContainsAny(args, "()") {
		return PartitionTransform{}, fmt.Errorf("%q: TRANSFORM(COLUMN) or TRANSFORM(COLUMN, N) is wanted", item)
	}
	t := PartitionTransform{Name: strings.ToLower(strings.TrimSpace(name))}
	column, width, has := strings.Cut(args, ",")
	t.Column = strings.TrimSpace(column)
	switch t.Name {
	case "identity", "year", "month", "day", "hour", "void":
		if has {
			return t, fmt.Errorf("%q: %s takes a column alone", item, t.Name)
		}
	case "bucket", "truncate":
		n, err := strconv.Atoi(strings.TrimSpace(width))
		if !has || err != nil || n < 1 || n > maxPartitionWidth {
			return t, fmt.Errorf("%q: %s(COLUMN, N) with N from 1 to %d is wanted", item, t.Name, maxPartitionWidth)
		}
		t.N = n
	default:
		return t, fmt.Errorf("%q: transforms are identity, year, month, day, hour, bucket, truncate and void", item)
	}
	return checkColumn(t)
}

func checkColumn(t PartitionTransform) (PartitionTransform, error) {
	for part := range strings.SplitSeq(t.Column, ".") {
		if part == "" || strings.TrimSpace(part) != part {
			return t, fmt.Errorf("%q is no name of a column", t.Column)
		}
	}
	return t, nil
}

func (t PartitionTransform) inTime() bool {
	return t.Name == "year" || t.Name == "month" || t.Name == "day" || t.Name == "hour"
}

func (t PartitionTransform) String() string {
	switch {
	case t.Name == "identity":
		return t.Column
	case t.N > 0:
		return fmt.Sprintf("%s(%s,%d)", t.Name, t.Column, t.N)
	}
	return t.Name + "(" + t.Column + ")"
}

// setPartitionBy keeps the list in one spelling: "" leaves the table as it is, "[]" is no
// partitions.
func setPartitionBy(c *TopicConfig, v string) error {
	if err := text(nil)(c, v); err != nil {
		return err
	}
	list, err := ParsePartitionBy(v)
	if err != nil {
		return err
	}
	c.Table.PartitionBy = ""
	if strings.TrimSpace(v) != "" {
		items := make([]string, len(list))
		for i, t := range list {
			items[i] = t.String()
		}
		c.Table.PartitionBy = "[" + strings.Join(items, ",") + "]"
	}
	return nil
}
