package parquetio

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// maxSchemaSteps bounds how many subschemas are looked at, each as often as it is referred to: of the
// order of 100 ms.
const maxSchemaSteps = 1 << 18

// ParseJSONSchema maps a JSON Schema, of draft-04 to 2020-12, to columns. References are found by
// their name or by the $id in them; nothing is ever read from a network. The error names the
// field and the reason.
func ParseJSONSchema(rules Rules, schema string, references ...Reference) (*ValueSchema, error) {
	g := jsonGrapher{version: rules.Version, documents: map[string]*jsonTree{}, anchors: map[string]*jsonTree{}, found: map[reference]*jsonTree{},
		possible: map[alternative]jsonTypes{}, known: map[string]*node{}}
	for _, r := range references {
		t, err := g.parse(r.Text)
		if err != nil {
			return nil, fmt.Errorf("parse JSON Schema reference %q: %w", r.Name, err)
		}
		g.documents[r.Name] = t
		g.index(t, r.Name)
	}
	t, err := g.parse(schema)
	if err != nil {
		return nil, fmt.Errorf("parse JSON Schema: %w", err)
	}
	g.documents[""] = t
	g.index(t, "")
	root, err := g.node([]*jsonTree{t}, "")
	if err != nil {
		return nil, fmt.Errorf("parse JSON Schema: %w", err)
	}
	record := root
	for record.kind == wireUnion {
		record, _ = record.single()
	}
	single := record.kind != wireRecord
	if single {
		record = &node{kind: wireRecord, fields: []nodeField{{name: rootColumn, node: root}}}
	}
	return newValueSchema(rules, record, single, jsonSchema{root: record, single: single})
}

// A jsonTree is a JSON value of a schema.
type jsonTree struct {
	kind   byte // its first character; '0' for numbers
	text   string
	names  []string       // of an object, each once
	at     map[string]int // where in names
	values []*jsonTree
	id     uint32
	allows jsonTypes // as stated says
	base   string    // URI that a $ref in it is relative to
}

func (t *jsonTree) get(name string) *jsonTree {
	if t != nil && t.kind == '{' {
		if i, ok := t.at[name]; ok {
			return t.values[i]
		}
	}
	return nil
}

// string returns the text of the string called name, empty if there is none.
func (t *jsonTree) string(name string) string {
	if v := t.get(name); v != nil && v.kind == '"' {
		return v.text
	}
	return ""
}

// list returns the values of the array called name.
func (t *jsonTree) list(name string) []*jsonTree {
	if v := t.get(name); v != nil && v.kind == '[' {
		return v.values
	}
	return nil
}

// isSchema reports whether t may stand where a schema is expected.
func (t *jsonTree) isSchema() bool {
	return t != nil && (t.kind == '{' || t.kind == 't' || t.kind == 'f')
}

// A jsonGrapher makes the nodes of a schema.
type jsonGrapher struct {
	version   int                  // of the type mapping
	documents map[string]*jsonTree // by URI, or name of the reference
	anchors   map[string]*jsonTree // by URI with fragment
	found     map[reference]*jsonTree
	possible  map[alternative]jsonTypes // as types told of them
	known     map[string]*node          // by ids of the schemas that hold together
	trees     uint32
	steps     int
}

// A reference is a $ref, in a schema with that base.
type reference struct{ base, ref string }

// An alternative is one schema of a oneOf or anyOf that lies in others, as deep.
type alternative struct {
	schema *jsonTree
	depth  int
}

