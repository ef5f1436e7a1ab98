package e2e

import (
	"strings"

	"github.com/twmb/franz-go/pkg/sr"
)

func object(properties string) string {
	return `{"type":"object","properties":{"id":{"type":"integer"},` + properties + `}}`
}

// js is a record, as text, of the version of that number.
func js(version int, text string) versioned { return versioned{version, text} }

func jsonSchemaCases() []valueCase {
	cases := []valueCase{
		{
			topic:    "js-edges",
			versions: []string{object(`"l":{"type":"integer"},"i":{"type":"integer","connect.type":"int32"},"d":{"type":"number"},"f":{"type":"number","connect.type":"float32"},"s":{"type":"string"},"b":{"type":"boolean"}`)},
			records: []versioned{
				js(0, `{"id":1,"l":-9223372036854775808,"i":-2147483648,"d":-1.7976931348623157e308,"f":-3.4028234663852886e38,"s":"","b":false}`),
				js(0, `{"id":2,"l":9223372036854775807,"i":2147483647,"d":1.7976931348623157e308,"f":3.4028234663852886e38,"s":"\u00e9\ud83d\ude00","b":true}`),
				js(0, `{"id":3,"l":-0,"i":1e3,"d":-0.0,"f":-0.0}`), js(0, `{"id":4,"l":5.0,"d":5e-324,"f":1e-45}`), js(0, `{"id":5,"l":null,"d":null}`),
				js(0, `{"id":6,"l":9223372036854775808}`), js(0, `{"id":7,"i":2147483648}`), js(0, `{"id":8,"l":0.5}`), // which the columns do not hold
			},
			columns: "id, l, i, d, f, s, b",
			types:   "long, long, int, double, float, string, boolean",
			want: "id,l,i,d,f,s,b\n" +
				"1,-9223372036854775808,-2147483648,-1.7976931348623157e+308,-3.4028234663852886e+38,,false\n" +
				"2,9223372036854775807,2147483647,1.7976931348623157e+308,3.4028234663852886e+38,é😀,true\n" +
				"3,0,1000,-0.0,-0.0,NULL,NULL\n" +
				"4,5,NULL,5e-324,1.401298464324817e-45,NULL,NULL\n" +
				"5,NULL,NULL,NULL,NULL,NULL,NULL\n",
			dead: 3,
		},
		{
			topic:    "js-field-in-the-middle",
			versions: []string{object(`"a":{"type":"integer"},"c":{"type":"integer"}`), object(`"a":{"type":"integer"},"mid":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}}},"c":{"type":"integer"}`)},
			records:  []versioned{js(0, `{"id":1,"a":2,"c":3}`), js(1, `{"id":2,"a":4,"mid":{"a":"x"},"c":5}`), js(0, `{"id":3,"a":6,"c":7}`), js(1, `{"c":9,"a":8,"id":4}`)},
			columns:  "id, a, c, mid",
			types:    "long, long, long, struct<a: string, b: long>",
			want:     "id,a,c,mid\n1,2,3,NULL\n2,4,5,\"{\"\"a\"\":\"\"x\"\",\"\"b\"\":null}\"\n3,6,7,NULL\n4,8,9,NULL\n",
		},
		{
			topic: "js-nested-fields",
			versions: []string{
				object(`"customer":{"type":"object","properties":{"n":{"type":"integer"}}},"items":{"type":"array","items":{"type":"object","properties":{"p":{"type":"integer"}}}},"meta":{"type":"object","additionalProperties":{"type":"object","properties":{"k":{"type":"string"}}}}`),
				object(`"customer":{"type":"object","properties":{"n":{"type":"integer"},"more":{"type":"object","properties":{"mail":{"type":"string"}}}}},"items":{"type":"array","items":{"type":"object","properties":{"p":{"type":"integer"},"qty":{"type":"integer"}}}},"meta":{"type":"object","additionalProperties":{"type":"object","properties":{"k":{"type":"string"},"v":{"type":"string"}}}}`),
			},
			records: []versioned{
				js(0, `{"id":1,"customer":{"n":1},"items":[{"p":1}],"meta":{"m":{"k":"a"}}}`),
				js(1, `{"id":2,"customer":{"n":2,"more":{"mail":"x"}},"items":[{"p":2,"qty":3}],"meta":{"m":{"k":"a","v":"b"}}}`),
			},
			columns: "id, customer, items, meta",
			types:   "long, struct<n: long, more: struct<mail: string>>, list<struct<p: long, qty: long>>, map<string, struct<k: string, v: string>>",
			want: "id,customer,items,meta\n" +
				"1,\"{\"\"more\"\":null,\"\"n\"\":1}\",\"[{\"\"p\"\":1,\"\"qty\"\":null}]\",\"{\"\"m\"\":{\"\"k\"\":\"\"a\"\",\"\"v\"\":null}}\"\n" +
				"2,\"{\"\"more\"\":{\"\"mail\"\":\"\"x\"\"},\"\"n\"\":2}\",\"[{\"\"p\"\":2,\"\"qty\"\":3}]\",\"{\"\"m\"\":{\"\"k\"\":\"\"a\"\",\"\"v\"\":\"\"b\"\"}}\"\n",
		},
		{
			topic:    "js-case-differs",
			versions: []string{object(`"userId":{"type":"integer"}`), object(`"userid":{"type":"integer"}`)},
			records:  []versioned{js(0, `{"id":1,"userId":5}`), js(1, `{"id":2,"userid":6}`)},
			columns:  "id, userId",
			types:    "long, long",
			want:     "id,userId\n1,5\n2,6\n",
		},
		{
			topic: "js-required-fields-vanish",
			versions: []string{
				strings.TrimSuffix(object(`"s":{"type":"string"},"key":{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"]}`), "}") + `,"required":["id","s","key"]}`,
				object(`"key":{"type":"object","properties":{"a":{"type":"integer"}}}`),
			},
			records: []versioned{js(0, `{"id":1,"s":"x","key":{"a":1,"b":2}}`), js(1, `{"id":2,"key":{"a":3}}`), js(1, `{"id":3}`)},
			columns: "id, s, key",
			types:   "long, string, struct<a: long, b: long>",
			want:    "id,s,key\n1,x,\"{\"\"a\"\":1,\"\"b\"\":2}\"\n2,NULL,\"{\"\"a\"\":3,\"\"b\"\":null}\"\n3,NULL,NULL\n",
		},
		{
			topic:    "js-recursion",
			versions: []string{`{"type":"object","properties":{"id":{"type":"integer"},"next":{"$ref":"#"}}}`},
			records:  []versioned{js(0, `{"id":1}`), js(0, `{"id":2,"next":{"id":3, "next": {"id":4,"next":null}}}`)},
			columns:  "id, next",
			types:    "long, string",
			want:     "id,next\n1,NULL\n2,\"{\"\"id\"\":3,\"\"next\"\":{\"\"id\"\":4,\"\"next\"\":null}}\"\n",
		},
		{
			topic:    "js-types",
			times:    true,
			versions: []string{object(`"moment":{"type":"string","format":"date-time"},"day":{"type":"string","format":"date"},"clock":{"type":"string","format":"time"},"u":{"type":"string","format":"uuid"},"b":{"type":"string","contentEncoding":"base64"},"x":{"type":"number"},"odd":{"type":"string","format":"parsecs"},"big":{"title":"org.apache.kafka.connect.data.Decimal","type":"number","connect.type":"bytes","connect.parameters":{"scale":"2","connect.decimal.precision":"20"}}`)},
			records: []versioned{
				js(0, `{"id":1,"moment":"2023-11-15T06:13:20.123456789+08:00","day":"1969-12-31","clock":"23:59:59.999Z","u":"00112233-4455-6677-8899-AABBCCDDEEFF","b":"AP8=","x":1e-3,"odd":"7","big":123456789012345678.90}`),
				js(0, `{"id":2,"moment":"1969-12-31T23:59:59.999999Z","day":"0001-01-01","clock":"00:00:00","x":5,"big":-0.01}`),
				js(0, `{"id":3,"moment":"9999-12-31T23:59:59.999999Z","day":"9999-12-31","clock":"06:00:00+08:00","x":-0.0}`),
				js(0, `{"id":4,"moment":"2011-12-30T12:00:00Z","day":"2011-12-30","clock":"12:00:00"}`), // which Samoa left out
				js(0, `{"id":5,"moment":"2023-03-12T02:30:00Z","day":"2023-03-12","clock":"02:30:00"}`), // and New York
			},
			columns: "id, moment, day, clock, u, b, x, odd, big",
			types:   "long, timestamptz, date, time, uuid, binary, double, string, decimal(20, 2)",
			want: "id,moment,day,clock,u,b,x,odd,big\n" +
				"1,2023-11-14T22:13:20.123456,1969-12-31,23:59:59.999000,00112233-4455-6677-8899-aabbccddeeff,00ff,0.001,7,123456789012345678.90\n" +
				"2,1969-12-31T23:59:59.999999,0001-01-01,00:00:00,NULL,NULL,5.0,NULL,-0.01\n" +
				"3,9999-12-31T23:59:59.999999,9999-12-31,22:00:00,NULL,NULL,-0.0,NULL,NULL\n" +
				"4,2011-12-30T12:00:00.000000,2011-12-30,12:00:00,NULL,NULL,NULL,NULL,NULL\n" +
				"5,2023-03-12T02:30:00.000000,2023-03-12,02:30:00,NULL,NULL,NULL,NULL,NULL\n",
		},
		{
			topic:    "js-types-widen",
			versions: []string{object(`"i":{"type":"integer","connect.type":"int32"},"f":{"type":"number","connect.type":"float32"}`), object(`"i":{"type":"integer"},"f":{"type":"number"}`)},
			records:  []versioned{js(0, `{"id":1,"i":-2147483648,"f":1.5}`), js(1, `{"id":2,"i":9223372036854775807,"f":0.1}`), js(0, `{"id":3,"i":2147483647,"f":0}`)},
			columns:  "id, i, f",
			types:    "long, long, double",
			want:     "id,i,f\n1,-2147483648,1.5\n2,9223372036854775807,0.1\n3,2147483647,0.0\n",
		},
		{
			topic:    "js-types-exclude-each-other",
			versions: []string{object(`"x":{"type":"string"}`), object(`"x":{"type":"integer"}`)},
			records:  []versioned{js(0, `{"id":1,"x":"a"}`), js(1, `{"id":2,"x":5}`), js(0, `{"id":3,"x":"b"}`)},
			columns:  "id, x",
			types:    "long, string",
			want:     "id,x\n1,a\n3,b\n",
			dead:     1,
		},
		{
			topic:    "js-types-side-by-side",
			config:   []string{"table.topic.on.incompatible", "new-column"},
			versions: []string{object(`"x":{"type":"integer"}`), object(`"x":{"type":"string","format":"date-time"}`), object(`"x":{"type":"object","properties":{"y":{"type":"string"}}}`)},
			records:  []versioned{js(0, `{"id":1,"x":5}`), js(1, `{"id":2,"x":"2023-11-14T22:13:20.123456Z"}`), js(0, `{"id":3,"x":6}`), js(2, `{"id":4,"x":{"y":"z"}}`)},
			columns:  "id, x, x__v2, x__v3",
			types:    "long, long, timestamptz, struct<y: string>",
			want:     "id,x,x__v2,x__v3\n1,5,NULL,NULL\n2,NULL,2023-11-14T22:13:20.123456,NULL\n3,6,NULL,NULL\n4,NULL,NULL,\"{\"\"y\"\":\"\"z\"\"}\"\n",
		},
		{
			topic:    "js-null-is-not-the-default",
			versions: []string{object(`"c":{"type":["string","null"],"default":"x"},"d":{"oneOf":[{"type":"null"},{"type":"integer","default":7}]}`)},
			records:  []versioned{js(0, `{"id":1,"c":null,"d":null}`), js(0, `{"id":2}`), js(0, `{"id":3,"c":"","d":0}`)},
			columns:  "id, c, d",
			types:    "long, string, long",
			want:     "id,c,d\n1,NULL,NULL\n2,NULL,NULL\n3,,0\n",
		},
		{
			topic:    "js-maps-and-nulls",
			versions: []string{object(`"m":{"type":"object","additionalProperties":{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}}}},"after":{"type":"string"},"l":{"type":"array","items":{"type":["null","string"]}},"e":{"type":"object","properties":{}},"free":{}`)},
			records: []versioned{
				js(0, `{"id":1,"m":{"k":{"a":1,"b":"x"},"n":null},"after":"y","l":["a",null,"b"],"e":{},"free":{"z": [1, 2.50, "\u00e4"]}}`),
				js(0, `{"id":2,"m":{},"after":"","l":[],"free":"text"}`),
			},
			columns: "id, m, after, l, e, free",
			types:   "long, map<string, struct<a: long, b: string>>, string, list<string>, string, string",
			want: "id,m,after,l,e,free\n" +
				"1,\"{\"\"k\"\":{\"\"a\"\":1,\"\"b\"\":\"\"x\"\"},\"\"n\"\":null}\",y,\"[\"\"a\"\",null,\"\"b\"\"]\",{},\"{\"\"z\"\":[1,2.50,\"\"\\u00e4\"\"]}\"\n" +
				"2,{},,[],NULL,\"\"\"text\"\"\"\n",
		},
		{
			topic:    "js-root-boolean",
			versions: []string{`{"type":"boolean"}`},
			records:  []versioned{js(0, `true`), js(0, `false`)},
			columns:  "value",
			types:    "boolean",
			want:     "value\nfalse\ntrue\n",
		},
		{
			topic:    "js-root-array",
			versions: []string{`{"type":"array","items":{"type":"integer"}}`},
			records:  []versioned{js(0, `[1,2]`), js(0, `[]`)},
			columns:  "value",
			types:    "list<long>",
			want:     "value\n\"[1,2]\"\n[]\n",
		},
		{
			topic:    "js-root-union",
			versions: []string{`{"oneOf":[{"type":"null"},{"type":"string"}]}`},
			records:  []versioned{js(0, `"a"`), js(0, `null`)},
			columns:  "value",
			types:    "string",
			want:     "value\nNULL\na\n",
		},
		{
			topic:    "js-bad-among-good",
			versions: []string{object(`"s":{"type":["null","string"]}`)},
			records: []versioned{
				js(0, `{"id":1,"s":"a"}`), {0, []byte{0, 0, 0, 0, 99, '{', '}'}}, {0, []byte(`{"not":"wire"}`)}, js(0, `{"id":2,"s":`), js(0, `{"id":18446744073709551615}`),
				{0, nil}, js(0, `{"id":3}`),
			},
			columns: "id, s",
			types:   "long, string",
			want:    "id,s\n1,a\n3,NULL\nNULL,NULL\n",
			dead:    4,
		},
	}
	for i := range cases {
		cases[i].kind = sr.TypeJSON
	}
	return cases
}

