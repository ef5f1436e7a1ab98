package schemaregistry

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"github.com/jhump/protoreflect/v2/protoprint"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/tabletopic/tabletopic/internal/protofile"
)

// protobufFile is the path of a schema while it is compiled. Nothing imports it.
const protobufFile = "default"

// What the compiler is given is bounded, for it spells out the full name of everything, and
// counts columns from the begin of a line each time.
const (
	maxProtobufLine  = 10_000
	maxProtobufDepth = 40  // nested braces and brackets
	maxProtobufName  = 255 // bytes of a name or package
)

// canonicalProtobuf writes a schema from its descriptor: no comments, names only as long as
// needed, and its parts in the order that they have. normalize brings them in one order
// (imports, options, messages, enums, services, extensions) and sorts imports and fields;
// messages keep their order, by which serializers number them. The text is source, or a
// FileDescriptorProto in base64, as Python's serializer sends it.
func canonicalProtobuf(text string, dependencies []Dependency, normalize bool) (string, error) {
	root, err := readProtobuf(text)
	if err != nil {
		return "", err
	}
	file, err := compileProtobuf(root, dependencies)
	if err != nil {
		return "", err
	}
	p := descriptorOf(file)
	if normalize {
		normalizeProtobuf(p)
		// Without positions in a source the printer has an order of its own.
		if file, err = compileProtobuf(protocompile.SearchResult{Proto: p}, dependencies); err != nil {
			return "", err
		}
	}
	printer := protoprint.Printer{OmitComments: protoprint.CommentsAll, Compact: true}
	out, err := printer.PrintProtoToString(file)
	if err != nil {
		return "", err
	}
	again, err := compileProtobuf(protocompile.SearchResult{Source: strings.NewReader(out)}, dependencies)
	if err != nil {
		return "", fmt.Errorf("its canonical form: %w", err)
	}
	if want, got := meaningOf(p), meaningOf(descriptorOf(again)); want == nil || !bytes.Equal(got, want) {
		return "", errors.New("it has no canonical form that means the same")
	}
	return out, nil
}

func descriptorOf(file linker.File) *descriptorpb.FileDescriptorProto {
	p := protodesc.ToFileDescriptorProto(file)
	p.SourceCodeInfo = nil
	return p
}

var serialized = proto.MarshalOptions{Deterministic: true}

// meaningOf serializes a descriptor without regard to where the messages are that stand for
// entries of maps: they come with their fields.
func meaningOf(p *descriptorpb.FileDescriptorProto) []byte {
	p = proto.CloneOf(p)
	for _, m := range p.MessageType {
		entriesLast(m)
	}
	b, err := serialized.Marshal(p)
	if err != nil {
		return nil
	}
	return b
}

func entriesLast(m *descriptorpb.DescriptorProto) {
	slices.SortStableFunc(m.NestedType, func(a, b *descriptorpb.DescriptorProto) int {
		return cmp.Compare(entryRank(a), entryRank(b))
	})
	for _, n := range m.NestedType {
		entriesLast(n)
	}
}

// entryRank is empty for messages; entries come behind them by name.
func entryRank(m *descriptorpb.DescriptorProto) string {
	if m.GetOptions().GetMapEntry() {
		return m.GetName()
	}
	return ""
}

// readProtobuf is the root of a compilation, whose size is bounded.
func readProtobuf(text string) (protocompile.SearchResult, error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return protocompile.SearchResult{Source: strings.NewReader(text)}, checkProtobuf(text)
	}
	p := &descriptorpb.FileDescriptorProto{}
	if err := (proto.UnmarshalOptions{RecursionLimit: maxProtobufDepth}).Unmarshal(b, p); err != nil {
		return protocompile.SearchResult{}, errors.New("it is base64, but of no FileDescriptorProto")
	}
	p.Name, p.SourceCodeInfo = proto.String(protobufFile), nil
	nameJSON(p.Extension)
	for _, m := range p.MessageType {
		nameMessageJSON(m)
	}
	return protocompile.SearchResult{Proto: p}, nil
}

// nameMessageJSON gives fields the JSON names that compilers derive, and leave out of the
// descriptors in generated code.
func nameMessageJSON(m *descriptorpb.DescriptorProto) {
	nameJSON(m.Field)
	nameJSON(m.Extension)
	for _, n := range m.NestedType {
		nameMessageJSON(n)
	}
}

func nameJSON(fields []*descriptorpb.FieldDescriptorProto) {
	for _, f := range fields {
		if f.JsonName == nil {
			f.JsonName = proto.String(jsonName(f.GetName()))
		}
	}
}

// jsonName turns some_name into someName.
func jsonName(name string) string {
	var out []byte
	for i := range len(name) {
		switch c := name[i]; {
		case c == '_':
		case i > 0 && name[i-1] == '_' && 'a' <= c && c <= 'z':
			out = append(out, c-'a'+'A')
		default:
			out = append(out, c)
		}
	}
	return string(out)
}

