package schemaregistry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// contentType is what answers have if the client accepts anything, or nothing that there is.
const contentType = "application/vnd.schemaregistry.v1+json"

var (
	answerTypes   = []string{contentType, "application/vnd.schemaregistry+json", "application/json"} // the best first
	acceptedTypes = append(slices.Clone(answerTypes), "application/octet-stream")
)

// answerType is the one of answerTypes that a client would rather have (RFC 9110, section 12.5.1). One that
// has room for none of them gets an answer all the same.
func answerType(accept string) string {
	best, most := contentType, 0.0
	for _, t := range answerTypes {
		quality, specific := 0.0, 0
		for part := range strings.SplitSeq(accept, ",") {
			mediaType, parameters, err := mime.ParseMediaType(part)
			if err != nil {
				continue
			}
			s := 0
			switch mediaType {
			case t:
				s = 3
			case "application/*":
				s = 2
			case "*/*":
				s = 1
			}
			if s <= specific {
				continue
			}
			specific, quality = s, 1
			if q, ok := parameters["q"]; ok {
				quality, _ = strconv.ParseFloat(q, 64)
			}
		}
		if quality > most {
			best, most = t, quality
		}
	}
	return best
}

// methods are those that some path of the API takes.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete}

// A call is one request: it returns what is written as JSON, or an error.
type call func(req *http.Request) (any, error)

// Handler returns the HTTP API, with paths from the root. What it does not know it answers
// with 404.
func (r *Registry) Handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, c := range r.calls() {
		mux.Handle(pattern, r.serve(c))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		var allowed []string
		for _, m := range methods {
			other := req.Clone(req.Context())
			other.Method = m
			if _, pattern := mux.Handler(other); pattern != "/" {
				allowed = append(allowed, m)
			}
		}
		if len(allowed) > 0 {
			w.Header().Set("Allow", strings.Join(append(allowed, http.MethodOptions), ", "))
		}
		r.serve(func(*http.Request) (any, error) {
			switch {
			case len(allowed) == 0:
				return nil, badRequest(http.StatusNotFound, "HTTP 404 Not Found: %s", req.URL.Path)
			case req.Method == http.MethodOptions:
				return struct{}{}, nil
			}
			return nil, badRequest(http.StatusMethodNotAllowed, "HTTP 405 Method Not Allowed: %s %s", req.Method, req.URL.Path)
		}).ServeHTTP(w, req)
	})
	return mux
}

// Patterns returns the calls of the API, as http.ServeMux writes them: whoever lets clients in
// knows what there is to let them do.
func (r *Registry) Patterns() []string { return slices.Sorted(maps.Keys(r.calls())) }

func (r *Registry) calls() map[string]call {
	all := map[string]call{
		"GET /{$}":                 func(*http.Request) (any, error) { return struct{}{}, nil },
		"GET /v1/metadata/id":      r.getClusterID,
		"GET /v1/metadata/version": r.getServerVersion,
		"GET /contexts":            func(*http.Request) (any, error) { return []string{"."}, nil },

		"GET /schemas":                   r.getSchemas,
		"GET /schemas/types":             func(*http.Request) (any, error) { return types, nil },
		"GET /schemas/ids/{id}":          r.getSchema,
		"GET /schemas/ids/{id}/schema":   r.getSchemaText,
		"GET /schemas/ids/{id}/subjects": r.getSchemaSubjects,
		"GET /schemas/ids/{id}/versions": r.getSchemaVersions,
		"GET /schemas/guids/{guid}":      r.getByGUID,
		"GET /schemas/guids/{guid}/ids":  r.getIDsOfGUID,

		"GET /subjects":                                           r.getSubjects,
		"POST /subjects/{subject}":                                r.lookUp,
		"DELETE /subjects/{subject}":                              r.deleteSubject,
		"GET /subjects/{subject}/metadata":                        r.getLatestWithMetadata,
		"GET /subjects/{subject}/versions":                        r.getVersions,
		"POST /subjects/{subject}/versions":                       r.register,
		"GET /subjects/{subject}/versions/{version}":              r.getVersion,
		"GET /subjects/{subject}/versions/{version}/schema":       r.getVersionText,
		"GET /subjects/{subject}/versions/{version}/referencedby": r.getReferencedBy,
		"DELETE /subjects/{subject}/versions/{version}":           r.deleteVersion,

		"POST /compatibility/subjects/{subject}/versions":           r.testAll,
		"POST /compatibility/subjects/{subject}/versions/{version}": r.testVersion,

		"GET /api/schemas":  r.exportRecords,
		"POST /api/schemas": r.importRecords,

		"GET /config":              r.getGlobalConfig,
		"PUT /config":              r.putGlobalConfig,
		"DELETE /config":           r.deleteGlobalConfig,
		"GET /config/{subject}":    r.getConfig,
		"PUT /config/{subject}":    r.putConfig,
		"DELETE /config/{subject}": r.deleteConfig,
		"GET /mode":                r.getGlobalMode,
		"PUT /mode":                r.putGlobalMode,
		"DELETE /mode":             r.deleteGlobalMode,
		"GET /mode/{subject}":      r.getMode,
		"PUT /mode/{subject}":      r.putMode,
		"DELETE /mode/{subject}":   r.deleteMode,
	}
	maps.Copy(all, r.apicurioCalls())
	return all
}

