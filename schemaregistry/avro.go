package schemaregistry

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hamba/avro/v2"
)

// maxDepth bounds the nesting of the JSON text of a schema: a level of records takes three
// or four.
const maxDepth = 400

// canonicalAvro writes a schema as Apache Avro's Schema.toString does, so that two texts of
// one schema become equal: no spaces, attributes in a fixed order, names and namespaces only
// as long as needed. Documentation, defaults, aliases and further properties stay, other
// than in the specification's parsing canonical form. normalize also sorts the properties.
func canonicalAvro(text string, normalize bool) (string, error) {
	n, err := parseJSON(text, maxDepth)
	if err != nil {
		return "", err
	}
	c := canonicaliser{normalize: normalize}
	out, err := c.schema(n, "", "")
	if err != nil {
		return "", err
	}
	return string(out.append(nil)), nil
}

type canonicaliser struct {
	normalize bool // sort properties
	bare      bool // leave them out
}

var (
	primitives     = []string{"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
	schemaReserved = []string{"type", "name", "namespace", "doc", "fields", "items", "values", "size", "symbols", "aliases"}
	fieldReserved  = []string{"name", "type", "doc", "default", "order", "aliases"}
)

// schema returns the canonical form of n within namespace; path says where n is.
func (c canonicaliser) schema(n node, namespace, path string) (node, error) {
	switch n.kind {
	case 's':
		if slices.Contains(primitives, n.text) {
			return n, nil
		}
		return str(relative(n.text, namespace)), nil
	case 'a':
		out := node{kind: 'a'}
		for i, v := range n.values {
			branch, err := c.schema(v, namespace, fmt.Sprintf("%s/%d", path, i))
			if err != nil {
				return n, err
			}
			out.values = append(out.values, branch)
		}
		return out, nil
	case 'o':
		return c.object(n, namespace, path)
	}
	return n, fmt.Errorf("at %s: want a type, got %s", where(path), n.text)
}

func where(path string) string {
	if path == "" {
		return "/"
	}
	return path
}

func (c canonicaliser) object(n node, namespace, path string) (node, error) {
	t, ok := n.get("type")
	if !ok {
		return n, fmt.Errorf("at %s: no type", where(path))
	}
	if t.kind != 's' {
		return c.schema(t, namespace, path+"/type")
	}
	out := node{kind: 'o'}
	switch t.text {
	case "record", "error":
		return c.record(n, namespace, path)
	case "enum", "fixed":
		out.set("type", t)
		space, err := c.name(&out, n, namespace, path)
		if err != nil {
			return n, err
		}
		reserved := schemaReserved
		copyKeys(&out, n, "doc", "symbols")
		if t.text == "enum" {
			copyKeys(&out, n, "default")
			reserved = append(slices.Clone(reserved), "default")
		} else {
			copyKeys(&out, n, "size")
		}
		c.props(&out, n, reserved)
		aliases(&out, n, space)
		return out, nil
	case "array", "map":
		key := map[string]string{"array": "items", "map": "values"}[t.text]
		v, ok := n.get(key)
		if !ok {
			return n, fmt.Errorf("at %s: a type %s needs %q", where(path), t.text, key)
		}
		inner, err := c.schema(v, namespace, path+"/"+key)
		if err != nil {
			return n, err
		}
		out.set("type", t)
		out.set(key, inner)
		c.props(&out, n, schemaReserved)
		return out, nil
	}
	if !slices.Contains(primitives, t.text) {
		return c.schema(t, namespace, path)
	}
	out.set("type", t)
	c.props(&out, n, schemaReserved)
	if len(out.keys) == 1 {
		return t, nil
	}
	return out, nil
}

func (c canonicaliser) record(n node, namespace, path string) (node, error) {
	out := node{kind: 'o'}
	t, _ := n.get("type")
	out.set("type", t)
	space, err := c.name(&out, n, namespace, path)
	if err != nil {
		return n, err
	}
	fields, ok := n.get("fields")
	if !ok || fields.kind != 'a' {
		return n, fmt.Errorf("at %s: a record needs an array of %q", where(path), "fields")
	}
	copyKeys(&out, n, "doc")
	list := node{kind: 'a'}
	for i, f := range fields.values {
		at := fmt.Sprintf("%s/fields/%d", path, i)
		ft, ok := f.get("type")
		if !ok {
			return n, fmt.Errorf("at %s: a field needs a name and a type", at)
		}
		inner, err := c.schema(ft, space, at+"/type")
		if err != nil {
			return n, err
		}
		field := node{kind: 'o'}
		copyKeys(&field, f, "name")
		field.set("type", inner)
		copyKeys(&field, f, "doc", "default")
		if o, ok := f.get("order"); ok && o.text != "ascending" {
			field.set("order", o)
		}
		copyKeys(&field, f, "aliases")
		c.props(&field, f, fieldReserved)
		list.values = append(list.values, field)
	}
	out.set("fields", list)
	c.props(&out, n, schemaReserved)
	aliases(&out, n, space)
	return out, nil
}

// aliases writes the aliases of a type, which lie in its own namespace unless they say other.
func aliases(out *node, n node, namespace string) {
	list, ok := n.get("aliases")
	if !ok {
		return
	}
	short := node{kind: list.kind, text: list.text}
	for _, a := range list.values {
		if a.kind == 's' {
			a.text = relative(a.text, namespace)
		}
		short.values = append(short.values, a)
	}
	if list.kind == 'o' {
		short = list // no list of names: refused when it is parsed
	}
	out.set("aliases", short)
}

// name writes name and, where it differs from the enclosing one, namespace. It returns the
// namespace that holds inside.
func (c canonicaliser) name(out *node, n node, namespace, path string) (string, error) {
	name, ok := n.get("name")
	if !ok || name.kind != 's' || name.text == "" {
		return "", fmt.Errorf("at %s: a named type needs a name", where(path))
	}
	space, short := namespace, name.text
	if s, ok := n.get("namespace"); ok && s.kind == 's' {
		space = s.text
	}
	if i := strings.LastIndexByte(name.text, '.'); i >= 0 {
		space, short = name.text[:i], name.text[i+1:]
	}
	if short == "" {
		return "", fmt.Errorf("at %s: the name %q ends with a dot", where(path), name.text)
	}
	out.set("name", str(short))
	if space != namespace {
		out.set("namespace", str(space))
	}
	return space, nil
}

// relative shortens a name that lies directly in namespace.
func relative(name, namespace string) string {
	if i := strings.LastIndexByte(name, '.'); i >= 0 && name[:i] == namespace {
		return name[i+1:]
	}
	return name
}

func copyKeys(out *node, n node, keys ...string) {
	for _, k := range keys {
		if v, ok := n.get(k); ok {
			out.set(k, v)
		}
	}
}

func (c canonicaliser) props(out *node, n node, reserved []string) {
	if c.bare {
		return
	}
	var keys []string
	for _, k := range n.keys {
		if !slices.Contains(reserved, k) {
			keys = append(keys, k)
		}
	}
	if c.normalize {
		slices.Sort(keys)
	}
	copyKeys(out, n, keys...)
}

// parseAvro parses a schema that may use the names of its dependencies, which are in an
// order in which each uses only those before it.
//
// The parser sees the schema without further properties: it takes "Default" for "default",
// which makes a property change the meaning. Logical types go too, no rule looks at them.
func parseAvro(text string, dependencies []Dependency) (avro.Schema, error) {
	cache := &avro.SchemaCache{}
	known := map[string]bool{} // two names may stand for one schema
	for _, d := range dependencies {
		if known[d.Text] {
			continue
		}
		known[d.Text] = true
		if _, err := parseBare(d.Text, cache); err != nil {
			return nil, fmt.Errorf("the referenced schema %s: %w", d.Name, err)
		}
	}
	return parseBare(text, cache)
}

func parseBare(text string, cache *avro.SchemaCache) (avro.Schema, error) {
	n, err := parseJSON(text, maxDepth)
	if err != nil {
		return nil, err
	}
	bare, err := canonicaliser{bare: true}.schema(n, "", "")
	if err != nil {
		return nil, err
	}
	return avro.ParseWithCache(string(bare.append(nil)), "", cache)
}

// resolvedAvro writes the types that a schema refers to in place of their first names.
func resolvedAvro(text string, dependencies []Dependency) (string, error) {
	r := avroResolver{defined: map[string]node{}, written: map[string]bool{}}
	for _, d := range dependencies {
		n, err := parseJSON(d.Text, maxDepth)
		if err != nil {
			return "", err
		}
		r.define(n, "")
	}
	n, err := parseJSON(text, maxDepth)
	if err != nil {
		return "", err
	}
	return canonicalAvro(string(r.resolve(n, "").append(nil)), false)
}

type avroResolver struct {
	defined map[string]node // by full name; with a full name itself
	written map[string]bool
}

// fullName returns the full name of a named type within namespace, and its own namespace.
func fullName(n node, namespace string) (name, space string) {
	short, _ := n.get("name")
	if s, ok := n.get("namespace"); ok {
		namespace = s.text
	}
	name = qualify(short.text, namespace)
	return name, name[:max(strings.LastIndexByte(name, '.'), 0)]
}

func qualify(name, namespace string) string {
	if namespace == "" || strings.Contains(name, ".") {
		return name
	}
	return namespace + "." + name
}

// define collects the named types of a schema.
func (r *avroResolver) define(n node, namespace string) {
	if t, ok := n.get("type"); ok && slices.Contains([]string{"record", "error", "enum", "fixed"}, t.text) {
		name, space := fullName(n, namespace)
		full := n.with("name", str(name))
		if _, ok := n.get("namespace"); !ok && space == "" {
			full.keys = slices.Clone(full.keys)
			full.set("namespace", str("")) // wherever it goes
		}
		r.defined[name] = full
		namespace = space
	}
	for _, v := range n.values {
		r.define(v, namespace)
	}
}

// resolve replaces names, each the first time, by what they stand for.
func (r *avroResolver) resolve(n node, namespace string) node {
	switch n.kind {
	case 's':
		name := qualify(n.text, namespace)
		found, ok := r.defined[name]
		if !ok || r.written[name] || slices.Contains(primitives, n.text) {
			return n
		}
		return r.resolve(found, "")
	case 'a':
		n.values = slices.Clone(n.values)
		for i, v := range n.values {
			n.values[i] = r.resolve(v, namespace)
		}
		return n
	}
	t, _ := n.get("type")
	switch t.text {
	case "record", "error", "enum", "fixed":
		name, space := fullName(n, namespace)
		r.written[name] = true
		fields, ok := n.get("fields")
		if !ok {
			return n
		}
		resolved := node{kind: 'a'}
		for _, f := range fields.values {
			ft, _ := f.get("type")
			resolved.values = append(resolved.values, f.with("type", r.resolve(ft, space)))
		}
		return n.with("fields", resolved)
	case "array":
		items, _ := n.get("items")
		return n.with("items", r.resolve(items, namespace))
	case "map":
		values, _ := n.get("values")
		return n.with("values", r.resolve(values, namespace))
	}
	return n
}
