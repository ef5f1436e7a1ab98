// Package schemaregistry keeps the schemas of topics and serves them by the HTTP API of
// Confluent's Schema Registry, so that the serializers of every language work unchanged.
//
// A schema is first brought into canonical form; equal forms with equal references are one
// schema with one id. Registering is optimistic: read the subject, judge the schema against
// its versions, and commit if the subject is still what was read, else begin anew. So any
// number of processes on one metadata database agree without a leader.
//
// The types of schemas are Avro, Protobuf and JSON Schema. What differs between them is in one
// file each for the canonical form and for the rules of compatibility.
package schemaregistry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/protofile"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/streamstore"
)

const (
	maxReferenceDepth = 32                 // how far references lead from a schema
	maxReferences     = 500                // how many schemas one uses in all
	maxBytes          = protofile.MaxBytes // how long its text and theirs are together, so that tables can read it
)

// Config is the configuration of a registry.
type Config struct {
	// MaxSchemaBytes bounds the text of one schema. 1 MiB if zero.
	MaxSchemaBytes int
	// CacheBytes bounds the memory for what was used last, half of it for schemas by id and half for
	// the versions of subjects. 64 MiB if zero, none if negative.
	CacheBytes int64
}

func (c *Config) setDefaults() {
	if c.MaxSchemaBytes == 0 {
		c.MaxSchemaBytes = 1 << 20
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = 64 << 20
	}
}

// A Registry is safe for concurrent use.
type Registry struct {
	store    *metadata.Store
	tables   Tables
	cfg      Config
	log      *slog.Logger
	schemas  *cache[int, Schema]
	subjects *cache[string, metadata.Subject]
}

// New returns a registry on a metadata store, which the caller closes. With tables nil no topic has
// a table.
func New(store *metadata.Store, tables Tables, cfg Config, log *slog.Logger) *Registry {
	cfg.setDefaults()
	half := int(cfg.CacheBytes / 2)
	return &Registry{store: store, tables: tables, cfg: cfg, log: log,
		schemas: newCache[int](half, Schema.size), subjects: newCache[string](half, subjectSize)}
}

// readSubject returns the versions of a subject as the database has them now; none if it does not exist.
// What it returns is shared, and is not changed.
func (r *Registry) readSubject(ctx context.Context, name string) (metadata.Subject, error) {
	known, _ := r.subjects.get(name)
	known.Name = name
	u, err := r.store.SubjectSince(ctx, known)
	if err == nil && u.Revision != known.Revision {
		r.subjects.put(name, u)
	}
	return u, err
}

// remember keeps a subject with the version that was added to it, which need not be read then.
func (r *Registry) remember(u metadata.Subject, v metadata.SubjectVersion) {
	if n := len(u.Versions); n > 0 && u.Versions[n-1].Version > v.Version {
		return
	}
	// Of all that add to this state of the subject one does: nobody else uses the room behind it.
	u.Versions = append(u.Versions, v)
	u.Revision++
	r.subjects.put(u.Name, u)
}

// A Schema is a schema with the texts of what it refers to.
type Schema struct {
	metadata.Schema
	// Dependencies are the schemas that it refers to, directly or not, each after those that
	// it uses itself.
	Dependencies []Dependency
}

// A Dependency is a schema that another refers to by a name: the full name of an Avro type,
// the path of a Protobuf import, the URI of a JSON Schema.
type Dependency struct {
	Name string
	Text string
}

// Schema returns the schema with that id. An error wraps metadata.ErrSchemaNotExist if there
// is none, also none that a moment ago was registered elsewhere; any other error says that
// the answer is not known now, and a later call may succeed.
func (r *Registry) Schema(ctx context.Context, id int) (Schema, error) {
	if s, ok := r.schemas.get(id); ok {
		return s, nil
	}
	stored, err := r.store.Schema(ctx, id)
	if err != nil {
		return Schema{}, err
	}
	s := Schema{Schema: stored}
	if s.Dependencies, err = r.dependencies(ctx, stored.References); err != nil {
		return Schema{}, fmt.Errorf("schema %d: %w", id, err)
	}
	r.schemas.put(id, s)
	return s, nil
}

// errNoReference says that a referenced version is not there.
var errNoReference = errors.New("the reference does not exist")

