package coordinator

import (
	"encoding/json"
	"fmt"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// extendNameMapping returns the name mapping of a table (Iceberg spec, "Column Projection"), by which files
// without field ids are read, for a later schema: columns that are new get theirs, and a column that has
// another name has both. It is empty if the table has none, or it stays as it is.
func extendNameMapping(text string, before, after *iceberg.Schema) (string, error) {
	if text == "" {
		return "", nil
	}
	var mapping iceberg.NameMapping
	if err := json.Unmarshal([]byte(text), &mapping); err != nil {
		return "", fmt.Errorf("table property %s: %w", table.DefaultNameMappingKey, err)
	}
	was, err := iceberg.IndexByID(before)
	if err != nil {
		return "", err
	}
	parents, err := iceberg.IndexParents(after)
	if err != nil {
		return "", err
	}
	const root = -1 // as iceberg-go has it
	renamed, added := map[int]iceberg.NestedField{}, map[int][]iceberg.NestedField{}
	var walk func(fields []iceberg.NestedField)
	walk = func(fields []iceberg.NestedField) {
		for _, f := range fields {
			old, ok := was[f.ID]
			if !ok { // with all that is inside of it
				parent, inner := parents[f.ID]
				if !inner {
					parent = root
				}
				added[parent] = append(added[parent], f)
				continue
			}
			if old.Name != f.Name {
				renamed[f.ID] = f
			}
			if nested, ok := f.Type.(iceberg.NestedType); ok {
				walk(nested.Fields())
			}
		}
	}
	walk(after.Fields())
	if len(renamed)+len(added) == 0 {
		return "", nil
	}
	if mapping, err = iceberg.UpdateNameMapping(mapping, renamed, added); err != nil {
		return "", fmt.Errorf("table property %s: %w", table.DefaultNameMappingKey, err)
	}
	out, err := json.Marshal(mapping)
	return string(out), err
}
