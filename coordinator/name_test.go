package coordinator

import (
	"strings"
	"testing"
)

// A name may bring its namespace, and names of many topics may follow one pattern.
func TestTableNamesFollowPatterns(t *testing.T) {
	for _, c := range []struct{ namespace, name, topic, want string }{
		{"", "analytics.orders", "t", "analytics.orders"},
		{"lake", "{ns}.{topic}", "Orders.v1", "lake.orders_v1"},
		{"lake", "{topic:^[^.]*[.](.*)$}", "shop.Orders-v1", "lake.orders_v1"},
		{"{topic:^([^.]*)[.]}", "{topic:[^.]*$}", "shop.orders", "shop.orders"},
		{"a.b", "{ns}.x_{topic:[a-z]{3}}_y", "orders", "a.b.x_ord_y"},
		{"{topic}", "", "orders", "orders.orders"},
	} {
		got, err := Identifier(c.namespace, c.name, c.topic)
		if err != nil || strings.Join(got, ".") != c.want {
			t.Errorf("namespace %q, name %q, topic %q: %v, %v, want %s", c.namespace, c.name, c.topic, got, err, c.want)
		}
	}
	for _, c := range []struct{ namespace, name, mention string }{
		{"", "{topic", "not closed"},
		{"", "{topic:(}", "missing closing"},
		{"", "{topic:^x}", "does not match"},
		{"", "{table}", "placeholders are"},
		{"{ns}", "", "placeholders are"},
		{"", "a..b", "1 to 128"},
		{"", "{topic:^}", "1 to 128"},
	} {
		if _, err := Identifier(c.namespace, c.name, "orders"); err == nil || !strings.Contains(err.Error(), c.mention) {
			t.Errorf("namespace %q, name %q: %v, want %q", c.namespace, c.name, err, c.mention)
		}
	}
}
