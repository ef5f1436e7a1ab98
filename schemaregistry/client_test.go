package schemaregistry

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// What franz-go's client calls works, and it finds the error codes it knows.
func TestFranzGo(t *testing.T) {
	ctx := t.Context()
	cl, err := sr.NewClient(sr.URLs(serve(t, newRegistry(t)).URL))
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	code := func(err error, want *sr.Error) {
		t.Helper()
		var e *sr.ResponseError
		if !errors.As(err, &e) || e.ErrorCode != want.Code {
			t.Fatalf("got %v, want code %d", err, want.Code)
		}
	}
	base, err := cl.CreateSchema(ctx, "base", sr.Schema{Schema: `{"type":"record","name":"Base","fields":[{"name":"a","type":"int"}]}`})
	must(err)
	refs := []sr.SchemaReference{{Name: "Base", Subject: "base", Version: 1}}
	user, err := cl.CreateSchema(ctx, "user", sr.Schema{Schema: `{"type":"array","items":"Base"}`, References: refs})
	must(err)
	if base.ID != 1 || base.Version != 1 || user.ID != 2 || user.Version != 1 || user.Type != sr.TypeAvro {
		t.Fatalf("created %+v and %+v", base, user)
	}
	got, err := cl.SchemaByID(ctx, 2)
	must(err)
	if d := cmp.Diff(got.References, refs); d != "" || got.Schema != user.Schema.Schema {
		t.Fatalf("by id: %+v\n%s", got, d)
	}
	looked, err := cl.LookupSchema(ctx, "user", got)
	must(err)
	if looked.ID != 2 {
		t.Fatalf("looked up %+v", looked)
	}
	users, err := cl.SchemaReferences(ctx, "base", 1)
	must(err)
	if len(users) != 1 || users[0].Subject != "user" {
		t.Fatalf("referenced by %+v", users)
	}
	all, err := cl.AllSchemas(ctx)
	must(err)
	subjects, err := cl.Subjects(ctx)
	must(err)
	supported, err := cl.SupportedTypes(ctx)
	must(err)
	if len(all) != 2 || len(subjects) != 2 || len(supported) != 3 {
		t.Fatalf("got %v, %v, %v", all, subjects, supported)
	}

	next := sr.Schema{Schema: `{"type":"record","name":"Base","fields":[{"name":"b","type":"int"}]}`}
	check, err := cl.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), "base", -1, next)
	must(err)
	if check.Is || len(check.Messages) == 0 {
		t.Fatalf("check: %+v", check)
	}
	_, err = cl.CreateSchema(ctx, "base", next)
	code(err, sr.ErrIncompatibleSchema)
	for _, r := range cl.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatNone}, "base") {
		must(r.Err)
	}
	_, err = cl.CreateSchema(ctx, "base", next)
	must(err)
	for _, r := range cl.Compatibility(ctx, "base") {
		must(r.Err)
		if r.Level != sr.CompatNone {
			t.Fatalf("level %v", r.Level)
		}
	}
	for _, r := range cl.ResetCompatibility(ctx, "base") {
		must(r.Err)
	}
	for _, r := range cl.Mode(ctx) {
		must(r.Err)
		if r.Mode != sr.ModeReadWrite {
			t.Fatalf("mode %v", r.Mode)
		}
	}

	_, err = cl.SchemaByID(ctx, 99)
	code(err, sr.ErrSchemaNotFound)
	_, err = cl.SchemaByVersion(ctx, "none", 1)
	code(err, sr.ErrSubjectNotFound)
	_, err = cl.SchemaByVersion(ctx, "base", 9)
	code(err, sr.ErrVersionNotFound)
	_, err = cl.CreateSchema(ctx, "base", sr.Schema{Schema: "{"})
	code(err, sr.ErrInvalidSchema)
	_, err = cl.DeleteSubject(ctx, "base", sr.SoftDelete)
	code(err, sr.ErrReferenceExists)
	_, err = cl.DeleteSubject(ctx, "user", sr.SoftDelete)
	must(err)
	_, err = cl.DeleteSubject(ctx, "user", sr.SoftDelete)
	code(err, sr.ErrSubjectSoftDeleted)
	_, err = cl.DeleteSubject(ctx, "user", sr.HardDelete)
	must(err)
	must(cl.DeleteSchema(ctx, "base", 1, sr.SoftDelete))
	must(cl.DeleteSchema(ctx, "base", 1, sr.HardDelete))
}

// confluent-kafka's client and its serializers for Avro, Protobuf and JSON Schema work: by themselves, with
// references, and with the latest version of the subject; its errors have Confluent's codes.
func TestConfluentKafkaPython(t *testing.T) {
	if testing.Short() {
		t.Skip("runs Python")
	}
	python := lab.Path(t, "python", "venv", "bin", "python")
	cmd := exec.CommandContext(t.Context(), python, "testdata/confluent_kafka.py", serve(t, newRegistry(t)).URL)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
