package coordinator

import (
	"strings"
	"testing"

	"github.com/tabletopic/tabletopic/partition"
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

// Dead letters have the table of their topic with another end, which is cut like that of a topic.
func TestLetterTable(t *testing.T) {
	long := strings.Repeat("x", 126)
	for _, c := range []struct{ namespace, name, topic, want string }{
		{"default", "", "My.Clicks", "default.my_clicks__dlq"},
		{"lake", "{topic:^prod[.](.*)}", "prod.clicks", "lake.clicks__dlq"},
		{"lake", "a.b", "clicks", "a.b__dlq"},
	} {
		if got, err := LetterTable(c.topic, partition.TableConfig{Namespace: c.namespace, Name: c.name}); err != nil || got != c.want {
			t.Errorf("%+v: %s, %v", c, got, err)
		}
	}
	got, err := LetterTable(long, partition.TableConfig{Namespace: "n"})
	if err != nil || len(got) != len("n.")+maxName || !strings.HasPrefix(got, "n.xxx") {
		t.Errorf("%s, %v", got, err)
	}
}

// A name that cannot be says which setting has it, and which character it is.
func TestRefusedNamesSayWhere(t *testing.T) {
	for topic, want := range map[string]string{
		"orders":                `table.topic.name "tablé": character 'é'`,
		"orders:com.shop.Order": `table.topic.fan.out "tablé": character 'é'`,
	} {
		if _, err := Identifier("", "tablé", topic); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", topic, err, want)
		}
	}
}
