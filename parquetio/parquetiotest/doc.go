// Package parquetiotest makes random schemas in Avro, Protobuf and JSON Schema, records of them as
// their encoders may write them, and the rows that the records must become.
//
// It knows the type mapping of package parquetio, and shares nothing with it. What a row holds
// is in a form that compares, see [Plain].
package parquetiotest

// presentField is the one field of a struct that stands for a record without fields.
const presentField = "_present"

// maxJSONDepth is how deep JSON may be nested.
const maxJSONDepth = 256
