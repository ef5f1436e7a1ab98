// Package server is an Iceberg REST catalog over the built-in SQL catalog, so that Spark,
// Trino, DuckDB, PyIceberg and others need no catalog of their own.
//
// It speaks version 1 of Iceberg's REST specification (open-api/rest-catalog-open-api.yaml
// of apache/iceberg): configuration, namespaces, tables with staged creates, views,
// transactions of several tables, metrics reports, idempotency keys, and on request OAuth2
// and credentials for the files of a table. Scan planning, remote signing and functions are
// not there, and not advertised.
//
// A request passes these steps, in this order, of which [Server.serve] is the frame:
//
//	authenticate   auth.go         bearer tokens, if there are clients
//	once           once.go         a request that is sent again is answered, not repeated
//	handle         namespaces.go, tables.go, views.go: one function per endpoint
//	check          locations.go    what a client names stays below the warehouse
//	answer         errors.go       alone chooses the status of an error
package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/sql"
)

// Config of a Server.
type Config struct {
	// Defaults are properties for the clients, such as s3.endpoint, s3.region,
	// s3.path-style-access or client.region. They are public: no secrets.
	Defaults map[string]string
	// Locations are those below which clients may place and register tables and views,
	// besides the warehouse.
	Locations []string
	// Clients may use the catalog. Everybody may if nil.
	Clients *Clients
	// Authenticated reports whether whoever sent a request was found out before, and may do it.
	// Nobody was if nil.
	Authenticated func(*http.Request) bool
	// Users get tokens for their passwords too. There are none if nil.
	Users Users
	// Credentials gives clients that ask for it access to the files of a table. Nobody gets
	// any if nil.
	Credentials Credentials
	// Metrics is where the metrics are registered; nowhere if nil.
	Metrics prometheus.Registerer
	// MaxBody bounds a request, in bytes. 64 MiB if zero.
	MaxBody int64
	// MaxBodies bounds all requests at a time, in bytes; further ones wait. Four times
	// MaxBody if zero.
	MaxBodies int64
}

// Server is an http.Handler for the paths below the prefix it is mounted at, /v1/… .
type Server struct {
	catalog *sql.Catalog
	locator catalog.Locator
	cfg     Config
	log     *slog.Logger
	mux     *http.ServeMux
	bodies  *semaphore.Weighted
	purges  *semaphore.Weighted
	metrics metrics
}

// separator joins the levels of a namespace in paths and queries.
const separator = "\x1f"

// maxPurges is how many tables are purged at a time; further ones wait.
const maxPurges = 2

// New returns a server over c. Mount it with http.StripPrefix.
func New(c *sql.Catalog, locator catalog.Locator, cfg Config, log *slog.Logger) *Server {
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 64 << 20
	}
	if cfg.MaxBodies == 0 {
		cfg.MaxBodies = 4 * cfg.MaxBody
	}
	cfg.MaxBodies = max(cfg.MaxBodies, cfg.MaxBody)
	s := &Server{catalog: c, locator: locator, cfg: cfg, log: log, mux: http.NewServeMux(),
		bodies: semaphore.NewWeighted(cfg.MaxBodies), purges: semaphore.NewWeighted(maxPurges), metrics: newMetrics(cfg.Metrics)}
	for _, e := range s.endpoints() {
		s.mux.HandleFunc(e.method+" "+e.path, s.serve(e))
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, fmt.Errorf("%w: %s %s", errNoEndpoint, r.Method, r.URL.Path))
	})
	return s
}

// An endpoint is one operation of the specification.
type endpoint struct {
	method, path string
	handle       func(*request) (any, error)
	// again answers a request whose effect came about before. Those without have no effect
	// on the catalog.
	again func(*request) (any, error)
}

// What handlers return, besides a value that becomes JSON.
type (
	// noContent is the answer of endpoints that have none.
	noContent struct{}
	// tagged has a version by which a client may ask whether it changed. The answer is 304
	// without value.
	tagged struct {
		etag  string
		value any
	}
)

