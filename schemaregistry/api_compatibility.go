package schemaregistry

import (
	"errors"
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
		v, err := pick(live, number)
		return []metadata.SubjectVersion{v}, err
	})
}

func (r *Registry) test(req *http.Request, choose func(live []metadata.SubjectVersion) ([]metadata.SubjectVersion, error)) (any, error) {
	var q Request
	if err := readBody(req, &q); err != nil {
		return nil, err
	}
	name, err := r.subject(req)
	if err != nil {
		return nil, err
	}
	subject, err := r.readSubject(req.Context(), name)
	if err != nil {
		return nil, err
	}
	live := liveVersions(subject)
	versions, err := choose(live)
	if err != nil {
		return nil, err
	}
	c, err := r.configOf(req.Context(), name)
	if err != nil {
		return nil, err
	}
	verbose := query(req, "verbose")
	p, err := r.parse(req.Context(), q, query(req, "normalize") || c.normalize())
	var refused *apiError
	if verbose && errors.As(err, &refused) {
		return compatibilityAnswer{Messages: []string{refused.message}}, nil
	}
	if err != nil {
		return nil, err
	}
	p.schema = inherit(p.schema, live)
	v, err := r.judge(req.Context(), c, p, versions)
	if err != nil {
		return nil, err
	}
	answer := compatibilityAnswer{Compatible: v == nil}
	if v != nil && verbose {
		answer.Messages = v.messages()
	}
	return answer, nil
}
