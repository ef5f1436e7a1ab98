package catalog

import (
	"fmt"
	"strings"

	"github.com/apache/iceberg-go"
)

// A HiveColumn is a column as Glue and the Hive Metastore list it. Engines read the types from
// the table's metadata; the list is what consoles, crawlers and DESCRIBE show.
type HiveColumn struct {
	ID      int
	Name    string // lower case
	Type    string
	Comment string
	Null    bool
}

// HiveColumns lists the columns of a schema. Of names that differ only in case the first is
// listed, since Hive knows no case. zoned is the type that stands for a timestamp with zone.
func HiveColumns(schema *iceberg.Schema, zoned string) []HiveColumn {
	var out []HiveColumn
	seen := map[string]bool{}
	for _, f := range schema.Fields() {
		name := strings.ToLower(f.Name)
		if seen[name] {
			continue
		}
		seen[name] = true
		out = append(out, HiveColumn{f.ID, name, hiveType(f.Type, zoned), f.Doc, !f.Required})
	}
	return out
}

func hiveType(t iceberg.Type, zoned string) string {
	switch t := t.(type) {
	case iceberg.BooleanType:
		return "boolean"
	case iceberg.Int32Type:
		return "int"
	case iceberg.Int64Type:
		return "bigint"
	case iceberg.Float32Type:
		return "float"
	case iceberg.Float64Type:
		return "double"
	case iceberg.DateType:
		return "date"
	case iceberg.TimestampType, iceberg.TimestampNsType:
		return "timestamp"
	case iceberg.TimestampTzType, iceberg.TimestampTzNsType:
		return zoned
	case iceberg.BinaryType, iceberg.FixedType:
		return "binary"
	case iceberg.DecimalType:
		return fmt.Sprintf("decimal(%d,%d)", t.Precision(), t.Scale())
	case *iceberg.StructType:
		fields := make([]string, len(t.FieldList))
		for i, f := range t.FieldList {
			fields[i] = hiveFieldName(f.Name) + ":" + hiveType(f.Type, zoned)
		}
		return "struct<" + strings.Join(fields, ",") + ">"
	case *iceberg.ListType:
		return "array<" + hiveType(t.Element, zoned) + ">"
	case *iceberg.MapType:
		return "map<" + hiveType(t.KeyType, zoned) + "," + hiveType(t.ValueType, zoned) + ">"
	}
	return "string" // string, time, uuid, and what Hive has no type for
}

// hiveFieldName makes a name of a struct's field fit for a type's text, which has no quotes.
func hiveFieldName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '_':
			return r
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '_'
	}, name)
}
