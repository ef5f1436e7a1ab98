package metadata

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A Schema is one schema text with its id. Two schemas that are equal but for the id have the
// same id, and an id is never given to another schema.
type Schema struct {
	ID         int
	Type       string // AVRO, PROTOBUF or JSON
	Text       string // in canonical form, so that equal schemas are equal texts
	References []SchemaReference
	Metadata   string // JSON in canonical form, "" if there is none
	RuleSet    string // the same
	// GUID is what it is called in every registry: its Identity, unless it came with another one.
	GUID uuid.UUID
}

// A SchemaReference says which version of a subject defines a name that a schema uses.
type SchemaReference struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	Version int    `json:"version"`
}

// A SubjectVersion is a schema as a version of a subject. A deleted one is only hidden:
// records and references that name it still resolve.
type SubjectVersion struct {
	Subject string
	Version int
	Deleted bool
	Schema  Schema
}

// A Subject is all versions of a subject at one moment.
type Subject struct {
	Name     string
	Revision int64            // given back with a change that was built on this state
	Versions []SubjectVersion // by version; deleted ones too
	Own      SubjectConfig    // what is set for it
	Global   SubjectConfig    // what is set for the subject "", which holds for those that have no own
}

// hash is the identity of a schema.
func (s Schema) hash() (sum []byte, refs string, err error) {
	r := s.References
	if r == nil {
		r = []SchemaReference{}
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil, "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d %s %d %s %s", len(s.Type), s.Type, len(s.Text), s.Text, b)
	if s.Metadata != "" || s.RuleSet != "" { // which schemas of old do not have
		fmt.Fprintf(h, " %d %s %s", len(s.Metadata), s.Metadata, s.RuleSet)
	}
	return h.Sum(nil), string(b), nil
}

// Identity is the first half of the hash of a schema, by which it is the same everywhere.
func (s Schema) Identity() (uuid.UUID, error) {
	sum, _, err := s.hash()
	if err != nil {
		return uuid.UUID{}, err
	}
	return uuid.FromBytes(sum[:16])
}

const schemaColumns = `s.id, s.type, s.text, s.refs, s.metadata, s.rule_set, s.guid, s.hash`

const selectVersions = `SELECT v.subject, v.version, v.deleted, ` + schemaColumns + `
	FROM subject_version v JOIN schema s ON s.id = v.schema_id `

func scanVersion(rows *sql.Rows) (v SubjectVersion, err error) {
	var packed packedSchema
	if err = rows.Scan(append([]any{&v.Subject, &v.Version, &v.Deleted}, v.Schema.columns(&packed)...)...); err != nil {
		return v, err
	}
	return v, v.Schema.finish(packed)
}

// A packedSchema are the columns of a schema that are not as in [Schema].
type packedSchema struct {
	refs string // JSON
	guid string // "" is the identity
	hash []byte
}

// columns is where schemaColumns go.
func (s *Schema) columns(p *packedSchema) []any {
	return []any{&s.ID, &s.Type, &s.Text, &p.refs, &s.Metadata, &s.RuleSet, &p.guid, &p.hash}
}

// finish unpacks what is packed and proves that the row is what was written.
func (s *Schema) finish(p packedSchema) error {
	if err := json.Unmarshal([]byte(p.refs), &s.References); err != nil {
		return fmt.Errorf("schema %d: references: %w", s.ID, err)
	}
	if len(s.References) == 0 {
		s.References = nil
	}
	sum, _, err := s.hash()
	if err != nil {
		return err
	}
	if !bytes.Equal(sum, p.hash) {
		return fmt.Errorf("schema %d is corrupt: its hash is not the stored one", s.ID)
	}
	if p.guid == "" {
		s.GUID = uuid.UUID(sum[:16])
		return nil
	}
	if s.GUID, err = uuid.Parse(p.guid); err != nil {
		return fmt.Errorf("schema %d: GUID: %w", s.ID, err)
	}
	return nil
}

