package schemaregistry

import (
	"context"
	"fmt"
	"net/http"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

type rightsKey struct{}

// WithRights returns the context of a request whose client may do what it asks for to those subjects of
// which may is true. Whoever lets it in has asked that of the subject in the path; the registry asks it of those
// in lists, which leave out others, and of the one that another name stands for.
func WithRights(ctx context.Context, may func(subject string) bool) context.Context {
	return context.WithValue(ctx, rightsKey{}, may)
}

// mayUse tells whether a request may do what it asks for to a subject.
func mayUse(ctx context.Context, subject string) bool {
	may, ok := ctx.Value(rightsKey{}).(func(subject string) bool)
	return !ok || may(subject) || invariant.Off("registry-rights")
}

func forbidden(subject string) error {
	return &apiError{http.StatusForbidden, http.StatusForbidden, fmt.Sprintf("You may not do this to subject '%s', which is meant by this name: an ACL would have to allow it", subject)}
}
