package schemaregistry

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/tabletopic/tabletopic/metadata"
)

// Apicurio's serializers do not speak Confluent's API. These are the calls of Apicurio's own, version 2,
// that its Avro serializers make, which frame records as Confluent's do if they are told so: an artifact of the
// group default is a subject, its global and its content id are the id of the schema.

const (
	apicurioPath  = "/apis/registry/v2"
	apicurioGroup = "default"
)

// apicurioCalls are the calls that [Registry.calls] has from here.
func (r *Registry) apicurioCalls() map[string]call {
	const artifacts = apicurioPath + "/groups/{group}/artifacts"
	return map[string]call{
		"POST " + artifacts:                                       inGroup(r.createArtifact),
		"GET " + artifacts + "/{subject}/meta":                    inGroup(r.getArtifact),
		"POST " + artifacts + "/{subject}/meta":                   inGroup(r.lookUpArtifact),
		"GET " + artifacts + "/{subject}/versions/{version}/meta": inGroup(r.getArtifactVersion),
		"GET " + apicurioPath + "/ids/{kind}/{id}":                r.getArtifactText,
		"GET " + apicurioPath + "/ids/{kind}/{id}/references":     r.getArtifactReferences,
	}
}

// artifactAnswer is a version of an artifact, as far as serializers look at it.
type artifactAnswer struct {
	Group     string `json:"groupId"`
	ID        string `json:"id"`
	Version   string `json:"version"`
	Type      string `json:"type"`
	State     string `json:"state"`
	GlobalID  int    `json:"globalId"`
	ContentID int    `json:"contentId"`
}

func answerArtifact(v metadata.SubjectVersion) artifactAnswer {
	return artifactAnswer{apicurioGroup, v.Subject, strconv.Itoa(v.Version), v.Schema.Type, "ENABLED", v.Schema.ID, v.Schema.ID}
}

// inGroup refuses groups other than the default one.
func inGroup(c call) call {
	return func(req *http.Request) (any, error) {
		if g := req.PathValue("group"); g != apicurioGroup {
			return nil, badRequest(http.StatusNotFound, "There is no group %.50q, only %q: subjects have no groups", g, apicurioGroup)
		}
		return c(req)
	}
}

// readContent is the body as a schema; its type is in a header.
func readContent(req *http.Request) (Request, error) {
	if t := req.Header.Get("Content-Type"); strings.HasPrefix(t, "application/create.extended+json") {
		return Request{}, badRequest(http.StatusUnsupportedMediaType, "Artifacts with references are not taken here: register them at /subjects")
	}
	b, err := io.ReadAll(req.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return Request{}, badRequest(http.StatusRequestEntityTooLarge, "The request body is larger than %d bytes", tooLarge.Limit)
	case err != nil:
		return Request{}, badRequest(http.StatusBadRequest, "The request body ends too early: %v", err)
	}
	return Request{Schema: string(b), SchemaType: req.Header.Get("X-Registry-ArtifactType")}, nil
}

// createArtifact registers a schema in the subject that a header names.
func (r *Registry) createArtifact(req *http.Request) (any, error) {
	q, err := readContent(req)
	if err != nil {
		return nil, err
	}
	name := req.Header.Get("X-Registry-ArtifactId")
	if !mayUse(req.Context(), name) {
		return nil, forbidden(name)
	}
	req.SetPathValue("subject", name)
	if name, err = r.subject(req); err != nil {
		return nil, err
	}
	v, warnings, err := r.Register(req.Context(), name, q, false)
	if err != nil {
		return nil, err
	}
	return warn(answerArtifact(v), warnings), nil
}

func (r *Registry) getArtifact(req *http.Request) (any, error) {
	req.SetPathValue("version", "latest")
	return r.getArtifactVersion(req)
}

func (r *Registry) getArtifactVersion(req *http.Request) (any, error) {
	v, err := r.version(req, false)
	if err != nil {
		return nil, err
	}
	return answerArtifact(v), nil
}

// lookUpArtifact finds the version of an artifact by its content.
func (r *Registry) lookUpArtifact(req *http.Request) (any, error) {
	q, err := readContent(req)
	if err != nil {
		return nil, err
	}
	_, versions, err := r.versions(req, false)
	if err != nil {
		return nil, err
	}
	if q.SchemaType == "" {
		q.SchemaType = versions[len(versions)-1].Schema.Type
	}
	v, err := r.lookUpIn(req, versions, q)
	if err != nil {
		return nil, err
	}
	return answerArtifact(v), nil
}

// artifact is the schema with the id of the path, be it called global or content id.
func (r *Registry) artifact(req *http.Request) (Schema, error) {
	if kind := req.PathValue("kind"); kind != "globalIds" && kind != "contentIds" {
		return Schema{}, badRequest(http.StatusNotFound, "HTTP 404 Not Found: %s", req.URL.Path)
	}
	return r.schema(req)
}

func (r *Registry) getArtifactText(req *http.Request) (any, error) {
	s, err := r.artifact(req)
	if err != nil {
		return nil, err
	}
	if query(req, "dereference") && s.Type == typeAvro {
		t, err := resolvedAvro(s.Text, s.Dependencies)
		return text(t), err
	}
	return text(s.Text), nil
}

func (r *Registry) getArtifactReferences(req *http.Request) (any, error) {
	s, err := r.artifact(req)
	if err != nil {
		return nil, err
	}
	type reference struct {
		Group   string `json:"groupId"`
		ID      string `json:"artifactId"`
		Version string `json:"version"`
		Name    string `json:"name"`
	}
	all := []reference{}
	for _, ref := range s.References {
		all = append(all, reference{apicurioGroup, ref.Subject, strconv.Itoa(ref.Version), ref.Name})
	}
	return all, nil
}