// Schema returns the schema with that id, or ErrSchemaNotExist. Any other error may go away.
func (s *Store) Schema(ctx context.Context, id int) (Schema, error) {
	schema, err := s.readSchema(ctx, `s.id = $1`, id)
	if err != nil {
		return schema, fmt.Errorf("read schema %d: %w", id, err)
	}
	return schema, nil
}

// SchemaByGUID returns the schema with that GUID, or ErrSchemaNotExist.
func (s *Store) SchemaByGUID(ctx context.Context, guid uuid.UUID) (Schema, error) {
	schema, err := s.readSchema(ctx, `s.guid = $1 AND s.guid <> ''`, guid.String()) // as the index has them
	if errors.Is(err, ErrSchemaNotExist) {
		schema, err = s.readSchema(ctx, `s.hash BETWEEN $1 AND $2 AND s.guid = ''`, guid[:], lastHash(guid))
	}
	if err != nil {
		return schema, fmt.Errorf("read schema %s: %w", guid, err)
	}
	return schema, nil
}

// lastHash is the last hash of those that begin with a GUID.
func lastHash(guid uuid.UUID) []byte {
	return append(bytes.Clone(guid[:]), bytes.Repeat([]byte{0xff}, sha256.Size-len(guid))...)
}

// SameSchema returns the id of the schema that is equal but for id and GUID, or ErrSchemaNotExist.
func (s *Store) SameSchema(ctx context.Context, schema Schema) (id int, err error) {
	hash, _, err := schema.hash()
	if err != nil {
		return 0, err
	}
	same, err := s.readSchema(ctx, `s.hash = $1`, hash)
	if err != nil {
		return 0, fmt.Errorf("read the same schema: %w", err)
	}
	return same.ID, nil
}

func (s *Store) readSchema(ctx context.Context, where string, args ...any) (schema Schema, err error) {
	var packed packedSchema
	err = s.readers.QueryRowContext(ctx, `SELECT `+schemaColumns+` FROM schema s WHERE `+where, args...).Scan(schema.columns(&packed)...)
	if errors.Is(err, sql.ErrNoRows) {
		return Schema{}, ErrSchemaNotExist
	}
	if err != nil {
		return Schema{}, err
	}
	return schema, schema.finish(packed)
}

// MaxSchemaID is the largest id given away, 0 if none.
func (s *Store) MaxSchemaID(ctx context.Context) (id int, err error) {
	if err := s.readers.QueryRowContext(ctx, `SELECT value FROM counter WHERE name = 'schema'`).Scan(&id); err != nil {
		return 0, fmt.Errorf("read largest schema id: %w", err)
	}
	return id, nil
}

// Subject returns the versions of a subject; none if it does not exist.
func (s *Store) Subject(ctx context.Context, name string) (Subject, error) {
	return s.SubjectSince(ctx, Subject{Name: name})
}

// SubjectSince is Subject for one who knows what it was: with its revision it has the same versions.
func (s *Store) SubjectSince(ctx context.Context, known Subject) (Subject, error) {
	name := known.Name
	subject := Subject{Name: name}
	t, err := s.readers.BeginTx(ctx, &s.dialect.snapshot)
	if err != nil {
		return subject, fmt.Errorf("read subject %s: %w", name, err)
	}
	defer t.Rollback()
	err = t.QueryRowContext(ctx, `SELECT revision FROM subject WHERE name = $1`, name).Scan(&subject.Revision)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return subject, fmt.Errorf("read subject %s: %w", name, err)
	}
	if err = nil; subject.Revision == known.Revision {
		subject.Versions = known.Versions
	} else {
		subject.Versions, err = readVersions(ctx, t, `WHERE v.subject = $1 ORDER BY v.version`, name)
	}
	if err == nil {
		err = subject.readConfig(ctx, t)
	}
	if err != nil {
		return subject, fmt.Errorf("read subject %s: %w", name, err)
	}
	return subject, nil
}

