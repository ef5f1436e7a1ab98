package server

import (
	"encoding/base64"
	"strconv"
)

// maxPage is the largest page, and the one of clients that name no size.
const maxPage = 1000

// A page is a part of a list that a client asks for: paged is false if it wants all of it.
type page struct {
	paged bool
	after string
	size  int
}

func pageOf(r *request) (page, error) {
	query := r.URL.Query()
	p := page{paged: query.Has("pageToken"), size: maxPage}
	if v := query.Get("pageSize"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return p, invalid("pageSize %q: a positive number is wanted", v)
		}
		p.size = min(n, maxPage)
	}
	token, err := base64.RawURLEncoding.DecodeString(query.Get("pageToken"))
	if err != nil {
		return p, invalid("pageToken %q is not one of this server", query.Get("pageToken"))
	}
	p.after = string(token)
	return p, nil
}

// list walks pages of names from fetch, in order, and returns a part of them with the token
// of the next, nil at the end.
func list[T any](p page, name func(T) string, fetch func(after string, limit int) ([]T, error)) (names []T, next any, err error) {
	names = []T{}
	after := p.after
	for {
		limit := p.size
		if !p.paged {
			limit = maxPage
		}
		more, err := fetch(after, limit+1)
		if err != nil {
			return nil, nil, err
		}
		full := len(more) > limit
		if full {
			more = more[:limit]
			after = name(more[limit-1])
		}
		names = append(names, more...)
		if !full {
			return names, nil, nil
		}
		if p.paged {
			return names, base64.RawURLEncoding.EncodeToString([]byte(after)), nil
		}
	}
}
