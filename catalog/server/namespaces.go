package server

import (
	"errors"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

var errOverlap = errors.New("a property is both updated and removed")

func (s *Server) listNamespaces(r *request) (any, error) {
	list, err := s.catalog.Namespaces(r.Context(), namespaceQuery(r.URL.Query(), "parent"))
	if err != nil {
		return nil, err
	}
	return map[string]any{"namespaces": list}, nil
}

func (s *Server) createNamespace(r *request) (any, error) {
	var body struct {
		Namespace  table.Identifier   `json:"namespace"`
		Properties iceberg.Properties `json:"properties"`
	}
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	if err := s.checkProperties(r, body.Properties); err != nil {
		return nil, err
	}
	if err := s.catalog.CreateNamespace(r.Context(), body.Namespace, body.Properties); err != nil {
		return nil, err
	}
	return s.namespace(r, body.Namespace)
}

func (s *Server) namespace(r *request, id table.Identifier) (any, error) {
	properties, err := s.catalog.Namespace(r.Context(), id)
	if err != nil {
		return nil, err
	}
	return map[string]any{"namespace": id, "properties": properties}, nil
}

func (s *Server) loadNamespace(r *request) (any, error) { return s.namespace(r, r.namespace) }

func (s *Server) namespaceExists(r *request) (any, error) {
	_, err := s.catalog.Namespace(r.Context(), r.namespace)
	return noContent{}, err
}

func (s *Server) dropNamespace(r *request) (any, error) {
	return noContent{}, s.catalog.DropNamespace(r.Context(), r.namespace)
}

func (s *Server) updateNamespace(r *request) (any, error) {
	var body struct {
		Removals []string           `json:"removals"`
		Updates  iceberg.Properties `json:"updates"`
	}
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	for _, key := range body.Removals {
		if _, both := body.Updates[key]; both {
			return nil, errors.Join(errOverlap, errors.New(key))
		}
	}
	if err := s.checkProperties(r, body.Updates); err != nil {
		return nil, err
	}
	missing, err := s.catalog.SetNamespaceProperties(r.Context(), r.namespace, body.Updates, body.Removals)
	if err != nil {
		return nil, err
	}
	updated, removed := []string{}, []string{}
	for key := range body.Updates {
		updated = append(updated, key)
	}
	gone := map[string]bool{}
	for _, key := range missing {
		gone[key] = true
	}
	for _, key := range body.Removals {
		if !gone[key] {
			removed = append(removed, key)
		}
	}
	return map[string]any{"updated": updated, "removed": removed, "missing": append([]string{}, missing...)}, nil
}