func (u *Subject) readConfig(ctx context.Context, q queryer) (err error) {
	if u.Own, err = readSubjectConfig(ctx, q, u.Name); err == nil {
		u.Global, err = readSubjectConfig(ctx, q, "")
	}
	return err
}

func readVersions(ctx context.Context, q queryer, where string, args ...any) ([]SubjectVersion, error) {
	var all []SubjectVersion
	err := eachRow(ctx, q, func(rows *sql.Rows) error {
		v, err := scanVersion(rows)
		all = append(all, v)
		return err
	}, selectVersions+where, args...)
	return all, err
}

// SubjectVersion returns one version of a subject, a deleted one too, or ErrSchemaNotExist.
func (s *Store) SubjectVersion(ctx context.Context, subject string, version int) (SubjectVersion, error) {
	all, err := readVersions(ctx, s.readers, `WHERE v.subject = $1 AND v.version = $2`, subject, version)
	if err == nil && len(all) == 0 {
		err = ErrSchemaNotExist
	}
	if err != nil {
		return SubjectVersion{}, fmt.Errorf("read %s version %d: %w", subject, version, err)
	}
	return all[0], nil
}

// A SubjectSummary is a subject in a list.
type SubjectSummary struct {
	Name    string
	Deleted bool // all its versions are
}

// Subjects returns the subjects that have versions, deleted ones too, by name.
func (s *Store) Subjects(ctx context.Context) ([]SubjectSummary, error) {
	var all []SubjectSummary
	err := eachRow(ctx, s.readers, func(rows *sql.Rows) error {
		var u SubjectSummary
		err := rows.Scan(&u.Name, &u.Deleted)
		all = append(all, u)
		return err
	}, `SELECT subject, min(deleted) FROM subject_version GROUP BY subject ORDER BY subject`)
	if err != nil {
		return nil, fmt.Errorf("read subjects: %w", err)
	}
	return all, nil
}

// SubjectNames returns the names that have versions or settings behind after, in their order, at most
// limit.
func (s *Store) SubjectNames(ctx context.Context, after string, limit int) (names []string, err error) {
	err = eachRow(ctx, s.readers, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	}, `SELECT subject FROM subject_version WHERE subject > $1 UNION SELECT subject FROM subject_config WHERE subject > $1 ORDER BY subject LIMIT $2`, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read names of subjects: %w", err)
	}
	return names, nil
}

// VersionsOf returns the versions that are the schema with that id, deleted ones too, by
// subject and version.
func (s *Store) VersionsOf(ctx context.Context, id int) ([]SubjectVersion, error) {
	all, err := readVersions(ctx, s.readers, `WHERE v.schema_id = $1 ORDER BY v.subject, v.version`, id)
	if err != nil {
		return nil, fmt.Errorf("read versions of schema %d: %w", id, err)
	}
	return all, nil
}

// ReferencedBy returns the versions that refer to the given one, deleted ones too.
func (s *Store) ReferencedBy(ctx context.Context, subject string, version int) ([]SubjectVersion, error) {
	all, err := readVersions(ctx, s.readers, `JOIN subject_reference r ON r.subject = v.subject AND r.version = v.version
		WHERE r.ref_subject = $1 AND r.ref_version = $2 ORDER BY v.subject, v.version`, subject, version)
	if err != nil {
		return nil, fmt.Errorf("read what refers to %s version %d: %w", subject, version, err)
	}
	return all, nil
}