func (s *Server) endpoints() []endpoint {
	done := func(*request) (any, error) { return noContent{}, nil }
	list := []endpoint{
		{"GET", "/v1/config", s.config, nil},
		{"GET", "/v1/namespaces", s.listNamespaces, nil},
		{"POST", "/v1/namespaces", s.createNamespace, s.createdNamespace},
		{"GET", "/v1/namespaces/{namespace}", s.loadNamespace, nil},
		{"HEAD", "/v1/namespaces/{namespace}", s.namespaceExists, nil},
		{"DELETE", "/v1/namespaces/{namespace}", s.dropNamespace, done},
		{"POST", "/v1/namespaces/{namespace}/properties", s.updateNamespace, s.updatedNamespace},
		{"GET", "/v1/namespaces/{namespace}/tables", s.listTables, nil},
		{"POST", "/v1/namespaces/{namespace}/tables", s.createTable, s.loadNamed},
		{"GET", "/v1/namespaces/{namespace}/tables/{table}", s.loadTable, nil},
		{"HEAD", "/v1/namespaces/{namespace}/tables/{table}", s.tableExists, nil},
		{"POST", "/v1/namespaces/{namespace}/tables/{table}", s.commitTable, s.loadTable},
		{"DELETE", "/v1/namespaces/{namespace}/tables/{table}", s.dropTable, done},
		{"POST", "/v1/namespaces/{namespace}/tables/{table}/unregister", s.unregisterTable, s.unregisteredTable},
		{"POST", "/v1/namespaces/{namespace}/tables/{table}/metrics", s.report, nil},
		{"POST", "/v1/namespaces/{namespace}/register", s.registerTable, s.loadNamed},
		{"POST", "/v1/tables/rename", s.renameTable, done},
		{"POST", "/v1/transactions/commit", s.commitTransaction, done},
		{"GET", "/v1/namespaces/{namespace}/views", s.listViews, nil},
		{"POST", "/v1/namespaces/{namespace}/views", s.createView, s.loadNamedView},
		{"GET", "/v1/namespaces/{namespace}/views/{table}", s.loadView, nil},
		{"HEAD", "/v1/namespaces/{namespace}/views/{table}", s.viewExists, nil},
		{"POST", "/v1/namespaces/{namespace}/views/{table}", s.commitView, s.loadView},
		{"DELETE", "/v1/namespaces/{namespace}/views/{table}", s.dropView, done},
		{"POST", "/v1/namespaces/{namespace}/register-view", s.registerView, s.loadNamedView},
		{"POST", "/v1/views/rename", s.renameView, done},
	}
	if s.cfg.Credentials != nil {
		list = append(list, endpoint{"GET", "/v1/namespaces/{namespace}/tables/{table}/credentials", s.loadCredentials, nil})
	}
	if s.cfg.Clients != nil || s.cfg.Users != nil {
		list = append(list, endpoint{"POST", tokenPath, s.token, nil})
	}
	return list
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// request is one call, with the parts of its path decoded.
type request struct {
	*http.Request
	body      []byte
	namespace table.Identifier
	table     table.Identifier // or a view's
}

func (s *Server) serve(e endpoint) http.HandlerFunc {
	name := e.method + " " + e.path
	return func(w http.ResponseWriter, r *http.Request) {
		status := &statusWriter{ResponseWriter: w}
		defer func() { s.metrics.requests.WithLabelValues(name, status.class()).Inc() }()
		result, err := s.answer(e, w, r)
		if err != nil {
			s.fail(status, r, err)
			return
		}
		s.succeed(status, r, result)
	}
}

func (s *Server) answer(e endpoint, w http.ResponseWriter, r *http.Request) (any, error) {
	if err := s.authenticate(e, r); err != nil {
		return nil, err
	}
	req := &request{Request: r}
	if name := r.PathValue("namespace"); name != "" {
		req.namespace = strings.Split(name, separator)
	}
	if name := r.PathValue("table"); name != "" {
		req.table = append(append(table.Identifier{}, req.namespace...), name)
	}
	if r.Method == http.MethodPost {
		// A client that is slow must not keep the memory of others.
		deadline := http.NewResponseController(w)
		_ = deadline.SetReadDeadline(time.Now().Add(maxBodyTime)) // every server of net/http can
		done, err := s.readBody(req)
		_ = deadline.SetReadDeadline(time.Time{})
		if err != nil {
			return nil, err
		}
		defer done()
	}
	if key := r.Header.Get("Idempotency-Key"); key != "" && e.again != nil {
		return s.once(e, req, key)
	}
	return e.handle(req)
}

func (s *Server) succeed(w http.ResponseWriter, r *http.Request, result any) {
	if t, ok := result.(tagged); ok {
		w.Header().Set("ETag", t.etag)
		if r.Method == http.MethodGet && matches(r.Header.Values("If-None-Match"), t.etag) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		result = t.value
	}
	if _, none := result.(noContent); none {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	var parts [][]byte
	var err error
	if l, ok := result.(loaded); ok {
		parts, err = l.text()
	} else {
		parts = make([][]byte, 1)
		parts[0], err = json.Marshal(result)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(size))
	for _, part := range parts {
		_, _ = w.Write(part) // the client may be gone
	}
}

// matches reports whether a client has the version etag already.
func matches(ifNoneMatch []string, etag string) bool {
	for _, line := range ifNoneMatch {
		for _, tag := range strings.Split(line, ",") {
			if tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/"); tag == etag {
				return true
			}
		}
	}
	return false
}

var (
	errNoEndpoint = errors.New("no such endpoint")
	errTooLarge   = errors.New("request body is too large")
)

// maxBodyTime is how long a client may take to send a body.
const maxBodyTime = time.Minute

// maxReport bounds a metrics report, in bytes.
const maxReport = 1 << 20

// readBody reads the body within the bounds, and returns what gives its memory back.
func (s *Server) readBody(r *request) (done func(), err error) {
	limit := s.cfg.MaxBody
	if strings.HasSuffix(r.URL.Path, "/metrics") {
		limit = min(limit, maxReport)
	}
	size := limit
	if r.ContentLength >= 0 {
		size = r.ContentLength
	}
	if size > limit {
		return nil, fmt.Errorf("%w: %d bytes, %d are allowed", errTooLarge, size, limit)
	}
	if err := s.bodies.Acquire(r.Context(), size); err != nil {
		return nil, err
	}
	done = func() { s.bodies.Release(size) }
	var body bytes.Buffer
	n, err := io.Copy(&body, io.LimitReader(r.Body, limit+1))
	switch {
	case err != nil:
		err = invalid("read the body: %v", err)
	case n > limit:
		err = fmt.Errorf("%w: %d bytes are allowed", errTooLarge, limit)
	default:
		err = checkDepth(body.Bytes())
	}
	if err != nil {
		done()
		return nil, err
	}
	r.body = body.Bytes()
	return done, nil
}

// maxDepth bounds the nesting of a JSON body: a type nested in types is parsed once for
// each level.
const maxDepth = 200

func checkDepth(body []byte) error {
	depth, text := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return invalid("the body is nested deeper than %d levels", maxDepth)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// decode parses the body as JSON.
func (r *request) decode(into any) error {
	if err := json.Unmarshal(r.body, into); err != nil {
		return invalid("the body is not as it should be: %v", err)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", sql.ErrInvalid, fmt.Sprintf(format, args...))
}

// config tells clients what to add to their own settings.
func (s *Server) config(*request) (any, error) {
	defaults := map[string]string{"warehouse": s.catalog.Warehouse()}
	for k, v := range s.cfg.Defaults {
		defaults[k] = v
	}
	var endpoints []string
	for _, e := range s.endpoints() {
		if e.path == "/v1/config" || e.path == tokenPath {
			continue // the specification lists neither
		}
		path := strings.Replace(e.path, "/v1/", "/v1/{prefix}/", 1)
		endpoints = append(endpoints, e.method+" "+strings.Replace(path, "/views/{table}", "/views/{view}", 1))
	}
	return map[string]any{"defaults": defaults, "overrides": map[string]string{}, "endpoints": endpoints,
		"idempotency-key-lifetime": fmt.Sprintf("PT%dM", int(sql.KeyLifetime.Minutes()))}, nil
}

// namespaceQuery returns a namespace that is given as a query parameter.
func namespaceQuery(values url.Values, name string) table.Identifier {
	if v := values.Get(name); v != "" {
		return strings.Split(v, separator)
	}
	return nil
}
