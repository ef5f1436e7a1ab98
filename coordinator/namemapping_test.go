package coordinator

import (
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
)

// Columns that a table gets, at any depth, are found in files without field ids, and one that was renamed
// by both of its names; what the mapping has besides stays.
func TestNameMappingGrowsWithTheTable(t *testing.T) {
	long := iceberg.PrimitiveTypes.Int64
	field := func(id int, name string, typ iceberg.Type) iceberg.NestedField {
		return iceberg.NestedField{ID: id, Name: name, Type: typ}
	}
	structOf := func(fields ...iceberg.NestedField) iceberg.Type { return &iceberg.StructType{FieldList: fields} }
	before := iceberg.NewSchema(0, field(1, "id", long), field(2, "s", structOf(field(3, "a", long))),
		field(4, "l", &iceberg.ListType{ElementID: 5, Element: structOf(field(6, "x", long))}))
	after := iceberg.NewSchema(1, field(1, "key", long), field(2, "s", structOf(field(3, "a", long), field(7, "b", long))),
		field(4, "l", &iceberg.ListType{ElementID: 5, Element: structOf(field(6, "x", long), field(8, "y", long))}), field(9, "new", structOf(field(10, "z", long))))
	const text = `[{"field-id":1,"names":["id","ID"]},{"field-id":2,"names":["s"],"fields":[{"field-id":3,"names":["a"]}]},` +
		`{"field-id":4,"names":["l"],"fields":[{"field-id":5,"names":["element"],"fields":[{"field-id":6,"names":["x"]}]}]}]`
	got, err := extendNameMapping(text, before, after)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"names":["id","ID","key"],"field-id":1},{"names":["s"],"field-id":2,"fields":[{"names":["a"],"field-id":3},{"names":["b"],"field-id":7}]},` +
		`{"names":["l"],"field-id":4,"fields":[{"names":["element"],"field-id":5,"fields":[{"names":["x"],"field-id":6},{"names":["y"],"field-id":8}]}]},` +
		`{"names":["new"],"field-id":9,"fields":[{"names":["z"],"field-id":10}]}]`
	if got != want {
		t.Errorf("mapping\n%s, want\n%s", got, want)
	}
	for _, same := range []string{"", text} {
		if got, err := extendNameMapping(same, before, before); got != "" || err != nil {
			t.Errorf("a table that stays as it is: %q, %v", got, err)
		}
	}
	if _, err := extendNameMapping("{", before, after); err == nil || !strings.Contains(err.Error(), "schema.name-mapping.default") {
		t.Errorf("a mapping that is none: %v", err)
	}
}
