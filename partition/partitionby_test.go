package partition

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Spaces, brackets and the case of transforms make no difference; columns within structs and
// several transforms of one column are taken.
func TestPartitionByIsParsed(t *testing.T) {
	for v, want := range map[string]string{
		"":                                    "",
		"[]":                                  "[]",
		"region":                              "[region]",
		"[DAY(ts), Bucket( id , 8 ),a.b]":     "[day(ts),bucket(id,8),a.b]",
		"hour(_kafka.timestamp)":              "[hour(_kafka.timestamp)]",
		"identity(x),truncate(x,3)":           "[x,truncate(x,3)]",
		"year(a), month(b) , hour(c)":         "[year(a),month(b),hour(c)]",
		"bucket(id,1),bucket(id,1048576),éta": "[bucket(id,1),bucket(id,1048576),éta]",
		"Void(a),day(a),void( b.c )":          "[void(a),day(a),void(b.c)]",
	} {
		c, err := ParseTopicConfig(map[string]string{"automq.table.topic.partition.by": v})
		if err != nil || c.Table.PartitionBy != want {
			t.Errorf("%q: %q, %v, want %q", v, c.Table.PartitionBy, err, want)
		}
		list, err := ParsePartitionBy(c.Table.PartitionBy)
		again, err2 := ParsePartitionBy(v)
		if d := cmp.Diff(list, again); d != "" || err != nil || err2 != nil {
			t.Errorf("%q: the kept spelling is another list (%v, %v): %s", v, err, err2, d)
		}
	}
}

// What can never work is refused when it is set.
func TestPartitionByRefuses(t *testing.T) {
	for v, hint := range map[string]string{
		"[a":                                "brackets",
		"a]":                                "brackets",
		"a,,b":                              "no name",
		"a..b":                              "no name",
		".a":                                "no name",
		"day()":                             "no name",
		"day(ts":                            "TRANSFORM",
		"day((ts))":                         "TRANSFORM",
		"day(ts)x":                          "TRANSFORM",
		"day(ts, 3)":                        "column alone",
		"bucket(id)":                        "N from 1",
		"bucket(id,0)":                      "N from 1",
		"bucket(id,-4)":                     "N from 1",
		"bucket(id,x)":                      "N from 1",
		"bucket(8,id)":                      "N from 1",
		"truncate(s,0)":                     "N from 1",
		"truncate(s,1e9)":                   "N from 1",
		"week(ts)":                          "transforms are",
		"void(ts, 1)":                       "column alone",
		"void(ts),Void(ts)":                 "keep one",
		"day(ts),hour(ts)":                  "keep one",
		"day(ts),DAY(ts)":                   "keep one",
		"a,identity(a)":                     "keep one",
		"a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q": "too many",
	} {
		_, err := ParseTopicConfig(map[string]string{"table.topic.partition.by": v})
		if !errors.Is(err, ErrInvalidConfig) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: %v, want ErrInvalidConfig with %q", v, err, hint)
		}
	}
}
