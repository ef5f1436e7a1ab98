package server

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/apache/iceberg-go"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/sql"
)

// answers are the statuses and error types of the REST specification, first match first.
var answers = []struct {
	err    error
	status int
	kind   string
}{
	{catalog.ErrCommitConflict, http.StatusConflict, "CommitFailedException"},
	{catalog.ErrCommitUnknown, http.StatusServiceUnavailable, "CommitStateUnknownException"},
	{catalog.ErrNoTable, http.StatusNotFound, "NoSuchTableException"},
	{catalog.ErrTableExists, http.StatusConflict, "AlreadyExistsException"},
	{sql.ErrNoNamespace, http.StatusNotFound, "NoSuchNamespaceException"},
	{sql.ErrNamespaceExists, http.StatusConflict, "AlreadyExistsException"},
	{sql.ErrNamespaceNotEmpty, http.StatusConflict, "NamespaceNotEmptyException"},
	{errOverlap, http.StatusUnprocessableEntity, "UnprocessableEntityException"},
	{errNoEndpoint, http.StatusNotFound, "UnsupportedOperationException"},
	{errTooLarge, http.StatusRequestEntityTooLarge, "BadRequestException"},
	{sql.ErrInvalid, http.StatusBadRequest, "BadRequestException"},
	{iceberg.ErrInvalidArgument, http.StatusBadRequest, "BadRequestException"},
}

// fail answers with the error body of the specification. What is nobody's mistake but
// ours is logged, and not told in detail.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, kind, message := http.StatusInternalServerError, "InternalServerError", "internal error; see the server's log"
	for _, a := range answers {
		if errors.Is(err, a.err) {
			status, kind, message = a.status, a.kind, err.Error()
			break
		}
	}
	if status >= 500 && r.Context().Err() == nil {
		s.log.Error("catalog request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	body, _ := json.Marshal(map[string]any{"error": map[string]any{"message": message, "type": kind, "code": status}})
	_, _ = w.Write(body)
}
