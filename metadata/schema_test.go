package metadata

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/streamstore"
)

func subject(t *testing.T, s *Store, name string) Subject {
	t.Helper()
	u, err := s.Subject(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func registerSchema(t *testing.T, s *Store, name, text string, refs ...SchemaReference) SubjectVersion {
	t.Helper()
	v, err := s.RegisterSchema(t.Context(), subject(t, s, name), 0, Schema{Type: "AVRO", Text: text, References: refs})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A schema has one id in all subjects; other references make another schema.
func TestSchemaIdentity(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		base := registerSchema(t, s, "base", `"string"`)
		registerSchema(t, s, "base", `"bytes"`)
		a := registerSchema(t, s, "a", `"x"`, SchemaReference{"x", "base", 1})
		b := registerSchema(t, s, "b", `"x"`, SchemaReference{"x", "base", 1})
		c := registerSchema(t, s, "b", `"x"`, SchemaReference{"x", "base", 2})
		if base.Schema.ID != 1 || a.Schema.ID != 3 || b.Schema.ID != a.Schema.ID || c.Schema.ID != 4 || c.Version != 2 {
			t.Fatalf("got %+v, %+v, %+v, %+v", base, a, b, c)
		}
		got, err := s.Schema(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(got, a.Schema); d != "" {
			t.Fatal(d)
		}
		if _, err := s.Schema(t.Context(), 5); !errors.Is(err, ErrSchemaNotExist) {
			t.Fatalf("got %v, want %v", err, ErrSchemaNotExist)
		}
		if _, err := s.writer.Exec(`UPDATE schema SET text = '"y"' WHERE id = 3`); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Schema(t.Context(), 3); err == nil || errors.Is(err, ErrSchemaNotExist) {
			t.Fatalf("changed on disk: got %v, want corruption", err)
		}
	})
}

// Of two changes built on one state of a subject the second is refused.
func TestRegisterSchemaRefusesStaleSubject(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		stale := subject(t, s, "a")
		registerSchema(t, s, "a", `"string"`)
		if _, err := s.RegisterSchema(t.Context(), stale, 0, Schema{Type: "AVRO", Text: `"int"`}); !errors.Is(err, streamstore.ErrConflict) {
			t.Fatalf("register: got %v, want %v", err, streamstore.ErrConflict)
		}
		stale = subject(t, s, "a")
		registerSchema(t, s, "a", `"int"`)
		if err := s.DeleteVersions(t.Context(), stale, []int{1}, false); !errors.Is(err, streamstore.ErrConflict) {
			t.Fatalf("delete: got %v, want %v", err, streamstore.ErrConflict)
		}
	})
}

// What others refer to stays, and what is gone is not referred to anew.
func TestReferencedVersionsStay(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		registerSchema(t, s, "base", `"string"`)
		registerSchema(t, s, "user", `"x"`, SchemaReference{"x", "base", 1})
		del := func(name string, permanent bool) error {
			return s.DeleteVersions(t.Context(), subject(t, s, name), []int{1}, permanent)
		}
		if err := del("base", false); !errors.Is(err, ErrReferenceExists) {
			t.Fatalf("soft delete of a version in use: got %v", err)
		}
		if err := del("user", false); err != nil {
			t.Fatal(err)
		}
		if err := del("base", false); err != nil { // its user is hidden as well
			t.Fatal(err)
		}
		if err := del("base", true); !errors.Is(err, ErrReferenceExists) {
			t.Fatalf("removal of a version that a hidden one uses: got %v", err)
		}
		_, err := s.RegisterSchema(t.Context(), subject(t, s, "late"), 0, Schema{Type: "AVRO", Text: `"x"`, References: []SchemaReference{{"x", "base", 1}}})
		if !errors.Is(err, streamstore.ErrConflict) {
			t.Fatalf("reference to a deleted version: got %v", err)
		}
		if err := del("user", true); err != nil {
			t.Fatal(err)
		}
		if err := del("base", true); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Schema(t.Context(), 1); !errors.Is(err, ErrSchemaNotExist) {
			t.Fatalf("a schema without versions: got %v", err)
		}
		if v := registerSchema(t, s, "base", `"string"`); v.Schema.ID != 3 || v.Version != 1 {
			t.Fatalf("registered again: %+v, want a new id", v)
		}
	})
}

// The level of a subject outlives its soft deletion, and goes with its last version.
func TestCompatibilityStaysUntilRemoval(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		registerSchema(t, s, "a", `"string"`)
		if err := s.ChangeSubjectConfig(t.Context(), "a", func(c *SubjectConfig) { c.Compatibility = "NONE" }); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			permanent bool
			want      string
		}{{false, "NONE"}, {true, ""}} {
			if err := s.DeleteVersions(t.Context(), subject(t, s, "a"), []int{1}, step.permanent); err != nil {
				t.Fatal(err)
			}
			if got, err := s.SubjectConfig(t.Context(), "a"); err != nil || got.Compatibility != step.want {
				t.Fatalf("permanent %t: config %+v, %v, want %q", step.permanent, got, err, step.want)
			}
		}
	})
}

