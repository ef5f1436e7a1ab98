package partition

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Key words go in any case and may be left out; nulls are first unless the order is descending.
func TestSortByIsParsed(t *testing.T) {
	for v, want := range map[string]string{
		"":                                      "",
		"[]":                                    "[]",
		"region":                                "[region asc nulls first]",
		"region DESC":                           "[region desc nulls last]",
		"[DAY(ts) desc Nulls First, a.b]":       "[day(ts) desc nulls first,a.b asc nulls first]",
		"bucket( id , 8 ) asc nulls last":       "[bucket(id,8) asc nulls last]",
		"asc, desc":                             "[asc asc nulls first,desc asc nulls first]",
		"x nulls last, truncate(x,3)":           "[x asc nulls last,truncate(x,3) asc nulls first]",
		"identity(a) desc, hour(_kafka.t), día": "[a desc nulls last,hour(_kafka.t) asc nulls first,día asc nulls first]",
	} {
		c, err := ParseTopicConfig(map[string]string{"table.topic.sort.by": v})
		if err != nil || c.Table.SortBy != want {
			t.Errorf("%q: %q, %v, want %q", v, c.Table.SortBy, err, want)
		}
		list, err := ParseSortBy(c.Table.SortBy)
		again, err2 := ParseSortBy(v)
		if d := cmp.Diff(list, again); d != "" || err != nil || err2 != nil {
			t.Errorf("%q: the kept spelling is another list (%v, %v): %s", v, err, err2, d)
		}
	}
}

// What can never work is refused when it is set.
func TestSortByRefuses(t *testing.T) {
	for v, hint := range map[string]string{
		"[a":             "brackets",
		"a,,b":           "no name",
		"a nulls":        "want COLUMN",
		"a up":           "want COLUMN",
		"a asc desc":     "want COLUMN",
		"nulls last":     "no name",
		"a, a desc":      "twice",
		"a, identity(a)": "twice",
		"week(ts)":       "transforms are",
		"day(ts) nulls":  "want COLUMN",
		"void(a) desc":   "is no order",
	} {
		_, err := ParseTopicConfig(map[string]string{"table.topic.sort.by": v})
		if !errors.Is(err, ErrInvalidConfig) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: %v, want ErrInvalidConfig with %q", v, err, hint)
		}
	}
}
