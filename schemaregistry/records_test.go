package schemaregistry

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// exported are the records of a registry, and what they say when they are read in their order.
func exported(t *testing.T, h http.Handler) (all []Record) {
	t.Helper()
	for path := "/api/schemas"; path != ""; {
		var page struct {
			Records []Record
			Next    string
		}
		_, body, _ := strings.Cut(send(http.MethodGet, path, "", h), " ")
		if err := json.Unmarshal([]byte(body), &page); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		all = append(all, page.Records...)
		if path = ""; page.Next != "" {
			path = "/api/schemas?after=" + url.QueryEscape(page.Next)
		}
	}
	return all
}

func asLines(t *testing.T, records []Record) string {
	t.Helper()
	var b strings.Builder
	e := json.NewEncoder(&b)
	for _, r := range records {
		if err := e.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func importAll(t *testing.T, h http.Handler, records []Record) importAnswer {
	t.Helper()
	b, err := json.Marshal(map[string]any{"records": records})
	if err != nil {
		t.Fatal(err)
	}
	status, body, _ := strings.Cut(send(http.MethodPost, "/api/schemas", string(b), h), " ")
	var a importAnswer
	if err := json.Unmarshal([]byte(body), &a); err != nil || status != "200" {
		t.Fatalf("import: %s %s", status, body)
	}
	return a
}

// After any history, of registrations, references, deletions, settings and modes, another registry
// that imports the export has the same export; importing it again changes nothing, and the next id
// is a new one.
func TestExportAndImport(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	h := newRegistry(t).Handler()
	send(http.MethodPut, "/config", `{"compatibility":"NONE"}`, h)
	for i := range 400 {
		subject := fmt.Sprintf("s%d %%/é", r.IntN(120))
		path := "/subjects/" + url.PathEscape(subject)
		switch r.IntN(10) {
		case 0:
			send(http.MethodDelete, path, "", h)
		case 1:
			send(http.MethodDelete, fmt.Sprintf("%s/versions/%d", path, 1+r.IntN(3)), "", h)
		case 2:
			send(http.MethodDelete, fmt.Sprintf("%s/versions/%d?permanent=true", path, 1+r.IntN(3)), "", h)
		case 3:
			send(http.MethodPut, "/config/"+url.PathEscape(subject), []string{`{"compatibility":"FULL"}`, `{"normalize":true,"compatibilityGroup":"g"}`, `{"compatibility":"NONE","alias":"other"}`}[r.IntN(3)], h)
		case 4:
			if r.IntN(4) == 0 {
				send(http.MethodPut, "/mode/"+url.PathEscape(subject), `{"mode":"READONLY"}`, h)
			}
		case 5:
			send(http.MethodPost, path+"/versions", fmt.Sprintf(`{"schemaType":"JSON","schema":"{\"title\":\"%d\"}","metadata":{"properties":{"k":"v%d"}}}`, r.IntN(50), r.IntN(3)), h)
		case 6:
			send(http.MethodPost, path+"/versions", fmt.Sprintf(`{"schemaType":"PROTOBUF","schema":"syntax = \"proto3\"; message M%d { }"}`, r.IntN(50)), h)
		default:
			refs := ""
			if r.IntN(2) == 0 {
				refs = fmt.Sprintf(`,"references":[{"name":"x","subject":"s%d %%/é","version":-1}]`, r.IntN(120))
			}
			send(http.MethodPost, path+"/versions", fmt.Sprintf(`{"schema":"{\"type\":\"record\",\"name\":\"R%d\",\"fields\":[]}"%s}`, i%60, refs), h)
		}
	}
	records := exported(t, h)
	snapshot := NewSnapshot()
	deleted, refs, types := 0, 0, map[string]int{}
	for _, record := range records {
		if err := snapshot.Apply(record); err != nil {
			t.Fatal(err)
		}
		types[record.Key.Type]++
		if strings.Contains(string(record.Value), `"deleted":true`) {
			deleted++
		}
		if strings.Contains(string(record.Value), `"references"`) {
			refs++
		}
	}
	if types["SCHEMA"] < 80 || types["CONFIG"] < 10 || types["MODE"] < 1 || deleted < 3 || refs < 2 {
		t.Fatalf("seed %d: records %v, of them %d deleted, %d with references", seed, types, deleted, refs)
	}
	ordered, err := snapshot.Records()
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	other := newRegistry(t)
	if a := importAll(t, other.Handler(), ordered); a.Added != len(records) || a.GUIDs != 0 {
		t.Fatalf("seed %d: %+v, want %d added", seed, a, len(records))
	}
	if a := importAll(t, other.Handler(), ordered); a.There != len(records) || a.Added != 0 {
		t.Fatalf("seed %d: again %+v", seed, a)
	}
	if got, want := asLines(t, exported(t, other.Handler())), asLines(t, records); got != want {
		t.Fatalf("seed %d: export\n%s\nof the import\n%s", seed, got, want)
	}
	largest, err := other.store.MaxSchemaID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v, _, err := other.Register(t.Context(), "new", Request{Schema: `{"type":"record","name":"New","fields":[]}`}, false); err != nil || v.Schema.ID != largest+1 {
		t.Fatalf("seed %d: the next id is %d, %v, want %d", seed, v.Schema.ID, err, largest+1)
	}
}

// Records of Confluent's registry are read with what later ones take back.
func TestRecordsOfConfluent(t *testing.T) {
	snapshot := NewSnapshot()
	for _, line := range strings.Split(strings.TrimSpace(`
{"key":{"keytype":"NOOP","magic":0},"value":null}
{"key":{"keytype":"CONFIG","subject":null,"magic":0},"value":{"subject":null,"alias":null,"normalize":null,"compatibilityLevel":"FULL"}}
{"key":{"keytype":"SCHEMA","subject":"a","version":1,"magic":1},"value":{"subject":"a","version":1,"id":7,"md5":"x","schema":"{ \"type\" : \"string\" }","deleted":false}}
{"key":{"keytype":"SCHEMA","subject":"a","version":2,"magic":1},"value":{"subject":"a","version":2,"id":8,"guid":"89791762-2336-186f-9674-299b90a80029","schema":"\"int\"","deleted":false}}
{"key":{"keytype":"SCHEMA","subject":"b","version":1,"magic":1},"value":{"subject":"b","version":1,"id":9,"schemaType":"JSON","schema":"true","deleted":false}}
{"key":{"keytype":"SCHEMA","subject":"c","version":1,"magic":1},"value":{"subject":"c","version":1,"id":10,"schema":"\"long\"","deleted":false}}
{"key":{"keytype":"DELETE_SUBJECT","subject":"a","magic":0},"value":{"subject":"a","version":1}}
{"key":{"keytype":"SCHEMA","subject":"b","version":1,"magic":1},"value":null}
{"key":{"keytype":"CLEAR_SUBJECT","subject":"c","magic":0},"value":{"subject":"c"}}
{"key":{"keytype":"MODE","subject":"a","magic":0},"value":{"subject":"a","mode":"READONLY"}}
`), "\n") {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if err := snapshot.Apply(r); err != nil {
			t.Fatal(err)
		}
	}
	records, err := snapshot.Records()
	if err != nil {
		t.Fatal(err)
	}
	h := newRegistry(t).Handler()
	importAll(t, h, records)
	for path, want := range map[string]string{
		"/subjects?deleted=true":            `200 ["a"]`,
		"/subjects/a/versions?deleted=true": `200 [1,2]`,
		"/subjects/a/versions":              `200 [2]`,
		"/schemas/ids/7/schema":             `200 "string"`,
		"/config":                           `200 {"compatibilityLevel":"FULL"}`,
		"/schemas/ids/8":                    `200 {"guid":"89791762-2336-186f-9674-299b90a80029","schema":"\"int\""}`,
		"/schemas/guids/89791762-2336-186f-9674-299b90a80029/ids": `200 [{"context":".","id":8}]`,
		"/mode/a": `200 {"mode":"READONLY"}`,
	} {
		if got := strings.TrimSpace(send(http.MethodGet, path, "", h)); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func guidOf(t *testing.T, h http.Handler, id int) string {
	t.Helper()
	var a schemaAnswer
	_, body, _ := strings.Cut(send(http.MethodGet, fmt.Sprintf("/schemas/ids/%d", id), "", h), " ")
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		t.Fatal(err)
	}
	return a.GUID
}

// What contradicts the registry is refused by name, and changes nothing.
func TestImportConflicts(t *testing.T) {
	h := newRegistry(t).Handler()
	send(http.MethodPost, "/subjects/a/versions", `{"schema":"\"int\""}`, h)
	send(http.MethodPut, "/config/a", `{"compatibility":"FULL"}`, h)
	before := asLines(t, exported(t, h))
	schema := func(subject string, version, id int, text string, deleted bool) string {
		return fmt.Sprintf(`{"records":[{"key":{"keytype":"SCHEMA","subject":%q,"version":%d,"magic":1},"value":{"subject":%q,"version":%d,"id":%d,"schema":%q,"deleted":%t}}]}`, subject, version, subject, version, id, text, deleted)
	}
	for body, want := range map[string]string{
		schema("a", 1, 1, `"long"`, false): `409 {"error_code":409,"message":"Subject \"a\": version 1 is another schema here`,
		schema("a", 1, 2, `"int"`, false):  `409 {"error_code":409,"message":"Subject \"a\": version 1 is another schema here, with the id 1`,
		schema("a", 1, 1, `"int"`, true):   `409 {"error_code":409,"message":"Subject \"a\": version 1 is deleted false here`,
		schema("b", 1, 1, `"long"`, false): `409 {"error_code":409,"message":"Subject \"b\": version 1 cannot have the id 1`,
		schema("b", 1, 5, `"int"`, false):  `409 {"error_code":409,"message":"Subject \"b\": version 1 cannot have the id 5`,
		strings.Replace(schema("b", 1, 5, `"string"`, false), `"id":5`, `"id":5,"guid":"`+guidOf(t, h, 1)+`"`, 1):                `409 {"error_code":409,"message":"Subject \"b\": version 1 cannot have the id 5 and the GUID`,
		strings.Replace(schema("b", 1, 5, `"string"`, false), `"id":5`, `"id":5,"guid":"none"`, 1):                               `422 {"error_code":42201,`,
		`{"records":[{"key":{"keytype":"CONFIG","subject":"a","magic":0},"value":{"subject":"a","compatibilityLevel":"NONE"}}]}`: `409 {"error_code":409,"message":"Subject \"a\": its settings`,
		`{"records":[{"key":{"keytype":"CONFIG","subject":"c","magic":0},"value":{"subject":"c","defaultRuleSet":{}}}]}`:         `422 `,
		`{"records":[{"key":{"keytype":"DELETE_SUBJECT","subject":"a","magic":0},"value":{}}]}`:                                  `422 `,
	} {
		if got := send(http.MethodPost, "/api/schemas", body, h); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
	if after := asLines(t, exported(t, h)); after != before {
		t.Errorf("the registry is\n%s\nafter refusals, it was\n%s", after, before)
	}
}
