package coordinator

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
)

// CheckSettings refuses settings that no table can follow.
func CheckSettings(t partition.TableConfig) error {
	engines, err := parquetio.ParseEngines(t.Engines)
	if err == nil {
		err = engines.CheckFormat(t.FormatVersion)
	}
	if err != nil {
		return fmt.Errorf("table.topic.engine.profile: %w", err)
	}
	return checkWriteProperties(t.Properties)
}

// CheckEngines refuses a value of table.topic.engine.profile for which a table has columns, or a format
// version, that cannot be read.
func CheckEngines(list string, t *table.Table) error {
	engines, err := parquetio.ParseEngines(list)
	if err == nil {
		err = engines.CheckFormat(t.Metadata().Version())
	}
	if err == nil {
		err = engines.Check(t.Schema())
	}
	if err != nil {
		return fmt.Errorf("table.topic.engine.profile: %w", err)
	}
	return nil
}

func checkWriteProperties(list string) error {
	props, err := partition.ParseProperties(list)
	if err != nil {
		return fmt.Errorf("table.topic.write.properties: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(props)) {
		if !parquetio.IsWriteProperty(name) {
			return fmt.Errorf("table.topic.write.properties: files do not follow %s: docs/tables.md lists what they follow; set others with an engine", name)
		}
	}
	if err := new(parquetio.WriterConfig).Configure(props); err != nil {
		return fmt.Errorf("table.topic.write.properties: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// lackingProperties returns those that table.topic.write.properties asks for and props has not, nil
// if there are none.
func lackingProperties(list string, props iceberg.Properties) (iceberg.Properties, error) {
	want, err := partition.ParseProperties(list)
	if err != nil {
		return nil, fmt.Errorf("table.topic.write.properties: %w", err)
	}
	var out iceberg.Properties
	for name, value := range want {
		if has, ok := props[name]; !ok || has != value {
			if out == nil {
				out = iceberg.Properties{}
			}
			out[name] = value
		}
	}
	return out, nil
}