// Latest returns the id of the latest version of a subject, as the database has it now.
// metadata.ErrSchemaNotExist says that there is none.
func (r *Registry) Latest(ctx context.Context, subject string) (id int32, err error) {
	s, err := r.readSubject(ctx, subject)
	if err != nil {
		return 0, err
	}
	for i := len(s.Versions) - 1; i >= 0; i-- {
		if v := s.Versions[i]; !v.Deleted {
			return int32(v.Schema.ID), nil
		}
	}
	return 0, metadata.ErrSchemaNotExist
}

// Holds reports whether a schema is a version, not a deleted one, of a subject or of the one that
// its alias names.
func (r *Registry) Holds(ctx context.Context, subject string, id int32) (bool, error) {
	c, err := r.ownConfig(ctx, subject)
	if err != nil {
		return false, err
	}
	subject = cmp.Or(c.Alias, subject)
	versions, err := r.store.VersionsOf(ctx, int(id))
	return slices.ContainsFunc(versions, func(v metadata.SubjectVersion) bool { return v.Subject == subject && !v.Deleted }), err
}

// GUID returns the id of the schema of that identity, or metadata.ErrSchemaNotExist.
func (r *Registry) GUID(ctx context.Context, guid uuid.UUID) (id int32, err error) {
	s, err := r.store.SchemaByGUID(ctx, guid)
	return int32(s.ID), err
}

// Earlier returns the ids of the versions before that schema in its subjects, newest first, at most
// limit. Deleted versions count: records have been written with them.
func (r *Registry) Earlier(ctx context.Context, id int32, limit int) (ids []int32, err error) {
	versions, err := r.store.VersionsOf(ctx, int(id))
	if err != nil {
		return nil, err
	}
	return r.earlier(ctx, versions, id, limit)
}

// earlier returns the ids of what comes before versions, of the schema id, in their subjects.
func (r *Registry) earlier(ctx context.Context, versions []metadata.SubjectVersion, id int32, limit int) (ids []int32, err error) {
	for _, v := range versions {
		s, err := r.readSubject(ctx, v.Subject)
		if err != nil {
			return nil, err
		}
		for _, other := range slices.Backward(s.Versions) {
			if earlier := int32(other.Schema.ID); other.Version < v.Version && earlier != id && !slices.Contains(ids, earlier) && len(ids) < limit {
				ids = append(ids, earlier)
			}
		}
	}
	return ids, nil
}

// dependencies reads the schemas that references lead to. A version that was soft deleted
// still counts.
func (r *Registry) dependencies(ctx context.Context, refs []metadata.SchemaReference) ([]Dependency, error) {
	w := referenceWalk{store: r.store, state: map[metadata.SchemaReference]bool{}}
	if err := w.walk(ctx, refs, maxReferenceDepth); err != nil {
		return nil, err
	}
	return w.found, nil
}

type referenceWalk struct {
	store *metadata.Store
	state map[metadata.SchemaReference]bool // false while a version is being walked, true after
	found []Dependency
	bytes int
}

func (w *referenceWalk) walk(ctx context.Context, refs []metadata.SchemaReference, depth int) error {
	if len(refs) > 0 && depth == 0 {
		return fmt.Errorf("references lead deeper than %d schemas: %w", maxReferenceDepth, errNoReference)
	}
	for _, ref := range refs {
		if done, seen := w.state[ref]; seen {
			if !done {
				return fmt.Errorf("subject %q version %d refers to itself: %w", ref.Subject, ref.Version, errNoReference)
			}
			continue
		}
		if len(w.state) == maxReferences {
			return fmt.Errorf("more than %d schemas are referenced: %w", maxReferences, errNoReference)
		}
		w.state[ref] = false
		v, err := w.store.SubjectVersion(ctx, ref.Subject, ref.Version)
		if errors.Is(err, metadata.ErrSchemaNotExist) {
			return fmt.Errorf("subject %q has no version %d (for the name %s): %w", ref.Subject, ref.Version, ref.Name, errNoReference)
		}
		if err != nil {
			return err
		}
		if err := w.walk(ctx, v.Schema.References, depth-1); err != nil {
			return err
		}
		w.state[ref] = true
		w.found = append(w.found, Dependency{ref.Name, v.Schema.Text})
		if w.bytes += len(v.Schema.Text); w.bytes > maxBytes {
			return fmt.Errorf("the referenced schemas have more than %d bytes together: %w", maxBytes, errNoReference)
		}
	}
	return nil
}

