package server

import (
	"encoding/json"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/sql"
)

// identifier is a table's name as JSON has it.
type identifier struct {
	Namespace table.Identifier `json:"namespace"`
	Name      string           `json:"name"`
}

func (i identifier) id() table.Identifier {
	return append(append(table.Identifier{}, i.Namespace...), i.Name)
}

func (s *Server) listTables(r *request) (any, error) {
	if _, err := s.catalog.Namespace(r.Context(), r.namespace); err != nil {
		return nil, err
	}
	list, err := s.catalog.List(r.Context(), r.namespace)
	if err != nil {
		return nil, err
	}
	out := []identifier{}
	for _, id := range list {
		out = append(out, identifier{id[:len(id)-1], id[len(id)-1]})
	}
	return map[string]any{"identifiers": out}, nil
}

// loaded is the answer that describes a table.
func loaded(t *table.Table, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return map[string]any{"metadata-location": t.MetadataLocation(), "metadata": t.Metadata(), "config": map[string]string{}}, nil
}

func (s *Server) loadTable(r *request) (any, error) {
	return loaded(s.catalog.Load(r.Context(), r.table))
}

func (s *Server) tableExists(r *request) (any, error) {
	_, err := s.catalog.Load(r.Context(), r.table)
	return noContent{}, err
}

// createTable makes a table, or with stage-create only its metadata, which the client
// commits later.
func (s *Server) createTable(r *request) (any, error) {
	var body struct {
		Name          string                        `json:"name"`
		Location      string                        `json:"location"`
		Schema        *iceberg.Schema               `json:"schema"`
		PartitionSpec *iceberg.UnboundPartitionSpec `json:"partition-spec"`
		WriteOrder    *table.UnboundSortOrder       `json:"write-order"`
		StageCreate   bool                          `json:"stage-create"`
		Properties    iceberg.Properties            `json:"properties"`
	}
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	if body.Name == "" || body.Schema == nil {
		return nil, invalid("name and schema are wanted")
	}
	if _, err := s.catalog.Namespace(r.Context(), r.namespace); err != nil {
		return nil, err
	}
	id := append(append(table.Identifier{}, r.namespace...), body.Name)
	if err := s.checkProperties(r, body.Properties); err != nil {
		return nil, err
	}
	location, err := s.location(r, id, body.Location)
	if err != nil {
		return nil, err
	}
	meta, err := newMetadata(body.Schema, body.PartitionSpec, body.WriteOrder, location, body.Properties)
	if err != nil {
		return nil, invalid("%v", err)
	}
	if !body.StageCreate {
		return loaded(s.catalog.CreateTable(r.Context(), id, meta))
	}
	if _, err := s.catalog.Load(r.Context(), id); err == nil {
		return nil, catalog.ErrTableExists
	}
	return map[string]any{"metadata": meta, "config": map[string]string{}}, nil
}

func newMetadata(schema *iceberg.Schema, spec *iceberg.UnboundPartitionSpec, order *table.UnboundSortOrder, location string, properties iceberg.Properties) (table.Metadata, error) {
	partitions, sorted := iceberg.UnpartitionedSpec, table.UnsortedSortOrder
	if spec != nil {
		partitions = &spec.PartitionSpec
	}
	if order != nil {
		sorted = order.SortOrder
	}
	return table.NewMetadata(schema, partitions, sorted, location, properties)
}

// location is where a new table lies: below the warehouse, also if the client asks for a place.
func (s *Server) location(r *request, id table.Identifier, wanted string) (string, error) {
	if wanted == "" {
		return s.catalog.NewLocation(r.Context(), id)
	}
	return strings.TrimRight(wanted, "/"), s.checkLocation(r, wanted)
}

// checkLocation refuses locations outside the warehouse: this server's rights on the
// store must not become every client's.
func (s *Server) checkLocation(r *request, location string) error {
	below := strings.TrimPrefix(location, "file:")
	warehouse := strings.TrimPrefix(s.catalog.Warehouse(), "file:")
	// Iceberg Java writes file:/x for file:///x.
	below, warehouse = "/"+strings.TrimLeft(below, "/"), "/"+strings.TrimLeft(warehouse, "/")
	if !strings.HasPrefix(below, warehouse+"/") {
		return invalid("location %s is not below the warehouse %s", location, s.catalog.Warehouse())
	}
	for _, segment := range strings.Split(strings.TrimRight(below, "/"), "/")[1:] {
		if segment == ".." || segment == "." || segment == "" && strings.HasPrefix(location, "file:") {
			return invalid("location %s has an empty, . or .. segment", location)
		}
	}
	if _, _, err := s.locator.Resolve(r.Context(), strings.TrimRight(location, "/")+"/metadata/x"); err != nil {
		return invalid("%v", err)
	}
	return nil
}

func (s *Server) commitTable(r *request) (any, error) {
	var body struct {
		Identifier   *identifier        `json:"identifier"`
		Requirements table.Requirements `json:"requirements"`
		Updates      table.Updates      `json:"updates"`
	}
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	for _, u := range body.Updates {
		if err := s.checkUpdate(r, u); err != nil {
			return nil, err
		}
	}
	t, err := s.catalog.CommitTable(r.Context(), r.table, body.Requirements, body.Updates)
	if err != nil {
		return nil, err
	}
	return map[string]any{"metadata-location": t.MetadataLocation(), "metadata": t.Metadata()}, nil
}

// checkUpdate refuses updates that would make the server write elsewhere.
func (s *Server) checkUpdate(r *request, u table.Update) error {
	if a := u.Action(); a != table.UpdateSetLocation && a != table.UpdateSetProperties {
		return nil
	}
	var wire struct {
		Location string            `json:"location"`
		Updates  map[string]string `json:"updates"`
	}
	data, err := json.Marshal(u)
	if err == nil {
		err = json.Unmarshal(data, &wire)
	}
	if err != nil {
		return invalid("update %s: %v", u.Action(), err)
	}
	if wire.Location != "" {
		if err := s.checkLocation(r, wire.Location); err != nil {
			return err
		}
	}
	return s.checkProperties(r, wire.Updates)
}

// checkProperties refuses properties of tables and namespaces that lead elsewhere.
func (s *Server) checkProperties(r *request, properties map[string]string) error {
	for _, key := range []string{"location", "write.metadata.path", "write.data.path"} {
		if location := properties[key]; location != "" {
			if err := s.checkLocation(r, location); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropTable leaves the files, also if purgeRequested is set: data is deleted by those who
// own it, and the specification makes the purge a request.
func (s *Server) dropTable(r *request) (any, error) {
	return noContent{}, s.catalog.Drop(r.Context(), r.table)
}

// metrics takes the reports of engines, and keeps none.
func (s *Server) metrics(r *request) (any, error) { return noContent{}, nil }

func (s *Server) registerTable(r *request) (any, error) {
	var body struct {
		Name     string `json:"name"`
		Location string `json:"metadata-location"`
	}
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	if body.Name == "" || body.Location == "" {
		return nil, invalid("name and metadata-location are wanted")
	}
	if err := s.checkLocation(r, body.Location); err != nil {
		return nil, err
	}
	id := append(append(table.Identifier{}, r.namespace...), body.Name)
	return loaded(s.catalog.Register(r.Context(), id, body.Location))
}

func (s *Server) renameTable(r *request) (any, error) {
	var body struct {
		Source      identifier `json:"source"`
		Destination identifier `json:"destination"`
	}
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	return noContent{}, s.catalog.Rename(r.Context(), body.Source.id(), body.Destination.id())
}

var _ catalog.Catalog = (*sql.Catalog)(nil)
