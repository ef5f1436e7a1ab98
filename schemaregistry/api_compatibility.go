package schemaregistry

import (
	"net/http"

	"github.com/tabletopic/tabletopic/metadata"
)

type compatibilityAnswer struct {
	Compatible bool     `json:"is_compatible"`
	Messages   []string `json:"messages,omitempty"`
}

// testAll compares a schema with the versions that the subject's level names.
func (r *Registry) testAll(req *http.Request) (any, error) {
	return r.test(req, func(live []metadata.SubjectVersion) ([]metadata.SubjectVersion, error) { return live, nil })
}

// testVersion compares a schema with one version. Any schema may follow the latest of none.
func (r *Registry) testVersion(req *http.Request) (any, error) {
	number, err := versionNumber(req)
	if err != nil {
		return nil, err
	}
	return r.test(req, func(live []metadata.SubjectVersion) ([]metadata.SubjectVersion, error) {
		if len(live) == 0 && number == latest {
			return nil, nil
		}
		if len(live) == 0 {
			return nil, subjectNotFound(req.PathValue("subject"))
		}
		v, err := pick(live, number)
		return []metadata.SubjectVersion{v}, err
	})
}

func (r *Registry) test(req *http.Request, choose func(live []metadata.SubjectVersion) ([]metadata.SubjectVersion, error)) (any, error) {
	var q Request
	if err := readBody(req, &q); err != nil {
		return nil, err
	}
	name := req.PathValue("subject")
	subject, err := r.store.Subject(req.Context(), name)
	if err != nil {
		return nil, err
	}
	versions, err := choose(liveVersions(subject))
	if err != nil {
		return nil, err
	}
	p, err := r.parse(req.Context(), q, query(req, "normalize"))
	if err != nil {
		return nil, err
	}
	l, err := r.levelOf(req.Context(), name)
	if err != nil {
		return nil, err
	}
	v, err := r.judge(req.Context(), l, p, versions)
	if err != nil {
		return nil, err
	}
	answer := compatibilityAnswer{Compatible: v == nil}
	if v != nil && query(req, "verbose") {
		answer.Messages = v.messages()
	}
	return answer, nil
}