// RegisterSchema makes the schema a version of a subject that was read before: the next one
// if version is 0. Its id is the next one if schema has none; else it must be free, or that of
// the very schema: an error wraps ErrSchemaIDTaken if it is not, and if another schema has its GUID. A schema that is
// there already keeps the GUID that it has. An error wraps
// streamstore.ErrConflict if the subject, what is set for it, or a version that the schema refers to, is not
// any more what it was.
func (s *Store) RegisterSchema(ctx context.Context, subject Subject, version int, schema Schema) (SubjectVersion, error) {
	v := SubjectVersion{Subject: subject.Name, Version: version, Schema: schema}
	if n := len(subject.Versions); version == 0 {
		v.Version = 1
		if n > 0 {
			v.Version = subject.Versions[n-1].Version + 1
		}
	}
	return s.AddVersion(ctx, subject, v)
}

// AddVersion is RegisterSchema for a version that may be deleted from the start. Such a one may refer
// to deleted versions.
func (s *Store) AddVersion(ctx context.Context, subject Subject, v SubjectVersion) (SubjectVersion, error) {
	schema := v.Schema
	what := fmt.Sprintf("register schema of %s", subject.Name)
	var change int64
	err := s.updateTogether(ctx, what, func(t *tx) error {
		if err := t.reviseSubject(subject); err != nil {
			return err
		}
		id, guid, err := t.schemaID(schema)
		if err != nil {
			return err
		}
		v.Schema.ID, v.Schema.GUID = id, guid
		if _, err := t.exec(`INSERT INTO subject_version (subject, version, schema_id, deleted) VALUES ($1, $2, $3, $4)`, v.Subject, v.Version, id, flag(v.Deleted)); err != nil {
			return err
		}
		for _, r := range schema.References {
			if err := t.refer(v, r); err != nil {
				return err
			}
		}
		err = t.change(ChangeSchema, v.Subject)
		change = t.last
		return err
	})
	if err != nil {
		return v, err
	}
	if err := s.durable(ctx, change); err != nil {
		return v, fmt.Errorf("%s: %w", what, err)
	}
	return v, nil
}

// reviseSubject claims the next revision of a subject that must be as it was read, its settings too:
// once a mode is answered, no change that was allowed before it comes after it.
func (t *tx) reviseSubject(subject Subject) error {
	var revision int64
	err := t.QueryRowContext(t.ctx, `INSERT INTO subject (name, revision) VALUES ($1, 1)
		ON CONFLICT (name) DO UPDATE SET revision = subject.revision + 1 RETURNING revision`, subject.Name).Scan(&revision)
	if err != nil {
		return err
	}
	if revision != subject.Revision+1 && !invariant.Off("metadata-subject-revision") {
		return fmt.Errorf("subject %s has revision %d, the change was built on %d: %w", subject.Name, revision-1, subject.Revision, streamstore.ErrConflict)
	}
	now := Subject{Name: subject.Name}
	if err := now.readConfig(t.ctx, t); err != nil {
		return err
	}
	if (now.Own != subject.Own || now.Global != subject.Global) && !invariant.Off("metadata-subject-config") {
		return fmt.Errorf("settings of subject %s, or the global ones, are other ones than the change was built on: %w", subject.Name, streamstore.ErrConflict)
	}
	return nil
}

// ErrSchemaIDTaken says that a schema cannot have the id that was asked for.
var ErrSchemaIDTaken = errors.New("the schema id is taken")

