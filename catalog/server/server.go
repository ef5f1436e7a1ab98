// Package server is an Iceberg REST catalog over the built-in SQL catalog, so that Spark,
// Trino, DuckDB, PyIceberg and others need no catalog of their own.
//
// It speaks version 1 of Iceberg's REST specification (open-api/rest-catalog-open-api.yaml
// of apache/iceberg): configuration, namespaces, and tables with create, staged create,
// register, load, commit, rename and drop. Views, scan planning and commits of several
// tables are not there, and not advertised. It has no authentication of its own and
// hands out no credentials: engines bring theirs.
//
// One handler per endpoint, in namespaces.go and tables.go; each returns a value or an
// error, and errors.go alone chooses the status.
package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/sql"
)

// Config of a Server.
type Config struct {
	// Defaults are properties for the clients, such as s3.endpoint, s3.region,
	// s3.path-style-access or client.region. They are public: no secrets.
	Defaults map[string]string
	// MaxBody bounds a request, in bytes. 64 MiB if zero.
	MaxBody int64
}

// Server is an http.Handler for the paths below the prefix it is mounted at, /v1/… .
type Server struct {
	catalog *sql.Catalog
	locator catalog.Locator
	cfg     Config
	log     *slog.Logger
	mux     *http.ServeMux
}

// separator joins the levels of a namespace in paths and queries.
const separator = "\x1f"

// New returns a server over c. Mount it with http.StripPrefix.
func New(c *sql.Catalog, locator catalog.Locator, cfg Config, log *slog.Logger) *Server {
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 64 << 20
	}
	s := &Server{catalog: c, locator: locator, cfg: cfg, log: log, mux: http.NewServeMux()}
	for _, e := range s.endpoints() {
		s.mux.HandleFunc(e.method+" "+e.path, s.serve(e.handle))
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, fmt.Errorf("%w: %s %s", errNoEndpoint, r.Method, r.URL.Path))
	})
	return s
}

type endpoint struct {
	method, path string
	handle       func(*request) (any, error)
}

// noContent is the answer of endpoints that have none.
type noContent struct{}

func (s *Server) endpoints() []endpoint {
	return []endpoint{
		{"GET", "/v1/config", s.config},
		{"GET", "/v1/namespaces", s.listNamespaces},
		{"POST", "/v1/namespaces", s.createNamespace},
		{"GET", "/v1/namespaces/{namespace}", s.loadNamespace},
		{"HEAD", "/v1/namespaces/{namespace}", s.namespaceExists},
		{"DELETE", "/v1/namespaces/{namespace}", s.dropNamespace},
		{"POST", "/v1/namespaces/{namespace}/properties", s.updateNamespace},
		{"GET", "/v1/namespaces/{namespace}/tables", s.listTables},
		{"POST", "/v1/namespaces/{namespace}/tables", s.createTable},
		{"GET", "/v1/namespaces/{namespace}/tables/{table}", s.loadTable},
		{"HEAD", "/v1/namespaces/{namespace}/tables/{table}", s.tableExists},
		{"POST", "/v1/namespaces/{namespace}/tables/{table}", s.commitTable},
		{"DELETE", "/v1/namespaces/{namespace}/tables/{table}", s.dropTable},
		{"POST", "/v1/namespaces/{namespace}/tables/{table}/metrics", s.metrics},
		{"POST", "/v1/namespaces/{namespace}/register", s.registerTable},
		{"POST", "/v1/tables/rename", s.renameTable},
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// request is one call, with the parts of its path decoded.
type request struct {
	*http.Request
	maxBody   int64
	namespace table.Identifier
	table     table.Identifier
}

func (s *Server) serve(handle func(*request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		req := &request{Request: r, maxBody: s.cfg.MaxBody}
		if name := r.PathValue("namespace"); name != "" {
			req.namespace = strings.Split(name, separator)
		}
		if name := r.PathValue("table"); name != "" {
			req.table = append(append(table.Identifier{}, req.namespace...), name)
		}
		result, err := handle(req)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if _, none := result.(noContent); none {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		body, err := json.Marshal(result)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // the client may be gone
	}
}

var (
	errNoEndpoint = errors.New("no such endpoint")
	errTooLarge   = errors.New("request body is too large")
)

// decode reads the body as JSON.
func (r *request) decode(into any) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, r.maxBody+1))
	if err != nil {
		return invalid("read the body: %v", err)
	}
	if int64(len(body)) > r.maxBody {
		return fmt.Errorf("%w: over %d bytes", errTooLarge, r.maxBody)
	}
	if err := json.Unmarshal(body, into); err != nil {
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
		if e.path != "/v1/config" {
			endpoints = append(endpoints, e.method+" "+strings.Replace(e.path, "/v1/", "/v1/{prefix}/", 1))
		}
	}
	return map[string]any{"defaults": defaults, "overrides": map[string]string{}, "endpoints": endpoints}, nil
}

// query returns a namespace that is given as a query parameter.
func namespaceQuery(values url.Values, name string) table.Identifier {
	if v := values.Get(name); v != "" {
		return strings.Split(v, separator)
	}
	return nil
}
