package parquetio

import (
	"fmt"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
)

// Engines are query engines, by the names of table.topic.engine.profile, whose rules the columns
// of a table follow.
type Engines []string

// An engine is what its documentation says.
type engine struct {
	source string
	lacks  []string // names of Iceberg's types that it cannot read
	// Column names have at most nameBytes, if that is not 0, and with plainNames those inside of
	// structs only letters, digits and underscores.
	nameBytes  int
	plainNames bool
	// format is the newest format version of tables that it reads, as formatSource says; 0 for all.
	format       int
	formatSource string
}

var engines = map[string]engine{
	"generic": {},
	"athena": {source: "https://docs.aws.amazon.com/athena/latest/ug/querying-iceberg-supported-data-types.html and …/tables-databases-columns-names.html",
		lacks: []string{"time", "uuid", "fixed", "variant", "nanoseconds"}, nameBytes: 255, plainNames: true,
		format: 2, formatSource: "https://docs.aws.amazon.com/athena/latest/ug/querying-iceberg.html"},
	"unity": {source: "https://docs.databricks.com/aws/en/iceberg/ and …/iceberg-v3",
		lacks: []string{"time", "uuid", "fixed", "nanoseconds"}, nameBytes: 255},
	"duckdb": {source: "https://duckdb.org/docs/current/core_extensions/iceberg/overview", lacks: []string{"nanoseconds"}},
}

// ParseEngines reads a list of names, separated by commas; there are none in an empty one.
func ParseEngines(list string) (Engines, error) {
	if list == "" {
		return nil, nil
	}
	var out Engines
	for name := range strings.SplitSeq(list, ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		if _, ok := engines[name]; !ok {
			return nil, fmt.Errorf("there is no engine %q: want generic, athena, unity or duckdb, or several of them", name)
		}
		if name != "generic" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// typeName is that of a type without its parameters.
func typeName(t iceberg.Type) string {
	switch t.(type) {
	case iceberg.TimeType:
		return "time"
	case iceberg.UUIDType:
		return "uuid"
	case iceberg.FixedType:
		return "fixed"
	case iceberg.VariantType:
		return "variant"
	case iceberg.TimestampNsType, iceberg.TimestampTzNsType:
		return "nanoseconds"
	}
	return ""
}

// lacking returns the first of the engines that cannot read a type.
func (e Engines) lacking(t iceberg.Type) (name string, yes bool) {
	for _, name := range e {
		if n := typeName(t); n != "" && slices.Contains(engines[name].lacks, n) {
			return name, true
		}
	}
	return "", false
}

// standIn is the type that has the values of one that an engine cannot read: times and UUIDs as
// their text, which sorts as they do, fixed as binary, variants as JSON, and nanoseconds rounded down to
// microseconds.
func standIn(t iceberg.Type) iceberg.Type {
	switch t.(type) {
	case iceberg.FixedType:
		return iceberg.PrimitiveTypes.Binary
	case iceberg.TimestampNsType:
		return iceberg.PrimitiveTypes.Timestamp
	case iceberg.TimestampTzNsType:
		return iceberg.PrimitiveTypes.TimestampTz
	}
	return iceberg.PrimitiveTypes.String
}

// columns returns fields with types that all engines can read, or says which field has a name that
// one of them cannot.
func (e Engines) columns(fields []iceberg.NestedField, path string) ([]iceberg.NestedField, error) {
	if len(e) == 0 {
		return fields, nil
	}
	out := slices.Clone(fields)
	for i := range out {
		at := join(path, out[i].Name)
		if err := e.checkName(out[i].Name, at, path != ""); err != nil {
			return nil, err
		}
		t, err := e.column(out[i].Type, at)
		if err != nil {
			return nil, err
		}
		if !t.Equals(out[i].Type) {
			out[i].InitialDefault, out[i].WriteDefault = nil, nil // which are of the other type
		}
		out[i].Type = t
	}
	return out, nil
}

func (e Engines) column(t iceberg.Type, path string) (iceberg.Type, error) {
	var err error
	switch t := t.(type) {
	case *iceberg.StructType:
		fields, err := e.columns(t.FieldList, path)
		return &iceberg.StructType{FieldList: fields}, err
	case *iceberg.ListType:
		out := *t
		out.Element, err = e.column(t.Element, join(path, "element"))
		return &out, err
	case *iceberg.MapType:
		out := *t
		if out.KeyType, err = e.column(t.KeyType, join(path, "key")); err == nil {
			out.ValueType, err = e.column(t.ValueType, join(path, "value"))
		}
		return &out, err
	}
	if _, lacks := e.lacking(t); lacks {
		return standIn(t), nil
	}
	return t, nil
}

func (e Engines) checkName(name, path string, inner bool) error {
	for _, by := range e {
		rule := engines[by]
		if rule.nameBytes > 0 && len(name) > rule.nameBytes {
			return fmt.Errorf("field %.60s…: its name has %d bytes, engine %s takes %d (%s): rename it, or set table.topic.engine.profile", path, len(name), by, rule.nameBytes, rule.source)
		}
		plain := func(r rune) bool {
			return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_'
		}
		if rule.plainNames && inner && strings.IndexFunc(name, func(r rune) bool { return !plain(r) }) >= 0 {
			return fmt.Errorf("field %s: engine %s takes letters, digits and underscores in names inside of structs (%s): rename it, or set table.topic.engine.profile", path, by, rule.source)
		}
	}
	return nil
}

// CheckFormat refuses a format version of tables that one of the engines does not read.
func (e Engines) CheckFormat(version int) error {
	for _, name := range e {
		if newest := engines[name].format; newest > 0 && version > newest {
			return fmt.Errorf("format version %d is not one that engine %s reads, it knows versions up to %d (%s): set table.topic.format.version=%d, or leave the engine out",
				version, name, newest, engines[name].formatSource, newest)
		}
	}
	return nil
}

// Check refuses a table that has columns which one of the engines cannot read.
func (e Engines) Check(table *iceberg.Schema) error {
	cols, _ := layout(table)
	var bad []string
	for i := range cols {
		c := &cols[i]
		if by, lacks := e.lacking(c.typ); lacks {
			bad = append(bad, fmt.Sprintf("column %s is %s, which engine %s does not read (%s)", c.path, c.typ, by, engines[by].source))
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("%s: a column keeps its type, so give the topic another table by table.topic.name, or leave the engine out", strings.Join(bad, "; "))
	}
	return nil
}
