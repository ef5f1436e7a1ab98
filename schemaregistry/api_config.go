package schemaregistry

import (
	"net/http"
	"slices"
	"strings"
)

// global is the subject whose settings hold for those that have none.
const global = ""

type levelAnswer struct {
	Level level `json:"compatibilityLevel"`
}

func (r *Registry) getGlobalConfig(req *http.Request) (any, error) {
	l, err := r.levelOf(req.Context(), global)
	return levelAnswer{l}, err
}

func (r *Registry) getConfig(req *http.Request) (any, error) {
	name := req.PathValue("subject")
	l, err := r.store.Compatibility(req.Context(), name)
	if err != nil {
		return nil, err
	}
	if l == "" && !query(req, "defaultToGlobal") {
		return nil, compatibilityNotConfigured(name)
	}
	if l == "" {
		return r.getGlobalConfig(req)
	}
	return levelAnswer{level(l)}, nil
}

func (r *Registry) putGlobalConfig(req *http.Request) (any, error) { return r.setLevel(req, global) }

func (r *Registry) putConfig(req *http.Request) (any, error) {
	name := req.PathValue("subject")
	if err := checkSubject(name); err != nil {
		return nil, err
	}
	return r.setLevel(req, name)
}

func (r *Registry) setLevel(req *http.Request, subject string) (any, error) {
	type config struct {
		Compatibility string `json:"compatibility"`
	}
	var c config
	if err := readBody(req, &c); err != nil {
		return nil, err
	}
	l := level(strings.ToUpper(c.Compatibility))
	if !slices.Contains(levels, l) {
		return nil, invalidLevel(c.Compatibility)
	}
	if err := r.store.SetCompatibility(req.Context(), subject, string(l)); err != nil {
		return nil, err
	}
	return config{string(l)}, nil
}

func (r *Registry) deleteGlobalConfig(req *http.Request) (any, error) {
	l, err := r.levelOf(req.Context(), global)
	if err != nil {
		return nil, err
	}
	return levelAnswer{l}, r.store.SetCompatibility(req.Context(), global, "")
}

func (r *Registry) deleteConfig(req *http.Request) (any, error) {
	name := req.PathValue("subject")
	l, err := r.store.Compatibility(req.Context(), name)
	if err != nil {
		return nil, err
	}
	if l == "" {
		return nil, subjectNotFound(name)
	}
	return levelAnswer{level(l)}, r.store.SetCompatibility(req.Context(), name, "")
}

// readWrite is the only mode so far: everything is allowed but choosing ids.
const readWrite = "READWRITE"

type modeAnswer struct {
	Mode string `json:"mode"`
}

func (r *Registry) getGlobalMode(*http.Request) (any, error) { return modeAnswer{readWrite}, nil }

func (r *Registry) getMode(req *http.Request) (any, error) {
	if !query(req, "defaultToGlobal") {
		return nil, modeNotConfigured(req.PathValue("subject"))
	}
	return modeAnswer{readWrite}, nil
}

func (r *Registry) putMode(req *http.Request) (any, error) {
	var m modeAnswer
	if err := readBody(req, &m); err != nil {
		return nil, err
	}
	switch strings.ToUpper(m.Mode) {
	case readWrite:
		return modeAnswer{readWrite}, nil
	case "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD":
		return nil, notPermitted("This registry has only the mode " + readWrite)
	}
	return nil, badMode(m.Mode)
}

func badMode(mode string) error {
	if mode == "" {
		return badRequest(http.StatusUnprocessableEntity, "The body needs a field \"mode\"")
	}
	return invalidMode(mode)
}
