package catalog_test

import (
	"context"
	"errors"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/objectstore"
)

// pointers is a Pointer in memory, for one writer at a time.
type pointers struct {
	current map[string]string
	away    bool
	after   func(base, next *table.Table) error // runs after a swap, and changes its answer
}

func name(id table.Identifier) string { return id[0] + "." + id[1] }

func (p *pointers) Location(_ context.Context, id table.Identifier) (string, error) {
	if p.away {
		return "", errors.New("away")
	}
	location, ok := p.current[name(id)]
	if !ok {
		return "", catalog.ErrNoTable
	}
	return location, nil
}

func (p *pointers) Parent(_ context.Context, namespace string) (string, error) {
	return "file:///w/" + namespace, nil
}

func (p *pointers) Insert(_ context.Context, t *table.Table) error {
	if _, taken := p.current[name(t.Identifier())]; taken {
		return catalog.ErrTableExists
	}
	p.current[name(t.Identifier())] = t.MetadataLocation()
	return nil
}

func (p *pointers) Swap(_ context.Context, base, next *table.Table) error {
	if now := p.current[name(base.Identifier())]; now != base.MetadataLocation() {
		return catalog.Moved(base, now)
	}
	p.current[name(base.Identifier())] = next.MetadataLocation()
	if after := p.after; after != nil {
		p.after = nil
		return after(base, next)
	}
	return nil
}

// A swap that was delivered twice is told that it lost, against itself or against one that
// followed. It is done, and its files stay; so they do if nobody can tell.
func TestRepeatedSwapIsNotUndone(t *testing.T) {
	for _, what := range []string{"alone", "followed", "unreadable"} {
		p := &pointers{current: map[string]string{}}
		c := catalog.PointerCatalog{Pointer: p, Locator: catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}}
		id := table.Identifier{"n", "t"}
		base, err := c.Create(t.Context(), id, catalogtest.Schema(), nil)
		if err != nil {
			t.Fatal(err)
		}
		file := func(base *table.Table, name string) catalog.Commit {
			return catalog.Commit{Files: []iceberg.DataFile{catalogtest.DataFile(t, base, name)}}
		}
		p.after = func(base, next *table.Table) error {
			switch what {
			case "followed":
				if _, err := c.Commit(t.Context(), next, file(next, "b")); err != nil {
					t.Error(err)
				}
			case "unreadable":
				p.away = true
			}
			return catalog.Moved(base, "somewhere")
		}
		_, err = c.Commit(t.Context(), base, file(base, "a"))
		if want := catalog.ErrCommitUnknown; what == "unreadable" && !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		} else if what != "unreadable" && err != nil {
			t.Errorf("%s: %v", what, err)
		}
		p.away = false
		now, err := c.Load(t.Context(), id)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		tasks, err := now.Scan().PlanFiles(t.Context())
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if want := map[string]int{"alone": 1, "followed": 2, "unreadable": 1}[what]; len(tasks) != want {
			t.Errorf("%s: %d files, want %d", what, len(tasks), want)
		}
	}
}

// twice sends a creation again, as a client does that lost the first answer.
type twice struct{ *pointers }

func (p twice) Insert(ctx context.Context, t *table.Table) error {
	return errors.Join(p.pointers.Insert(ctx, t), p.pointers.Insert(ctx, t))
}

// A creation whose request came twice, and the second time met the table of the first, is done: its metadata file stays.
func TestRepeatedCreationIsNotUndone(t *testing.T) {
	at := &pointers{current: map[string]string{}}
	c := catalog.PointerCatalog{Pointer: twice{at}, Locator: catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}}
	id := table.Identifier{"n", "t"}
	created, err := c.Create(t.Context(), id, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if now, err := c.Load(t.Context(), id); err != nil || now.MetadataLocation() != created.MetadataLocation() {
		t.Errorf("the table that was created: %v %v", now, err)
	}
}

// Columns as Hive writes them, whatever the names; of those that Hive cannot tell apart the
// first.
func TestHiveColumns(t *testing.T) {
	prim := iceberg.PrimitiveTypes
	schema := iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "Id", Type: prim.Int64, Required: true, Doc: "key"},
		iceberg.NestedField{ID: 2, Name: "iD", Type: prim.String},
		iceberg.NestedField{ID: 3, Name: "at", Type: prim.TimestampTz},
		iceberg.NestedField{ID: 4, Name: "price", Type: iceberg.DecimalTypeOf(10, 2)},
		iceberg.NestedField{ID: 5, Name: "tags", Type: &iceberg.ListType{ElementID: 6, Element: prim.UUID}},
		iceberg.NestedField{ID: 7, Name: "m", Type: &iceberg.MapType{KeyID: 8, KeyType: prim.String, ValueID: 9,
			ValueType: &iceberg.StructType{FieldList: []iceberg.NestedField{{ID: 10, Name: "a-B", Type: prim.Binary}, {ID: 11, Name: "d", Type: prim.Date}}}}})
	want := []catalog.HiveColumn{{1, "id", "bigint", "key", false}, {3, "at", "zoned", "", true}, {4, "price", "decimal(10,2)", "", true},
		{5, "tags", "array<string>", "", true}, {7, "m", "map<string,struct<a_b:binary,d:date>>", "", true}}
	got := catalog.HiveColumns(schema, "zoned")
	if len(got) != len(want) {
		t.Fatalf("%v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%v, want %v", got[i], want[i])
		}
	}
}