// schemaID returns id and GUID of a schema, which may ask for them; a new id if it has none yet.
func (t *tx) schemaID(schema Schema) (int, uuid.UUID, error) {
	none := uuid.UUID{}
	hash, refs, err := schema.hash()
	if err != nil {
		return 0, none, err
	}
	identity := uuid.UUID(hash[:16])
	var id int64
	var stored string
	err = t.QueryRowContext(t.ctx, `SELECT id, guid FROM schema WHERE hash = $1`, hash).Scan(&id, &stored)
	if err == nil {
		if schema.ID != 0 && int64(schema.ID) != id {
			return 0, none, fmt.Errorf("the same schema has the id %d: %w", id, ErrSchemaIDTaken)
		}
		if stored == "" {
			return int(id), identity, nil
		}
		guid, err := uuid.Parse(stored)
		return int(id), guid, err
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return 0, none, err
	}
	if schema.GUID == none {
		schema.GUID = identity
	}
	if schema.GUID != identity {
		stored = schema.GUID.String()
	}
	var taken int
	err = t.QueryRowContext(t.ctx, `SELECT (SELECT count(*) FROM schema WHERE guid = $1 AND guid <> '') + (SELECT count(*) FROM schema WHERE hash BETWEEN $2 AND $3 AND guid = '')`,
		schema.GUID.String(), schema.GUID[:], lastHash(schema.GUID)).Scan(&taken)
	if err != nil {
		return 0, none, err
	}
	if taken > 0 && !invariant.Off("metadata-schema-guid") {
		return 0, none, fmt.Errorf("another schema has the GUID %s: %w", schema.GUID, ErrSchemaIDTaken)
	}
	if id, err = t.claimSchemaID(schema.ID, hash); err != nil {
		return 0, none, err
	}
	_, err = t.exec(`INSERT INTO schema (id, type, text, refs, metadata, rule_set, guid, hash) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		id, schema.Type, schema.Text, refs, schema.Metadata, schema.RuleSet, stored, hash)
	return int(id), schema.GUID, err
}

// claimSchemaID returns the id that is asked for, which then is never given away, or the next.
// One that another schema has, or had, is refused.
func (t *tx) claimSchemaID(id int, hash []byte) (int64, error) {
	if id == 0 {
		return t.next("schema", 1)
	}
	var taken int
	err := t.QueryRowContext(t.ctx, `SELECT (SELECT count(*) FROM schema WHERE id = $1) + (SELECT count(*) FROM retired_schema WHERE id = $1 AND hash <> $2)`, id, hash).Scan(&taken)
	if err != nil {
		return 0, err
	}
	if taken > 0 && !invariant.Off("metadata-schema-id") {
		return 0, fmt.Errorf("another schema has the id %d, or had it: %w", id, ErrSchemaIDTaken)
	}
	_, err = t.exec(`UPDATE counter SET value = $1 WHERE name = 'schema' AND value < $1`, id)
	return int64(id), err
}

// refer records that v uses the version r, which must exist, and not be deleted unless v is.
func (t *tx) refer(v SubjectVersion, r SchemaReference) error {
	var live int
	err := t.QueryRowContext(t.ctx, `SELECT count(*) FROM subject_version WHERE subject = $1 AND version = $2 AND deleted <= $3`, r.Subject, r.Version, flag(v.Deleted)).Scan(&live)
	if err != nil {
		return err
	}
	if live == 0 && !invariant.Off("metadata-reference-lives") {
		return fmt.Errorf("subject %s has no version %d: %w", r.Subject, r.Version, streamstore.ErrConflict)
	}
	_, err = t.exec(`INSERT INTO subject_reference (subject, version, ref_subject, ref_version) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`,
		v.Subject, v.Version, r.Subject, r.Version)
	return err
}

// ErrReferenceExists says that a version cannot be deleted, for others refer to it.
var ErrReferenceExists = errors.New("other schemas refer to the version")

// DeleteVersions hides versions of a subject that was read before, or removes them for good.
// A schema that no version names any more is removed too; a subject without versions loses
// its settings. An error wraps ErrReferenceExists if a version that stays refers
// to one of them (a hidden one counts only when versions are removed), or
// streamstore.ErrConflict if the subject, or what is set for it, is not any more what it was.
func (s *Store) DeleteVersions(ctx context.Context, subject Subject, versions []int, permanent bool) error {
	return s.updateDurably(ctx, fmt.Sprintf("delete versions of %s", subject.Name), func(t *tx) error {
		if err := t.reviseSubject(subject); err != nil {
			return err
		}
		// The newest first: a version that refers to an older one of its own subject goes before it.
		for _, v := range slices.Backward(slices.Sorted(slices.Values(versions))) {
			if err := t.deleteVersion(subject.Name, v, permanent); err != nil {
				return err
			}
		}
		if permanent {
			if _, err := t.exec(`DELETE FROM subject_config WHERE subject = $1 AND NOT EXISTS (SELECT 1 FROM subject_version WHERE subject = $1)`, subject.Name); err != nil {
				return err
			}
		}
		return t.change(ChangeSchema, subject.Name)
	})
}

func (t *tx) deleteVersion(subject string, version int, permanent bool) error {
	var users int
	err := t.QueryRowContext(t.ctx, `SELECT count(*) FROM subject_reference r JOIN subject_version v ON v.subject = r.subject AND v.version = r.version
		WHERE r.ref_subject = $1 AND r.ref_version = $2 AND (v.deleted = 0 OR $3 = 1)`, subject, version, flag(permanent)).Scan(&users)
	if err != nil {
		return err
	}
	if users > 0 && !invariant.Off("metadata-reference-exists") {
		return fmt.Errorf("subject %s version %d: %w", subject, version, ErrReferenceExists)
	}
	if !permanent {
		_, err := t.exec(`UPDATE subject_version SET deleted = 1 WHERE subject = $1 AND version = $2`, subject, version)
		return err
	}
	var id int64
	err = t.QueryRowContext(t.ctx, `DELETE FROM subject_version WHERE subject = $1 AND version = $2 RETURNING schema_id`, subject, version).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := t.exec(`DELETE FROM subject_reference WHERE subject = $1 AND version = $2`, subject, version); err != nil {
		return err
	}
	var hash []byte
	err = t.QueryRowContext(t.ctx, `DELETE FROM schema WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM subject_version WHERE schema_id = $1) RETURNING hash`, id).Scan(&hash)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // other versions are this schema
	}
	if err != nil {
		return err
	}
	_, err = t.exec(`INSERT INTO retired_schema (id, hash) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET hash = excluded.hash`, id, hash)
	return err
}

// A SubjectConfig is what is set for a subject, or for all: that of the subject "". The
// registry gives the words their meaning; "" is not set.
type SubjectConfig struct {
	Compatibility string // the level
	Settings      string // the others, JSON
	Mode          string
}

// SubjectConfig returns what is set for a subject.
func (s *Store) SubjectConfig(ctx context.Context, subject string) (SubjectConfig, error) {
	c, err := readSubjectConfig(ctx, s.readers, subject)
	if err != nil {
		return c, fmt.Errorf("read config of %q: %w", subject, err)
	}
	return c, nil
}

func readSubjectConfig(ctx context.Context, q queryer, subject string) (c SubjectConfig, err error) {
	err = eachRow(ctx, q, func(rows *sql.Rows) error { return rows.Scan(&c.Compatibility, &c.Settings, &c.Mode) },
		`SELECT compatibility, settings, mode FROM subject_config WHERE subject = $1`, subject)
	return c, err
}

// ChangeSubjectConfig changes what is set for a subject.
func (s *Store) ChangeSubjectConfig(ctx context.Context, subject string, change func(*SubjectConfig)) error {
	return s.updateDurably(ctx, fmt.Sprintf("change config of %q", subject), func(t *tx) error {
		c, err := readSubjectConfig(ctx, t, subject)
		if err != nil {
			return err
		}
		change(&c)
		if c == (SubjectConfig{}) {
			_, err = t.exec(`DELETE FROM subject_config WHERE subject = $1`, subject)
		} else {
			_, err = t.exec(`INSERT INTO subject_config (subject, compatibility, settings, mode) VALUES ($1, $2, $3, $4)
				ON CONFLICT (subject) DO UPDATE SET compatibility = excluded.compatibility, settings = excluded.settings, mode = excluded.mode`,
				subject, c.Compatibility, c.Settings, c.Mode)
		}
		if err != nil {
			return err
		}
		return t.change(ChangeSchema, subject)
	})
}
