package parquetio

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MappingProperty is the property of a table that has the [Rules] which it follows.
const MappingProperty = "tabletopic.mapping"

// MappingVersion is the newest version of the type mapping, which new tables follow.
const MappingVersion = 3

// MaxRecursion bounds [Rules.Depth].
const MaxRecursion = 8

// ErrRecursion says that a schema has records inside themselves, which the rules of the table
// refuse.
var ErrRecursion = errors.New("a record lies inside itself, which table.topic.mapping.recursion=dlq refuses")

// Rules are the type mapping of one table: a version, and what its users chose. They stay as they
// are while the table lives, whatever becomes of settings and releases, unless somebody
// migrates it. The zero Rules are those of version 1 with all its defaults.
type Rules struct {
	// Version is 1 to [MappingVersion]; 0 means 1.
	Version int
	// Depth is how often a record inside itself is unfolded into columns before it becomes JSON.
	Depth int
	// RefuseRecursion has schemas with records inside themselves refused instead.
	RefuseRecursion bool
	// ZeroAsNull makes NULL of the zero value of a Protobuf field without presence, for nothing
	// tells it from one that was not set. Items of lists and maps stay what they are.
	ZeroAsNull bool
	// Nanos keeps the nanoseconds of Avro's timestamps, in timestamptz_ns and timestamp_ns, which
	// tables of format version 3 have.
	Nanos bool
	// Variant makes variants of what has no column of its own, where they would be JSON text, in
	// tables of format version 3.
	Variant bool
	// Defaults gives columns the defaults of Avro's fields, in tables of format version 3: rows of
	// before the column was added have it, and those whose writers do not know the field.
	Defaults bool
	// Uint64AsString makes uint64 and fixed64 strings of digits, for engines that have no
	// decimals of 20 digits.
	Uint64AsString bool
}

// NewRules are those of the newest version, with its defaults.
func NewRules() Rules { return Rules{Version: MappingVersion} }

// SetRecursion takes json, depth:N or dlq.
func (r *Rules) SetRecursion(text string) error {
	r.Depth, r.RefuseRecursion = 0, false
	switch depth, ok := strings.CutPrefix(text, "depth:"); {
	case text == "json":
	case text == "dlq":
		r.RefuseRecursion = true
	case ok:
		n, err := strconv.Atoi(depth)
		if err != nil || n < 1 || n > MaxRecursion {
			return fmt.Errorf("want depth:1 to depth:%d", MaxRecursion)
		}
		r.Depth = n
	default:
		return errors.New("want json, depth:N or dlq")
	}
	return nil
}

// String is the value of [MappingProperty]: the version, and what is not as it is by default,
// separated by semicolons.
func (r Rules) String() string {
	text := strconv.Itoa(max(1, r.Version))
	switch {
	case r.RefuseRecursion:
		text += ";recursion=dlq"
	case r.Depth > 0:
		text += ";recursion=depth:" + strconv.Itoa(r.Depth)
	}
	if r.ZeroAsNull {
		text += ";zero=null"
	}
	if r.Uint64AsString {
		text += ";uint64=string"
	}
	if r.Nanos {
		text += ";nanos=true"
	}
	if r.Variant {
		text += ";json=variant"
	}
	if r.Defaults {
		text += ";defaults=true"
	}
	return text
}

// ParseRules reads what String writes. A table without the property, and so with an empty text, is
// of version 1: it was there before its topic.
func ParseRules(text string) (r Rules, err error) {
	r.Version = 1
	if text == "" {
		return r, nil
	}
	for i, item := range strings.Split(text, ";") {
		name, value, _ := strings.Cut(item, "=")
		switch {
		case i == 0:
			r.Version, err = strconv.Atoi(item)
			switch {
			case err != nil || r.Version < 1:
				return r, fmt.Errorf("table property %s is %q: it does not begin with a version", MappingProperty, text)
			case r.Version > MappingVersion:
				return r, fmt.Errorf("table property %s is %q: a newer release made the table, this one knows versions up to %d", MappingProperty, text, MappingVersion)
			}
		case name == "recursion":
			err = r.SetRecursion(value)
		case item == "zero=null":
			r.ZeroAsNull = true
		case item == "uint64=string":
			r.Uint64AsString = true
		case item == "nanos=true":
			r.Nanos = true
		case item == "json=variant":
			r.Variant = true
		case item == "defaults=true":
			r.Defaults = true
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return r, fmt.Errorf("table property %s is %q: %s: %w", MappingProperty, text, item, err)
		}
	}
	return r, nil
}