// A Request is a schema as a client sends it.
type Request struct {
	Schema     string                     `json:"schema"`
	SchemaType string                     `json:"schemaType"` // AVRO if empty
	References []metadata.SchemaReference `json:"references"` // version -1 is the latest
	Metadata   json.RawMessage            `json:"metadata"`   // of the latest version if it has neither metadata nor rules
	RuleSet    json.RawMessage            `json:"ruleSet"`
	// ID is for subjects in mode IMPORT, Version too: otherwise it is the next one, or none.
	ID      int `json:"id"`
	Version int `json:"version"`
}

// A parsedSchema is a request in canonical form.
type parsedSchema struct {
	schema       metadata.Schema
	dependencies []Dependency
	model        model
}

// parse judges a request by itself.
func (r *Registry) parse(ctx context.Context, q Request, normalize bool) (parsedSchema, error) {
	t := cmp.Or(q.SchemaType, typeAvro)
	if !slices.Contains(types, t) {
		return parsedSchema{}, invalidSchema("the schema type %q is not one of %v", t, types)
	}
	if len(q.Schema) > r.cfg.MaxSchemaBytes {
		return parsedSchema{}, schemaTooLarge(len(q.Schema), r.cfg.MaxSchemaBytes)
	}
	if q.Schema == "" {
		return parsedSchema{}, invalidSchema("it is empty")
	}
	refs, err := r.resolve(ctx, q.References)
	if err != nil {
		return parsedSchema{}, err
	}
	p := parsedSchema{schema: metadata.Schema{Type: t, References: refs}}
	if p.schema.Metadata, err = canonicalObject(q.Metadata, &schemaMetadata{}); err != nil {
		return p, invalidSchema("its metadata: %v", err)
	}
	if p.schema.RuleSet, err = canonicalObject(q.RuleSet, &ruleSet{}); err != nil {
		return p, invalidRuleSet(err.Error())
	}
	p.dependencies, err = r.dependencies(ctx, refs)
	if errors.Is(err, errNoReference) {
		return p, invalidSchema("%v", err)
	}
	if err != nil {
		return p, err
	}
	if p.schema.Text, err = canonical(t, q.Schema, p.dependencies, normalize); err != nil {
		return p, invalidSchema("%v", err)
	}
	bytes := len(p.schema.Text)
	for _, d := range p.dependencies {
		bytes += len(d.Text)
	}
	if bytes > maxBytes {
		return p, invalidSchema("it and what it refers to have %d bytes together, at most %d are allowed", bytes, maxBytes)
	}
	if p.model, err = parse(t, p.schema.Text, p.dependencies); err != nil {
		return p, invalidSchema("%v", err)
	}
	return p, nil
}

// schemaMetadata is the metadata of a schema as clients send them.
type schemaMetadata struct {
	Tags       map[string][]string `json:"tags"` // by path
	Properties map[string]string   `json:"properties"`
	Sensitive  []string            `json:"sensitive"` // names of properties
}

// A ruleSet is what serializers shall do. The registry keeps it and does none of it.
type ruleSet struct {
	Migration []rule `json:"migrationRules"`
	Domain    []rule `json:"domainRules"`
	Encoding  []rule `json:"encodingRules"`
}

type rule struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	Mode string `json:"mode"`
}

// canonicalObject writes a JSON object, which must fit shape, without spaces and with its
// properties in order; null and {} are nothing.
func canonicalObject(raw json.RawMessage, shape any) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	n, err := parseJSON(string(raw), maxDepth)
	if err != nil {
		return "", err
	}
	var wrong *json.UnmarshalTypeError
	if err := json.Unmarshal(raw, shape); errors.As(err, &wrong) {
		return "", fmt.Errorf("%q cannot be of type %s", cmp.Or(wrong.Field, "/"), wrong.Value)
	} else if err != nil {
		return "", err
	}
	if len(n.keys) == 0 {
		return "", nil
	}
	n.sort()
	return string(n.append(nil)), nil
}

// inherit gives a schema that has neither metadata nor rules those of the latest version.
func inherit(s metadata.Schema, live []metadata.SubjectVersion) metadata.Schema {
	if n := len(live); n > 0 && s.Metadata == "" && s.RuleSet == "" {
		s.Metadata, s.RuleSet = live[n-1].Schema.Metadata, live[n-1].Schema.RuleSet
	}
	return s
}

