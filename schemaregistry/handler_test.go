package schemaregistry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// Scripts of requests: the first line of a case is method and path, the rest the body; the
// output are status and body. Each file has its own registry.
func TestHTTP(t *testing.T) {
	datadriven.Walk(t, "testdata/http", func(t *testing.T, path string) {
		h := newRegistry(t).Handler()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			line, body, _ := strings.Cut(d.Input, "\n")
			method, target, ok := strings.Cut(line, " ")
			if !ok || d.Cmd != "http" {
				d.Fatalf(t, "want http, then a method and a path")
			}
			return send(method, target, body, h)
		})
	})
}

func send(method, target, body string, h http.Handler) string {
	req := httptest.NewRequest(method, target, strings.NewReader(body))
	req.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return fmt.Sprintf("%d %s\n", w.Code, strings.TrimSpace(w.Body.String()))
}

// Every answer, errors too, has the type that clients expect; bodies of other types, too
// large or no JSON, are refused.
func TestBodies(t *testing.T) {
	r := newRegistry(t)
	r.cfg.MaxSchemaBytes = 1000
	h := r.Handler()
	post := func(contentType, body string) (int, int) {
		req := httptest.NewRequest("POST", "/subjects/s/versions", strings.NewReader(body))
		req.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		var e errorAnswer
		if got := w.Header().Get("Content-Type"); got != "application/vnd.schemaregistry.v1+json" {
			t.Fatalf("the answer has the type %q", got)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || (w.Code != 200 && e.Message == "") {
			t.Fatalf("answer %s, %v", w.Body, err)
		}
		return w.Code, e.Code
	}
	enum := func(size int) string {
		b, _ := json.Marshal(Request{Schema: `{"type":"fixed","name":"` + strings.Repeat("f", size) + `","size":1}`})
		return string(b)
	}
	for _, test := range []struct {
		contentType, body string
		status, code      int
	}{
		{contentType, enum(10), 200, 0},
		{"", enum(10), 200, 0},
		{"application/json; charset=utf-8", enum(10), 200, 0},
		{"text/plain", enum(10), 415, 415},
		{"application/json", enum(1000), 422, 42209},
		{"application/json", enum(100_000), 413, 413},
		{"application/json", "", 422, 422},
		{"application/json", "{", 400, 400},
		{"application/json", "nope", 400, 400},
		{"application/json", `{"schema":5}`, 422, 422},
		{"application/json", `{"schema":""}`, 422, 42201},
		{"application/json", `{}`, 422, 42201},
	} {
		if status, code := post(test.contentType, test.body); status != test.status || code != test.code {
			t.Fatalf("%s %.40s: got %d/%d, want %d/%d", test.contentType, test.body, status, code, test.status, test.code)
		}
	}
}

// An answer has the type that the client would rather have, an error too.
func TestAnswersHaveTheTypeThatIsAccepted(t *testing.T) {
	h := newRegistry(t).Handler()
	const general = "application/vnd.schemaregistry+json"
	for accept, want := range map[string]string{
		"": contentType, "*/*": contentType, "application/*": contentType, "text/html": contentType, ";;": contentType,
		"application/json": "application/json",
		"application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json; q=0.9, application/json; q=0.5": contentType,
		"application/json, */*; q=0.1":                          "application/json",
		"application/json; q=0.5, " + general + ";q=0.9":        general,
		"*/*, application/vnd.schemaregistry.v1+json; q=0":      general,
		"application/json;q=x, application/*;q=0.2, text/plain": contentType,
	} {
		for _, path := range []string{"/subjects", "/subjects/none/versions", "/nothing"} {
			req := httptest.NewRequest("GET", path, nil)
			req.Header.Set("Accept", accept)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			if got := w.Header().Get("Content-Type"); got != want {
				t.Errorf("%s with Accept %q: %s, want %s", path, accept, got, want)
			}
		}
	}
}

// Nesting is bounded before anything recurses.
func TestDeepSchemas(t *testing.T) {
	h := newRegistry(t).Handler()
	for depth, want := range map[int]string{50: `200 {"id":1,`, 20_000: "422 "} {
		b, _ := json.Marshal(Request{Schema: strings.Repeat(`{"type":"array","items":`, depth) + `"int"` + strings.Repeat("}", depth)})
		if got := send("POST", "/subjects/s/versions", string(b), h); !strings.HasPrefix(got, want) {
			t.Fatalf("depth %d: got %.200s", depth, got)
		}
	}
}

// A database that fails is 500 with Confluent's code, and logged with the cause.
func TestBackendFailure(t *testing.T) {
	store := openStore(t, filepath.Join(t.TempDir(), "metadata.db"))
	var log bytes.Buffer
	h := New(store, nil, Config{}, slog.New(slog.NewTextHandler(&log, nil))).Handler()
	store.Close()
	if got := send("GET", "/subjects", "", h); !strings.HasPrefix(got, `500 {"error_code":50001`) {
		t.Fatalf("got %s", got)
	}
	if !strings.Contains(log.String(), "closed") {
		t.Fatalf("log: %s", log.String())
	}
}

// No request makes the handler panic, answer 500, or answer something that is not JSON.
func FuzzHTTP(f *testing.F) {
	f.Add("POST", "/subjects/a/versions", `{"schema":"\"string\""}`)
	f.Add("POST", "/subjects/a/versions?normalize=true", `{"schema":"{\"type\":\"record\",\"name\":\"r\",\"fields\":[{\"name\":\"a\",\"type\":[\"null\",\"r\"],\"default\":null}]}","references":[{"name":"x","subject":"a","version":-1}]}`)
	f.Add("POST", "/compatibility/subjects/a/versions/latest?verbose=true", `{"schema":"\"int\""}`)
	f.Add("PUT", "/config/a", `{"compatibility":"FULL"}`)
	f.Add("DELETE", "/subjects/a/versions/1?permanent=true", "")
	f.Add("GET", "/schemas/ids/1/versions?offset=1&limit=x", "")
	f.Add("GET", "/subjects/%2F%00/versions/-2", "")
	store := openStore(f, filepath.Join(f.TempDir(), "metadata.db"))
	var log bytes.Buffer
	h := New(store, nil, Config{}, slog.New(slog.NewTextHandler(&log, nil))).Handler()
	f.Fuzz(func(t *testing.T, method, target, body string) {
		req, err := http.NewRequest(method, "http://registry"+target, strings.NewReader(body))
		if err != nil || req.URL.Host != "registry" {
			return
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if w.Code >= 300 && w.Code < 400 {
			return // the path was cleaned
		}
		if w.Code == 500 || !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%s %s: %d %s\n%s", method, target, w.Code, w.Body, log.String())
		}
	})
}

// Of any Avro text the canonical form is its own canonical form, and reads itself.
func FuzzCanonicalAvro(f *testing.F) {
	f.Add(`{"type":"record","name":"a.R","fields":[{"name":"f","type":["null",{"type":"enum","name":"E","symbols":["A"],"default":"A"}],"default":null}]}`)
	f.Add(`[{"type":"fixed","name":"x","size":3},"a.R"]`)
	f.Fuzz(func(t *testing.T, text string) { checkCanonical(t, typeAvro, text) })
}

// Of any Protobuf text the canonical form is its own canonical form, and reads itself.
func FuzzCanonicalProtobuf(f *testing.F) {
	f.Add(`syntax = "proto3"; package a.b; import "google/protobuf/any.proto"; // c
		message M { optional int32 a = 1 [deprecated = true]; oneof o { string s = 2; M m = 3; } map<string, E> e = 4; enum E { Z = 0; } reserved 7 to 9; google.protobuf.Any x = 5; }`)
	f.Add(`syntax = "proto2"; message M { required bytes a = 1 [default = "\001x"]; extensions 100 to max; repeated group G = 2 { optional double d = 1 [default = inf]; } } extend M { optional M x = 100; }`)
	f.Add(`edition = "2023"; option features.field_presence = IMPLICIT; service S { rpc R(M) returns (stream M); } message M { int32 a = 1; }`)
	f.Fuzz(func(t *testing.T, text string) { checkCanonical(t, typeProtobuf, text) })
}

// Of any JSON Schema the canonical form is its own canonical form, and reads itself.
func FuzzCanonicalJSON(f *testing.F) {
	f.Add(`{"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"http://x.org/a","properties":{"a":{"$ref":"#/$defs/d"},"b":{"anyOf":[true,{"const":1e2}]}},"$defs":{"d":{"prefixItems":[{"type":"string"}],"items":false}}}`)
	f.Add(`{"type":["object","null"],"patternProperties":{"^(?!a)":{"enum":[1,"1"]}},"dependencies":{"a":["b"],"c":{"not":{}}},"additionalProperties":{"$ref":"#"}}`)
	f.Add(`{"$schema":"http://json-schema.org/draft-04/schema#","minimum":1,"exclusiveMinimum":true,"multipleOf":0.01}`)
	f.Fuzz(func(t *testing.T, text string) { checkCanonical(t, typeJSON, text) })
}

func checkCanonical(t *testing.T, schemaType, text string) {
	for _, normalize := range []bool{false, true} {
		once, err := canonical(schemaType, text, nil, normalize)
		if err != nil {
			return
		}
		m, err := parse(schemaType, once, nil)
		if err != nil {
			return
		}
		if twice, err := canonical(schemaType, once, nil, normalize); err != nil || twice != once {
			t.Fatalf("%s becomes\n%s\nthen\n%s\n%v", text, once, twice, err)
		}
		if why := m.cannotRead(m, false); len(why) > 0 && why[0].kind != "TOO_COMPLEX" {
			t.Fatalf("%s cannot read itself: %+v", once, why)
		}
	}
}
