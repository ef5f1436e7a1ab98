package server

import (
	"slices"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/view"

	"github.com/tabletopic/tabletopic/catalog/sql"
)

func (s *Server) listViews(r *request) (any, error) { return s.listNames(r, sql.View) }

func describeView(v sql.LoadedView, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	metadata, err := v.JSON()
	if err != nil {
		return nil, err
	}
	return loaded{Location: v.Location, Metadata: metadata}, nil
}

func (s *Server) loadView(r *request) (any, error) {
	return describeView(s.catalog.LoadView(r.Context(), r.table))
}

func (s *Server) loadNamedView(r *request) (any, error) {
	id, err := r.named()
	if err != nil {
		return nil, err
	}
	return describeView(s.catalog.LoadView(r.Context(), id))
}

func (s *Server) viewExists(r *request) (any, error) {
	return noContent{}, s.catalog.Exists(r.Context(), r.table, sql.View)
}

func (s *Server) createView(r *request) (any, error) {
	var body struct {
		Name       string             `json:"name"`
		Location   string             `json:"location"`
		Schema     *iceberg.Schema    `json:"schema"`
		Version    *view.Version      `json:"view-version"`
		Properties iceberg.Properties `json:"properties"`
	}
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	if body.Name == "" || body.Schema == nil || body.Version == nil {
		return nil, invalid("name, schema and view-version are wanted")
	}
	if _, err := s.catalog.Namespace(r.Context(), r.namespace); err != nil {
		return nil, err
	}
	id := named(r.namespace, body.Name)
	if err := s.checkProperties(r, body.Properties); err != nil {
		return nil, err
	}
	if err := s.catalog.Free(r.Context(), id, sql.View); err != nil {
		return nil, err
	}
	location, err := s.newLocation(r, id, body.Location)
	if err != nil {
		return nil, err
	}
	meta, err := sql.NewView(location, body.Schema, body.Version, body.Properties)
	if err != nil {
		return nil, err
	}
	return describeView(s.catalog.CreateView(r.Context(), id, meta))
}

func (s *Server) commitView(r *request) (any, error) {
	var body struct {
		Identifier   *identifier       `json:"identifier"`
		Requirements view.Requirements `json:"requirements"`
		Updates      view.Updates      `json:"updates"`
	}
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	if body.Identifier != nil && !slices.Equal(body.Identifier.id(), r.table) {
		return nil, invalid("the body is for view %q, the path for %q", body.Identifier.id(), r.table)
	}
	if err := checkUpdates(s, r, r.table, body.Updates); err != nil {
		return nil, err
	}
	return describeView(s.catalog.CommitView(r.Context(), r.table, body.Requirements, body.Updates))
}

func (s *Server) dropView(r *request) (any, error) {
	return noContent{}, s.catalog.DropView(r.Context(), r.table)
}

func (s *Server) registerView(r *request) (any, error) {
	id, body, err := s.registration(r)
	if err != nil {
		return nil, err
	}
	if err := s.catalog.Free(r.Context(), id, sql.View); err != nil {
		return nil, err
	}
	meta, err := s.catalog.ReadView(r.Context(), body.Location)
	if err != nil {
		return nil, invalid("metadata file %s: %v", body.Location, err)
	}
	if err := s.checkOwnLocation(r, id, meta.Location()); err != nil {
		return nil, err
	}
	if err := s.checkProperties(r, meta.Properties()); err != nil {
		return nil, err
	}
	return describeView(s.catalog.RegisterView(r.Context(), id, meta, body.Location))
}

func (s *Server) renameView(r *request) (any, error) {
	from, to, err := r.renaming()
	if err != nil {
		return nil, err
	}
	return noContent{}, s.catalog.RenameView(r.Context(), from, to)
}