// resolve replaces the version -1 of references by the latest.
func (r *Registry) resolve(ctx context.Context, refs []metadata.SchemaReference) ([]metadata.SchemaReference, error) {
	if len(refs) > maxReferences {
		return nil, invalidSchema("it has %d references, at most %d are allowed", len(refs), maxReferences)
	}
	refs = slices.Clone(refs)
	for i, ref := range refs {
		if ref.Name == "" || ref.Subject == "" {
			return nil, invalidSchema("reference %d needs a name, a subject and a version", i)
		}
		if ref.Version != -1 {
			continue
		}
		subject, err := r.readSubject(ctx, ref.Subject)
		if err != nil {
			return nil, err
		}
		live := liveVersions(subject)
		if len(live) == 0 {
			return nil, invalidSchema("subject %q (for the name %s): %v", ref.Subject, ref.Name, errNoReference)
		}
		refs[i].Version = live[len(live)-1].Version
	}
	return refs, nil
}

func liveVersions(s metadata.Subject) []metadata.SubjectVersion {
	return slices.DeleteFunc(slices.Clone(s.Versions), func(v metadata.SubjectVersion) bool { return v.Deleted })
}

// find returns the newest of versions that is the schema.
func find(versions []metadata.SubjectVersion, s metadata.Schema) (metadata.SubjectVersion, bool) {
	for _, v := range slices.Backward(versions) {
		if v.Schema.Type == s.Type && v.Schema.Text == s.Text && slices.Equal(v.Schema.References, s.References) &&
			v.Schema.Metadata == s.Metadata && v.Schema.RuleSet == s.RuleSet {
			return v, true
		}
	}
	return metadata.SubjectVersion{}, false
}

// Register makes a schema the next version of a subject, unless it is one of its versions
// already, and returns that version. normalize ignores the order of properties.
// The warnings are of tables that cannot hold it.
func (r *Registry) Register(ctx context.Context, subject string, q Request, normalize bool) (v metadata.SubjectVersion, warnings []TableChange, err error) {
	for {
		v, err := r.tryRegister(ctx, subject, q, normalize)
		// Every conflict means that another change of the subject was committed.
		if !errors.Is(err, streamstore.ErrConflict) || ctx.Err() != nil {
			return v.SubjectVersion, v.warnings, err
		}
	}
}

// A registration is a version with what there was to say about it.
type registration struct {
	metadata.SubjectVersion
	warnings []TableChange
}

func (r *Registry) tryRegister(ctx context.Context, name string, q Request, normalize bool) (registration, error) {
	none := registration{}
	if err := checkSubject(name); err != nil {
		return none, err
	}
	subject, err := r.readSubject(ctx, name)
	if err != nil {
		return none, err
	}
	c, err := effective(subject.Own, subject.Global)
	if err != nil {
		return none, err
	}
	p, err := r.parse(ctx, q, normalize || c.normalize())
	if err != nil {
		return none, err
	}
	live := liveVersions(subject)
	v, found := find(live, p.schema)
	if !found {
		p.schema = inherit(p.schema, live)
		v, found = find(live, p.schema)
	}
	switch {
	case found && (q.ID <= 0 || q.ID == v.Schema.ID) && (q.Version <= 0 || q.Version == v.Version || c.mode != modeImport):
		return registration{v, nil}, nil
	case found && q.ID > 0 && q.ID != v.Schema.ID:
		return none, otherID(v.Schema.ID, q.ID)
	}
	if err := checkMode(name, c.mode, q.ID > 0); err != nil {
		return none, err
	}
	if err := checkVersion(subject, q.Version, c.mode); err != nil {
		return none, err
	}
	if err := r.checkLive(ctx, p.schema.References); err != nil {
		return none, err
	}
	var warnings []TableChange
	if c.mode != modeImport {
		why, err := r.judge(ctx, c, p, live)
		if err != nil {
			return none, err
		}
		if why != nil {
			return none, incompatible(fmt.Sprintf("Schema being registered is incompatible with an earlier schema for subject %q, details: %s", name, why))
		}
		if warnings, err = r.checkTables(ctx, subject, p); err != nil {
			return none, err
		}
	}
	p.schema.ID = max(q.ID, 0)
	// The subject may have been written since, or a reference deleted: then all is read anew.
	v, err = r.store.RegisterSchema(ctx, subject, max(q.Version, 0), p.schema)
	if errors.Is(err, metadata.ErrSchemaIDTaken) {
		return none, notPermitted(fmt.Sprintf("Schema id %d is not permitted: another schema has it, or had it, or this one has another", q.ID))
	}
	if err != nil {
		return none, err
	}
	r.remember(subject, v)
	for _, w := range warnings {
		r.log.LogAttrs(ctx, slog.LevelWarn, "a schema was registered that a table cannot hold", slog.String("subject", name),
			slog.Int("version", v.Version), slog.String("topic", w.Topic), slog.String("table", w.Table), slog.String("reason", w.Reason))
	}
	return registration{v, warnings}, nil
}

