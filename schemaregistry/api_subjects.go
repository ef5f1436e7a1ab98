package schemaregistry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/streamstore"
)

// schemaAnswer is what answers say of a schema. The type is left out for Avro: clients of old
// know no other.
type schemaAnswer struct {
	GUID       string                     `json:"guid"`
	SchemaType string                     `json:"schemaType,omitempty"`
	Schema     string                     `json:"schema"`
	References []metadata.SchemaReference `json:"references,omitempty"`
	Metadata   json.RawMessage            `json:"metadata,omitempty"`
	RuleSet    json.RawMessage            `json:"ruleSet,omitempty"`
}

// answerSchema writes a schema in the format that the query names.
func (r *Registry) answerSchema(req *http.Request, s metadata.Schema) (schemaAnswer, error) {
	a := schemaAnswer{GUID: s.GUID.String(), References: s.References, Metadata: json.RawMessage(s.Metadata), RuleSet: json.RawMessage(s.RuleSet)}
	if s.Type != typeAvro {
		a.SchemaType = s.Type
	}
	var err error
	a.Schema, err = r.formatted(req, s)
	return a, err
}

// formatted is the text of a schema in the format that the query names.
func (r *Registry) formatted(req *http.Request, s metadata.Schema) (string, error) {
	format := req.URL.Query().Get("format")
	if format == "" || format == "default" {
		return s.Text, nil
	}
	dependencies, err := r.dependencies(req.Context(), s.References)
	if err != nil {
		return "", err
	}
	switch {
	case format == "resolved" && s.Type == typeAvro:
		return resolvedAvro(s.Text, dependencies)
	case format == "serialized" && s.Type == typeProtobuf:
		return serializedProtobuf(s.Text, dependencies)
	}
	return "", badRequest(http.StatusUnprocessableEntity, "There is no format %q of a schema of type %s: there is resolved for AVRO and serialized for PROTOBUF", format, s.Type)
}

// versionAnswer is a version of a subject as clients read it.
type versionAnswer struct {
	Subject string `json:"subject"`
	Version int    `json:"version"`
	ID      int    `json:"id"`
	schemaAnswer
	Deleted bool `json:"deleted,omitempty"`
}

func (r *Registry) answerVersion(req *http.Request, v metadata.SubjectVersion) (versionAnswer, error) {
	s, err := r.answerSchema(req, v.Schema)
	return versionAnswer{v.Subject, v.Version, v.Schema.ID, s, v.Deleted}, err
}

// subject returns the subject that the path means: by its name, in the default context, or by
// an alias.
func (r *Registry) subject(req *http.Request) (string, error) {
	name := strings.TrimPrefix(req.PathValue("subject"), ":.:")
	c, err := r.ownConfig(req.Context(), name)
	if err != nil {
		return "", err
	}
	name = cmp.Or(c.Alias, name)
	if name != req.PathValue("subject") && !mayUse(req.Context(), name) {
		return "", forbidden(name)
	}
	return name, nil
}

func (r *Registry) register(req *http.Request) (any, error) {
	var q Request
	if err := readBody(req, &q); err != nil {
		return nil, err
	}
	name, err := r.subject(req)
	if err != nil {
		return nil, err
	}
	if req.URL.Query().Has("dryRun") {
		return r.dryRunVersion(req, name, q)
	}
	v, warnings, err := r.Register(req.Context(), name, q, query(req, "normalize"))
	if err != nil {
		return nil, err
	}
	a, err := r.answerSchema(req, v.Schema)
	return warn(struct {
		ID      int `json:"id"`
		Version int `json:"version"`
		schemaAnswer
	}{v.Schema.ID, v.Version, a}, warnings), err
}

func (r *Registry) lookUp(req *http.Request) (any, error) {
	var q Request
	if err := readBody(req, &q); err != nil {
		return nil, err
	}
	_, versions, err := r.versions(req, query(req, "deleted"))
	if err != nil {
		return nil, err
	}
	v, err := r.lookUpIn(req, versions, q)
	if err != nil {
		return nil, err
	}
	return r.answerVersion(req, v)
}