// checkProtobuf bounds the lines, the depth and the names of a source text.
func checkProtobuf(text string) error {
	for line := range strings.Lines(text) {
		if len(line) > maxProtobufLine {
			return fmt.Errorf("a line has %d bytes, at most %d are allowed", len(line), maxProtobufLine)
		}
	}
	depth, name := 0, 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '.' || c == '_' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' {
			if name++; name > maxProtobufName {
				return fmt.Errorf("a name ends after byte %d of the text, longer than %d bytes", i, maxProtobufName)
			}
			continue
		}
		name = 0
		switch {
		case strings.IndexByte("{[(<", c) >= 0:
			if depth++; depth > maxProtobufDepth {
				return fmt.Errorf("nested too deep at byte %d: at most %d levels are allowed", i, maxProtobufDepth)
			}
		case strings.IndexByte("}])>", c) >= 0:
			depth--
		case c == '"' || c == '\'':
			i = skipString(text, i)
		case strings.HasPrefix(text[i:], "//"):
			i = skipPast(text, i, "\n")
		case strings.HasPrefix(text[i:], "/*"):
			i = skipPast(text, i+2, "*/")
		}
	}
	return nil
}

// skipString returns where the string that begins at i ends.
func skipString(text string, i int) int {
	for j := i + 1; j < len(text); j++ {
		switch text[j] {
		case '\\':
			j++
		case text[i], '\n':
			return j
		}
	}
	return len(text)
}

// skipPast returns where end ends, after i.
func skipPast(text string, i int, end string) int {
	n := strings.Index(text[min(i, len(text)):], end)
	if n < 0 {
		return len(text)
	}
	return i + n + len(end) - 1
}

// compileProtobuf compiles and links a schema. What it imports is one of the dependencies or
// a file that every compiler has; nothing is read from the disk.
func compileProtobuf(root protocompile.SearchResult, dependencies []Dependency) (linker.File, error) {
	find := func(path string) (protocompile.SearchResult, error) {
		if path == protobufFile {
			return root, nil
		}
		for _, d := range dependencies {
			if d.Name == path {
				return protocompile.SearchResult{Source: strings.NewReader(d.Text)}, nil
			}
		}
		if text, ok := protofile.BuiltIn[path]; ok {
			return protocompile.SearchResult{Source: strings.NewReader(text)}, nil
		}
		return protocompile.SearchResult{}, fmt.Errorf("no reference has the name %q: %w", path, fs.ErrNotExist)
	}
	c := protocompile.Compiler{Resolver: protocompile.WithStandardImports(protocompile.ResolverFunc(find)), MaxParallelism: 1, SourceInfoMode: protocompile.SourceInfoStandard}
	files, err := c.Compile(context.Background(), protobufFile)
	if err != nil {
		return nil, err
	}
	return files[0], nil
}

func normalizeProtobuf(p *descriptorpb.FileDescriptorProto) {
	public := map[string]bool{}
	for _, i := range p.PublicDependency {
		public[p.Dependency[i]] = true
	}
	slices.Sort(p.Dependency)
	p.PublicDependency = nil
	for i, path := range p.Dependency {
		if public[path] {
			p.PublicDependency = append(p.PublicDependency, int32(i))
		}
	}
	for _, m := range p.MessageType {
		normalizeMessage(m)
	}
}

func normalizeMessage(m *descriptorpb.DescriptorProto) {
	slices.SortStableFunc(m.Field, func(a, b *descriptorpb.FieldDescriptorProto) int { return cmp.Compare(a.GetNumber(), b.GetNumber()) })
	slices.SortFunc(m.ReservedRange, func(a, b *descriptorpb.DescriptorProto_ReservedRange) int {
		return cmp.Compare(a.GetStart(), b.GetStart())
	})
	slices.Sort(m.ReservedName)
	for _, n := range m.NestedType {
		normalizeMessage(n)
	}
}

// parseProtobuf compiles a canonical text as tables do, with their bounds.
func parseProtobuf(text string, dependencies []Dependency) (protobufModel, error) {
	file, err := protofile.Compile(text, func(path string) (string, bool) {
		for _, d := range dependencies {
			if d.Name == path {
				return d.Text, true
			}
		}
		return "", false
	})
	return protobufModel{file}, err
}

// serializedProtobuf is the descriptor of a file, in base64.
func serializedProtobuf(text string, dependencies []Dependency) (string, error) {
	file, err := compileProtobuf(protocompile.SearchResult{Source: strings.NewReader(text)}, dependencies)
	if err != nil {
		return "", err
	}
	b, err := serialized.Marshal(descriptorOf(file))
	return base64.StdEncoding.EncodeToString(b), err
}