func (g *jsonGrapher) parse(text string) (*jsonTree, error) {
	if err := checkNesting(text); err != nil {
		return nil, err
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	t, err := g.tree(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("text goes on after the schema, at byte %d", d.InputOffset())
	}
	if !t.isSchema() {
		return nil, fmt.Errorf("schema is neither an object nor a boolean")
	}
	return t, nil
}

func (g *jsonGrapher) tree(d *json.Decoder) (*jsonTree, error) {
	token, err := d.Token()
	if err != nil {
		return nil, damaged(d, err)
	}
	g.trees++
	t := &jsonTree{id: g.trees}
	switch v := token.(type) {
	case nil:
		t.kind = 'n'
	case bool:
		t.kind = strconv.FormatBool(v)[0]
	case json.Number:
		t.kind, t.text = '0', v.String()
	case string:
		t.kind, t.text = '"', v
	case json.Delim:
		t.kind = byte(v)
		if v == '{' {
			t.at = map[string]int{}
		}
		for d.More() {
			i := len(t.values)
			if v == '{' {
				name, err := d.Token()
				if err != nil {
					return nil, damaged(d, err)
				}
				var again bool
				if i, again = t.at[name.(string)]; !again { // else the last one counts
					i = len(t.values)
					t.at[name.(string)] = i
					t.names = append(t.names, name.(string))
				}
			}
			inner, err := g.tree(d)
			if err != nil {
				return nil, err
			}
			if i < len(t.values) {
				t.values[i] = inner
			} else {
				t.values = append(t.values, inner)
			}
		}
		if _, err := d.Token(); err != nil {
			return nil, damaged(d, err)
		}
	}
	t.allows = t.stated()
	return t, nil
}

func damaged(d *json.Decoder, err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("at byte %d: %w", d.InputOffset(), err)
}

// index notes the base of each schema, and the names by which a $ref finds it.
func (g *jsonGrapher) index(t *jsonTree, base string) {
	if t.kind == '{' {
		for _, keyword := range []string{"$id", "id"} { // id in draft-04
			switch id := t.string(keyword); {
			case id == "":
			case id[0] == '#': // until draft-07
				g.anchors[base+id] = t
			default:
				base, _ = resolveURI(base, id)
				g.documents[base] = t
			}
		}
		for _, keyword := range []string{"$anchor", "$dynamicAnchor"} {
			if anchor := t.string(keyword); anchor != "" {
				g.anchors[base+"#"+anchor] = t
			}
		}
	}
	t.base = base
	for i, v := range t.values {
		if t.kind == '{' {
			switch t.names[i] {
			case "enum", "const", "default", "examples":
				continue
			}
		}
		g.index(v, base)
	}
}

// resolveURI returns the URI of ref, relative to base, and its fragment.
func resolveURI(base, ref string) (uri, fragment string) {
	b, err := url.Parse(base)
	if err != nil {
		b = &url.URL{}
	}
	u, err := url.Parse(ref)
	if err != nil {
		uri, fragment, _ = strings.Cut(ref, "#")
		return uri, fragment
	}
	fragment = u.Fragment
	if ref[0] == '#' {
		return base, fragment
	}
	if u.Fragment, u.RawFragment = "", ""; b.IsAbs() {
		u = b.ResolveReference(u)
	}
	return u.String(), fragment // where base is a plain name, others are found by theirs
}

// find returns the schema that t refers to.
func (g *jsonGrapher) find(t *jsonTree, ref string) (*jsonTree, error) {
	key := reference{t.base, ref}
	if found := g.found[key]; found != nil {
		return found, nil
	}
	found, err := g.resolve(t, ref)
	if err == nil {
		g.found[key] = found
	}
	return found, err
}

func (g *jsonGrapher) resolve(t *jsonTree, ref string) (*jsonTree, error) {
	uri, fragment := resolveURI(t.base, ref)
	root := g.documents[uri]
	if root == nil {
		if name, _, _ := strings.Cut(ref, "#"); name != "" {
			root = g.documents[name]
		}
		if root == nil {
			return nil, fmt.Errorf("$ref %q is neither in the schema nor among its references: register what it refers to as a reference of that name", ref)
		}
	}
	if fragment == "" {
		return root, nil
	}
	if fragment[0] != '/' {
		for _, base := range []string{uri, root.base} {
			if found := g.anchors[base+"#"+fragment]; found != nil {
				return found, nil
			}
		}
		return nil, fmt.Errorf("$ref %q names an anchor that is nowhere", ref)
	}
	found := root
	for _, step := range strings.Split(fragment[1:], "/") {
		step = strings.ReplaceAll(strings.ReplaceAll(step, "~1", "/"), "~0", "~")
		next := found.get(step)
		if i, err := strconv.Atoi(step); err == nil && found.kind == '[' && i >= 0 && i < len(found.values) {
			next = found.values[i]
		}
		if next == nil {
			return nil, fmt.Errorf("$ref %q leads nowhere: there is no %q", ref, step)
		}
		found = next
	}
	if !found.isSchema() {
		return nil, fmt.Errorf("$ref %q leads to what is no schema", ref)
	}
	return found, nil
}

// step counts one more subschema that is looked at.
func (g *jsonGrapher) step() error {
	if g.steps++; g.steps > maxSchemaSteps {
		return fmt.Errorf("schema refers to the same subschemas too often: it takes more than %d steps to read; use fewer references, or fewer alternatives", maxSchemaSteps)
	}
	return nil
}

// conjunction returns the schemas that hold wherever those of at do: what they refer to, and
// what their allOf lists. Each is there once, so that a schema within itself ends.
func (g *jsonGrapher) conjunction(at []*jsonTree) ([]*jsonTree, error) {
	var all []*jsonTree
	seen := map[*jsonTree]bool{}
	var add func(t *jsonTree) error
	add = func(t *jsonTree) error {
		if seen[t] {
			return nil
		}
		if err := g.step(); err != nil {
			return err
		}
		seen[t] = true
		if !t.onlyRefers() {
			all = append(all, t)
		}
		for _, keyword := range []string{"$ref", "$dynamicRef", "$recursiveRef"} {
			if ref := t.string(keyword); ref != "" {
				found, err := g.find(t, ref)
				if err == nil {
					err = add(found)
				}
				if err != nil {
					return err
				}
			}
		}
		for _, s := range t.list("allOf") {
			if err := add(s); err != nil {
				return err
			}
		}
		return nil
	}
	for _, t := range at {
		if err := add(t); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// onlyRefers reports whether t says nothing of its own about values, so that a schema is the same
// wherever it is referred to.
func (t *jsonTree) onlyRefers() bool {
	return t.kind == '{' && len(t.names) > 0 && !slices.ContainsFunc(t.names, func(name string) bool {
		switch name {
		case "$ref", "$dynamicRef", "$recursiveRef", "allOf", "description", "default", "$comment":
			return false
		}
		return true
	})
}

// jsonTypes is a set of types.
type jsonTypes uint8

const (
	typeNull jsonTypes = 1 << iota
	typeBoolean
	typeInteger
	typeFraction // numbers that are no integers
	typeString
	typeArray
	typeObject

	typeNumber = typeInteger | typeFraction
	anyType    = 1<<7 - 1
)

var jsonTypeNames = map[string]jsonTypes{
	"null": typeNull, "boolean": typeBoolean, "integer": typeInteger, "number": typeNumber,
	"string": typeString, "array": typeArray, "object": typeObject,
}

// valueType returns the type of an example.
func (t *jsonTree) valueType() jsonTypes {
	switch t.kind {
	case 'n':
		return typeNull
	case 't', 'f':
		return typeBoolean
	case '"':
		return typeString
	case '[':
		return typeArray
	case '{':
		return typeObject
	}
	if n, _, _ := scanNumber([]byte(t.text), 0); n.fraction {
		if _, reason := n.int64(); reason != "" {
			return typeFraction
		}
	}
	return typeInteger
}

// stated returns the types that t itself allows, by its keywords other than those that hold
// schemas for the same value.
func (t *jsonTree) stated() jsonTypes {
	if t.kind == 'f' {
		return 0
	}
	types, examples := jsonTypes(0), jsonTypes(0)
	if v := t.get("type"); v != nil {
		types = jsonTypeNames[v.text]
		for _, v := range v.values {
			types |= jsonTypeNames[v.text]
		}
	}
	for _, v := range t.list("enum") {
		examples |= v.valueType()
	}
	if v := t.get("const"); v != nil {
		examples |= v.valueType()
	}
	switch {
	case types != 0 && examples != 0:
		return types & examples
	case types|examples != 0:
		return types | examples
	case t.get("properties") != nil, t.get("patternProperties") != nil, t.get("additionalProperties").isObject():
		return typeObject | typeNull
	case t.get("items") != nil, t.get("prefixItems") != nil:
		return typeArray | typeNull
	}
	return anyType
}

func (t *jsonTree) isObject() bool { return t != nil && t.kind == '{' }

// alternatives returns the lists of oneOf and anyOf.
func (t *jsonTree) alternatives() (lists [][]*jsonTree) {
	for _, keyword := range []string{"oneOf", "anyOf"} {
		if l := t.list(keyword); len(l) > 0 {
			lists = append(lists, l)
		}
	}
	return lists
}

// maxAlternatives is how deep oneOf and anyOf are looked into. Below, every type is possible.
const maxAlternatives = 32

// types returns the types of values for which all schemas may hold.
func (g *jsonGrapher) types(all []*jsonTree, depth int) (jsonTypes, error) {
	types := jsonTypes(anyType)
	for _, t := range all {
		types &= t.allows
		if depth == maxAlternatives {
			continue
		}
		for _, list := range t.alternatives() {
			var either jsonTypes
			for _, s := range list {
				one, err := g.alternative(s, depth+1)
				if err != nil {
					return 0, err
				}
				either |= one
			}
			types &= either
		}
	}
	return types, nil
}

// alternative is types for one schema of a list. Schemas that refer to each other lead to the same ones
// again and again, twice as often with every step down: each is worked out once.
func (g *jsonGrapher) alternative(t *jsonTree, depth int) (jsonTypes, error) {
	if err := g.step(); err != nil {
		return 0, err
	}
	key := alternative{t, depth}
	if types, known := g.possible[key]; known {
		return types, nil
	}
	all, err := g.conjunction([]*jsonTree{t})
	if err != nil {
		return 0, err
	}
	types, err := g.types(all, depth)
	if err == nil {
		g.possible[key] = types
	}
	return types, err
}

// node returns the node of values for which all schemas of at hold.
func (g *jsonGrapher) node(at []*jsonTree, path string) (*node, error) {
	all, err := g.conjunction(at)
	if err != nil {
		return nil, inField(path, err)
	}
	var key []byte
	for _, t := range all {
		key = binary.BigEndian.AppendUint32(key, t.id)
	}
	if n := g.known[string(key)]; n != nil {
		return n, nil
	}
	if len(g.known) >= maxColumns {
		return nil, inField(path, fmt.Errorf("schema has more than %d types", maxColumns))
	}
	n := &node{kind: wireRecord}
	g.known[string(key)] = n // before what it holds, which may be itself
	types, err := g.types(all, 0)
	if err != nil {
		return nil, inField(path, err)
	}
	if one, err := g.only(all, types&^typeNull); err != nil {
		return nil, inField(path, err)
	} else if one != nil {
		inner, err := g.node(one, path)
		if err != nil {
			return nil, err
		}
		*n = node{kind: wireUnion, branches: []*node{inner}}
		if types&typeNull != 0 {
			n.branches = []*node{{kind: wireNull}, inner}
		}
		return n, nil
	}
	value, err := g.value(all, types&^typeNull, path)
	if err != nil {
		return nil, err
	}
	*n = value
	if types&typeNull != 0 && value.kind != wireNull {
		*n = node{kind: wireUnion, branches: []*node{{kind: wireNull}, &value}}
	}
	return n, nil
}

func inField(path string, err error) error {
	if path == "" {
		return err
	}
	return fmt.Errorf("field %s: %w", path, err)
}

// value is node for values that are not null, and of one of types.
func (g *jsonGrapher) value(all []*jsonTree, types jsonTypes, path string) (node, error) {
	switch types {
	case 0:
		return node{kind: wireNull}, nil
	case typeBoolean, typeInteger, typeNumber, typeFraction, typeString, typeArray, typeObject:
	default:
		return node{kind: wireAny}, nil
	}
	all, several, err := g.choose(all, types)
	if err != nil {
		return node{}, inField(path, err)
	}
	switch {
	case types == typeObject && several == nil:
		return g.object(all, path)
	case types == typeArray && several == nil:
		return g.array(all, path)
	case types == typeObject, types == typeArray:
		return node{kind: wireAny}, nil
	}
	n := scalar(all, types)
	for i, s := range several {
		if one := scalar(append(slices.Clip(all), s...), types); i == 0 {
			n = one
		} else if !n.sameScalar(&one) {
			return scalar(nil, types), nil
		}
	}
	return n, nil
}

// choose adds to all what must hold besides: the schemas of each oneOf and anyOf of which only
// one is of these types. Of the first list with several that say more than a constraint does, it
// returns them.
func (g *jsonGrapher) choose(all []*jsonTree, types jsonTypes) (chosen []*jsonTree, several [][]*jsonTree, err error) {
	chosen = slices.Clone(all)
	for i := 0; i < len(chosen); i++ {
		for _, list := range chosen[i].alternatives() {
			var fit [][]*jsonTree
			structure := false
			for _, s := range list {
				possible, err := g.alternative(s, 1)
				if err != nil {
					return nil, nil, err
				}
				one, err := g.conjunction([]*jsonTree{s})
				if err != nil {
					return nil, nil, err
				}
				if possible&types != 0 {
					fit = append(fit, one)
					structure = structure || slices.ContainsFunc(one, (*jsonTree).hasStructure)
				}
			}
			switch {
			case len(fit) == 1:
				for _, t := range fit[0] {
					if !slices.Contains(chosen, t) {
						chosen = append(chosen, t)
					}
				}
			case structure && several == nil:
				several = fit
			}
		}
	}
	return chosen, several, nil
}

// only returns the one schema that holds for objects, or for arrays, where all says nothing else than that
// one of several does: then it is that schema, which may be one that all of this lies inside of.
func (g *jsonGrapher) only(all []*jsonTree, types jsonTypes) ([]*jsonTree, error) {
	if g.version < 3 || len(all) != 1 || all[0].kind != '{' || types != typeObject && types != typeArray || slices.ContainsFunc(all[0].names, saysMore) {
		return nil, nil
	}
	lists := all[0].alternatives()
	if len(lists) != 1 {
		return nil, nil
	}
	var only []*jsonTree
	for _, s := range lists[0] {
		possible, err := g.alternative(s, 1)
		if err != nil {
			return nil, err
		}
		switch {
		case possible&types == 0:
		case only != nil:
			return nil, nil
		default:
			only = []*jsonTree{s}
		}
	}
	return only, nil
}

// saysMore reports whether a keyword says more of values than that one of several schemas holds.
func saysMore(keyword string) bool {
	switch keyword {
	case "oneOf", "anyOf", "$schema", "$id", "$defs", "definitions", "description", "default", "examples", "$comment", "deprecated":
		return false
	}
	return true
}

// hasStructure reports whether t says what columns its values have, and not only which values
// are good.
func (t *jsonTree) hasStructure() bool {
	if t.kind != '{' {
		return false
	}
	for _, name := range []string{"properties", "patternProperties", "items", "prefixItems", "oneOf", "anyOf", "format", "contentEncoding", "connect.type", "title"} {
		if t.get(name) != nil {
			return true
		}
	}
	return t.get("additionalProperties").isObject()
}

func (g *jsonGrapher) object(all []*jsonTree, path string) (node, error) {
	var names []string
	properties := map[string][]*jsonTree{}
	required := map[string]bool{}
	var others, patterns []*jsonTree
	for _, t := range all {
		if p := t.get("properties"); p.isObject() {
			for i, name := range p.names {
				if !p.values[i].isSchema() {
					return node{}, inField(join(path, name), fmt.Errorf("its schema is neither an object nor a boolean"))
				}
				if properties[name] == nil {
					names = append(names, name)
				}
				properties[name] = append(properties[name], p.values[i])
			}
		}
		names := t.list("required")
		g.steps += len(names) / 100 // they cost little, but there may be many
		for _, name := range names {
			required[name.text] = true
		}
		if p := t.get("patternProperties"); p.isObject() {
			patterns = append(patterns, p.values...)
		}
		if a := t.get("additionalProperties"); a.isObject() {
			others = append(others, a)
		}
	}
	if len(names) == 0 {
		if len(others) == 0 && len(patterns) == 1 {
			others = patterns
		}
		return g.mapOf(others, path)
	}
	n := node{kind: wireRecord}
	for _, name := range names {
		inner, err := g.node(properties[name], join(path, name))
		if err != nil {
			return node{}, err
		}
		if !required[name] {
			inner = &node{kind: wireUnion, branches: []*node{{kind: wireNull}, inner}}
		}
		f := nodeField{name: name, node: inner}
		for _, t := range properties[name] {
			f.doc = cmp.Or(f.doc, t.string("description"))
		}
		n.fields = append(n.fields, f)
	}
	return n, nil
}

// mapOf returns the node of objects of which every property is as values say; of any object if
// they say nothing.
func (g *jsonGrapher) mapOf(values []*jsonTree, path string) (node, error) {
	all, err := g.conjunction(values)
	if err != nil {
		return node{}, inField(path, err)
	}
	if types, err := g.types(all, 0); err != nil || types == anyType {
		return node{kind: wireAny}, err
	}
	item, err := g.node(values, join(path, "value"))
	return node{kind: wireMap, item: item}, err
}

func (g *jsonGrapher) array(all []*jsonTree, path string) (node, error) {
	path = join(path, "element")
	var items []*jsonTree // that hold for each item
	var tuple [][]*jsonTree
	for _, t := range all {
		every, first := t.get("items"), t.get("prefixItems")
		if every != nil && every.kind == '[' { // until 2019-09
			every, first = t.get("additionalItems"), every
		}
		if first == nil || first.kind != '[' {
			if every.isSchema() {
				items = append(items, every)
			}
			continue
		}
		for _, s := range first.values {
			tuple = append(tuple, []*jsonTree{s})
		}
		if every.isObject() {
			tuple = append(tuple, []*jsonTree{every})
		}
	}
	if len(tuple) == 0 {
		item, err := g.node(items, path)
		return node{kind: wireArray, item: item}, err
	}
	if len(items) > 0 {
		tuple = append(tuple, items)
	}
	var item *node
	for _, s := range tuple {
		one, err := g.node(s, path)
		if err != nil {
			return node{}, err
		}
		if item != nil && item != one && !item.sameScalar(one) {
			return node{kind: wireAny}, nil
		}
		item = one
	}
	return node{kind: wireArray, item: item}, nil
}

// sameScalar reports whether n and o are the same type, of which a value holds no other.
func (n *node) sameScalar(o *node) bool {
	switch n.kind {
	case wireRecord, wireArray, wireMap:
		return false
	case wireUnion:
		a, _ := n.single()
		b, _ := o.single()
		return o.kind == wireUnion && a.sameScalar(b)
	}
	return n.kind == o.kind && n.logical == o.logical && n.precision == o.precision && n.scale == o.scale
}

// scalar returns the node of values of one type that holds no others.
func scalar(all []*jsonTree, types jsonTypes) node {
	first := func(keyword string) string {
		for _, t := range all {
			if s := t.string(keyword); s != "" {
				return s
			}
		}
		return ""
	}
	connect, name := first("connect.type"), first("title")
	switch types {
	case typeBoolean:
		return node{kind: wireBoolean}
	case typeInteger:
		n := node{kind: wireLong}
		switch connect {
		case "int8", "int16", "int32":
			n.kind = wireInt
		}
		n.logical = n.fit(connectNames[name], false)
		return n
	case typeString:
		n := node{kind: wireString}
		switch first("format") {
		case "date":
			n.logical = logicalDate
		case "time":
			n.logical = logicalTimeMicros
		case "date-time":
			n.logical = logicalZoned
		case "uuid":
			n.logical = logicalUUID
		default:
			n.logical = n.fit(connectNames[name], false)
		}
		if connect == "bytes" || strings.EqualFold(first("contentEncoding"), "base64") {
			n = node{kind: wireBytes}
		}
		return n
	}
	n := node{kind: wireDouble}
	if connect == "float32" {
		n.kind = wireFloat
	}
	if connectNames[name] == "decimal" {
		for _, t := range all {
			if p := t.get("connect.parameters"); p != nil {
				n.precision, n.scale = intProp(p.string("connect.decimal.precision"), 38), intProp(p.string("scale"), -1)
			}
		}
		if n.decimalFits() {
			n.logical = logicalDecimal
		}
	}
	return n
}
