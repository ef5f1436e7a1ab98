package schemaregistry

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/tabletopic/tabletopic/metadata"
)

// A conversation is a registry and what is said to it.
type conversation struct {
	t *testing.T
	h http.Handler
}

func converse(t *testing.T) conversation { return conversation{t, newRegistry(t).Handler()} }

// say sends a request, whose answer must begin with want.
func (c conversation) say(line, body, want string) string {
	c.t.Helper()
	method, target, _ := strings.Cut(line, " ")
	got := send(method, target, body, c.h)
	if !strings.HasPrefix(got, want) {
		c.t.Fatalf("%s: got %s, want %s", line, got, want)
	}
	return got
}

func (c conversation) register(subject, schemaType, schema, want string, refs ...metadata.SchemaReference) string {
	c.t.Helper()
	b, err := json.Marshal(Request{Schema: schema, SchemaType: schemaType, References: refs})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.say("POST /subjects/"+subject+"/versions", string(b), want)
}

func (c conversation) level(subject, l string) {
	c.t.Helper()
	c.say("PUT /config/"+subject, `{"compatibility":"`+l+`"}`, "200 ")
}

func TestIncompatibleProtobufVersionsAreRefused(t *testing.T) {
	c := converse(t)
	const with = `syntax = "proto3"; import "google/protobuf/any.proto"; import "google/protobuf/timestamp.proto"; message M { `
	c.register("s", typeProtobuf, with+`google.protobuf.Any a = 1; string b = 2; }`, "200 ")
	c.register("s", typeProtobuf, with+`google.protobuf.Timestamp a = 1; string b = 2; }`, "409 ")
	c.register("s", typeProtobuf, with+`google.protobuf.Any a = 1; int32 b = 2; }`, "409 ")
	c.register("s", typeProtobuf, with+`google.protobuf.Any a = 1; bytes b = 2; int32 c = 3; }`, "200 ")
}

func TestEnumSymbolsNeedADefaultOfTheType(t *testing.T) {
	for _, l := range []string{"FORWARD", "FULL"} {
		c := converse(t)
		c.level("s", l)
		c.register("s", typeAvro, `{"type":"enum","name":"E","symbols":["A","B","C"]}`, "200 ")
		c.register("s", typeAvro, `{"type":"enum","name":"E","symbols":["A","B","C","D"]}`, "409 ")
		c.level("d", l)
		c.register("d", typeAvro, `{"type":"enum","name":"E","symbols":["A","B","C"],"default":"A"}`, "200 ")
		c.register("d", typeAvro, `{"type":"enum","name":"E","symbols":["A","B","C","D"],"default":"A"}`, "200 ")
		c.register("d", typeAvro, `{"type":"enum","name":"E","symbols":["A","B"],"default":"A"}`, "200 ")
	}
	c := converse(t)
	c.register("s", typeAvro, `{"type":"enum","name":"E","symbols":["A","B","C"]}`, "200 ")
	c.register("s", typeAvro, `{"type":"enum","name":"E","symbols":["A","B"]}`, "409 ")
}

func TestDefaultOfAFieldIsNoDefaultOfItsEnum(t *testing.T) {
	c := converse(t)
	c.level("s", "FULL_TRANSITIVE")
	record := func(symbols string) string {
		return `{"type":"record","name":"R","fields":[{"name":"f","type":{"type":"enum","name":"E","symbols":` + symbols + `},"default":"Here"}]}`
	}
	c.register("s", typeAvro, record(`["Rob","Was","Here"]`), "200 ")
	if got := c.register("s", typeAvro, record(`["Rob","Was","Here","added1"]`), "409 "); !strings.Contains(got, `give the enum type itself a \"default\"`) {
		t.Fatalf("the answer does not say what to do: %s", got)
	}
}

func TestRecordsInsideAUnionAreCompared(t *testing.T) {
	c := converse(t)
	c.register("s", typeAvro, `[{"type":"record","name":"rec","fields":[{"name":"f1","type":"int"}]}]`, "200 ")
	c.register("s", typeAvro, `[{"type":"record","name":"rec","fields":[{"name":"f1","type":"int"},{"name":"f2","type":"int"}]}]`, "409 ")
}

func TestAliasesInsideUnionsCount(t *testing.T) {
	c := converse(t)
	c.register("s", typeAvro, `["null",{"type":"record","name":"rec","fields":[]}]`, "200 ")
	c.register("s", typeAvro, `["null",{"type":"record","name":"other","fields":[]}]`, "409 ")
	c.register("s", typeAvro, `["null",{"type":"record","name":"other","aliases":["rec"],"fields":[]}]`, "200 ")
}

