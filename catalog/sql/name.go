package sql

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
)

// Errors that the catalog has beyond those of package catalog. All but ErrInvalid and
// ErrKeyUsed come in a [NameError].
var (
	ErrNoNamespace       = errors.New("namespace does not exist")
	ErrNamespaceExists   = errors.New("namespace already exists")
	ErrNamespaceNotEmpty = errors.New("namespace is not empty")
	ErrNoView            = errors.New("view does not exist")
	ErrViewExists        = errors.New("view already exists")
	// ErrTableHasName and ErrViewHasName say that a name is taken by the other kind.
	ErrTableHasName = errors.New("table with same name already exists")
	ErrViewHasName  = errors.New("view with same name already exists")
	ErrInvalid      = errors.New("invalid request")
)

// A NameError says what is the matter with a name.
type NameError struct {
	Err  error  // one of the errors of this package, or of package catalog
	Name string // of the namespace, table or view, its levels joined by dots
	From string // in a rename, the old name; else empty
}

func (e *NameError) Error() string {
	if e.From != "" {
		return fmt.Sprintf("rename %s to %s: %v", e.From, e.Name, e.Err)
	}
	return fmt.Sprintf("%s: %v", e.Name, e.Err)
}

func (e *NameError) Unwrap() error { return e.Err }

func nameError(err error, id table.Identifier) error {
	return &NameError{Err: err, Name: strings.Join(id, ".")}
}

// A Kind is what a name stands for: tables and views share one set of names.
type Kind string

const (
	Table Kind = "TABLE"
	View  Kind = "VIEW"
)

func (k Kind) missing() error {
	if k == View {
		return ErrNoView
	}
	return catalog.ErrNoTable
}

// taken is the error of making a k whose name an old one has.
func (k Kind) taken(old Kind) error {
	switch {
	case k == old && k == View:
		return ErrViewExists
	case k == old:
		return catalog.ErrTableExists
	case old == View:
		return ErrViewHasName
	}
	return ErrTableHasName
}

// The layout joins the levels of a namespace by dots; a dot or a percent sign inside a
// level is escaped, which plain names never show.
var escaper = strings.NewReplacer("%", "%25", ".", "%2E")

func join(namespace table.Identifier) string {
	parts := make([]string, len(namespace))
	for i, level := range namespace {
		parts[i] = escaper.Replace(level)
	}
	return strings.Join(parts, ".")
}

func unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}

func levels(joined string) table.Identifier {
	var out table.Identifier
	for _, level := range strings.Split(joined, ".") {
		out = append(out, unescape(level))
	}
	return out
}

func split(id table.Identifier) (namespace, name string, err error) {
	if len(id) < 2 {
		return "", "", fmt.Errorf("table %q: %w: it needs a namespace", strings.Join(id, "."), ErrInvalid)
	}
	if err := valid(id); err != nil {
		return "", "", err
	}
	return join(id[:len(id)-1]), escaper.Replace(id[len(id)-1]), nil
}

func valid(id table.Identifier) error {
	for _, level := range id {
		if level == "" || strings.ContainsFunc(level, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("name %q: %w: levels must not be empty or hold control characters", id, ErrInvalid)
		}
	}
	if n := len(join(id)); n > 255 {
		return fmt.Errorf("name %.40q…: %w: %d bytes long, 255 are allowed", join(id), ErrInvalid, n)
	}
	return nil
}
