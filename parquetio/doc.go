// Package parquetio turns the records of a topic into the Parquet files of an Iceberg
// table.
//
// The one idea: nothing is built per record. A writer schema and a table schema are
// compiled once into a short program ([Mapping.Compile]); [Builder.Append] runs it over the bytes
// of each record and appends to raw column buffers, which become Arrow arrays without a
// copy ([Builder.Finish]), which a [Writer] encodes into one Parquet file in memory.
//
//	writer schema ─▶ Parse… ───▶ TableSchema / Evolve ─▶ Iceberg schema
//	                     │                                   │
//	                     └────────────── Compile ◀───────────┘
//	                                        │
//	record bytes ─▶ Builder.Append ─▶ Builder.Finish ─▶ Writer.Write ─▶ Writer.Close ─▶ File
//
// A [TableWriter] is all of that for a table with partitions: each row goes to the file of
// the partition that it belongs to. Up to four files are encoded as rows come; with more, rows
// wait in the builder, and are gathered and encoded partition by partition at the end.
//
// Promises: a record that cannot be decoded leaves no trace in the builder, and its error
// names the byte and the field. An explicit null is NULL, whatever default a schema
// states. Values are the same in every time zone of the process. [Mapping.Evolve] gives the same
// field ids for the same inputs. A hostile record costs memory in proportion to its own
// size, up to a stated number of values.
//
// # Type mapping
//
// This is version 3, with the choices of [NewRules]. A table keeps to the [Rules] with which it was
// made. What earlier versions have otherwise is said where it is.
//
// What is "as JSON" below is a string, or a variant with [Rules.Variant]: objects, arrays, strings and
// booleans as such, integers of up to 38 digits as integers, other numbers as doubles.
//
// With [Rules.Defaults] a column that is added has the default of Avro's field, if that is a scalar, as
// its initial-default and write-default (Iceberg spec, "Default values"): so do rows of before, and those
// of writers that do not know the field. Integers beyond 2^53 are none.
//
// Avro 1.12, section "Complex Types" and "Logical Types", to Iceberg spec, "Schemas and
// Data Types":
//
//	boolean                          boolean
//	int, long, float, double         int, long, float, double
//	bytes, fixed(n)                  binary, fixed[n]; fixed(0) binary
//	string, enum                     string
//	record                           struct; without fields: struct<_present boolean>, always true
//	array, map                       list, map<string, …>
//	null                             no column; as array item or map value: string, always null
//	[null, T], [T, null]             T, optional
//	[T]                              T
//	union of two or more types       string: the value as JSON
//	a record inside itself           string: the inner value as JSON
//	date                             date
//	time-millis, -micros             time
//	timestamp-millis, -micros        timestamptz; timestamp if adjust-to-utc is false
//	timestamp-nanos                  timestamptz, rounded down to the microsecond; timestamptz_ns in format version 3
//	local-timestamp-*                timestamp, likewise; timestamp_ns
//	decimal(p ≤ 38, s)               decimal(p, s)
//	uuid (string, fixed(16))         uuid
//	duration, and any other name     the base type: fixed[12] for duration
//
// A logical type is also taken from the field (as a sibling of "type"), and from the
// "connect.name" of type or field: io.debezium.time.{Date, Time, MicroTime, NanoTime} are
// date and time; io.debezium.time.{Timestamp, MicroTimestamp, NanoTimestamp} are wall
// clock, so timestamp; io.debezium.time.ZonedTimestamp (text) is timestamptz;
// org.apache.kafka.connect.data.{Date, Time, Timestamp, Decimal} are date, time,
// timestamptz and decimal. A logical type that does not fit its base type is ignored, as
// Avro demands.
//
// Protobuf, from the Protobuf Language Specification for proto2, proto3 and editions:
//
//	bool                             boolean
//	int32, sint32, sfixed32          int
//	int64, sint64, sfixed64          long
//	uint32, fixed32                  long
//	uint64, fixed64                  decimal(20, 0)
//	float, double                    float, double
//	string, bytes                    string, binary
//	enum                             string: the name, or the number of a value without one
//	message, group                   struct; without fields: struct<_present boolean>, always true
//	repeated T                       list<T>, empty if there is none
//	map<K, T>                        map<K, T>, with keys of any type that Protobuf has, empty if there is none
//	arms of a oneof                  columns of their own, of which at most one is not null
//	a message inside itself          string: the inner value as JSON
//	google.protobuf.Timestamp        timestamptz, rounded down to the microsecond
//	google.protobuf.Duration         long: microseconds, rounded down
//	google.protobuf.BoolValue, …     boolean, …: the type that is wrapped, optional
//	google.protobuf.Struct, Value, ListValue   string: the value as JSON
//	confluent.type.Decimal           decimal(p, s) if the option confluent.field_meta of the field has the
//	                                 parameters precision and scale; a struct in version 1
//	google.protobuf.Any              struct<type_url string, value binary>, as any other message
//
// A field with presence that is not set is NULL, whatever default the schema states: all of
// proto2, messages, arms of a oneof, and what is declared optional or, in editions, explicit.
// A field without presence that is not set has its zero value, for nothing tells it from one
// that was set to zero; or both are NULL ([Rules.ZeroAsNull]). A record that lacks a required field is refused. Fields that the schema
// does not have, extensions among them, are skipped; so is a field in the encoding of another
// type. An entry of a map whose key comes again is replaced. Enums are open, as in proto3.
//
// A schema whose root is no record, a union included, makes the single column "value". So do
// payloads that are plain text ([StringValue]) or bytes ([BytesValue]). A schema of keys makes one
// column beside those of the values ([ValueSchema.AsKey]).
//
// JSON values: numbers, strings, booleans, arrays and objects as themselves; bytes and
// fixed in base64; date, time and timestamp in ISO 8601; decimal as a string; not-a-number
// and infinities as the strings NaN, Infinity, -Infinity. Where a union has two or more
// branches besides null, a record is wrapped in an object whose one key is the full name
// of the record, so that its type is not lost. A message is an object of its fields by their
// names in the schema, without those that would be NULL as columns; the messages of Google's
// that have a form of their own in ProtoJSON have that, but Any.
//
// Names are kept as they are. Columns are matched by exact name, then without regard to
// case; two fields of one record that differ by case alone are refused, because half of
// the engines cannot tell them apart.
//
// # JSON Schema
//
// JSON Schema, draft-04 to 2020-12, and the records that it describes (RFC 8259):
//
//	boolean                           boolean
//	integer                           long; int if "connect.type" is int8, int16 or int32
//	number                            double; float if "connect.type" is float32
//	string                            string
//	string, format date               date
//	string, format time               time: in UTC if the text has an offset
//	string, format date-time          timestamptz, rounded down to the microsecond
//	string, format uuid               uuid
//	string, contentEncoding base64    binary; so with "connect.type" bytes
//	enum, const                       the type of the values
//	array                             list<items>; list<string>, of JSON, if items says nothing
//	tuple                             list if all items are of one scalar type, else string: the value as JSON
//	object with properties            struct
//	object with additionalProperties  map<string, T>, if it has no properties; so with one of patternProperties
//	any other object                  string: the value as JSON
//	null, false                       no column; as array item or map value: string, always null
//	T or null                         T, optional
//	several types                     string: the value as JSON
//	allOf, $ref                       what all the schemas say
//	a schema inside itself            string: the inner value as JSON; one level deeper in versions 1 and 2 if
//	                                  it is one of oneOf or anyOf
//	{}, true                          string: the value as JSON
//
// The titles org.apache.kafka.connect.data.{Date, Time, Timestamp, Decimal} and those of Debezium
// mean what they mean in Avro; a Decimal is a number, or its bytes in base64. "connect.type" map
// with keys that are no strings is an array, and stays one.
//
// A property that is not required is optional, and so is one that may be null; both absence and
// null are NULL. Properties that the schema does not name are ignored, also where
// additionalProperties has a schema for them. Of oneOf and anyOf, schemas for other types do not
// count; where only one is left it holds, and several that say more than which values are good
// make an object or array a string: the value as JSON. not, if, then, else and the dependent
// keywords are ignored. What stands beside $ref counts, in every draft. A schema without a type
// that has properties is an object, and one with items an array.
//
// $ref finds what is in the schema and its references: by the name of the reference, by $id, by
// JSON pointer, by anchor. Nothing is read from a network.
//
// A record is not validated against its schema: what its columns hold is taken. But formats bind,
// because a column has no place for other text. JSON is kept without white space between its
// tokens, and otherwise as it was written. Of properties with the same name the last counts; all of
// them must fit.
//
// # Plain JSON
//
// Records without a schema go into the columns that the table has ([Mapping.CompileJSON]), by
// name, in any case: a string column holds strings as they are, and any other value as its JSON
// text; dates, times, timestamps and UUIDs are text as above, a timestamp without an offset; binary
// is base64. Properties for which there is no column get one ([Mapping.InferJSON]) when they first
// have a value: null, [] and {}, and what holds nothing else, are none, and are NULL where they do
// not fit. Any other value that does not fit its column is refused, or goes to a column beside it
// ([Mapping.NewColumns]): the first of x, x__v2, x__v3 and so on that holds it.
//
//	true, false             boolean
//	number                  long if all are written without point and exponent and fit 64 bits, else double
//	larger integer          string: its digits
//	string                  string, whatever it looks like
//	array                   list<T>
//	object                  struct
//	values of several types string: strings as they are, others as JSON
//	deeper than 16 columns  string: the value as JSON
//	no object as a record   the column "value"
//
// # What is refused in a record
//
// Of Avro: data that ends early, bytes left over, an int or an enum or union index out of range, a
// boolean that is neither 0 nor 1, text that is not UTF-8, a negative length, a block whose
// size is not that of its items, a time outside one day, a timestamp that does not fit
// microseconds in 64 bits, a decimal wider than its column, more than [MaxValues] values
// in lists and maps.
//
// Of Protobuf also: a field number that is 0 or above 2^29-1, a group that does not end, a
// message nested deeper than 100 levels, a message of more than 4 MiB that would be JSON. Text must be UTF-8 in proto2 as well.
//
// Of JSON: text that RFC 8259 does not allow, or that begins with a byte order mark, is not
// UTF-8, has half of a surrogate pair, or is nested deeper than 256; a value of another type than
// its column; a number that its column does not hold, where 1.0 and 1e3 are integers; a time, a
// decimal, and too many values as above.
package parquetio

// MaxValues bounds what one record may put into the lists and maps of its columns, counted
// over all columns below them.
const MaxValues = 1 << 24
