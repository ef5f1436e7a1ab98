package e2e

import (
	"github.com/twmb/franz-go/pkg/sr"
)

func proto3(messages string) string { return `syntax = "proto3"; ` + messages }

// pb is a record, as text, of the version of that number.
func pb(version int, text string) versioned { return versioned{version, text} }

func protobufCases() []valueCase {
	cases := []valueCase{
		{
			topic:    "pb-edges",
			versions: []string{proto3(`message R { int64 id = 1; optional int32 i = 2; optional sint32 s = 3; optional sfixed32 x = 4; optional int64 l = 5; optional sint64 m = 6; optional sfixed64 y = 7; optional float f = 8; optional double d = 9; optional bool b = 10; optional string t = 11; optional bytes r = 12; optional E e = 13; enum E { ZERO = 0; LEAST = -2147483648; } }`)},
			records: []versioned{
				pb(0, `id: 1 i: -2147483648 s: -2147483648 x: -2147483648 l: -9223372036854775808 m: -9223372036854775808 y: -9223372036854775808 f: -3.4028234663852886e+38 d: -1.7976931348623157e+308 b: false t: "" r: "" e: LEAST`),
				pb(0, `id: 2 i: 2147483647 s: 2147483647 x: 2147483647 l: 9223372036854775807 m: 9223372036854775807 y: 9223372036854775807 f: 3.4028234663852886e+38 d: 1.7976931348623157e+308 b: true t: "é😀" r: "\x00\xff" e: 2147483647`),
				pb(0, `id: 3 f: nan d: nan`), pb(0, `id: 4 f: inf d: -inf`), pb(0, `id: 5 f: -0.0 d: -0.0`), pb(0, `id: 6 f: 1e-45 d: 5e-324`), pb(0, `id: 7`),
			},
			columns: "id, i, s, x, l, m, y, f, d, b, t, r, e",
			types:   "long, int, int, int, long, long, long, float, double, boolean, string, binary, string",
			want: "id,i,s,x,l,m,y,f,d,b,t,r,e\n" +
				"1,-2147483648,-2147483648,-2147483648,-9223372036854775808,-9223372036854775808,-9223372036854775808,-3.4028234663852886e+38,-1.7976931348623157e+308,false,,,LEAST\n" +
				"2,2147483647,2147483647,2147483647,9223372036854775807,9223372036854775807,9223372036854775807,3.4028234663852886e+38,1.7976931348623157e+308,true,é😀,00ff,2147483647\n" +
				"3,NULL,NULL,NULL,NULL,NULL,NULL,nan,nan,NULL,NULL,NULL,NULL\n" +
				"4,NULL,NULL,NULL,NULL,NULL,NULL,inf,-inf,NULL,NULL,NULL,NULL\n" +
				"5,NULL,NULL,NULL,NULL,NULL,NULL,-0.0,-0.0,NULL,NULL,NULL,NULL\n" +
				"6,NULL,NULL,NULL,NULL,NULL,NULL,1.401298464324817e-45,5e-324,NULL,NULL,NULL,NULL\n" +
				"7,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL\n",
		},
		{
			topic: "pb-field-in-the-middle",
			versions: []string{
				proto3(`message R { int64 id = 1; int32 a = 2; int32 c = 4; }`),
				proto3(`message R { int64 id = 1; int32 a = 2; M mid = 3; int32 c = 4; } message M { string a = 1; optional int32 b = 2; }`),
			},
			records: []versioned{pb(0, `id: 1 a: 2 c: 3`), pb(1, `id: 2 a: 4 mid { a: "x" } c: 5`), pb(0, `id: 3 a: 6 c: 7`), pb(1, `id: 4 a: 8 c: 9`)},
			columns: "id, a, c, mid",
			types:   "long, int, int, struct<a: string, b: int>",
			want:    "id,a,c,mid\n1,2,3,NULL\n2,4,5,\"{\"\"a\"\":\"\"x\"\",\"\"b\"\":null}\"\n3,6,7,NULL\n4,8,9,NULL\n",
		},
		{
			topic: "pb-nested-fields",
			versions: []string{
				proto3(`message R { int64 id = 1; C customer = 2; repeated I items = 3; map<string, V> meta = 4; } message C { int32 n = 1; } message I { int32 p = 1; } message V { string k = 1; }`),
				proto3(`message R { int64 id = 1; C customer = 2; repeated I items = 3; map<string, V> meta = 4; } message C { int32 n = 1; D more = 2; } message D { string mail = 1; } message I { int32 p = 1; optional int32 qty = 2; } message V { string k = 1; optional string v = 2; }`),
			},
			records: []versioned{
				pb(0, `id: 1 customer { n: 1 } items { p: 1 } meta { key: "m" value { k: "a" } }`),
				pb(1, `id: 2 customer { n: 2 more { mail: "x" } } items { p: 2 qty: 3 } meta { key: "m" value { k: "a" v: "b" } }`),
			},
			columns: "id, customer, items, meta",
			types:   "long, struct<n: int, more: struct<mail: string>>, list<struct<p: int, qty: int>>, map<string, struct<k: string, v: string>>",
			want: "id,customer,items,meta\n" +
				"1,\"{\"\"more\"\":null,\"\"n\"\":1}\",\"[{\"\"p\"\":1,\"\"qty\"\":null}]\",\"{\"\"m\"\":{\"\"k\"\":\"\"a\"\",\"\"v\"\":null}}\"\n" +
				"2,\"{\"\"more\"\":{\"\"mail\"\":\"\"x\"\"},\"\"n\"\":2}\",\"[{\"\"p\"\":2,\"\"qty\"\":3}]\",\"{\"\"m\"\":{\"\"k\"\":\"\"a\"\",\"\"v\"\":\"\"b\"\"}}\"\n",
		},
		{
			topic:    "PB-Case-Differs", // and so does the topic's from its table's
			versions: []string{proto3(`message R { int64 id = 1; int32 userId = 2; }`), proto3(`message R { int64 id = 1; int32 userid = 3; }`)},
			records:  []versioned{pb(0, `id: 1 userId: 5`), pb(1, `id: 2 userid: 6`)},
			columns:  "id, userId",
			types:    "long, int",
			want:     "id,userId\n1,5\n2,6\n",
		},
		{
			topic: "pb-required-fields-vanish",
			versions: []string{
				`syntax = "proto2"; message R { required int64 id = 1; required string s = 2; required K key = 3; message K { required int32 a = 1; required int32 b = 2; } }`,
				`syntax = "proto2"; message R { required int64 id = 1; required K key = 3; message K { required int32 a = 1; } }`,
			},
			records: []versioned{pb(0, `id: 1 s: "x" key { a: 1 b: 2 }`), pb(1, `id: 2 key { a: 3 }`), pb(0, `id: 3 key { a: 4 b: 5 }`)},
			columns: "id, s, key",
			types:   "long, string, struct<a: int, b: int>",
			want:    "id,s,key\n1,x,\"{\"\"a\"\":1,\"\"b\"\":2}\"\n2,NULL,\"{\"\"a\"\":3,\"\"b\"\":null}\"\n",
			dead:    1, // it lacks s, which its schema requires
		},
		{
			topic: "pb-empty-messages",
			versions: []string{
				proto3(`message R { int64 id = 1; oneof e { Created c = 2; Deleted d = 3; } Beat beat = 4; } message Created {} message Deleted {} message Beat {}`),
				proto3(`message R { int64 id = 1; oneof e { Created c = 2; Deleted d = 3; } Beat beat = 4; } message Created { string by = 1; } message Deleted {} message Beat {}`),
			},
			records: []versioned{pb(0, `id: 1 c {}`), pb(0, `id: 2 d {} beat {}`), pb(1, `id: 3 c { by: "x" }`), pb(0, `id: 4 c {}`), pb(1, `id: 5`)},
			columns: "id, c, d, beat",
			types:   "long, struct<_present: boolean, by: string>, struct<_present: boolean>, struct<_present: boolean>",
			want: "id,c,d,beat\n" +
				"1,\"{\"\"_present\"\":true,\"\"by\"\":null}\",NULL,NULL\n" +
				"2,NULL,\"{\"\"_present\"\":true}\",\"{\"\"_present\"\":true}\"\n" +
				"3,\"{\"\"_present\"\":null,\"\"by\"\":\"\"x\"\"}\",NULL,NULL\n" +
				"4,\"{\"\"_present\"\":true,\"\"by\"\":null}\",NULL,NULL\n" +
				"5,NULL,NULL,NULL\n",
		},
		{
			topic:    "pb-arms-of-one-type",
			versions: []string{proto3(`message R { int64 id = 1; oneof v { T a = 2; T b = 3; T c = 4; } oneof w { U d = 5; U e = 6; } } message T {} message U { int32 n = 1; }`)},
			records:  []versioned{pb(0, `id: 1 a {} d { n: 1 }`), pb(0, `id: 2 b {} e { n: 2 }`), pb(0, `id: 3 c {}`)},
			columns:  "id, a, b, c, d, e",
			types:    "long, struct<_present: boolean>, struct<_present: boolean>, struct<_present: boolean>, struct<n: int>, struct<n: int>",
			want: "id,a,b,c,d,e\n" +
				"1,\"{\"\"_present\"\":true}\",NULL,NULL,\"{\"\"n\"\":1}\",NULL\n" +
				"2,NULL,\"{\"\"_present\"\":true}\",NULL,NULL,\"{\"\"n\"\":2}\"\n" +
				"3,NULL,NULL,\"{\"\"_present\"\":true}\",NULL,NULL\n",
		},
		{
			topic:    "pb-recursion",
			versions: []string{proto3(`import "google/protobuf/struct.proto"; message Node { int64 id = 1; repeated Node children = 2; google.protobuf.Struct details = 3; }`)},
			records: []versioned{
				pb(0, `id: 1`),
				pb(0, `id: 2 children { id: 3 children { id: 4 } } children { id: 5 } details { fields { key: "k" value { list_value { values { number_value: 1.5 } values { null_value: NULL_VALUE } } } } }`),
			},
			columns: "id, children, details",
			types:   "long, list<string>, string",
			want: "id,children,details\n" +
				"1,[],NULL\n" +
				"2,\"[\"\"{\\\"\"id\\\"\":3,\\\"\"children\\\"\":[{\\\"\"id\\\"\":4,\\\"\"children\\\"\":[]}]}\"\",\"\"{\\\"\"id\\\"\":5,\\\"\"children\\\"\":[]}\"\"]\",\"{\"\"k\"\":[1.5,null]}\"\n",
		},
		{
			topic:    "pb-times",
			times:    true,
			versions: []string{proto3(`import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto"; message R { int64 id = 1; google.protobuf.Timestamp moment = 2; google.protobuf.Duration took = 3; repeated google.protobuf.Timestamp each = 4; }`)},
			records: []versioned{
				pb(0, `id: 1 moment { seconds: 1700000000 nanos: 123456789 } took { seconds: 1 nanos: 500000999 }`),
				pb(0, `id: 2 moment { seconds: -1 nanos: 999999999 } took { seconds: -1 nanos: -1 } each { seconds: 0 } each { seconds: -62135596800 }`),
				pb(0, `id: 3 moment { seconds: 253402300799 nanos: 999999999 }`),
				pb(0, `id: 4 moment { seconds: -62135596800 }`),
				pb(0, `id: 5`),
			},
			columns: "id, moment, took, each",
			types:   "long, timestamptz, long, list<timestamptz>",
			want: "id,moment,took,each\n" +
				"1,2023-11-14T22:13:20.123456,1500000,[]\n" +
				"2,1969-12-31T23:59:59.999999,-1000001,\"[\"\"1970-01-01T00:00:00.000000\"\",\"\"0001-01-01T00:00:00.000000\"\"]\"\n" +
				"3,9999-12-31T23:59:59.999999,NULL,[]\n" +
				"4,0001-01-01T00:00:00.000000,NULL,[]\n" +
				"5,NULL,NULL,[]\n",
		},
		{
			topic:    "pb-types-widen",
			versions: []string{proto3(`message R { int64 id = 1; int32 i = 2; float f = 3; }`), proto3(`message R { int64 id = 1; int64 i = 2; double f = 3; }`)},
			records:  []versioned{pb(0, `id: 1 i: -2147483648 f: 1.5`), pb(1, `id: 2 i: 9223372036854775807 f: 0.1`), pb(0, `id: 3 i: 2147483647`)},
			columns:  "id, i, f",
			types:    "long, long, double",
			want:     "id,i,f\n1,-2147483648,1.5\n2,9223372036854775807,0.1\n3,2147483647,0.0\n",
		},
		{
			topic:    "pb-types-exclude-each-other",
			versions: []string{proto3(`message R { int64 id = 1; string x = 2; }`), proto3(`message R { int64 id = 1; int32 x = 2; }`)},
			records:  []versioned{pb(0, `id: 1 x: "a"`), pb(1, `id: 2 x: 5`), pb(0, `id: 3 x: "b"`)},
			columns:  "id, x",
			types:    "long, string",
			want:     "id,x\n1,a\n3,b\n",
			dead:     1,
		},
		{
			topic:  "pb-types-side-by-side",
			config: []string{"table.topic.on.incompatible", "new-column"},
			versions: []string{
				proto3(`message R { int64 id = 1; string x = 2; }`),
				proto3(`import "google/protobuf/timestamp.proto"; message R { int64 id = 1; google.protobuf.Timestamp x = 2; }`),
				proto3(`message R { int64 id = 1; uint64 x = 2; }`),
			},
			records: []versioned{pb(0, `id: 1 x: "a"`), pb(1, `id: 2 x { seconds: 1700000000 nanos: 123456000 }`), pb(0, `id: 3 x: "b"`), pb(2, `id: 4 x: 18446744073709551615`)},
			columns: "id, x, x__v2, x__v3",
			types:   "long, string, timestamptz, decimal(20, 0)",
			want:    "id,x,x__v2,x__v3\n1,a,NULL,NULL\n2,NULL,2023-11-14T22:13:20.123456,NULL\n3,b,NULL,NULL\n4,NULL,NULL,18446744073709551615\n",
		},
		{
			topic:    "pb-unset-is-not-zero",
			versions: []string{proto3(`import "google/protobuf/wrappers.proto"; message R { int64 id = 1; optional int64 n = 2; int64 m = 3; M s = 4; oneof o { string a = 5; bytes b = 6; } google.protobuf.Int64Value w = 7; repeated google.protobuf.StringValue l = 8; bool t = 9; } message M { int32 x = 1; }`)},
			records: []versioned{
				pb(0, `id: 1`),
				pb(0, `id: 2 n: 0 m: 0 s {} a: "" w {} l {} l { value: "x" }`),
				pb(0, `id: 3 n: -1 m: 1 s { x: 1 } b: "\x00\xff" w { value: -1 } t: true`),
			},
			columns: "id, n, m, s, a, b, w, l, t",
			types:   "long, long, long, struct<x: int>, string, binary, long, list<string>, boolean",
			want: "id,n,m,s,a,b,w,l,t\n" +
				"1,NULL,0,NULL,NULL,NULL,NULL,[],false\n" +
				"2,0,0,\"{\"\"x\"\":0}\",,NULL,0,\"[\"\"\"\",\"\"x\"\"]\",false\n" +
				"3,-1,1,\"{\"\"x\"\":1}\",NULL,00ff,-1,[],true\n",
		},
		{
			topic:    "pb-defaults-are-the-readers",
			versions: []string{`syntax = "proto2"; message R { required int64 id = 1; optional string s = 2 [default = "x"]; optional E e = 3; enum E { ONE = 1; TWO = 2; } }`},
			records:  []versioned{pb(0, `id: 1`), pb(0, `id: 2 s: "y" e: TWO`)},
			columns:  "id, s, e",
			types:    "long, string, string",
			want:     "id,s,e\n1,NULL,NULL\n2,y,TWO\n",
		},
		{
			topic:    "pb-unsigned",
			versions: []string{proto3(`message R { int64 id = 1; uint64 u = 2; fixed64 f = 3; uint32 v = 4; fixed32 g = 5; map<uint64, fixed64> m = 6; }`)},
			records: []versioned{
				pb(0, `id: 1 u: 18446744073709551615 f: 18446744073709551615 v: 4294967295 g: 4294967295 m { key: 18446744073709551615 value: 9223372036854775808 }`),
				pb(0, `id: 2 u: 9223372036854775808 f: 9223372036854775807 v: 2147483648`),
			},
			columns: "id, u, f, v, g, m",
			types:   "long, decimal(20, 0), decimal(20, 0), long, long, map<decimal(20, 0), decimal(20, 0)>",
			want: "id,u,f,v,g,m\n" +
				"1,18446744073709551615,18446744073709551615,4294967295,4294967295,\"{\"\"18446744073709551615\"\":\"\"9223372036854775808\"\"}\"\n" +
				"2,9223372036854775808,9223372036854775807,2147483648,0,{}\n",
		},
		{
			topic:    "pb-unsigned-as-text",
			config:   []string{"table.topic.mapping.protobuf.uint64", "string"},
			versions: []string{proto3(`message R { int64 id = 1; uint64 u = 2; map<fixed64, uint64> m = 3; }`)},
			records:  []versioned{pb(0, `id: 1 u: 18446744073709551615 m { key: 9223372036854775808 value: 1 }`), pb(0, `id: 2`)},
			columns:  "id, u, m",
			types:    "long, string, map<string, string>",
			want:     "id,u,m\n1,18446744073709551615,\"{\"\"9223372036854775808\"\":\"\"1\"\"}\"\n2,0,{}\n",
		},
		{
			topic:    "pb-zero-as-null",
			config:   []string{"table.topic.mapping.protobuf.zero.as.null", "true"},
			versions: []string{proto3(`message R { int64 id = 1; int32 n = 2; string s = 3; optional int32 o = 4; repeated int32 l = 5; M m = 6; } message M { bool b = 1; }`)},
			records:  []versioned{pb(0, `id: 1 n: 0 s: "" o: 0 l: [0] m {}`), pb(0, `id: 2 n: 1 s: "x" m { b: true }`), {0, rawBody{0, 8, 6, 16, 0, 26, 0}}},
			columns:  "id, n, s, o, l, m",
			types:    "long, int, string, int, list<int>, struct<b: boolean>",
			want:     "id,n,s,o,l,m\n1,NULL,NULL,0,[0],\"{\"\"b\"\":null}\"\n2,1,x,NULL,[],\"{\"\"b\"\":true}\"\n6,NULL,NULL,NULL,[],NULL\n",
		},
		{
			topic:    "pb-recursion-unfolded",
			config:   []string{"table.topic.mapping.recursion", "depth:1"},
			versions: []string{proto3(`message Node { int64 id = 1; repeated Node kids = 2; }`)},
			records:  []versioned{pb(0, `id: 1`), pb(0, `id: 2 kids { id: 3 kids { id: 4 } }`)},
			columns:  "id, kids",
			types:    "long, list<struct<id: long, kids: list<string>>>",
			want:     "id,kids\n1,[]\n2,\"[{\"\"id\"\":3,\"\"kids\"\":[\"\"{\\\"\"id\\\"\":4,\\\"\"kids\\\"\":[]}\"\"]}]\"\n",
		},
		{
			topic:    "pb-recursion-refused",
			config:   []string{"table.topic.mapping.recursion", "dlq"},
			versions: []string{proto3(`message R { int64 id = 1; }`), proto3(`message R { int64 id = 1; R next = 2; }`)},
			records:  []versioned{pb(0, `id: 1`), pb(1, `id: 2`), pb(0, `id: 3`)},
			columns:  "id",
			types:    "long",
			want:     "id\n1\n3\n",
			dead:     1,
		},
		{
			topic: "pb-decimals",
			versions: []string{proto3(`import "confluent/meta.proto"; import "confluent/type/decimal.proto"; message R { int64 id = 1;
				confluent.type.Decimal amount = 2 [(confluent.field_meta) = { params: [{ key: "precision", value: "10" }, { key: "scale", value: "2" }] }]; confluent.type.Decimal other = 3; }`)},
			records: []versioned{pb(0, `id: 1 amount { value: "\x04\xd2" precision: 10 scale: 2 }`), pb(0, `id: 2 amount { value: "\xff\x85" scale: 2 } other { value: "\x01" scale: 1 }`), pb(0, `id: 3 amount { value: "\x01" scale: 3 }`), pb(0, `id: 4`)},
			columns: "id, amount, other",
			types:   "long, decimal(10, 2), struct<value: binary, precision: long, scale: int>",
			want:    "id,amount,other\n1,12.34,NULL\n2,-1.23,\"{\"\"precision\"\":0,\"\"scale\"\":1,\"\"value\"\":\"\"01\"\"}\"\n4,NULL,NULL\n",
			dead:    1, // of another scale
		},
		{
			topic:    "pb-maps",
			versions: []string{proto3(`message R { int64 id = 1; map<string, V> m = 2; string after = 3; map<int32, string> by_number = 4; } message V { int32 a = 1; string b = 2; }`)},
			records:  []versioned{pb(0, `id: 1 m { key: "k" value { a: 1 b: "x" } } m { key: "" value {} } after: "y" by_number { key: -7 value: "z" }`), pb(0, `id: 2`)},
			columns:  "id, m, after, by_number",
			types:    "long, map<string, struct<a: int, b: string>>, string, map<int, string>",
			want:     "id,m,after,by_number\n1,\"{\"\"\"\":{\"\"a\"\":0,\"\"b\"\":\"\"\"\"},\"\"k\"\":{\"\"a\"\":1,\"\"b\"\":\"\"x\"\"}}\",y,\"{\"\"-7\"\":\"\"z\"\"}\"\n2,{},,{}\n",
		},
		{
			topic:    "pb-renamed-by-number",
			versions: []string{proto3(`message R { int64 id = 1; int32 before = 2; }`), proto3(`message R { int64 id = 1; int32 after = 2; }`)},
			records:  []versioned{pb(0, `id: 1 before: 1`), pb(1, `id: 2 after: 2`), pb(0, `id: 3 before: 3`)},
			columns:  "id, after",
			types:    "long, int",
			want:     "id,after\n1,1\n2,2\n3,3\n",
		},
		{
			topic:    "pb.nested.partition-source",
			config:   []string{"table.topic.partition.by", "hour(_kafka.timestamp), a.b"},
			versions: []string{proto3(`message R { int64 id = 1; A a = 2; } message A { string b = 1; }`)},
			records:  []versioned{pb(0, `id: 1 a { b: "x/y=z" }`), pb(0, `id: 2 a { b: "ü" }`), pb(0, `id: 3`)},
			columns:  "id, a",
			types:    "long, struct<b: string>",
			want:     "id,a\n1,\"{\"\"b\"\":\"\"x/y=z\"\"}\"\n2,\"{\"\"b\"\":\"\"ü\"\"}\"\n3,NULL\n",
		},
		{
			topic:    "pb-bad-among-good",
			versions: []string{proto3(`message R { int64 id = 1; optional string s = 2; }`)},
			records: []versioned{
				pb(0, `id: 1 s: "a"`), {0, []byte{0, 0, 0, 0, 99, 0, 8, 2}}, {0, []byte(`{"not":"wire"}`)}, {0, rawBody{0, 8}}, {0, rawBody{0, 18, 1, 0xff}},
				{0, nil}, pb(0, `id: 3`),
			},
			columns: "id, s",
			types:   "long, string",
			want:    "id,s\n1,a\n3,NULL\nNULL,NULL\n",
			dead:    4,
		},
	}
	for i := range cases {
		cases[i].kind = sr.TypeProtobuf
	}
	return cases
}
