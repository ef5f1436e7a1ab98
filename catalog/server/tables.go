package server

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/sql"
)

// identifier is a name of a table or view as JSON has it.
type identifier struct {
	Namespace table.Identifier `json:"namespace"`
	Name      string           `json:"name"`
}

func (i identifier) id() table.Identifier { return named(i.Namespace, i.Name) }

func named(namespace table.Identifier, name string) table.Identifier {
	return append(append(table.Identifier{}, namespace...), name)
}

func (s *Server) listTables(r *request) (any, error) { return s.listNames(r, sql.Table) }

func (s *Server) listNames(r *request, kind sql.Kind) (any, error) {
	p, err := pageOf(r)
	if err != nil {
		return nil, err
	}
	if _, err := s.catalog.Namespace(r.Context(), r.namespace); err != nil {
		return nil, err
	}
	last := func(i identifier) string { return i.Name }
	names, next, err := list(p, last, func(after string, limit int) ([]identifier, error) {
		ids, err := s.catalog.ListPage(r.Context(), r.namespace, kind, after, limit)
		names := make([]identifier, len(ids))
		for i, id := range ids {
			names[i] = identifier{id[:len(id)-1], id[len(id)-1]}
		}
		return names, err
	})
	if err != nil {
		return nil, err
	}
	return map[string]any{"identifiers": names, "next-page-token": next}, nil
}

// A loaded table or view, as the specification's LoadTableResult and LoadViewResult.
type loaded struct {
	Location    string            `json:"metadata-location,omitempty"`
	Metadata    []byte            `json:"-"` // JSON; see text
	Config      map[string]string `json:"config,omitempty"`
	Credentials []credential      `json:"storage-credentials,omitempty"`
}

// text is l as JSON. The metadata, which may be megabytes, is neither parsed nor copied by
// the encoder.
func (l loaded) text() ([][]byte, error) {
	rest, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	separator := []byte(",")
	if len(rest) == len("{}") {
		separator = nil
	}
	return [][]byte{[]byte(`{"metadata":`), l.Metadata, separator, rest[1:]}, nil
}

// etag is the version of a table's metadata in one of its representations.
func etag(location, mode string) string {
	sum := sha256.Sum256([]byte(mode + " " + location))
	return `"` + hex.EncodeToString(sum[:16]) + `"`
}

// describe is the answer that describes a table, with credentials if the client asked.
func (s *Server) describe(r *request, t *table.Table, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	mode, text := "all", s.catalog.Document(t).JSON
	switch v := r.URL.Query().Get("snapshots"); v {
	case "", "all":
	case "refs":
		mode, text = "refs", s.catalog.Document(t).RefsJSON
	default:
		return nil, invalid("snapshots=%s: all or refs is wanted", v)
	}
	metadata, err := text()
	if err != nil {
		return nil, err
	}
	answer := loaded{Location: t.MetadataLocation(), Metadata: metadata}
	if answer.Credentials, err = s.vend(r, t.Location()); err != nil {
		return nil, err
	}
	if len(answer.Credentials) > 0 {
		answer.Config = answer.Credentials[0].Config // where clients before storage-credentials look
		return answer, nil                           // without a tag: the client is to take the new ones
	}
	return tagged{etag(t.MetadataLocation(), mode), answer}, nil
}

func (s *Server) loadTable(r *request) (any, error) {
	t, err := s.catalog.Load(r.Context(), r.table)
	return s.describe(r, t, err)
}

// loadNamed loads the table that the body names.
func (s *Server) loadNamed(r *request) (any, error) {
	id, err := r.named()
	if err != nil {
		return nil, err
	}
	t, err := s.catalog.Load(r.Context(), id)
	return s.describe(r, t, err)
}

// named is the name in the body, in the namespace of the path.
func (r *request) named() (table.Identifier, error) {
	var body struct {
		Name string `json:"name"`
	}
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	return named(r.namespace, body.Name), nil
}

