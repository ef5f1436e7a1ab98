package schemaregistry

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/metadata"
)

// schema returns the schema that the path names by id.
func (r *Registry) schema(req *http.Request) (Schema, error) {
	s := req.PathValue("id")
	id, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		return Schema{}, badRequest(http.StatusNotFound, "HTTP 404 Not Found: %q is no schema id", s)
	}
	schema, err := r.Schema(req.Context(), int(id))
	if errors.Is(err, metadata.ErrSchemaNotExist) {
		return schema, schemaNotFound(s)
	}
	return schema, err
}

func (r *Registry) getSchema(req *http.Request) (any, error) {
	s, err := r.schema(req)
	if err != nil {
		return nil, err
	}
	return r.answerID(req, s.Schema)
}

// answerID is the answer to an id.
func (r *Registry) answerID(req *http.Request, s metadata.Schema) (any, error) {
	var answer struct {
		schemaAnswer
		MaxID int `json:"maxId,omitempty"`
	}
	var err error
	if answer.schemaAnswer, err = r.answerSchema(req, s); err != nil {
		return nil, err
	}
	if query(req, "fetchMaxId") {
		if answer.MaxID, err = r.store.MaxSchemaID(req.Context()); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

func (r *Registry) getSchemaText(req *http.Request) (any, error) {
	s, err := r.schema(req)
	if err != nil {
		return nil, err
	}
	return r.plainText(req, s.Schema)
}

// A text is an answer that is no JSON.
type text string

// plainText is the text of a schema as an answer of its own.
func (r *Registry) plainText(req *http.Request, s metadata.Schema) (any, error) {
	t, err := r.formatted(req, s)
	if err != nil {
		return nil, err
	}
	return text(t), nil
}

// byGUID returns the schema that the path names by its GUID.
func (r *Registry) byGUID(req *http.Request) (metadata.Schema, error) {
	s := req.PathValue("guid")
	guid, err := uuid.Parse(s)
	if err != nil {
		return metadata.Schema{}, schemaNotFound(s)
	}
	schema, err := r.store.SchemaByGUID(req.Context(), guid)
	if errors.Is(err, metadata.ErrSchemaNotExist) {
		return schema, schemaNotFound(s)
	}
	return schema, err
}

func (r *Registry) getByGUID(req *http.Request) (any, error) {
	s, err := r.byGUID(req)
	if err != nil {
		return nil, err
	}
	return r.answerID(req, s)
}

func (r *Registry) getIDsOfGUID(req *http.Request) (any, error) {
	s, err := r.byGUID(req)
	if err != nil {
		return nil, err
	}
	return []map[string]any{{"context": ".", "id": s.ID}}, nil
}

// versionsOf returns the versions that are the schema of the path.
func (r *Registry) versionsOf(req *http.Request) ([]metadata.SubjectVersion, error) {
	s, err := r.schema(req)
	if err != nil {
		return nil, err
	}
	all, err := r.store.VersionsOf(req.Context(), s.ID)
	if err != nil {
		return nil, err
	}
	subject := req.URL.Query().Get("subject")
	return slices.DeleteFunc(all, func(v metadata.SubjectVersion) bool {
		return (v.Deleted && !query(req, "deleted")) || (subject != "" && v.Subject != subject) || !mayUse(req.Context(), v.Subject)
	}), nil
}

func (r *Registry) getSchemaSubjects(req *http.Request) (any, error) {
	all, err := r.versionsOf(req)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, v := range all {
		names = append(names, v.Subject)
	}
	return page(req, slices.Compact(names)), nil
}

func (r *Registry) getSchemaVersions(req *http.Request) (any, error) {
	all, err := r.versionsOf(req)
	if err != nil {
		return nil, err
	}
	type answer struct {
		Subject string `json:"subject"`
		Version int    `json:"version"`
	}
	var versions []answer
	for _, v := range all {
		versions = append(versions, answer{v.Subject, v.Version})
	}
	return page(req, versions), nil
}

// maxListed bounds the versions in one answer of getSchemas; offset and limit lead further.
const maxListed = 1000

func (r *Registry) getSchemas(req *http.Request) (any, error) {
	subjects, err := r.store.Subjects(req.Context())
	if err != nil {
		return nil, err
	}
	prefix := strings.TrimPrefix(req.URL.Query().Get("subjectPrefix"), ":*:")
	offset, _ := strconv.Atoi(req.URL.Query().Get("offset"))
	limit, err := strconv.Atoi(req.URL.Query().Get("limit"))
	if err != nil || limit < 0 || limit > maxListed {
		limit = maxListed
	}
	answers := []versionAnswer{}
	for _, s := range subjects {
		if !strings.HasPrefix(s.Name, prefix) || len(answers) == limit || !mayUse(req.Context(), s.Name) {
			continue
		}
		subject, err := r.store.Subject(req.Context(), s.Name)
		if err != nil {
			return nil, err
		}
		versions := subject.Versions
		if !query(req, "deleted") {
			versions = liveVersions(subject)
		}
		if n := len(versions); n > 0 && query(req, "latestOnly") {
			versions = versions[n-1:]
		}
		for _, v := range versions {
			if offset--; offset >= 0 || len(answers) == limit {
				continue
			}
			a, err := r.answerVersion(req, v)
			if err != nil {
				return nil, err
			}
			answers = append(answers, a)
		}
	}
	return answers, nil
}