func plainJSONCases() []valueCase {
	plain := func(texts ...string) (out []versioned) {
		for _, text := range texts {
			out = append(out, versioned{0, []byte(text)})
		}
		return out
	}
	cases := []valueCase{
		{
			topic: "plain-nested-fields",
			records: plain(`{"id":1,"customer":{"n":1},"items":[{"p":1}]}`,
				`{"id":2,"customer":{"n":2,"more":{"mail":"x"}},"items":[{"p":2,"qty":3}]}`),
			columns: "id, customer, items",
			types:   "long, struct<n: long, more: struct<mail: string>>, list<struct<p: long, qty: long>>",
			want:    "id,customer,items\n1,\"{\"\"more\"\":null,\"\"n\"\":1}\",\"[{\"\"p\"\":1,\"\"qty\"\":null}]\"\n2,\"{\"\"more\"\":{\"\"mail\"\":\"\"x\"\"},\"\"n\"\":2}\",\"[{\"\"p\"\":2,\"\"qty\"\":3}]\"\n",
		},
		{
			topic:   "plain-nothing-is-no-type",
			records: plain(`{"id":1,"a":null,"d":null}`, `{"id":2,"a":1,"b":["x"],"c":{"k":1},"d":[true],"e":[{"f":null},{"f":1.5}]}`, `{"id":3,"a":[],"b":[],"c":{},"d":{},"e":[{}]}`, `{"id":4,"a":{},"b":[null],"c":[null]}`),
			columns: "id, a, b, c, d",
			types:   "long, long, list<string>, struct<k: long>, list<boolean>",
			want:    "id,a,b,c,d\n1,NULL,NULL,NULL,NULL\n2,1,\"[\"\"x\"\"]\",\"{\"\"k\"\":1}\",[true]\n3,NULL,[],\"{\"\"k\"\":null}\",NULL\n4,NULL,[null],NULL,NULL\n",
		},
		{
			topic:   "plain-nothing-makes-no-column",
			config:  []string{"table.topic.kafka.column", ""},
			records: plain(`{"id":1,"a":null,"b":[],"c":{},"d":[null],"e":[{}]}`, `{"id":2,"c":{"f":[{}]}}`),
			columns: "*",
			types:   "long",
			want:    "id\n1\n2\n",
		},
		{
			topic:   "plain-case-differs",
			records: plain(`{"id":1,"userId":5}`, `{"id":2,"userid":6}`, `{"id":3,"userId":7,"userid":8}`),
			columns: "id, userId",
			types:   "long, long",
			want:    "id,userId\n1,5\n2,6\n",
			dead:    1,
		},
		{
			topic:   "plain-wide-integers",
			records: plain(`{"id":1,"u":18446744073709551615}`, `{"id":2,"u":1}`),
			columns: "id, u",
			types:   "long, string",
			want:    "id,u\n1,18446744073709551615\n2,1\n",
		},
		{
			topic:   "plain-roots",
			records: plain(`true`, `[1,2]`),
			columns: "value",
			types:   "string",
			want:    "value\n\"[1,2]\"\ntrue\n",
		},
		{
			topic:   "plain-bad-among-good",
			records: append(plain(`{"id":1,"s":"a"}`, `{"id":2`, `not json`), versioned{}, plain(`{"id":3,"s":5}`)[0]),
			columns: "id, s",
			types:   "long, string",
			want:    "id,s\n1,a\n3,5\nNULL,NULL\n",
			dead:    2,
		},
	}
	for i := range cases {
		cases[i].config = append(cases[i].config, "table.topic.value.format", "json")
	}
	return cases
}