// serve runs a call and writes its answer. A panic ends the request, not the process.
func (r *Registry) serve(c call) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body := http.MaxBytesReader(w, req.Body, int64(2*r.cfg.MaxSchemaBytes+64<<10))
		req.Body = body
		answer, err := r.guarded(c, req)
		status := http.StatusOK
		if err != nil {
			status, answer = r.failure(req, err)
		}
		w.Header().Set("Content-Type", answerType(req.Header.Get("Accept")))
		if h, ok := answer.(withHeader); ok {
			maps.Copy(w.Header(), h.header)
			answer = h.answer
		}
		w.WriteHeader(status)
		if t, ok := answer.(text); ok {
			io.WriteString(w, string(t))
			return
		}
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.Encode(answer) // what fails here is the connection
	})
}

func (r *Registry) guarded(c call, req *http.Request) (answer any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return c(req)
}

type errorAnswer struct {
	Code    int    `json:"error_code"`
	Message string `json:"message"`
}

// failure turns an error into an answer. Clients repeat what failed with a status of 500.
func (r *Registry) failure(req *http.Request, err error) (int, errorAnswer) {
	var known *apiError
	switch {
	case errors.As(err, &known):
		return known.status, errorAnswer{known.code, known.message}
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusInternalServerError, errorAnswer{50002, "The operation timed out: try again"}
	case req.Context().Err() == nil:
		r.log.LogAttrs(req.Context(), slog.LevelError, "schema registry request failed",
			slog.String("method", req.Method), slog.String("path", req.URL.Path), slog.Any("err", err))
	}
	return http.StatusInternalServerError, errorAnswer{50001, "Error in the backend data store: try again; the server's log has the cause"}
}

// readBody decodes the JSON body into v.
func readBody(req *http.Request, v any) error {
	if t := req.Header.Get("Content-Type"); t != "" {
		mediaType, _, err := mime.ParseMediaType(t)
		if err != nil || !contains(acceptedTypes, mediaType) {
			return badRequest(http.StatusUnsupportedMediaType, "HTTP 415 Unsupported Media Type %q: send %s", t, contentType)
		}
	}
	d := json.NewDecoder(req.Body)
	err := d.Decode(v)
	var tooLarge *http.MaxBytesError
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &tooLarge):
		return badRequest(http.StatusRequestEntityTooLarge, "The request body is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, io.EOF):
		return badRequest(http.StatusUnprocessableEntity, "The request has no body, want a JSON object")
	case errors.As(err, &wrongType):
		return badRequest(http.StatusUnprocessableEntity, "The field %q of the body cannot be a %s", wrongType.Field, wrongType.Value)
	case err != nil:
		return badRequest(http.StatusBadRequest, "The request body is not JSON: %v", err)
	}
	return nil
}

func contains(all []string, s string) bool {
	for _, a := range all {
		if strings.EqualFold(a, s) {
			return true
		}
	}
	return false
}

// query returns a flag of the query string, false if it is not there.
func query(req *http.Request, name string) bool {
	v, _ := strconv.ParseBool(req.URL.Query().Get(name))
	return v
}

// page cuts a list by the query's offset and limit, as far as they are given.
func page[T any](req *http.Request, all []T) []T {
	q := req.URL.Query()
	if n, err := strconv.Atoi(q.Get("offset")); err == nil && n > 0 {
		all = all[min(n, len(all)):]
	}
	if n, err := strconv.Atoi(q.Get("limit")); err == nil && n >= 0 {
		all = all[:min(n, len(all))]
	}
	if all == nil {
		all = []T{} // [] rather than null
	}
	return all
}

func (r *Registry) getClusterID(*http.Request) (any, error) {
	id := r.store.ClusterID()
	return map[string]any{"id": id, "scope": map[string]any{
		"path": []string{}, "clusters": map[string]string{"kafka-cluster": id, "schema-registry-cluster": "schema-registry"}}}, nil
}

func (r *Registry) getServerVersion(*http.Request) (any, error) {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
	}
	return map[string]string{"version": "tabletopic " + version, "commitId": ""}, nil
}