// lookUpIn returns the one of a subject's versions that is the schema.
func (r *Registry) lookUpIn(req *http.Request, versions []metadata.SubjectVersion, q Request) (metadata.SubjectVersion, error) {
	c, err := r.configOf(req.Context(), versions[0].Subject)
	if err != nil {
		return metadata.SubjectVersion{}, err
	}
	p, err := r.parse(req.Context(), q, query(req, "normalize") || c.normalize())
	if err != nil {
		return metadata.SubjectVersion{}, err
	}
	v, ok := find(versions, p.schema)
	if !ok {
		v, ok = find(versions, inherit(p.schema, versions))
	}
	if !ok {
		return v, schemaNotFound("")
	}
	return v, nil
}

// versions returns the versions of the path's subject, of which there is at least one.
func (r *Registry) versions(req *http.Request, deleted bool) (name string, versions []metadata.SubjectVersion, err error) {
	if name, err = r.subject(req); err != nil {
		return "", nil, err
	}
	subject, err := r.readSubject(req.Context(), name)
	if err != nil {
		return name, nil, err
	}
	versions = subject.Versions
	if !deleted {
		versions = liveVersions(subject)
	}
	if len(versions) == 0 {
		return name, nil, subjectNotFound(name)
	}
	return name, versions, nil
}

// getLatestWithMetadata returns the latest version whose metadata have the properties that
// the query names, by pairs of key and value.
func (r *Registry) getLatestWithMetadata(req *http.Request) (any, error) {
	_, versions, err := r.versions(req, query(req, "deleted"))
	if err != nil {
		return nil, err
	}
	keys, values := req.URL.Query()["key"], req.URL.Query()["value"]
	if len(keys) != len(values) {
		return nil, badRequest(http.StatusUnprocessableEntity, "The query has %d keys and %d values", len(keys), len(values))
	}
	for _, v := range slices.Backward(versions) {
		matches := true
		for i, key := range keys {
			matches = matches && property(v.Schema, key) == values[i]
		}
		if matches {
			return r.answerVersion(req, v)
		}
	}
	return nil, schemaNotFound("")
}

func (r *Registry) getSubjects(req *http.Request) (any, error) {
	all, err := r.store.Subjects(req.Context())
	if err != nil {
		return nil, err
	}
	prefix := req.URL.Query().Get("subjectPrefix")
	prefix = strings.TrimPrefix(prefix, ":*:") // every context: there is only the default one
	var names []string
	for _, s := range all {
		shown := !s.Deleted || query(req, "deleted")
		if query(req, "deletedOnly") {
			shown = s.Deleted
		}
		if shown && strings.HasPrefix(s.Name, prefix) && mayUse(req.Context(), s.Name) {
			names = append(names, s.Name)
		}
	}
	return page(req, names), nil
}

func (r *Registry) getVersions(req *http.Request) (any, error) {
	name, versions, err := r.versions(req, true)
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, v := range versions {
		number := v.Version
		if v.Deleted && query(req, "deletedAsNegative") {
			number = -number
		}
		shown := !v.Deleted || query(req, "deleted") || query(req, "deletedAsNegative")
		if query(req, "deletedOnly") {
			shown = v.Deleted
		}
		if shown {
			numbers = append(numbers, number)
		}
	}
	if len(numbers) == 0 {
		return nil, subjectNotFound(name)
	}
	return page(req, numbers), nil
}

// version returns the version that the path names.
func (r *Registry) version(req *http.Request, deleted bool) (metadata.SubjectVersion, error) {
	number, err := versionNumber(req)
	if err != nil {
		return metadata.SubjectVersion{}, err
	}
	_, versions, err := r.versions(req, deleted)
	if err != nil {
		return metadata.SubjectVersion{}, err
	}
	return pick(versions, number)
}

// latest stands for the last version of a subject.
const latest = -1

