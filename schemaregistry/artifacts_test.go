package schemaregistry

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

// To Apicurio's serializers a subject is an artifact of the group default, with the same schemas, ids and errors.
func TestArtifactsAreSubjects(t *testing.T) {
	h := newRegistry(t).Handler()
	const text = `{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}`
	base := apicurioPath + "/groups/default/artifacts"
	for _, step := range []struct {
		line, body string
		headers    string // NAME=VALUE, by spaces
		want       string // the answer's begin
	}{
		{"POST " + base, text, "X-Registry-ArtifactId=s X-Registry-ArtifactType=AVRO", `200 {"groupId":"default","id":"s","version":"1","type":"AVRO","state":"ENABLED","globalId":1,"contentId":1}`},
		{"POST " + base, text, "X-Registry-ArtifactId=s", `200 {"groupId":"default","id":"s","version":"1",`}, // it is there
		{"GET /subjects/s/versions/1", "", "", `200 {"subject":"s","version":1,"id":1,`},
		{"GET " + base + "/s/meta", "", "", `200 {"groupId":"default","id":"s","version":"1",`},
		{"GET " + base + "/s/versions/1/meta", "", "", `200 {"groupId":"default","id":"s","version":"1",`},
		{"GET " + base + "/s/versions/2/meta", "", "", `404 {"error_code":40402,`},
		{"POST " + base + "/s/meta", text, "", `200 {"groupId":"default","id":"s","version":"1",`},
		{"POST " + base + "/s/meta", `"int"`, "", `404 {"error_code":40403,`},
		{"GET " + apicurioPath + "/ids/globalIds/1", "", "", "200 " + text},
		{"GET " + apicurioPath + "/ids/contentIds/1", "", "", "200 " + text},
		{"GET " + apicurioPath + "/ids/contentIds/1/references", "", "", "200 []"},
		{"GET " + apicurioPath + "/ids/contentHashes/1", "", "", `404 {"error_code":404,`},
		{"POST " + base, `{"type":"record","name":"R","fields":[{"name":"b","type":"int"}]}`, "X-Registry-ArtifactId=s", `409 {"error_code":409,`},
		{"POST " + base, `{`, "X-Registry-ArtifactId=s", `422 {"error_code":42201,`},
		{"POST " + base, text, "", `422 {"error_code":42208,`}, // no name
		{"POST " + base, text, "X-Registry-ArtifactId=s Content-Type=application/create.extended+json", `415 {"error_code":415,`},
		{"POST " + apicurioPath + "/groups/mine/artifacts", text, "X-Registry-ArtifactId=s", `404 {"error_code":404,"message":"There is no group \"mine\"`},
		{"GET " + apicurioPath + "/groups/mine/artifacts/s/meta", "", "", `404 {"error_code":404,"message":"There is no group \"mine\"`},
	} {
		method, target, _ := strings.Cut(step.line, " ")
		req := httptest.NewRequest(method, target, strings.NewReader(step.body))
		for _, field := range strings.Fields(step.headers) {
			name, value, _ := strings.Cut(field, "=")
			req.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if got := fmt.Sprintf("%d %s", w.Code, w.Body); !strings.HasPrefix(got, step.want) {
			t.Errorf("%s %s: got %s, want %s", step.line, step.headers, got, step.want)
		}
	}
}

// A schema with references is read with them, and dereferenced.
func TestArtifactsHaveReferences(t *testing.T) {
	c := converse(t)
	c.say("POST /subjects/base/versions", `{"schema":"{\"type\":\"fixed\",\"name\":\"F\",\"size\":1}"}`, "200 ")
	c.say("POST /subjects/user/versions", `{"schema":"{\"type\":\"array\",\"items\":\"F\"}","references":[{"name":"F","subject":"base","version":1}]}`, "200 ")
	c.say("GET "+apicurioPath+"/ids/contentIds/2/references", "", `200 [{"groupId":"default","artifactId":"base","version":"1","name":"F"}]`)
	c.say("GET "+apicurioPath+"/ids/contentIds/2", "", `200 {"type":"array","items":"F"}`)
	c.say("GET "+apicurioPath+"/ids/contentIds/2?dereference=true", "", `200 {"type":"array","items":{"type":"fixed","name":"F","size":1}}`)
}
