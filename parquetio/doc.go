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
// made.
//
// The tables of docs/tables.md say which column each type of a format makes, and what earlier versions have
// otherwise; tests compare them with the code. Sources: Avro 1.12, "Complex Types" and "Logical Types"; the Protobuf Language
// Specification for proto2, proto3 and editions; JSON Schema, draft-04 to 2020-12, and RFC 8259; Iceberg spec,
// "Schemas and Data Types".
//
// What is JSON there is a string, or a variant with [Rules.Variant]: objects, arrays, strings and
// booleans as such, integers of up to 38 digits as integers, other numbers as doubles.
//
// With [Rules.Defaults] a column that is added has the default of Avro's field, if that is a scalar, as
// its initial-default and write-default (Iceberg spec, "Default values"): so do rows of before, and those
// of writers that do not know the field. Integers beyond 2^53 are none.
//
// A schema whose root is no record, a union included, makes the single column "value". So do
// payloads that are plain text ([StringValue]) or bytes ([BytesValue]). A schema of keys makes one
// column beside those of the values ([ValueSchema.AsKey]).
//
// Names are kept as they are. Columns are matched by exact name, then without regard to
// case; two fields of one record that differ by case alone are refused, because half of
// the engines cannot tell them apart.
//
// Records without a schema go into the columns that the table has ([Mapping.CompileJSON]); properties
// for which there is no column get one ([Mapping.InferJSON]), and values that do not fit theirs are refused,
// or go to a column beside it ([Mapping.NewColumns]).
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
