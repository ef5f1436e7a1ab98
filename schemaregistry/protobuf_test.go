package schemaregistry

import (
	"encoding/base64"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/apipb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/typepb"
)

// The descriptors of compiled code, as Python's serializer sends them, have a canonical form
// that is its own, and means the same to the compiler.
func TestCanonicalProtobufOfDescriptors(t *testing.T) {
	for _, f := range []protoreflect.FileDescriptor{descriptorpb.File_google_protobuf_descriptor_proto, structpb.File_google_protobuf_struct_proto,
		anypb.File_google_protobuf_any_proto, typepb.File_google_protobuf_type_proto, apipb.File_google_protobuf_api_proto} {
		b, err := proto.Marshal(protodesc.ToFileDescriptorProto(f))
		if err != nil {
			t.Fatal(err)
		}
		text, err := canonical(typeProtobuf, base64.StdEncoding.EncodeToString(b), nil, false)
		if err != nil {
			t.Errorf("%s: %v", f.Path(), err)
			continue
		}
		again, err := canonical(typeProtobuf, text, nil, false)
		if err != nil || again != text {
			t.Fatalf("%s becomes\n%s\nthen, %v\n%s", f.Path(), text, err, again)
		}
	}
}
