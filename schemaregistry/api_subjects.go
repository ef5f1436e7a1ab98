package schemaregistry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/streamstore"
)

// versionAnswer is a version of a subject as clients read it. The type is left out for Avro.
type versionAnswer struct {
	Subject    string                     `json:"subject"`
	Version    int                        `json:"version"`
	ID         int                        `json:"id"`
	SchemaType string                     `json:"schemaType,omitempty"`
	References []metadata.SchemaReference `json:"references,omitempty"`
	Schema     string                     `json:"schema"`
}

func answerVersion(v metadata.SubjectVersion) versionAnswer {
	return versionAnswer{v.Subject, v.Version, v.Schema.ID, answerType(v.Schema), v.Schema.References, v.Schema.Text}
}

// answerType is the type of a schema as answers name it: clients of old know only Avro.
func answerType(s metadata.Schema) string {
	if s.Type == typeAvro {
		return ""
	}
	return s.Type
}

func (r *Registry) register(req *http.Request) (any, error) {
	var q Request
	if err := readBody(req, &q); err != nil {
		return nil, err
	}
	v, err := r.Register(req.Context(), req.PathValue("subject"), q, query(req, "normalize"))
	if err != nil {
		return nil, err
	}
	return map[string]int{"id": v.Schema.ID}, nil
}

func (r *Registry) lookUp(req *http.Request) (any, error) {
	var q Request
	if err := readBody(req, &q); err != nil {
		return nil, err
	}
	name := req.PathValue("subject")
	subject, err := r.store.Subject(req.Context(), name)
	if err != nil {
		return nil, err
	}
	versions := subject.Versions
	if !query(req, "deleted") {
		versions = liveVersions(subject)
	}
	if len(versions) == 0 {
		return nil, subjectNotFound(name)
	}
	p, err := r.parse(req.Context(), q, query(req, "normalize"))
	if err != nil {
		return nil, err
	}
	if v, ok := find(versions, p.schema); ok {
		return answerVersion(v), nil
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
		if shown && strings.HasPrefix(s.Name, prefix) {
			names = append(names, s.Name)
		}
	}
	return page(req, names), nil
}

func (r *Registry) getVersions(req *http.Request) (any, error) {
	name := req.PathValue("subject")
	subject, err := r.store.Subject(req.Context(), name)
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, v := range subject.Versions {
		shown := !v.Deleted || query(req, "deleted")
		if query(req, "deletedOnly") {
			shown = v.Deleted
		}
		if shown {
			numbers = append(numbers, v.Version)
		}
	}
	if len(numbers) == 0 {
		return nil, subjectNotFound(name)
	}
	return page(req, numbers), nil
}

// version returns the version that the path names.
func (r *Registry) version(req *http.Request, deleted bool) (metadata.SubjectVersion, error) {
	name := req.PathValue("subject")
	number, err := versionNumber(req)
	if err != nil {
		return metadata.SubjectVersion{}, err
	}
	subject, err := r.store.Subject(req.Context(), name)
	if err != nil {
		return metadata.SubjectVersion{}, err
	}
	versions := subject.Versions
	if !deleted {
		versions = liveVersions(subject)
	}
	if len(versions) == 0 {
		return metadata.SubjectVersion{}, subjectNotFound(name)
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
	return answerVersion(v), nil
}

func (r *Registry) getVersionText(req *http.Request) (any, error) {
	v, err := r.version(req, query(req, "deleted"))
	if err != nil {
		return nil, err
	}
	return plainText(v.Schema), nil
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
	name, permanent := req.PathValue("subject"), query(req, "permanent")
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
		var numbers []int
		for _, v := range versions {
			numbers = append(numbers, v.Version)
		}
		return numbers, nil
	})
}

func (r *Registry) deleteVersion(req *http.Request) (any, error) {
	name, permanent := req.PathValue("subject"), query(req, "permanent")
	number, err := versionNumber(req)
	if err != nil {
		return nil, err
	}
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
		subject, err := r.store.Subject(ctx, name)
		if err != nil {
			return nil, err
		}
		numbers, err := choose(subject)
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
		r.cache.clear()
		return numbers, nil
	}
}
