package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/apache/iceberg-go/view"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/sql"
)

// answers are the statuses and error types of the REST specification, first match first.
var answers = []struct {
	err    error
	status int
	kind   string
}{
	{errNoToken, http.StatusUnauthorized, "NotAuthorizedException"},
	{catalog.ErrCommitConflict, http.StatusConflict, "CommitFailedException"},
	{catalog.ErrCommitUnknown, http.StatusServiceUnavailable, "CommitStateUnknownException"},
	{catalog.ErrNoTable, http.StatusNotFound, "NoSuchTableException"},
	{sql.ErrNoView, http.StatusNotFound, "NoSuchViewException"},
	{catalog.ErrTableExists, http.StatusConflict, "AlreadyExistsException"},
	{sql.ErrViewExists, http.StatusConflict, "AlreadyExistsException"},
	{sql.ErrTableHasName, http.StatusConflict, "AlreadyExistsException"},
	{sql.ErrViewHasName, http.StatusConflict, "AlreadyExistsException"},
	{sql.ErrNoNamespace, http.StatusNotFound, "NoSuchNamespaceException"},
	{sql.ErrNamespaceExists, http.StatusConflict, "AlreadyExistsException"},
	{sql.ErrNamespaceNotEmpty, http.StatusConflict, "NamespaceNotEmptyException"},
	{errOverlap, http.StatusUnprocessableEntity, "UnprocessableEntityException"},
	{errNoEndpoint, http.StatusNotFound, "UnsupportedOperationException"},
	{errTooLarge, http.StatusRequestEntityTooLarge, "BadRequestException"},
	{view.ErrInvalidViewMetadata, http.StatusBadRequest, "IllegalArgumentException"}, // which the reference client turns into one
	{sql.ErrInvalid, http.StatusBadRequest, "BadRequestException"},
	{iceberg.ErrInvalidArgument, http.StatusBadRequest, "BadRequestException"},
	{table.ErrInvalidMetadata, http.StatusBadRequest, "BadRequestException"},
	{fs.ErrNotExist, http.StatusNotFound, "NotFoundException"},
}

// A failure is the error body of the specification.
type failure struct {
	status  int
	kind    string
	message string
}

func (f *failure) Error() string { return f.message }

type failureJSON struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Code    int    `json:"code"`
}

func (f *failure) MarshalJSON() ([]byte, error) {
	return json.Marshal(failureJSON{f.message, f.kind, f.status})
}

func (f *failure) UnmarshalJSON(data []byte) error {
	var j failureJSON
	err := json.Unmarshal(data, &j)
	*f = failure{j.Code, j.Type, j.Message}
	return err
}

// failureOf chooses the status of an error. What is nobody's mistake but ours is not told
// in detail.
func failureOf(err error) *failure {
	if f := (*failure)(nil); errors.As(err, &f) {
		return f
	}
	for _, a := range answers {
		switch {
		case !errors.Is(err, a.err):
		case a.status >= 500:
			return &failure{a.status, a.kind, a.err.Error() + "; see the server's log"}
		default:
			return &failure{a.status, a.kind, message(err)}
		}
	}
	return &failure{http.StatusInternalServerError, "InternalServerError", "internal error; see the server's log"}
}

// message says an error as the reference implementation does, where clients are known to
// look at it.
func message(err error) string {
	var name *sql.NameError
	var requirement *sql.RequirementError
	var file *fs.PathError
	switch {
	case errors.As(err, &requirement):
		return "Requirement failed: " + requirement.Error()
	case errors.As(err, &name) && name.From != "":
		return fmt.Sprintf("Cannot rename %s to %s. %s", name.From, name.Name, capital(name.Err))
	case errors.As(err, &name):
		return capital(name.Err) + ": " + name.Name
	case errors.Is(err, sql.ErrInvalid):
	case errors.As(err, &file) && errors.Is(err, fs.ErrNotExist):
		return "Failed to open input stream for file: " + file.Path
	}
	return err.Error()
}

func capital(err error) string {
	first, n := utf8.DecodeRuneInString(err.Error())
	return string(unicode.ToUpper(first)) + strings.TrimSpace(err.Error()[n:])
}

// fail answers with an error. What is our mistake is logged.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	f := failureOf(err)
	var body any = map[string]any{"error": f}
	if o := (*oauthError)(nil); errors.As(err, &o) {
		f.status, body = o.status, o
	}
	if f.status >= 500 && r.Context().Err() == nil {
		s.log.Error("catalog request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	if f.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="iceberg"`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.status)
	if r.Method == http.MethodHead {
		return
	}
	text, _ := json.Marshal(body)
	_, _ = w.Write(text) // the client may be gone
}
