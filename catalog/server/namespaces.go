package server

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

var errOverlap = errors.New("a property is both updated and removed")

func (s *Server) listNamespaces(r *request) (any, error) {
	p, err := pageOf(r)
	if err != nil {
		return nil, err
	}
	all, err := s.catalog.Namespaces(r.Context(), namespaceQuery(r.URL.Query(), "parent"))
	if err != nil {
		return nil, err
	}
	last := func(id table.Identifier) string { return id[len(id)-1] }
	slices.SortFunc(all, func(a, b table.Identifier) int { return strings.Compare(last(a), last(b)) })
	names, next, err := list(p, last, func(after string, limit int) ([]table.Identifier, error) {
		from := all
		if after != "" {
			i, found := slices.BinarySearchFunc(all, after, func(id table.Identifier, name string) int { return strings.Compare(last(id), name) })
			if found {
				i++
			}
			from = all[i:]
		}
		return from[:min(limit, len(from))], nil
	})
	if err != nil {
		return nil, err
	}
	return map[string]any{"namespaces": names, "next-page-token": next}, nil
}

type namespaceBody struct {
	Namespace  table.Identifier   `json:"namespace"`
	Properties iceberg.Properties `json:"properties"`
}

func (s *Server) createNamespace(r *request) (any, error) {
	var body namespaceBody
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

func (s *Server) createdNamespace(r *request) (any, error) {
	var body namespaceBody
	if err := r.decode(&body); err != nil {
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

type propertiesBody struct {
	Removals []string           `json:"removals"`
	Updates  iceberg.Properties `json:"updates"`
}

func (s *Server) updateNamespace(r *request) (any, error) {
	var body propertiesBody
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	for _, key := range body.Removals {
		if _, both := body.Updates[key]; both {
			return nil, fmt.Errorf("%w: %s", errOverlap, key)
		}
	}
	if err := s.checkProperties(r, body.Updates); err != nil {
		return nil, err
	}
	missing, err := s.catalog.SetNamespaceProperties(r.Context(), r.namespace, body.Updates, body.Removals)
	if err != nil {
		return nil, err
	}
	return updated(body, missing), nil
}

// updatedNamespace takes all removals for done: which of them were not there before the
// first request nobody knows any more.
func (s *Server) updatedNamespace(r *request) (any, error) {
	var body propertiesBody
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	return updated(body, nil), nil
}

func updated(body propertiesBody, missing []string) any {
	set, removed := []string{}, []string{}
	for key := range body.Updates {
		set = append(set, key)
	}
	for _, key := range body.Removals {
		if !slices.Contains(missing, key) {
			removed = append(removed, key)
		}
	}
	return map[string]any{"updated": set, "removed": removed, "missing": append([]string{}, missing...)}
}
