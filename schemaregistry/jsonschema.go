package schemaregistry

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// maxNumber bounds the text of a number in a JSON Schema, and maxExponent its exponent: the
// compiler computes exactly.
const (
	maxNumber   = 100
	maxExponent = 3 // digits
)

// canonicalJSON writes a JSON Schema without spaces. normalize also sorts the properties of
// its objects.
func canonicalJSON(text string, normalize bool) (string, error) {
	n, err := parseJSON(text, maxDepth)
	if err != nil {
		return "", err
	}
	if n.kind != 'o' && n.text != "true" && n.text != "false" {
		return "", errors.New("a JSON Schema is an object, true or false")
	}
	if err := n.checkNumbers(); err != nil {
		return "", err
	}
	if normalize {
		n.sort()
	}
	return string(n.append(nil)), nil
}

func (n node) checkNumbers() error {
	if n.kind == 'l' {
		_, exponent, _ := strings.Cut(strings.ToLower(n.text), "e")
		if len(n.text) > maxNumber || len(strings.TrimLeft(exponent, "+-0")) > maxExponent {
			return fmt.Errorf("the number %.20s is too long, or its exponent is too large", n.text)
		}
	}
	for _, v := range n.values {
		if err := v.checkNumbers(); err != nil {
			return err
		}
	}
	return nil
}

// sort brings the keys of all objects in order.
func (n node) sort() {
	for _, v := range n.values {
		v.sort()
	}
	if n.kind != 'o' {
		return
	}
	byKey := map[string]node{}
	for i, k := range n.keys {
		byKey[k] = n.values[i]
	}
	slices.Sort(n.keys)
	for i, k := range n.keys {
		n.values[i] = byKey[k]
	}
}

// ownBase is the URI of a schema that has no absolute one; references are resolved by it.
const ownBase = "registry:///schema"

// parseJSONSchema compiles a schema and what it refers to: parts of itself, the dependencies,
// and the metaschemas. Nothing is read from the network or the disk. A schema without
// "$schema" is of draft-07.
func parseJSONSchema(text string, dependencies []Dependency) (jsonModel, error) {
	doc, err := decodeJSONSchema(text)
	if err != nil {
		return jsonModel{}, err
	}
	base, _ := url.Parse(ownBase)
	if o, ok := doc.(map[string]any); ok {
		id, _ := cmp.Or(o["$id"], o["id"]).(string)
		if u, err := url.Parse(id); err == nil && u.IsAbs() {
			base = u
			base.Fragment = ""
		}
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft7)
	c.UseLoader(noLoader{})
	c.UseRegexpEngine(compilePattern)
	c.RegisterVocabulary(keepSource)
	c.AssertVocabs()
	if err := c.AddResource(base.String(), doc); err != nil {
		return jsonModel{}, fmt.Errorf("its $id: %w", err)
	}
	for _, d := range dependencies {
		u, err := base.Parse(d.Name)
		if err != nil {
			return jsonModel{}, fmt.Errorf("the name of the reference %q is no URI: %w", d.Name, err)
		}
		doc, err := decodeJSONSchema(d.Text)
		if err != nil {
			return jsonModel{}, fmt.Errorf("the referenced schema %s: %w", d.Name, err)
		}
		var exists *jsonschema.ResourceExistsError
		if err := c.AddResource(u.String(), doc); err != nil && !errors.As(err, &exists) {
			return jsonModel{}, fmt.Errorf("the referenced schema %s: %w", d.Name, err)
		}
	}
	s, err := c.Compile(base.String())
	if err != nil {
		return jsonModel{}, errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	return jsonModel{s}, nil
}

func decodeJSONSchema(text string) (any, error) {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if o, ok := doc.(map[string]any); ok {
		// A dialect that is not known is read as draft-07.
		if s, ok := o["$schema"].(string); ok && !slices.Contains(drafts, strings.TrimRight(strings.TrimPrefix(strings.TrimPrefix(s, "http://"), "https://"), "#")) {
			o = maps.Clone(o)
			delete(o, "$schema")
			doc = o
		}
	}
	return doc, err
}

var drafts = []string{
	"json-schema.org/draft-04/schema", "json-schema.org/draft-06/schema", "json-schema.org/draft-07/schema",
	"json-schema.org/draft/2019-09/schema", "json-schema.org/draft/2020-12/schema",
}

// noLoader is asked for what is neither a dependency nor a metaschema.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("no reference has the name %q, and nothing is loaded from elsewhere", url)
}

// A pattern is a regular expression of ECMA 262, of which Go's engine knows a part. Of one
// that it does not know only the text counts.
type pattern struct {
	text string
	re   *regexp.Regexp
}

func compilePattern(text string) (jsonschema.Regexp, error) {
	re, err := regexp.Compile(text)
	if err != nil {
		re = nil
	}
	return &pattern{text, re}, nil
}

func (p *pattern) String() string { return p.text }

func (p *pattern) MatchString(s string) bool { return p.re != nil && p.re.MatchString(s) }

// A source is a schema as it is written: the compiler drops words that it does not know.
type source map[string]any

func (source) Validate(*jsonschema.ValidatorContext, any) {}

var anything = true

// keepSource makes the compiler keep the source of every schema.
var keepSource = &jsonschema.Vocabulary{
	URL:    "registry:///source",
	Schema: &jsonschema.Schema{Bool: &anything},
	Compile: func(_ *jsonschema.CompilerContext, o map[string]any) (jsonschema.SchemaExt, error) {
		return source(o), nil
	},
}

// sourceOf returns how a schema is written, nothing for true and false.
func sourceOf(s *jsonschema.Schema) source {
	for _, e := range s.Extensions {
		if o, ok := e.(source); ok {
			return o
		}
	}
	return nil
}
