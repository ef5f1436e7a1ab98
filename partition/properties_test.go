package partition

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Properties are pairs with commas between; those in parentheses belong to a value.
func TestPropertiesAreParsed(t *testing.T) {
	for v, want := range map[string]map[string]string{
		"":                           {},
		"[]":                         {},
		" a.b = c , d=truncate(1,2)": {"a.b": "c", "d": "truncate(1,2)"},
		"[a=b=c]":                    {"a": "b=c"},
		"a=b,a=b":                    {"a": "b"},
	} {
		c, err := ParseTopicConfig(map[string]string{"table.topic.write.properties": v})
		if err != nil {
			t.Errorf("%q: %v", v, err)
			continue
		}
		got, err := ParseProperties(c.Table.Properties)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%q: %v %s", v, err, d)
		}
	}
	for v, hint := range map[string]string{"a": "NAME=VALUE", "a=": "NAME=VALUE", "a=b,": "NAME=VALUE", "a=1,a=2": "twice", "[a=b": "brackets",
		strings.Repeat("a=b,", 1000) + "a=b": "too many"} {
		if _, err := ParseTopicConfig(map[string]string{"table.topic.write.properties": v}); !errors.Is(err, ErrInvalidConfig) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%.20q: %v, want %s", v, err, hint)
		}
	}
}
