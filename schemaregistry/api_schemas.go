package schemaregistry

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

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
	answer := struct {
		SchemaType string                     `json:"schemaType,omitempty"`
		Schema     string                     `json:"schema"`
		References []metadata.SchemaReference `json:"references,omitempty"`
		MaxID      int                        `json:"maxId,omitempty"`
	}{SchemaType: answerType(s.Schema), Schema: s.Text, References: s.References}
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
	return plainText(s.Schema), nil
}

// A text is an answer that is no JSON.
type text string

// plainText is the text of a schema as an answer of its own.
func plainText(s metadata.Schema) any {
	if s.Type == typeProtobuf {
		return text(s.Text)
	}
	return json.RawMessage(s.Text)
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
		return (v.Deleted && !query(req, "deleted")) || (subject != "" && v.Subject != subject)
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
		if !strings.HasPrefix(s.Name, prefix) || len(answers) == limit {
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
			if offset--; offset < 0 && len(answers) < limit {
				answers = append(answers, answerVersion(v))
			}
		}
	}
	return answers, nil
}