// checkMode says whether a new version may come, with an id or without.
func checkMode(subject string, m mode, hasID bool) error {
	switch {
	case m.readOnly():
		return notPermitted(fmt.Sprintf("Subject %s is in read-only mode: its mode is %s", subject, m))
	case hasID && m != modeImport:
		return notPermitted(fmt.Sprintf("Subject %s is not in import mode: only then a schema may come with its id", subject))
	case !hasID && m == modeImport:
		return notPermitted(fmt.Sprintf("Subject %s is not in read-write mode: its mode is %s, in which schemas come with their ids", subject, m))
	}
	return nil
}

// checkVersion refuses a version that is not the next one, or in mode IMPORT not free.
func checkVersion(subject metadata.Subject, version int, m mode) error {
	if version <= 0 {
		return nil
	}
	next := 1
	for _, v := range subject.Versions {
		if next = v.Version + 1; v.Version == version {
			return invalidSchema("version %d is there already", version)
		}
	}
	if m != modeImport && version != next {
		return invalidSchema("version %d is not the next one", version)
	}
	return nil
}

// checkLive refuses references to soft deleted versions, which only what refers to them
// already may use.
func (r *Registry) checkLive(ctx context.Context, refs []metadata.SchemaReference) error {
	for _, ref := range refs {
		v, err := r.store.SubjectVersion(ctx, ref.Subject, ref.Version)
		if errors.Is(err, metadata.ErrSchemaNotExist) || (err == nil && v.Deleted) {
			return invalidSchema("subject %q has no version %d (for the name %s): %v", ref.Subject, ref.Version, ref.Name, errNoReference)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// A verdict lists why a schema is not compatible with a version.
type verdict struct {
	version metadata.SubjectVersion
	level   level
	reasons []incompatibility
}

// messages are the reasons, and what was compared, as clients print them.
func (v *verdict) messages() []string {
	var all []string
	for _, why := range v.reasons {
		all = append(all, fmt.Sprintf("{errorType:'%s', description:'%s', path:'%s'}", why.kind, why.reason, why.path))
	}
	return append(all,
		fmt.Sprintf("{oldSchemaVersion: %d}", v.version.Version),
		fmt.Sprintf("{oldSchema: '%s'}", v.version.Schema.Text),
		fmt.Sprintf("{compatibility: '%s'}", v.level))
}

func (v *verdict) String() string { return fmt.Sprint(v.messages()) }

// judge compares a schema with those of the versions that the level names, the newest first,
// and returns the first verdict against it, nil if there is none. With a compatibility group
// only versions count whose metadata have the same value of that property.
func (r *Registry) judge(ctx context.Context, c config, p parsedSchema, versions []metadata.SubjectVersion) (*verdict, error) {
	l := c.level
	if l == levelNone {
		return nil, nil
	}
	for _, v := range slices.Backward(versions) {
		if c.Group != "" && property(v.Schema, c.Group) != property(p.schema, c.Group) {
			continue
		}
		dependencies, err := r.dependencies(ctx, v.Schema.References)
		if err != nil {
			return nil, fmt.Errorf("subject %s version %d: %w", v.Subject, v.Version, err)
		}
		older, err := parse(v.Schema.Type, v.Schema.Text, dependencies)
		if err != nil {
			return nil, fmt.Errorf("subject %s version %d: %w", v.Subject, v.Version, err)
		}
		if why := incompatibleAt(l, c.lenient(), p.model, older); len(why) > 0 {
			return &verdict{v, l, why}, nil
		}
		if !l.transitive() {
			break
		}
	}
	return nil, nil
}

// property returns a property of a schema's metadata, "" if it has none of that name.
func property(s metadata.Schema, name string) string {
	var m schemaMetadata
	if s.Metadata == "" || json.Unmarshal([]byte(s.Metadata), &m) != nil {
		return ""
	}
	return m.Properties[name]
}

func checkSubject(name string) error {
	if name == "" || len(name) > 512 || strings.HasPrefix(name, ":.") || !utf8.ValidString(name) { // so begin those of another context
		return invalidSubject(name)
	}
	for _, c := range name {
		if c < ' ' || c == 0x7f {
			return invalidSubject(name)
		}
	}
	return nil
}
