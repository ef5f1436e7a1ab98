package protofile

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
)

func none(string) (string, bool) { return "", false }

// A schema compiles from its text and from its descriptor to the same, with imports that are given
// or built in, and its messages are found by path and by name.
func TestCompile(t *testing.T) {
	const text = `syntax = "proto3"; package p; import "a.proto"; import "confluent/type/decimal.proto"; import "google/protobuf/any.proto";
		message M { message N { a.A a = 1; map<string, google.protobuf.Any> m = 2; } confluent.type.Decimal d = 1; }`
	find := func(path string) (string, bool) {
		return `syntax = "proto3"; package a; message A {}`, path == "a.proto"
	}
	file, err := Compile(text, find)
	if err != nil {
		t.Fatal(err)
	}
	serialized, err := proto.Marshal(protodesc.ToFileDescriptorProto(file))
	if err != nil {
		t.Fatal(err)
	}
	again, err := Compile(base64.StdEncoding.EncodeToString(serialized), find)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := protodesc.ToFileDescriptorProto(file), protodesc.ToFileDescriptorProto(again); !proto.Equal(a, b) {
		t.Errorf("from the text:\n%v\nfrom the descriptor:\n%v", a, b)
	}
	if path, err := Path(file, "p.M.N"); err != nil || !slices.Equal(path, []int{0, 0}) {
		t.Errorf("path %v of p.M.N, error %v", path, err)
	}
	if m, err := Message(file, 0, 0); err != nil || m.FullName() != "p.M.N" {
		t.Errorf("message %v at 0, 0, error %v", m, err)
	}
	for _, path := range [][]int{{}, {1}, {-1}, {0, 1}, {0, 0, 0}} { // the last is the entry of the map
		if m, err := Message(file, path...); err == nil {
			t.Errorf("message %v at %v", m.FullName(), path)
		}
	}
}

// Schemas that would take the compiler long, or have no end, are refused at once.
func TestHostileSchemas(t *testing.T) {
	deep := &descriptorpb.DescriptorProto{Name: proto.String("M")}
	for range 60 {
		deep = &descriptorpb.DescriptorProto{Name: proto.String(strings.Repeat("M", 200)), NestedType: []*descriptorpb.DescriptorProto{deep}}
	}
	serialized, err := proto.Marshal(&descriptorpb.FileDescriptorProto{MessageType: []*descriptorpb.DescriptorProto{deep}})
	if err != nil {
		t.Fatal(err)
	}
	numbered := func(path string) (string, bool) {
		return fmt.Sprintf(`syntax = "proto3"; import "%sx";`, path), true
	}
	cycle := func(path string) (string, bool) { return `syntax = "proto3"; import "a.proto";`, true }
	tests := []struct {
		text  string
		find  func(string) (string, bool)
		error string
	}{
		{strings.Repeat("message M {", 65), none, "nested deeper"},
		{strings.Repeat("message "+strings.Repeat("M", 200)+" {", 10), none, "full name"},
		{"message M { // }\n" + strings.Repeat("message M { /* } */ ", 65), none, "nested deeper"},
		{`option x = "}}}}"; ` + strings.Repeat("message M { option x = '}'; ", 65), none, "nested deeper"},
		{"message " + strings.Repeat("M", 300) + " {}", none, "longer than 255"},
		{base64.StdEncoding.EncodeToString(serialized), none, "full name"},
		{base64.StdEncoding.EncodeToString([]byte("no descriptor")), none, "base64"},
		{strings.Repeat(" ", MaxBytes+1), none, "longer than"},
		{`syntax = "proto3"; import "a.proto";`, none, "no reference"},
		{`syntax = "proto3"; import "a.proto";`, cycle, "cycle"},
		{`syntax = "proto3"; import "x";`, numbered, "more than"},
	}
	for _, test := range tests {
		if _, err := Compile(test.text, test.find); err == nil || !strings.Contains(err.Error(), test.error) {
			t.Errorf("%.60s: error %v, want %q", test.text, err, test.error)
		}
	}
}

// Rules on a field, which serializers give it by an option that nobody registers, are understood.
func TestRulesOfAField(t *testing.T) {
	const text = `syntax = "proto3"; import "confluent/meta.proto";
		message M { string a = 1 [(confluent.field_meta) = {doc: "d", rules: [{name: "n", expr: "size(this) > 0"}]}]; }`
	if _, err := Compile(text, func(string) (string, bool) { return "", false }); err != nil {
		t.Error(err)
	}
}
