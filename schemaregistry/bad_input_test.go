package schemaregistry

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/tabletopic/tabletopic/metadata"
)

// Whatever is wrong with a request, the answer has the reference's code, and nothing of it is
// kept.
func TestBadInputLeavesNothingBehind(t *testing.T) {
	r := newRegistry(t)
	h := r.Handler()
	for _, q := range []struct {
		subject string
		Request
	}{
		{"base", Request{Schema: `{"type":"fixed","name":"Base","size":1}`}},
		{"proto", Request{Schema: `syntax = "proto3"; message P {}`, SchemaType: typeProtobuf}},
	} {
		if _, _, err := r.Register(t.Context(), q.subject, q.Request, false); err != nil {
			t.Fatal(err)
		}
	}
	body := func(schemaType, schema string, refs ...metadata.SchemaReference) string {
		b, err := json.Marshal(Request{Schema: schema, SchemaType: schemaType, References: refs})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	avro := func(s string) string { return body(typeAvro, s) }
	proto := func(s string, refs ...metadata.SchemaReference) string { return body(typeProtobuf, s, refs...) }
	schema := func(s string) string { return body(typeJSON, s) }
	nest := func(open string, n int, inner, end string) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(end, n)
	}
	ref := func(name, subject string, version int) metadata.SchemaReference {
		return metadata.SchemaReference{Name: name, Subject: subject, Version: version}
	}
	var many strings.Builder // messages whose full names would take gigabytes
	many.WriteString(`syntax = "proto3"; package ` + strings.Repeat("p", 400_000) + ";")
	many.WriteString(strings.Repeat("message M {}", 40_000))
	const versions = "POST /subjects/s/versions"
	var long []metadata.SchemaReference // five times 1,000,000 bytes
	var all []string
	for i := range 5 {
		subject := fmt.Sprintf("long-%d", i)
		if _, _, err := r.Register(t.Context(), subject, Request{SchemaType: typeJSON, Schema: fmt.Sprintf(`{"const":"%d%s"}`, i, strings.Repeat("x", 1_000_000))}, false); err != nil {
			t.Fatal(err)
		}
		long = append(long, ref(subject, subject, 1))
		all = append(all, `{"$ref":"`+subject+`"}`)
	}
	schema5 := body(typeJSON, `{"oneOf":[`+strings.Join(all, ",")+`]}`, long...)
	for _, test := range []struct {
		name, line, body string
		code             int
	}{
		{"no body", versions, "", 422},
		{"broken JSON", versions, `{"schema": `, 400},
		{"no JSON", versions, "schema", 400},
		{"an array", versions, "[]", 422},
		{"a field of another type", versions, `{"schema": 5}`, 422},
		{"references that are none", versions, `{"schema": "\"int\"", "references": "base"}`, 422},
		{"no schema", versions, `{}`, 42201},
		{"schema of 5 MB", versions, avro(`"` + strings.Repeat("x", 5<<20) + `"`), 413},
		{"schema over the limit", versions, avro(`"` + strings.Repeat("x", 1<<20) + `"`), 42209},
		{"unknown type", versions, body("THRIFT", "x"), 42201},
		{"type in small letters", versions, body("json", "{}"), 42201},
		{"id without the mode", versions, `{"schema": "\"int\"", "id": 7}`, 42205},
		{"version that is not the next", versions, `{"schema": "\"int\"", "version": 7}`, 42201},
		{"metadata of another shape", versions, `{"schema": "\"int\"", "metadata": {"properties": {"a": 1}}}`, 42201},
		{"rules of another shape", versions, `{"schema": "\"int\"", "ruleSet": {"domainRules": 1}}`, 42210},
		{"subject that is not UTF-8", "POST /subjects/a%ffb/versions", avro(`"int"`), 42208},
		{"config of a subject that is not UTF-8", "PUT /config/a%ffb", `{"compatibility":"FULL"}`, 42208},
		{"mode of a subject that is not UTF-8", "PUT /mode/a%ffb", `{"mode":"READONLY"}`, 42208},
		{"subject with a control character", "POST /subjects/a%00b/versions", avro(`"int"`), 42208},
		{"subject of 600 bytes", "POST /subjects/" + strings.Repeat("s", 600) + "/versions", avro(`"int"`), 42208},
		{"subject in another context", "POST /subjects/:.other:s/versions", avro(`"int"`), 42208},
		{"id that is no number", "GET /schemas/ids/x", "", 404},
		{"version that is no number", "GET /subjects/base/versions/x", "", 42202},
		{"reference to no subject", versions, body(typeAvro, `"N"`, ref("N", "none", 1)), 42201},
		{"reference to no version", versions, body(typeAvro, `"Base"`, ref("Base", "base", 9)), 42201},
		{"reference without a name", versions, body(typeAvro, `"Base"`, ref("", "base", 1)), 42201},
		{"reference to another type", versions, body(typeAvro, `"P"`, ref("P", "proto", 1)), 42201},
		{"600 references", versions, body(typeAvro, `"Base"`, make([]metadata.SchemaReference, 600)...), 42201},

		{"more text with what it refers to than tables read", versions, schema5, 42201},

		{"Avro: no JSON", versions, avro("{"), 42201},
		{"Avro: unknown name", versions, avro(`"Nothing"`), 42201},
		{"Avro: invalid name", versions, avro(`{"type":"fixed","name":"a-b","size":1}`), 42201},
		{"Avro: a name twice", versions, avro(`{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}`), 42201},
		{"Avro: default of another type", versions, avro(`{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}`), 42201},
		{"Avro: union in a union", versions, avro(`["null",["int"]]`), 42201},
		{"Avro: nested 20,000 deep", versions, avro(nest(`{"type":"array","items":`, 20_000, `"int"`, "}")), 42201},
		{"Avro: more text", versions, avro(`"int" "int"`), 42201},

		{"Protobuf: broken", versions, proto(`syntax = "proto3"; message M {`), 42201},
		{"Protobuf: unknown type", versions, proto(`syntax = "proto3"; message M { N n = 1; }`), 42201},
		{"Protobuf: a number twice", versions, proto(`syntax = "proto3"; message M { int32 a = 1; int32 b = 1; }`), 42201},
		{"Protobuf: number 0", versions, proto(`syntax = "proto3"; message M { int32 a = 0; }`), 42201},
		{"Protobuf: a file of this machine", versions, proto(`syntax = "proto3"; import "../../etc/passwd"; message M {}`), 42201},
		{"Protobuf: imports itself", versions, proto(`syntax = "proto3"; import "default"; message M {}`), 42201},
		{"Protobuf: import of another type", versions, proto(`syntax = "proto3"; import "b.proto"; message M {}`, ref("b.proto", "base", 1)), 42201},
		{"Protobuf: nested 20,000 deep", versions, proto(`syntax = "proto3"; ` + nest("message M {", 20_000, "", "}")), 42201},
		{"Protobuf: a full name longer than tables read", versions, proto(`syntax = "proto3"; ` + nest("message "+strings.Repeat("m", 250)+" {", 6, "", "}")), 42201},
		{"Protobuf: names of gigabytes", versions, proto(many.String()), 42201},
		{"Protobuf: one line of 20,000 bytes", versions, proto(`syntax = "proto3"; ` + strings.Repeat(" ", 20_000) + "message M {}"), 42201},
		{"Protobuf: base64 of noise", versions, proto("AAAA"), 42201},
		{"Protobuf: an option that is not there", versions, proto(`syntax = "proto3"; message M { int32 a = 1 [(x) = 1]; }`), 42201},

		{"JSON: broken", versions, schema("{"), 42201},
		{"JSON: a number", versions, schema("17"), 42201},
		{"JSON: unknown type", versions, schema(`{"type":"text"}`), 42201},
		{"JSON: keyword of another type", versions, schema(`{"maxLength":"x"}`), 42201},
		{"JSON: $ref to the network", versions, schema(`{"$ref":"http://127.0.0.1:1/x"}`), 42201},
		{"JSON: $ref to a file", versions, schema(`{"$ref":"file:///etc/passwd"}`), 42201},
		{"JSON: $ref to nothing", versions, schema(`{"$ref":"#/definitions/a"}`), 42201},
		{"JSON: nested 20,000 deep", versions, schema(nest(`{"items":`, 20_000, "{}", "}")), 42201},
		{"JSON: a number of a billion digits", versions, schema(`{"maximum":1e999999999}`), 42201},

		{"compatibility of a broken schema", "POST /compatibility/subjects/base/versions/latest", avro("{"), 42201},
		{"compatibility with no version", "POST /compatibility/subjects/base/versions/9", avro(`"int"`), 40402},
		{"look-up of a broken schema", "POST /subjects/base", avro("{"), 42201},
		{"unknown level", "PUT /config/s", `{"compatibility":"UP"}`, 42203},
		{"unknown setting", "PUT /config/s", `{"color":"red"}`, 422},
		{"unknown mode", "PUT /mode/s", `{"mode":"SLOW"}`, 42204},
		{"unknown path", "GET /subjects/s/color", "", 404},
		{"unknown method", "DELETE /subjects", "", 405},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := contents(t, r)
			method, target, _ := strings.Cut(test.line, " ")
			req := httptest.NewRequest(method, target, strings.NewReader(test.body))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			var e errorAnswer
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Code != test.code || e.Message == "" {
				t.Fatalf("got %d %.300s, %v, want code %d", w.Code, w.Body, err, test.code)
			}
			if after := contents(t, r); !reflect.DeepEqual(after, before) {
				t.Fatalf("left behind %v, before %v", after, before)
			}
		})
	}
}

// contents is what a registry holds, and the next id.
func contents(t *testing.T, r *Registry) []string {
	t.Helper()
	subjects, err := r.store.Subjects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, s := range append(subjects, metadata.SubjectSummary{Name: "s"}) {
		u, err := r.store.Subject(t.Context(), s.Name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := r.store.SubjectConfig(t.Context(), s.Name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%+v %+v", u, c))
	}
	id, err := r.store.MaxSchemaID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return append(all, fmt.Sprint(id))
}