// A schema gets the id that it asks for only if it is free: an id never changes its meaning,
// and the next ids come after it.
func TestRegisterSchemaWithID(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		with := func(name string, version, id int, text string) (SubjectVersion, error) {
			return s.RegisterSchema(t.Context(), subject(t, s, name), version, Schema{ID: id, Type: "AVRO", Text: text})
		}
		if v, err := with("a", 3, 10, `"int"`); err != nil || v.Version != 3 || v.Schema.ID != 10 {
			t.Fatalf("got %+v, %v", v, err)
		}
		if v, err := with("b", 0, 10, `"int"`); err != nil || v.Version != 1 || v.Schema.ID != 10 {
			t.Fatalf("the same schema in another subject: got %+v, %v", v, err)
		}
		for id, text := range map[int]string{10: `"long"`, 11: `"int"`} {
			if _, err := with("c", 0, id, text); !errors.Is(err, ErrSchemaIDTaken) {
				t.Fatalf("%s as %d: got %v", text, id, err)
			}
		}
		if v, err := with("c", 0, 5, `"long"`); err != nil || v.Schema.ID != 5 {
			t.Fatalf("a smaller free id: got %+v, %v", v, err)
		}
		if v := registerSchema(t, s, "a", `"bytes"`); v.Schema.ID != 11 || v.Version != 4 {
			t.Fatalf("the next is %+v", v)
		}
		for _, permanent := range []bool{false, true} {
			if err := s.DeleteVersions(t.Context(), subject(t, s, "a"), []int{4}, permanent); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := with("d", 0, 11, `"float"`); !errors.Is(err, ErrSchemaIDTaken) {
			t.Fatalf("the id of a schema that is gone for good: got %v", err)
		}
		if v, err := with("d", 0, 11, `"bytes"`); err != nil || v.Schema.ID != 11 {
			t.Fatalf("the schema that is gone itself: got %+v, %v", v, err)
		}
	})
}

// Metadata and rules make another schema.
func TestMetadataAndRulesMakeAnotherSchema(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		for i, schema := range []Schema{{}, {Metadata: "{}"}, {RuleSet: "{}"}, {Metadata: "{}", RuleSet: "{}"}} {
			schema.Type, schema.Text = "AVRO", `"int"`
			v, err := s.RegisterSchema(t.Context(), subject(t, s, "a"), 0, schema)
			if err != nil || v.Schema.ID != i+1 {
				t.Fatalf("got %+v, %v, want id %d", v, err, i+1)
			}
			guid := v.Schema.GUID
			if found, err := s.SchemaByGUID(t.Context(), guid); err != nil || found.ID != i+1 {
				t.Fatalf("by GUID %+v, %v", found, err)
			}
			guid[15] ^= 1
			if _, err := s.SchemaByGUID(t.Context(), guid); !errors.Is(err, ErrSchemaNotExist) {
				t.Fatalf("another GUID: %v", err)
			}
		}
	})
}

// A schema keeps the GUID that it came with, is found by it, and not by its own; two schemas never have one,
// be it given or their own.
func TestRegisterSchemaWithGUID(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		register := func(name, text string, guid uuid.UUID) (SubjectVersion, error) {
			return s.RegisterSchema(t.Context(), subject(t, s, name), 0, Schema{Type: "AVRO", Text: text, GUID: guid})
		}
		foreign := uuid.MustParse("89791762-2336-186f-9674-299b90a80029")
		v, err := register("a", `"int"`, foreign)
		if err != nil || v.Schema.GUID != foreign {
			t.Fatalf("registered %+v, %v", v, err)
		}
		if again, err := register("b", `"int"`, uuid.New()); err != nil || again.Schema.ID != v.Schema.ID || again.Schema.GUID != foreign {
			t.Fatalf("the same schema: %+v, %v", again, err)
		}
		if found, err := s.SchemaByGUID(t.Context(), foreign); err != nil || found.ID != v.Schema.ID {
			t.Fatalf("by GUID %+v, %v", found, err)
		}
		identity, err := v.Schema.Identity()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.SchemaByGUID(t.Context(), identity); !errors.Is(err, ErrSchemaNotExist) {
			t.Fatalf("by its own: %v", err)
		}
		own, err := register("c", `"long"`, uuid.UUID{})
		if err != nil {
			t.Fatal(err)
		}
		for _, taken := range []uuid.UUID{foreign, own.Schema.GUID} {
			if _, err := register("d", `"string"`, taken); !errors.Is(err, ErrSchemaIDTaken) {
				t.Fatalf("another schema with the GUID %s: %v", taken, err)
			}
		}
		if u := subject(t, s, "d"); len(u.Versions) != 0 {
			t.Fatalf("what was refused is there: %+v", u)
		}
	})
}
