package schemaregistry

import "fmt"

// The types of schemas, as clients name them.
const (
	typeAvro     = "AVRO"
	typeJSON     = "JSON"
	typeProtobuf = "PROTOBUF"
)

var types = []string{typeJSON, typeProtobuf, typeAvro}

// A model is a parsed schema: what the rules of compatibility look at.
type model interface {
	// cannotRead returns why a reader with this schema cannot read all data of a writer with
	// the other, nothing if it can. lenient is a policy for JSON Schema.
	cannotRead(writer model, lenient bool) []incompatibility
}

// maxReasons bounds the list that one comparison returns.
const maxReasons = 100

// An incompatibility is one reason why a reader cannot read what a writer wrote. Path leads
// through the reader's schema.
type incompatibility struct {
	kind   string
	path   string
	reason string
}

// otherType is the answer to schemas of two types.
func otherType() []incompatibility {
	return []incompatibility{{"SCHEMA_TYPE_CHANGED", "/", "the schemas are of different types"}}
}

// canonical writes a schema so that two texts of one schema become equal. normalize takes
// more texts for one schema, those in another order.
func canonical(schemaType, text string, dependencies []Dependency, normalize bool) (out string, err error) {
	defer refusePanic(&err)
	switch schemaType {
	case typeJSON:
		return canonicalJSON(text, normalize)
	case typeProtobuf:
		return canonicalProtobuf(text, dependencies, normalize)
	}
	return canonicalAvro(text, normalize)
}

// parse parses a canonical text. dependencies are in an order in which each uses only those
// before it.
func parse(schemaType, text string, dependencies []Dependency) (m model, err error) {
	defer refusePanic(&err)
	switch schemaType {
	case typeAvro:
		s, err := parseAvro(text, dependencies)
		return avroModel{s}, err
	case typeJSON:
		return parseJSONSchema(text, dependencies)
	case typeProtobuf:
		return parseProtobuf(text, dependencies)
	}
	return nil, fmt.Errorf("unknown schema type %q", schemaType)
}

// refusePanic makes the panic of a parser an error: Avro's answers so to the default of an
// empty union.
func refusePanic(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the parser cannot read it: %v", p)
	}
}