// versionNumber reads the version of the path: a number from 1, "latest", or -1 for it.
func versionNumber(req *http.Request) (int, error) {
	s := req.PathValue("version")
	if s == "latest" {
		return latest, nil
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n == 0 || n < latest {
		return 0, invalidVersion(s)
	}
	return int(n), nil
}

// pick returns the version of that number, or the last of those given.
func pick(versions []metadata.SubjectVersion, number int) (metadata.SubjectVersion, error) {
	if number == latest && len(versions) > 0 {
		return versions[len(versions)-1], nil
	}
	for _, v := range versions {
		if v.Version == number {
			return v, nil
		}
	}
	return metadata.SubjectVersion{}, versionNotFound(strconv.Itoa(number))
}

func (r *Registry) getVersion(req *http.Request) (any, error) {
	v, err := r.version(req, query(req, "deleted"))
	if err != nil {
		return nil, err
	}
	return r.answerVersion(req, v)
}

func (r *Registry) getVersionText(req *http.Request) (any, error) {
	v, err := r.version(req, query(req, "deleted"))
	if err != nil {
		return nil, err
	}
	return r.plainText(req, v.Schema)
}

func (r *Registry) getReferencedBy(req *http.Request) (any, error) {
	v, err := r.version(req, true)
	if err != nil {
		return nil, err
	}
	users, err := r.store.ReferencedBy(req.Context(), v.Subject, v.Version)
	if err != nil {
		return nil, err
	}
	var ids []int
	for _, u := range users {
		if !u.Deleted || query(req, "deleted") {
			ids = append(ids, u.Schema.ID)
		}
	}
	return page(req, ids), nil
}

func (r *Registry) deleteSubject(req *http.Request) (any, error) {
	name, err := r.subject(req)
	if err != nil {
		return nil, err
	}
	permanent := query(req, "permanent")
	return r.deleteVersions(req.Context(), name, permanent, func(s metadata.Subject) ([]int, error) {
		live := liveVersions(s)
		versions := live
		switch {
		case len(s.Versions) == 0:
			return nil, subjectNotFound(name)
		case permanent && len(live) > 0:
			return nil, subjectNotSoftDeleted(name)
		case permanent:
			versions = s.Versions
		case len(live) == 0:
			return nil, subjectSoftDeleted(name)
		}
		return numbersOf(versions), nil
	})
}

func numbersOf(versions []metadata.SubjectVersion) []int {
	var numbers []int
	for _, v := range versions {
		numbers = append(numbers, v.Version)
	}
	return numbers
}

func (r *Registry) deleteVersion(req *http.Request) (any, error) {
	number, err := versionNumber(req)
	if err != nil {
		return nil, err
	}
	name, err := r.subject(req)
	if err != nil {
		return nil, err
	}
	permanent := query(req, "permanent")
	deleted, err := r.deleteVersions(req.Context(), name, permanent, func(s metadata.Subject) ([]int, error) {
		versions := s.Versions
		if number == latest && !permanent {
			versions = liveVersions(s)
		}
		if len(versions) == 0 || (!permanent && len(liveVersions(s)) == 0 && number == latest) {
			return nil, subjectNotFound(name)
		}
		v, err := pick(versions, number)
		switch {
		case err != nil:
			return nil, err
		case v.Deleted && !permanent:
			return nil, versionSoftDeleted(name, v.Version)
		case !v.Deleted && permanent:
			return nil, versionNotSoftDeleted(name, v.Version)
		}
		return []int{v.Version}, nil
	})
	if err != nil {
		return nil, err
	}
	return deleted[0], nil
}

// deleteVersions deletes those that choose names, and begins anew when the subject changed
// meanwhile.
func (r *Registry) deleteVersions(ctx context.Context, name string, permanent bool, choose func(metadata.Subject) ([]int, error)) ([]int, error) {
	for {
		subject, err := r.readSubject(ctx, name)
		if err != nil {
			return nil, err
		}
		numbers, err := choose(subject)
		if err != nil {
			return nil, err
		}
		c, err := effective(subject.Own, subject.Global)
		if err == nil {
			err = c.checkWritable(name)
		}
		if err != nil {
			return nil, err
		}
		err = r.store.DeleteVersions(ctx, subject, numbers, permanent)
		switch {
		case errors.Is(err, streamstore.ErrConflict) && ctx.Err() == nil:
			continue
		case errors.Is(err, metadata.ErrReferenceExists):
			return nil, referenceExists(fmt.Sprintf("One or more references exist to the schema (%v): delete those first", err))
		case err != nil:
			return nil, err
		}
		r.schemas.clear()
		return numbers, nil
	}
}
