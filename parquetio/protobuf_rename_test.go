package parquetio

import (
	"strings"
	"testing"
)

// A Protobuf field that has another name in a later version, and its number, keeps its column, at any
// depth; a number that is used again for another type does not, nor do two fields that change names.
func TestProtobufRenameByNumber(t *testing.T) {
	const v1 = `syntax = "proto3"; message M { int64 id = 1; string user = 2; repeated Item items = 3; map<string, Item> by = 4; string gone = 5; string a = 6; string b = 7; Self self = 8; }
		message Item { int32 qty = 1; } message Self { string s = 1; Self self = 2; }`
	const v2 = `syntax = "proto3"; message M { int64 id = 1; string account = 2; repeated Item lines = 3; map<string, Item> by = 4; int64 again = 5; string b = 6; string a = 7; Self self = 8; }
		message Item { int32 count = 1; } message Self { string s = 1; Self self = 2; }`
	parse := func(text string) *ValueSchema {
		v, err := ParseProtobuf(NewRules(), text, "")
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	before, err := noKafka.TableSchema(parse(v1))
	if err != nil {
		t.Fatal(err)
	}
	later := parse(v2)
	later.Renamed(parse(v1))
	table, changed, err := noKafka.Evolve(before, before.HighestFieldID(), later)
	if err != nil || !changed {
		t.Fatalf("changed %t, error %v", changed, err)
	}
	for was, is := range map[string]string{"id": "id", "user": "account", "items": "lines", "items.element.qty": "lines.element.count", "by.value.qty": "by.value.count", "a": "a", "b": "b", "gone": "gone"} {
		from, _ := before.FindFieldByName(was)
		to, ok := table.FindFieldByName(is)
		if !ok || to.ID != from.ID {
			t.Errorf("%s has id %d, want that of %s, %d:\n%s", is, to.ID, was, from.ID, table)
		}
	}
	if f, ok := table.FindFieldByName("again"); !ok || f.ID <= before.HighestFieldID() {
		t.Errorf("the number of gone, used again, is column %v", f)
	}
	m := Mapping{Former: former(table, before)}
	for _, v := range []*ValueSchema{parse(v1), later, parse(v2)} {
		if _, again, err := m.Evolve(table, table.HighestFieldID(), v); err != nil || again {
			t.Errorf("changed again: %t, error %v", again, err)
		}
	}
	other := parse(strings.ReplaceAll(v2, "message M", "message N"))
	other.Renamed(parse(v1))
	if len(other.aliases) > 0 {
		t.Errorf("another message took over the names %v", other.aliases)
	}
}
