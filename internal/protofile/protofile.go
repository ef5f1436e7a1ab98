// Package protofile compiles the Protobuf schemas of a registry to descriptors.
//
// A schema is one file, as text or as a FileDescriptorProto in base64. What it imports is
// given with it, or is one of the files that serializers take for built in and do not
// register: google/protobuf/*.proto, confluent/meta.proto and confluent/type/decimal.proto.
// Nothing is read from a disk or from the network.
package protofile

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// root is the path of the schema itself. Nothing can import it.
const root = "/"

// MaxBytes bounds the text of a schema with all that it imports, but for what is built in.
const MaxBytes = 4 << 20

// More bounds on a schema with all that it imports: the compiler spells out the full name of
// everything, and calls itself for what is nested.
const (
	maxFiles   = 1000
	maxNesting = 64      // braces and brackets
	maxWord    = 255     // bytes of a name or a package
	maxName    = 1 << 10 // bytes of the words before the braces around something
)

// Compile compiles a schema. Find returns the text of what it imports by path.
func Compile(text string, find func(path string) (string, bool)) (protoreflect.FileDescriptor, error) {
	left, files := MaxBytes, 0
	standard := protocompile.WithStandardImports(protocompile.ResolverFunc(func(string) (protocompile.SearchResult, error) {
		return protocompile.SearchResult{}, protoregistry.NotFound
	}))
	load := func(path string) (protocompile.SearchResult, error) {
		// What is built in goes first, so that its messages are what their names say.
		if r, err := standard.FindFileByPath(path); err == nil {
			return r, nil
		}
		source, ok := text, true
		if path != root {
			source, ok = find(path)
		}
		if !ok {
			if source, ok = BuiltIn[path]; !ok {
				return protocompile.SearchResult{}, fmt.Errorf("import %q: no reference of the schema has this name: %w", path, protoregistry.NotFound)
			}
		}
		if files++; files > maxFiles {
			return protocompile.SearchResult{}, fmt.Errorf("import %q: more than %d files", path, maxFiles)
		}
		if left -= len(source); left < 0 {
			return protocompile.SearchResult{}, fmt.Errorf("import %q: the texts are longer than %d bytes", path, MaxBytes)
		}
		return read(path, source)
	}
	c := protocompile.Compiler{Resolver: protocompile.ResolverFunc(load), MaxParallelism: 1}
	compiled, err := c.Compile(context.Background(), root)
	if err != nil {
		return nil, fmt.Errorf("compile protobuf schema: %w", err)
	}
	return compiled[0], nil
}

// read takes a file for a descriptor if it is base64: no source is.
func read(path, text string) (protocompile.SearchResult, error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return protocompile.SearchResult{Source: strings.NewReader(text)}, check(text)
	}
	p := &descriptorpb.FileDescriptorProto{}
	if err := (proto.UnmarshalOptions{RecursionLimit: maxNesting}).Unmarshal(b, p); err != nil {
		return protocompile.SearchResult{}, fmt.Errorf("text is base64, and not of a FileDescriptorProto: %w", err)
	}
	if err := checkNames(len(p.GetPackage()), p.MessageType); err != nil {
		return protocompile.SearchResult{}, err
	}
	p.Name, p.SourceCodeInfo = proto.String(path), nil
	return protocompile.SearchResult{Proto: p}, nil
}

// checkNames bounds the full names of messages inside of what has a name of outer bytes.
func checkNames(outer int, messages []*descriptorpb.DescriptorProto) error {
	for _, m := range messages {
		name := outer + len(m.GetName())
		if name > maxName {
			return fmt.Errorf("the full name of a message is longer than %d bytes", maxName)
		}
		if err := checkNames(name, m.NestedType); err != nil {
			return err
		}
	}
	return nil
}

// check bounds the nesting and the names of a source.
func check(text string) error {
	var around []int // lengths of the words before the open braces
	name, word := 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case isWord(c):
			if i == 0 || !isWord(text[i-1]) {
				word = 0
			}
			if word++; word > maxWord {
				return fmt.Errorf("a name that ends after byte %d is longer than %d bytes", i, maxWord)
			}
		case strings.IndexByte("{[(<", c) >= 0:
			around = append(around, word)
			if name += word; name > maxName {
				return fmt.Errorf("the full name of what begins at byte %d is longer than %d bytes", i, maxName)
			}
			if len(around) > maxNesting {
				return fmt.Errorf("nested deeper than %d levels at byte %d", maxNesting, i)
			}
		case strings.IndexByte("}])>", c) >= 0 && len(around) > 0:
			name -= around[len(around)-1]
			around = around[:len(around)-1]
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

func isWord(c byte) bool {
	return c == '.' || c == '_' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
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

// skipPast returns the last byte of the first end after i.
func skipPast(text string, i int, end string) int {
	n := strings.Index(text[min(i, len(text)):], end)
	if n < 0 {
		return len(text)
	}
	return i + n + len(end) - 1
}

// Message returns the message at a path of indexes: that of a top-level message, then those
// of messages inside the one before.
func Message(file protoreflect.FileDescriptor, path ...int) (protoreflect.MessageDescriptor, error) {
	messages := file.Messages()
	var m protoreflect.MessageDescriptor
	for _, i := range path {
		if i < 0 || i >= messages.Len() {
			return nil, fmt.Errorf("message %v: the schema has no message there", path)
		}
		m = messages.Get(i)
		messages = m.Messages()
	}
	if m == nil || m.IsMapEntry() {
		return nil, fmt.Errorf("message %v: the schema has no message there", path)
	}
	return m, nil
}

// Path returns the path of indexes of the message with that full name.
func Path(file protoreflect.FileDescriptor, name string) ([]int, error) {
	full := protoreflect.FullName(name)
	if !full.IsValid() {
		return nil, fmt.Errorf("message %q: it is no full name of a message, such as com.example.Order", name)
	}
	var find func(messages protoreflect.MessageDescriptors) []int
	find = func(messages protoreflect.MessageDescriptors) []int {
		for i := range messages.Len() {
			m := messages.Get(i)
			if m.FullName() == full && !m.IsMapEntry() {
				return []int{i}
			}
			if strings.HasPrefix(name, string(m.FullName())+".") {
				if inner := find(m.Messages()); inner != nil {
					return append([]int{i}, inner...)
				}
			}
		}
		return nil
	}
	if path := find(file.Messages()); path != nil {
		return path, nil
	}
	return nil, fmt.Errorf("message %s: the schema does not declare it", name)
}
