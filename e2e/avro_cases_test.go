package e2e

import (
	wire "encoding/binary"
	"fmt"
	"math"
	"math/big"
	"strings"
)

type obj = map[string]any

// in is a branch of a union.
func in(branch string, v any) obj { return obj{branch: v} }

func rec(fields string) string { return `{"type":"record","name":"R","fields":[` + fields + `]}` }

func field(name, typ string) string { return fmt.Sprintf(`{"name":%q,"type":%s}`, name, typ) }

const (
	idField = `{"name":"id","type":"long"}`
	micros  = int64(1_700_000_000_123_456) // 2023-11-14T22:13:20.123456Z
	samoa   = int64(1_325_246_400_000_000) // 2011-12-30T12:00:00Z
	newYork = int64(1_678_588_200_000_000) // 2023-03-12T02:30:00Z
)

func avroCases() []valueCase {
	nine := func(more string) string {
		f := []string{idField}
		for i := range 8 {
			f = append(f, field(fmt.Sprintf("f%d", i), `"int"`))
			if i == 3 && more != "" {
				f = append(f, more)
			}
		}
		return rec(strings.Join(f, ","))
	}
	ninth := func(id int64, more obj) obj {
		v := obj{"id": id}
		for i := range 8 {
			v[fmt.Sprintf("f%d", i)] = int(id)*10 + i
		}
		for k, x := range more {
			v[k] = x
		}
		return v
	}
	middle := obj{"mid": obj{"a": "x", "b": nil}}
	decimal := func(p, s int) string {
		return fmt.Sprintf(`{"type":"bytes","logicalType":"decimal","precision":%d,"scale":%d}`, p, s)
	}
	edges := []string{idField}
	edge := func(id int64, values obj) versioned {
		row := obj{"id": id}
		for _, name := range []string{"b", "i", "l", "f", "d", "s", "y", "x", "m", "n", "e"} {
			row[name] = values[name]
		}
		return versioned{0, row}
	}
	for _, f := range [][2]string{{"b", `"boolean"`}, {"i", `"int"`}, {"l", `"long"`}, {"f", `"float"`}, {"d", `"double"`}, {"s", `"string"`}, {"y", `"bytes"`},
		{"x", `{"type":"fixed","name":"F","size":2}`}, {"m", decimal(38, 0)}, {"n", decimal(38, 38)}, {"e", `{"type":"enum","name":"E","symbols":["A","B"]}`}} {
		edges = append(edges, field(f[0], `["null",`+f[1]+`]`))
	}
	nines, _ := new(big.Int).SetString(strings.Repeat("9", 38), 10)
	whole, part := new(big.Rat).SetInt(nines), new(big.Rat).SetFrac(nines, new(big.Int).Exp(big.NewInt(10), big.NewInt(38), nil))
	return []valueCase{
		{
			topic:    "edges",
			config:   []string{"max.message.bytes", "4194304"},
			versions: []string{rec(strings.Join(edges, ","))},
			records: []versioned{
				edge(1, obj{"b": in("boolean", false), "i": in("int", math.MinInt32), "l": in("long", int64(math.MinInt64)), "f": in("float", float32(-math.MaxFloat32)), "d": in("double", -math.MaxFloat64), "s": in("string", ""),
					"y": in("bytes", []byte{}), "x": in("F", [2]byte{}), "m": in("bytes.decimal", new(big.Rat).Neg(whole)), "n": in("bytes.decimal", new(big.Rat).Neg(part)), "e": in("E", "A")}),
				edge(2, obj{"b": in("boolean", true), "i": in("int", math.MaxInt32), "l": in("long", int64(math.MaxInt64)), "f": in("float", float32(math.MaxFloat32)), "d": in("double", math.MaxFloat64), "s": in("string", "é😀, \"x\""),
					"y": in("bytes", []byte{0, 0xff}), "x": in("F", [2]byte{0xff, 0xff}), "m": in("bytes.decimal", whole), "n": in("bytes.decimal", part), "e": in("E", "B")}),
				edge(3, obj{"f": in("float", float32(math.NaN())), "d": in("double", math.NaN())}),
				edge(4, obj{"f": in("float", float32(math.Inf(1))), "d": in("double", math.Inf(-1))}),
				edge(5, obj{"f": in("float", float32(math.Copysign(0, -1))), "d": in("double", math.Copysign(0, -1)), "m": in("bytes.decimal", new(big.Rat)), "n": in("bytes.decimal", new(big.Rat))}),
				edge(6, obj{"f": in("float", float32(math.SmallestNonzeroFloat32)), "d": in("double", math.SmallestNonzeroFloat64)}),
				edge(7, nil),
				edge(8, obj{"s": in("string", strings.Repeat("é", 500_000)), "y": in("bytes", []byte(strings.Repeat("\xff", 1_000_000)))}),
			},
			columns: "id, b, i, l, f, d, s, y, x, m, n, e",
			types:   "long, boolean, int, long, float, double, string, binary, fixed[2], decimal(38, 0), decimal(38, 38), string",
			want: "id,b,i,l,f,d,s,y,x,m,n,e\n" +
				"1,false,-2147483648,-9223372036854775808,-3.4028234663852886e+38,-1.7976931348623157e+308,,,0000,-99999999999999999999999999999999999999,-0.99999999999999999999999999999999999999,A\n" +
				"2,true,2147483647,9223372036854775807,3.4028234663852886e+38,1.7976931348623157e+308,\"é😀, \"\"x\"\"\",00ff,ffff,99999999999999999999999999999999999999,0.99999999999999999999999999999999999999,B\n" +
				"3,NULL,NULL,NULL,nan,nan,NULL,NULL,NULL,NULL,NULL,NULL\n" +
				"4,NULL,NULL,NULL,inf,-inf,NULL,NULL,NULL,NULL,NULL,NULL\n" +
				"5,NULL,NULL,NULL,-0.0,-0.0,NULL,NULL,NULL,0,0.00000000000000000000000000000000000000,NULL\n" +
				"6,NULL,NULL,NULL,1.401298464324817e-45,5e-324,NULL,NULL,NULL,NULL,NULL,NULL\n" +
				"7,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL\n" +
				"8,NULL,NULL,NULL,NULL,NULL," + strings.Repeat("é", 500_000) + "," + strings.Repeat("ff", 1_000_000) + ",NULL,NULL,NULL,NULL\n",
		},
		{
			topic:    "field-in-the-middle",
			versions: []string{nine(""), nine(`{"name":"mid","default":{"a":"d","b":null},"type":{"type":"record","name":"M","fields":[{"name":"a","type":"string"},{"name":"b","type":["null","int"]}]}}`)},
			records:  []versioned{{0, ninth(1, nil)}, {1, ninth(2, middle)}, {0, ninth(3, nil)}, {1, ninth(4, middle)}},
			columns:  "id, f3, f4, f7, mid",
			types:    "long, int, int, int, struct<a: string, b: int>",
			want:     "id,f3,f4,f7,mid\n1,13,14,17,NULL\n2,23,24,27,\"{\"\"a\"\":\"\"x\"\",\"\"b\"\":null}\"\n3,33,34,37,NULL\n4,43,44,47,\"{\"\"a\"\":\"\"x\"\",\"\"b\"\":null}\"\n",
		},
		{
			topic: "nested-fields",
			versions: []string{
				rec(idField + `,{"name":"customer","type":{"type":"record","name":"C","fields":[{"name":"n","type":"int"}]}},{"name":"items","type":{"type":"array","items":{"type":"record","name":"I","fields":[{"name":"p","type":"int"}]}}},{"name":"meta","type":{"type":"map","values":{"type":"record","name":"V","fields":[{"name":"k","type":"string"}]}}}`),
				rec(idField + `,{"name":"customer","type":{"type":"record","name":"C","fields":[{"name":"n","type":"int"},{"name":"more","type":{"type":"record","name":"D","fields":[{"name":"mail","type":"string"}]}}]}},{"name":"items","type":{"type":"array","items":{"type":"record","name":"I","fields":[{"name":"p","type":"int"},{"name":"qty","type":"int"}]}}},{"name":"meta","type":{"type":"map","values":{"type":"record","name":"V","fields":[{"name":"k","type":"string"},{"name":"v","type":"string"}]}}}`),
			},
			records: []versioned{
				{0, obj{"id": int64(1), "customer": obj{"n": 1}, "items": []any{obj{"p": 1}}, "meta": obj{"m": obj{"k": "a"}}}},
				{1, obj{"id": int64(2), "customer": obj{"n": 2, "more": obj{"mail": "x"}}, "items": []any{obj{"p": 2, "qty": 3}}, "meta": obj{"m": obj{"k": "a", "v": "b"}}}},
			},
			columns: "id, customer, items, meta",
			types:   "long, struct<n: int, more: struct<mail: string>>, list<struct<p: int, qty: int>>, map<string, struct<k: string, v: string>>",
			want: "id,customer,items,meta\n" +
				"1,\"{\"\"more\"\":null,\"\"n\"\":1}\",\"[{\"\"p\"\":1,\"\"qty\"\":null}]\",\"{\"\"m\"\":{\"\"k\"\":\"\"a\"\",\"\"v\"\":null}}\"\n" +
				"2,\"{\"\"more\"\":{\"\"mail\"\":\"\"x\"\"},\"\"n\"\":2}\",\"[{\"\"p\"\":2,\"\"qty\"\":3}]\",\"{\"\"m\"\":{\"\"k\"\":\"\"a\"\",\"\"v\"\":\"\"b\"\"}}\"\n",
		},
		{
			topic:    "case-differs",
			versions: []string{rec(idField + `,{"name":"userId","type":"int"}`), rec(idField + `,{"name":"userid","type":"int"}`), rec(idField + `,{"name":"userId","type":"int"},{"name":"userid","type":"int"}`)},
			records:  []versioned{{0, obj{"id": int64(1), "userId": 5}}, {1, obj{"id": int64(2), "userid": 6}}, {2, obj{"id": int64(3), "userId": 7, "userid": 8}}},
			columns:  "id, userId",
			types:    "long, int",
			want:     "id,userId\n1,5\n2,6\n",
			dead:     1, // its schema has both
		},
		{
			topic:  "case-lower",
			config: []string{"table.topic.column.case", "lower", "table.topic.partition.by", "bucket(userId, 4)", "table.topic.sort.by", "Place.City"},
			versions: []string{
				rec(idField + `,{"name":"userId","type":"int"},{"name":"Place","type":{"type":"record","name":"P","fields":[{"name":"City","type":"string"}]}}`),
				rec(idField + `,{"name":"userid","type":"int"},{"name":"place","type":{"type":"record","name":"P","fields":[{"name":"CITY","type":"string"},{"name":"zipCode","type":"string"}]}}`),
			},
			records: []versioned{{0, obj{"id": int64(1), "userId": 5, "Place": obj{"City": "a"}}}, {1, obj{"id": int64(2), "userid": 6, "place": obj{"CITY": "b", "zipCode": "c"}}}},
			columns: "id, userid, place",
			types:   "long, int, struct<city: string, zipcode: string>",
			want:    "id,userid,place\n1,5,\"{\"\"city\"\":\"\"a\"\",\"\"zipcode\"\":null}\"\n2,6,\"{\"\"city\"\":\"\"b\"\",\"\"zipcode\"\":\"\"c\"\"}\"\n",
		},
		{
			topic:  "case-upper",
			config: []string{"table.topic.column.case", "upper", "table.topic.partition.by", "bucket(userId, 4)", "table.topic.sort.by", "Place.City"},
			versions: []string{
				rec(idField + `,{"name":"userId","type":"int"},{"name":"Place","type":{"type":"record","name":"P","fields":[{"name":"City","type":"string"}]}}`),
				rec(idField + `,{"name":"userid","type":"int"},{"name":"place","type":{"type":"record","name":"P","fields":[{"name":"CITY","type":"string"},{"name":"zipCode","type":"string"}]}}`),
			},
			records: []versioned{{0, obj{"id": int64(1), "userId": 5, "Place": obj{"City": "a"}}}, {1, obj{"id": int64(2), "userid": 6, "place": obj{"CITY": "b", "zipCode": "c"}}}},
			columns: "ID, USERID, PLACE",
			types:   "long, int, struct<CITY: string, ZIPCODE: string>",
			want:    "ID,USERID,PLACE\n1,5,\"{\"\"CITY\"\":\"\"a\"\",\"\"ZIPCODE\"\":null}\"\n2,6,\"{\"\"CITY\"\":\"\"b\"\",\"\"ZIPCODE\"\":\"\"c\"\"}\"\n",
		},
		{
			topic: "required-fields-vanish",
			versions: []string{
				rec(idField + `,{"name":"s","type":"string"},{"name":"cdc","type":{"type":"record","name":"X","fields":[{"name":"key","type":{"type":"record","name":"K","fields":[{"name":"a","type":"int"},{"name":"b","type":"int"}]}}]}}`),
				rec(idField + `,{"name":"cdc","type":{"type":"record","name":"X","fields":[{"name":"key","type":{"type":"record","name":"K","fields":[{"name":"a","type":"int"}]}}]}}`),
			},
			records: []versioned{{0, obj{"id": int64(1), "s": "x", "cdc": obj{"key": obj{"a": 1, "b": 2}}}}, {1, obj{"id": int64(2), "cdc": obj{"key": obj{"a": 3}}}}},
			columns: "id, s, cdc",
			types:   "long, string, struct<key: struct<a: int, b: int>>",
			want:    "id,s,cdc\n1,x,\"{\"\"key\"\":{\"\"a\"\":1,\"\"b\"\":2}}\"\n2,NULL,\"{\"\"key\"\":{\"\"a\"\":3,\"\"b\"\":null}}\"\n",
		},
		{
			topic:    "recursion",
			versions: []string{`{"type":"record","name":"Node","fields":[{"name":"id","type":"long"},{"name":"next","type":["null","Node"]}]}`},
			records: []versioned{
				{0, obj{"id": int64(1), "next": nil}},
				{0, obj{"id": int64(2), "next": in("Node", obj{"id": int64(3), "next": in("Node", obj{"id": int64(4), "next": nil})})}},
			},
			columns: "id, next",
			types:   "long, string",
			want:    "id,next\n1,NULL\n2,\"{\"\"id\"\":3,\"\"next\"\":{\"\"id\"\":4,\"\"next\"\":null}}\"\n",
		},
		{
			topic:    "uuids",
			versions: []string{rec(idField + `,{"name":"t","type":{"type":"string","logicalType":"uuid"}},{"name":"f","type":{"type":"fixed","name":"U","size":16,"logicalType":"uuid"}}`)},
			records:  []versioned{{0, raw(1, "00112233-4455-6677-8899-aabbccddeeff", []byte("\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff"))}},
			columns:  "id, t, f",
			types:    "long, uuid, uuid",
			want:     "id,t,f\n1,00112233-4455-6677-8899-aabbccddeeff,00112233-4455-6677-8899-aabbccddeeff\n",
		},
		{
			topic: "logical-types",
			times: true,
			versions: []string{rec(idField + `,{"name":"instant","type":{"type":"long","logicalType":"timestamp-micros"}},{"name":"wall","type":{"type":"long","logicalType":"local-timestamp-micros"}},` +
				`{"name":"beside","type":"long","logicalType":"timestamp-millis"},{"name":"nanos","type":{"type":"long","logicalType":"timestamp-nanos"}},` +
				`{"name":"debezium","type":{"type":"long","connect.name":"io.debezium.time.MicroTimestamp"}},{"name":"zoned","type":{"type":"string","connect.name":"io.debezium.time.ZonedTimestamp"}},` +
				`{"name":"day","type":{"type":"int","logicalType":"date"}},{"name":"clock","type":{"type":"int","logicalType":"time-millis"}},{"name":"odd","type":{"type":"long","logicalType":"parsecs"}}`)},
			records: []versioned{
				{0, raw(1, micros, micros, micros/1000, micros*1000+999, micros, "2023-11-15T06:13:20.123456+08:00", int64(-1), int64(86_399_999), int64(7))},
				{0, raw(2, int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), "1969-12-31T23:59:59.999999Z", int64(-719_162), int64(0), int64(math.MinInt64))},
				{0, raw(3, int64(253_402_300_799_999_999), int64(253_402_300_799_999_999), int64(0), int64(0), int64(0), "0001-01-01T00:00:00Z", int64(2_932_896), int64(1), int64(0))},
				// Hours that the clocks of Samoa and of New York left out.
				{0, raw(4, samoa, samoa, samoa/1000, samoa*1000, samoa, "2011-12-30T12:00:00Z", int64(15_338), int64(43_200_000), int64(0))},
				{0, raw(5, newYork, newYork, newYork/1000, newYork*1000, newYork, "2023-03-12T02:30:00Z", int64(19_428), int64(9_000_000), int64(0))},
			},
			columns: "id, instant, wall, beside, nanos, debezium, zoned, day, clock, odd",
			types:   "long, timestamptz, timestamp, timestamptz, timestamptz, timestamp, timestamptz, date, time, long",
			want: "id,instant,wall,beside,nanos,debezium,zoned,day,clock,odd\n" +
				"1,2023-11-14T22:13:20.123456,2023-11-14T22:13:20.123456,2023-11-14T22:13:20.123000,2023-11-14T22:13:20.123456,2023-11-14T22:13:20.123456,2023-11-14T22:13:20.123456,1969-12-31,23:59:59.999000,7\n" +
				"2,1969-12-31T23:59:59.999999,1969-12-31T23:59:59.999999,1969-12-31T23:59:59.999000,1969-12-31T23:59:59.999999,1969-12-31T23:59:59.999999,1969-12-31T23:59:59.999999,0001-01-01,00:00:00,-9223372036854775808\n" +
				"3,9999-12-31T23:59:59.999999,9999-12-31T23:59:59.999999,1970-01-01T00:00:00.000000,1970-01-01T00:00:00.000000,1970-01-01T00:00:00.000000,0001-01-01T00:00:00.000000,9999-12-31,00:00:00.001000,0\n" +
				"4,2011-12-30T12:00:00.000000,2011-12-30T12:00:00.000000,2011-12-30T12:00:00.000000,2011-12-30T12:00:00.000000,2011-12-30T12:00:00.000000,2011-12-30T12:00:00.000000,2011-12-30,12:00:00,0\n" +
				"5,2023-03-12T02:30:00.000000,2023-03-12T02:30:00.000000,2023-03-12T02:30:00.000000,2023-03-12T02:30:00.000000,2023-03-12T02:30:00.000000,2023-03-12T02:30:00.000000,2023-03-12,02:30:00,0\n",
		},
		{
			topic: "logical-types-of-other-units",
			times: true,
			versions: []string{rec(idField + `,{"name":"clock","type":{"type":"long","logicalType":"time-micros"}},{"name":"clock_ns","type":{"type":"long","logicalType":"time-nanos"}},` +
				`{"name":"instant_ms","type":{"type":"long","logicalType":"timestamp-millis"}},{"name":"wall_ms","type":{"type":"long","logicalType":"local-timestamp-millis"}},` +
				`{"name":"wall_ns","type":{"type":"long","logicalType":"local-timestamp-nanos"}},{"name":"wall_us","type":{"type":"long","logicalType":"timestamp-micros","adjust-to-utc":false}},` +
				`{"name":"each","type":{"type":"array","items":["null",{"type":"long","logicalType":"timestamp-micros"}]}},{"name":"by_day","type":{"type":"map","values":{"type":"int","logicalType":"date"}}}`)},
			records: []versioned{
				{0, raw(1, int64(86_399_999_999), int64(86_399_999_999_999), micros/1000, micros/1000, micros*1000+999, micros, int64(2), int64(1), micros, int64(0), int64(0), int64(1), "k", int64(-1), int64(0))},
				{0, raw(2, int64(0), int64(999), int64(-1), int64(-1), int64(-1), int64(-1), int64(0), int64(0))},
				{0, raw(3, int64(1), int64(1000), int64(-62_135_596_800_000), int64(253_402_300_799_999), samoa*1000, newYork, int64(0), int64(0))},
			},
			columns: "id, clock, clock_ns, instant_ms, wall_ms, wall_ns, wall_us, each, by_day",
			types:   "long, time, time, timestamptz, timestamp, timestamp, timestamp, list<timestamptz>, map<string, date>",
			want: "id,clock,clock_ns,instant_ms,wall_ms,wall_ns,wall_us,each,by_day\n" +
				"1,23:59:59.999999,23:59:59.999999,2023-11-14T22:13:20.123000,2023-11-14T22:13:20.123000,2023-11-14T22:13:20.123456,2023-11-14T22:13:20.123456,\"[\"\"2023-11-14T22:13:20.123456\"\",null]\",\"{\"\"k\"\":\"\"1969-12-31\"\"}\"\n" +
				"2,00:00:00,00:00:00,1969-12-31T23:59:59.999000,1969-12-31T23:59:59.999000,1969-12-31T23:59:59.999999,1969-12-31T23:59:59.999999,[],{}\n" +
				"3,00:00:00.000001,00:00:00.000001,0001-01-01T00:00:00.000000,9999-12-31T23:59:59.999000,2011-12-30T12:00:00.000000,2023-03-12T02:30:00.000000,[],{}\n",
		},
		{
			topic: "debezium-names",
			times: true,
			versions: []string{rec(idField + `,{"name":"day","type":{"type":"int","connect.name":"io.debezium.time.Date"}},{"name":"ms","type":{"type":"int","connect.name":"io.debezium.time.Time"}},` +
				`{"name":"us","type":{"type":"long","connect.name":"io.debezium.time.MicroTime"}},{"name":"ns","type":{"type":"long","connect.name":"io.debezium.time.NanoTime"}},` +
				`{"name":"at_ms","type":{"type":"long","connect.name":"io.debezium.time.Timestamp"}},{"name":"at_ns","type":"long","connect.name":"io.debezium.time.NanoTimestamp"},` +
				`{"name":"lasted","type":{"type":"fixed","name":"D","size":12,"logicalType":"duration"}}`)},
			records: []versioned{
				{0, raw(1, int64(-1), int64(86_399_999), int64(86_399_999_999), int64(86_399_999_999_999), micros/1000, micros*1000+999, []byte("abcdefghijkl"))},
				{0, raw(2, int64(0), int64(0), int64(0), int64(0), int64(-1), int64(-1), make([]byte, 12))},
			},
			columns: "id, day, ms, us, ns, at_ms, at_ns, lasted",
			types:   "long, date, time, time, time, timestamp, timestamp, fixed[12]",
			want: "id,day,ms,us,ns,at_ms,at_ns,lasted\n" +
				"1,1969-12-31,23:59:59.999000,23:59:59.999999,23:59:59.999999,2023-11-14T22:13:20.123000,2023-11-14T22:13:20.123456,6162636465666768696a6b6c\n" +
				"2,1970-01-01,00:00:00,00:00:00,00:00:00,1969-12-31T23:59:59.999000,1969-12-31T23:59:59.999999,000000000000000000000000\n",
		},
		{
			topic:    "decimals-of-another-scale",
			versions: []string{rec(idField + `,{"name":"d","type":` + decimal(10, 2) + `}`), rec(idField + `,{"name":"d","type":` + decimal(10, 4) + `}`)},
			records:  []versioned{{0, obj{"id": int64(1), "d": big.NewRat(1, 100)}}, {1, obj{"id": int64(2), "d": big.NewRat(1, 8)}}, {0, obj{"id": int64(3), "d": big.NewRat(-1, 2)}}},
			columns:  "id, d",
			types:    "long, decimal(10, 2)",
			want:     "id,d\n1,0.01\n3,-0.50\n",
			dead:     1,
		},
		{
			topic:    "root-map",
			versions: []string{`{"type":"map","values":"long"}`},
			records:  []versioned{{0, map[string]int64{"a": 1}}, {0, map[string]int64{}}},
			columns:  "value",
			types:    "map<string, long>",
			want:     "value\n\"{\"\"a\"\":1}\"\n{}\n",
		},
		{
			topic: "types-widen",
			versions: []string{
				rec(idField + `,{"name":"i","type":"int"},{"name":"f","type":"float"},{"name":"d","type":` + decimal(10, 2) + `}`),
				rec(idField + `,{"name":"i","type":"long"},{"name":"f","type":"double"},{"name":"d","type":` + decimal(12, 2) + `}`),
			},
			records: []versioned{
				{0, obj{"id": int64(1), "i": math.MinInt32, "f": float32(1.5), "d": big.NewRat(-1, 100)}},
				{1, obj{"id": int64(2), "i": int64(math.MaxInt64), "f": 0.1, "d": big.NewRat(999_999_999_999, 100)}},
				{0, obj{"id": int64(3), "i": math.MaxInt32, "f": float32(0), "d": big.NewRat(5, 1)}},
			},
			columns: "id, i, f, d",
			types:   "long, long, double, decimal(12, 2)",
			want:    "id,i,f,d\n1,-2147483648,1.5,-0.01\n2,9223372036854775807,0.1,9999999999.99\n3,2147483647,0.0,5.00\n",
		},
		{
			topic:    "types-exclude-each-other",
			versions: []string{rec(idField + `,{"name":"x","type":"string"}`), rec(idField + `,{"name":"x","type":{"type":"long","logicalType":"timestamp-micros"}}`)},
			records:  []versioned{{0, obj{"id": int64(1), "x": "a"}}, {1, raw(2, micros)}, {0, obj{"id": int64(3), "x": "b"}}},
			columns:  "id, x",
			types:    "long, string",
			want:     "id,x\n1,a\n3,b\n",
			dead:     1,
		},
		{
			topic:    "types-side-by-side",
			times:    true,
			config:   []string{"table.topic.on.incompatible", "new-column"},
			versions: []string{rec(idField + `,{"name":"x","type":"string"}`), rec(idField + `,{"name":"x","type":{"type":"long","logicalType":"timestamp-micros"}}`), rec(idField + `,{"name":"x","type":` + decimal(12, 4) + `}`)},
			records:  []versioned{{0, obj{"id": int64(1), "x": "a"}}, {1, raw(2, micros)}, {0, obj{"id": int64(3), "x": "b"}}, {2, obj{"id": int64(4), "x": big.NewRat(1, 8)}}},
			columns:  "id, x, x__v2, x__v3",
			types:    "long, string, timestamptz, decimal(12, 4)",
			want:     "id,x,x__v2,x__v3\n1,a,NULL,NULL\n2,NULL,2023-11-14T22:13:20.123456,NULL\n3,b,NULL,NULL\n4,NULL,NULL,0.1250\n",
		},
		{
			topic:    "null-is-not-the-default",
			versions: []string{rec(idField + `,{"name":"c","type":["string","null"],"default":""},{"name":"d","type":["null",{"type":"string","connect.default":"x"}],"default":null}`)},
			records:  []versioned{{0, obj{"id": int64(1), "c": nil, "d": nil}}, {0, obj{"id": int64(2), "c": in("string", ""), "d": in("string", "")}}},
			columns:  "id, c, d",
			types:    "long, string, string",
			want:     "id,c,d\n1,NULL,NULL\n2,,\n",
		},
		{
			topic:    "maps-and-nulls",
			versions: []string{rec(idField + `,{"name":"m","type":{"type":"map","values":{"type":"record","name":"V","fields":[{"name":"a","type":"int"},{"name":"b","type":"string"}]}}},{"name":"after","type":"string"},{"name":"l","type":{"type":"array","items":["null","string"]}}`)},
			records:  []versioned{{0, obj{"id": int64(1), "m": obj{"k": obj{"a": 1, "b": "x"}}, "after": "y", "l": []any{in("string", "a"), nil, in("string", "b")}}}, {0, obj{"id": int64(2), "m": obj{}, "after": "", "l": []any{}}}},
			columns:  "id, m, after, l",
			types:    "long, map<string, struct<a: int, b: string>>, string, list<string>",
			want:     "id,m,after,l\n1,\"{\"\"k\"\":{\"\"a\"\":1,\"\"b\"\":\"\"x\"\"}}\",y,\"[\"\"a\"\",null,\"\"b\"\"]\"\n2,{},,[]\n",
		},
		{
			topic:    "root-long",
			versions: []string{`"long"`},
			records:  []versioned{{0, int64(math.MinInt64)}, {0, int64(5)}},
			columns:  "value",
			types:    "long",
			want:     "value\n-9223372036854775808\n5\n",
		},
		{
			topic:    "root-string",
			versions: []string{`"string"`},
			records:  []versioned{{0, "a"}, {0, ""}},
			columns:  "value",
			types:    "string",
			want:     "value\n\"\"\na\n",
		},
		{
			topic:    "root-array",
			versions: []string{`{"type":"array","items":"int"}`},
			records:  []versioned{{0, []int{1, 2}}, {0, []int{}}},
			columns:  "value",
			types:    "list<int>",
			want:     "value\n\"[1,2]\"\n[]\n",
		},
		{
			topic:    "root-union",
			versions: []string{`["null","string"]`},
			records:  []versioned{{0, in("string", "a")}, {0, rawBody{0}}},
			columns:  "value",
			types:    "string",
			want:     "value\nNULL\na\n",
		},
		{
			topic:    "renamed-by-alias",
			versions: []string{rec(idField + `,{"name":"old","type":"int"}`), rec(idField + `,{"name":"new","aliases":["old"],"type":"long"}`)},
			records:  []versioned{{0, obj{"id": int64(1), "old": 1}}, {1, obj{"id": int64(2), "new": int64(1 << 40)}}, {0, obj{"id": int64(3), "old": 3}}},
			columns:  "id, new",
			types:    "long, long",
			want:     "id,new\n1,1\n2,1099511627776\n3,3\n",
		},
		{
			topic:    "nested.partition-source",
			config:   []string{"table.topic.partition.by", "hour(_kafka.timestamp), a.b"},
			versions: []string{rec(idField + `,{"name":"a","type":{"type":"record","name":"A","fields":[{"name":"b","type":"string"}]}}`)},
			records:  []versioned{{0, obj{"id": int64(1), "a": obj{"b": "x/y=z"}}}, {0, obj{"id": int64(2), "a": obj{"b": "ü"}}}},
			columns:  "id, a",
			types:    "long, struct<b: string>",
			want:     "id,a\n1,\"{\"\"b\"\":\"\"x/y=z\"\"}\"\n2,\"{\"\"b\"\":\"\"ü\"\"}\"\n",
		},
		{
			topic:    "bad-among-good",
			versions: []string{rec(idField + `,{"name":"s","type":["null","string"]}`)},
			records: []versioned{
				{0, obj{"id": int64(1), "s": in("string", "a")}}, {0, []byte{0, 0, 0, 0, 99, 2}}, {0, []byte(`{"not":"wire"}`)}, {0, raw(2)},
				{0, nil}, {0, obj{"id": int64(3), "s": nil}},
			},
			columns: "id, s",
			types:   "long, string",
			want:    "id,s\n1,a\n3,NULL\nNULL,NULL\n",
			dead:    3,
		},
	}
}

// raw encodes a record whose first field is an id: int64 as numbers, strings with their length,
// bytes as they are.
func raw(id int64, fields ...any) rawBody {
	b := wire.AppendVarint(nil, id)
	for _, f := range fields {
		switch f := f.(type) {
		case int64:
			b = wire.AppendVarint(b, f)
		case string:
			b = append(wire.AppendVarint(b, int64(len(f))), f...)
		case []byte:
			b = append(b, f...)
		}
	}
	return b
}