func TestNullableFieldWithDefaultNullMayCome(t *testing.T) {
	c := converse(t)
	c.register("s", typeAvro, `{"type":"record","name":"R","fields":[]}`, "200 ")
	c.register("s", typeAvro, `{"type":"record","name":"R","fields":[{"name":"a","type":["null","int"],"default":null}]}`, "200 ")
}

// A version that was soft deleted stays where references of soft deleted versions find it,
// also when its schema is registered again.
func TestReferencesOutliveSoftDeletionAndRegistration(t *testing.T) {
	c := converse(t)
	ref := metadata.SchemaReference{Name: "P", Subject: "parent", Version: 1}
	const parent = `{"type":"fixed","name":"P","size":1}`
	c.register("parent", "", parent, `200 {"id":1,"version":1,`)
	c.register("child", "", `{"type":"array","items":"P"}`, `200 {"id":2,"version":1,`, ref)
	c.say("DELETE /subjects/parent/versions/1", "", `422 {"error_code":42206,`)
	c.say("DELETE /subjects/child", "", "200 [1]")
	c.say("DELETE /subjects/parent/versions/1", "", "200 1")
	c.register("parent", "", parent, `200 {"id":1,"version":2,`)
	c.say("DELETE /subjects/parent/versions/1?permanent=true", "", `422 {"error_code":42206,`)
	c.say("GET /schemas/ids/2?format=resolved", "", "200 ")
	c.say("GET /subjects/child/versions/1?deleted=true", "", "200 ")
	c.register("child", "", `{"type":"array","items":"P"}`, `422 {"error_code":42201,`, ref) // it is not to be used anew
	ref.Version = 2
	c.register("child", "", `{"type":"array","items":"P"}`, `200 {"id":3,"version":2,`, ref)
}

func TestSettingsOutliveSoftDeletion(t *testing.T) {
	c := converse(t)
	c.level("s", "NONE")
	c.register("s", "", `"int"`, "200 ")
	c.say("PUT /mode/s", `{"mode":"READWRITE"}`, "200 ")
	c.say("DELETE /subjects/s", "", "200 [1]")
	c.say("GET /config/s", "", `200 {"compatibilityLevel":"NONE"}`)
	c.register("s", "", `"string"`, `200 {"id":2,"version":2,`)
	c.say("DELETE /subjects/s", "", "200 [2]")
	c.say("DELETE /subjects/s?permanent=true", "", "200 [1,2]")
	c.say("GET /config/s", "", `404 {"error_code":40408,`)
	c.say("GET /mode/s", "", `404 {"error_code":40409,`)
}

func TestDeletionsAnswerInConfluentsOrder(t *testing.T) {
	c := converse(t)
	c.register("s", "", `"int"`, "200 ")
	c.say("DELETE /subjects/s?permanent=true", "", `404 {"error_code":40405,`)
	c.say("DELETE /subjects/s", "", "200 [1]")
	c.say("DELETE /subjects/s", "", `404 {"error_code":40404,`)
	c.say("DELETE /subjects/s?permanent=true", "", "200 [1]")
	c.say("DELETE /subjects/s?permanent=true", "", `404 {"error_code":40401,`)
	c.say("DELETE /subjects/s", "", `404 {"error_code":40401,`)
	c.register("s", "", `"int"`, "200 ")
	c.say("DELETE /subjects/s/versions/1?permanent=true", "", `404 {"error_code":40407,`)
	c.say("DELETE /subjects/s/versions/1", "", "200 1")
	c.say("DELETE /subjects/s/versions/1", "", `404 {"error_code":40406,`)
	c.say("DELETE /subjects/s/versions/1?permanent=true", "", "200 1")
	c.say("DELETE /subjects/s/versions/1?permanent=true", "", `404 {"error_code":40401,`)
}

// Two names for one schema, as references of references may have, are one type to Avro.
func TestAvroSchemaReferredToByTwoNames(t *testing.T) {
	c := converse(t)
	c.register("a", "", `{"type":"fixed","name":"A","namespace":"x","size":1}`, "200 ")
	c.register("b", "", `["null","x.A"]`, "200 ", metadata.SchemaReference{Name: "x.A", Subject: "a", Version: 1}, metadata.SchemaReference{Name: "A", Subject: "a", Version: 1})
}
