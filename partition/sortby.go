package partition

import (
	"fmt"
	"strings"
)

// A SortTerm is an element of table.topic.sort.by.
type SortTerm struct {
	PartitionTransform
	Descending bool
	NullsFirst bool
}

// ParseSortBy reads a list as "user.id, day(at) desc nulls first", also in brackets: columns or
// transforms, as of partitions, each with asc (the default) or desc, and where nulls are: first, unless
// the order is descending (Iceberg's own default). Key words go without regard to case.
func ParseSortBy(v string) ([]SortTerm, error) {
	items, err := splitList(v)
	if err != nil {
		return nil, err
	}
	var out []SortTerm
	for _, item := range items {
		t, err := parseSortTerm(item)
		if err != nil {
			return nil, err
		}
		for _, o := range out {
			if o.PartitionTransform == t.PartitionTransform {
				return nil, fmt.Errorf("%s is there twice", t.PartitionTransform)
			}
		}
		out = append(out, t)
	}
	if len(out) > maxPartitionFields {
		return nil, fmt.Errorf("%d columns are too many, %d are allowed", len(out), maxPartitionFields)
	}
	return out, nil
}

func parseSortTerm(item string) (t SortTerm, err error) {
	words := strings.Fields(item)
	lower := func(i int) string {
		if i < 0 {
			return ""
		}
		return strings.ToLower(words[i])
	}
	n := len(words)
	nulls := ""
	if w := lower(n - 1); (w == "first" || w == "last") && lower(n-2) == "nulls" {
		nulls = w
		n -= 2
	}
	if w := lower(n - 1); n > 1 && (w == "asc" || w == "desc") {
		t.Descending = w == "desc"
		n--
	}
	t.NullsFirst = nulls == "first" || nulls == "" && !t.Descending
	t.PartitionTransform, err = parseTransform(strings.Join(words[:n], " "))
	switch {
	case err != nil:
	case strings.Contains(t.Column, " "):
		err = fmt.Errorf("%q is no name of a column", t.Column)
	case t.Name == "void":
		err = fmt.Errorf("%q: void is null for every row, which is no order: leave it out", item)
	}
	if err != nil {
		return t, fmt.Errorf("%w; want COLUMN or TRANSFORM(COLUMN), then asc or desc, then nulls first or nulls last", err)
	}
	return t, nil
}

func (t SortTerm) String() string {
	direction, nulls := "asc", "last"
	if t.Descending {
		direction = "desc"
	}
	if t.NullsFirst {
		nulls = "first"
	}
	return fmt.Sprintf("%s %s nulls %s", t.PartitionTransform, direction, nulls)
}

// setSortBy keeps the list in one spelling: "" leaves the table as it is, "[]" is no order.
func setSortBy(c *TopicConfig, v string) error {
	if err := text(nil)(c, v); err != nil {
		return err
	}
	list, err := ParseSortBy(v)
	if err != nil {
		return err
	}
	c.Table.SortBy = ""
	if strings.TrimSpace(v) != "" {
		items := make([]string, len(list))
		for i, t := range list {
			items[i] = t.String()
		}
		c.Table.SortBy = "[" + strings.Join(items, ",") + "]"
	}
	return nil
}
