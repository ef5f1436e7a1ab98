package server

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog/sql"
)

// once handles a request with an idempotency key. The effect of such a request and its key
// are one transaction, so that it comes about once, whichever node, how often and how
// concurrently it is asked. What was refused stays refused; what failed for a reason that
// may pass may be tried again.
func (s *Server) once(e endpoint, r *request, id string) (any, error) {
	if parsed, err := uuid.Parse(id); err != nil || len(id) != 36 {
		return nil, invalid("Idempotency-Key %.40q: a UUID of 36 characters is wanted", id)
	} else {
		id = parsed.String()
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s %s\n", r.Method, r.URL.RequestURI())
	sum.Write(r.body)
	key := sql.Key{ID: id, Request: hex.EncodeToString(sum.Sum(nil))}

	result, found, err := s.before(e, r, key)
	if found || err != nil {
		return result, err
	}
	plain := r.Request
	r.Request = plain.WithContext(sql.WithKey(plain.Context(), key))
	result, err = e.handle(r)
	r.Request = plain
	if err == nil {
		return result, nil
	}
	if f := failureOf(err); f.status < 500 && !errors.Is(err, sql.ErrKeyUsed) {
		answer, encodeErr := json.Marshal(f)
		if encodeErr != nil {
			return nil, encodeErr
		}
		// It fails if another one with this key was first: what that one did may be
		// what this one was refused for.
		if refuseErr := s.catalog.Refuse(r.Context(), key, f.status, answer); refuseErr == nil {
			return nil, err
		} else if err = refuseErr; !errors.Is(err, sql.ErrKeyUsed) {
			return nil, err
		}
	}
	if !errors.Is(err, sql.ErrKeyUsed) {
		return nil, err
	}
	result, found, err = s.before(e, r, key)
	if err == nil && !found {
		err = fmt.Errorf("request %s came twice, and what came of it is not known any more", id)
	}
	return result, err
}

// before answers a request from what came of it before, if it did.
func (s *Server) before(e endpoint, r *request, key sql.Key) (result any, found bool, err error) {
	o, found, err := s.catalog.Outcome(r.Context(), key.ID)
	if err != nil || !found {
		return nil, found, err
	}
	if o.Request != key.Request {
		return nil, true, invalid("Idempotency-Key %s was used for another request: each has its own", key.ID)
	}
	s.metrics.repeated.Inc()
	if o.Status == 0 {
		result, err = e.again(r)
		return result, true, err
	}
	f := &failure{}
	if err := json.Unmarshal(o.Answer, f); err != nil {
		return nil, true, err
	}
	return nil, true, f
}

// unregisteredTable has nothing to tell any more.
func (s *Server) unregisteredTable(r *request) (any, error) {
	return nil, &failure{http.StatusNotFound, "NoSuchTableException", "the table was unregistered by this request when it came first; its metadata location was in that answer"}
}