func (s *Server) tableExists(r *request) (any, error) {
	return noContent{}, s.catalog.Exists(r.Context(), r.table, sql.Table)
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
	id := named(r.namespace, body.Name)
	if err := s.checkProperties(r, body.Properties); err != nil {
		return nil, err
	}
	if err := s.catalog.Free(r.Context(), id, sql.Table); err != nil {
		return nil, err
	}
	location, err := s.newLocation(r, id, body.Location)
	if err != nil {
		return nil, err
	}
	meta, err := newMetadata(body.Schema, body.PartitionSpec, body.WriteOrder, location, body.Properties)
	if err != nil {
		return nil, invalid("%v", err)
	}
	if !body.StageCreate {
		t, err := s.catalog.CreateTable(r.Context(), id, meta)
		return s.describe(r, t, err)
	}
	text, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	answer := loaded{Metadata: text}
	if answer.Credentials, err = s.vend(r, location); err != nil {
		return nil, err
	}
	if len(answer.Credentials) > 0 {
		answer.Config = answer.Credentials[0].Config
	}
	return answer, nil
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

// tableChange is a commit to one table.
type tableChange struct {
	Identifier   *identifier        `json:"identifier"`
	Requirements table.Requirements `json:"requirements"`
	Updates      table.Updates      `json:"updates"`
}

func (s *Server) commitTable(r *request) (any, error) {
	var body tableChange
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	if body.Identifier != nil && !slices.Equal(body.Identifier.id(), r.table) {
		return nil, invalid("the body is for table %q, the path for %q", body.Identifier.id(), r.table)
	}
	if err := checkUpdates(s, r, r.table, body.Updates); err != nil {
		return nil, err
	}
	t, err := s.catalog.CommitTable(r.Context(), r.table, body.Requirements, body.Updates)
	if err != nil {
		return nil, err
	}
	metadata, err := s.catalog.Document(t).JSON()
	if err != nil {
		return nil, err
	}
	return tagged{etag(t.MetadataLocation(), "all"), loaded{Location: t.MetadataLocation(), Metadata: metadata}}, nil
}

// maxChanges is how many tables one transaction may change.
const maxChanges = 1000

func (s *Server) commitTransaction(r *request) (any, error) {
	var body struct {
		Changes []tableChange `json:"table-changes"`
	}
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	if n := len(body.Changes); n == 0 || n > maxChanges {
		return nil, invalid("the transaction has %d table changes; 1 to %d are wanted", n, maxChanges)
	}
	seen := map[string]bool{}
	changes := make([]sql.Change, len(body.Changes))
	for i, c := range body.Changes {
		if c.Identifier == nil {
			return nil, invalid("table change %d names no table", i)
		}
		id := c.Identifier.id()
		name, err := json.Marshal(id)
		if err != nil {
			return nil, err
		}
		if seen[string(name)] {
			return nil, invalid("table %s is changed twice: put its updates into one change", name)
		}
		seen[string(name)] = true
		if err := checkUpdates(s, r, id, c.Updates); err != nil {
			return nil, err
		}
		changes[i] = sql.Change{ID: id, Requirements: c.Requirements, Updates: c.Updates}
	}
	_, err := s.catalog.CommitTables(r.Context(), changes)
	return noContent{}, err
}

// dropTable leaves the files, unless purgeRequested asks for more: see [sql.Catalog.Purge].
func (s *Server) dropTable(r *request) (any, error) {
	purge := false
	if v := r.URL.Query().Get("purgeRequested"); v != "" {
		var err error
		if purge, err = strconv.ParseBool(v); err != nil { // PyIceberg says True
			return nil, invalid("purgeRequested=%s: true or false is wanted", v)
		}
	}
	if !purge {
		return noContent{}, s.catalog.Drop(r.Context(), r.table)
	}
	if err := s.purges.Acquire(r.Context(), 1); err != nil {
		return nil, err
	}
	defer s.purges.Release(1)
	return noContent{}, s.catalog.Purge(r.Context(), r.table)
}

func (s *Server) unregisterTable(r *request) (any, error) {
	t, err := s.catalog.Unregister(r.Context(), r.table)
	if err != nil {
		return nil, err
	}
	metadata, err := s.catalog.Document(t).JSON()
	if err != nil {
		return nil, err
	}
	return loaded{Location: t.MetadataLocation(), Metadata: metadata}, nil
}

// report counts the metrics that engines report, and keeps none.
func (s *Server) report(r *request) (any, error) {
	var body struct {
		Type string `json:"report-type"`
	}
	if err := r.decode(&body); err != nil {
		return nil, err
	}
	if body.Type != "scan-report" && body.Type != "commit-report" {
		return nil, invalid("report-type %.40q: scan-report or commit-report is wanted", body.Type)
	}
	if err := s.catalog.Exists(r.Context(), r.table, sql.Table); err != nil {
		return nil, err
	}
	s.metrics.reports.WithLabelValues(body.Type).Inc()
	return noContent{}, nil
}

type registerBody struct {
	Name      string `json:"name"`
	Location  string `json:"metadata-location"`
	Overwrite bool   `json:"overwrite"`
}

func (s *Server) registration(r *request) (id table.Identifier, body registerBody, err error) {
	if err := r.decode(&body); err != nil {
		return nil, body, err
	}
	if body.Name == "" || body.Location == "" {
		return nil, body, invalid("name and metadata-location are wanted")
	}
	if _, err := s.catalog.Namespace(r.Context(), r.namespace); err != nil {
		return nil, body, err
	}
	return named(r.namespace, body.Name), body, s.checkLocation(r, body.Location)
}

func (s *Server) registerTable(r *request) (any, error) {
	id, body, err := s.registration(r)
	if err != nil {
		return nil, err
	}
	if err := s.catalog.Free(r.Context(), id, sql.Table); err != nil && !(body.Overwrite && errors.Is(err, catalog.ErrTableExists)) {
		return nil, err
	}
	meta, err := s.catalog.ReadTable(r.Context(), body.Location)
	if err != nil {
		return nil, invalid("metadata file %s: %v", body.Location, err)
	}
	if err := s.checkMetadata(r, id, meta); err != nil {
		return nil, err
	}
	t, err := s.catalog.Register(r.Context(), id, meta, body.Location, body.Overwrite)
	return s.describe(r, t, err)
}

func (s *Server) renameTable(r *request) (any, error) {
	from, to, err := r.renaming()
	if err != nil {
		return nil, err
	}
	return noContent{}, s.catalog.Rename(r.Context(), from, to)
}

func (r *request) renaming() (from, to table.Identifier, err error) {
	var body struct {
		Source      identifier `json:"source"`
		Destination identifier `json:"destination"`
	}
	err = r.decode(&body)
	return body.Source.id(), body.Destination.id(), err
}

var _ catalog.Catalog = (*sql.Catalog)(nil)
