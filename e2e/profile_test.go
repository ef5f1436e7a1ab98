package e2e

import (
	"strings"
	"testing"
	"time"
)

// A table follows the rules of the engines of its topic: DuckDB and PyIceberg read the types that DuckDB can read as
// they are, and those of a table for Athena as text and bytes, equal by value, also of a field that
// is added later. A profile that the table cannot follow any more is refused with the rule.
func TestEngineProfiles(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	const narrow = `{"type":"record","name":"R","fields":[{"name":"id","type":"long"},{"name":"u","type":{"type":"string","logicalType":"uuid"}},{"name":"w","type":{"type":"fixed","name":"W","size":16,"logicalType":"uuid"}}]}`
	const wide = `{"type":"record","name":"R","fields":[{"name":"id","type":"long"},{"name":"u","type":{"type":"string","logicalType":"uuid"}},{"name":"w","type":{"type":"fixed","name":"W","size":16,"logicalType":"uuid"}},
		{"name":"clock","type":["null",{"type":"long","logicalType":"time-micros"}],"default":null},{"name":"f","type":["null",{"type":"fixed","name":"F","size":2}],"default":null}]}`
	const uuid = "00112233-4455-6677-8899-aabbccddeeff"
	binary := [16]byte([]byte("\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff"))
	for topic, engines := range map[string]string{"for_duckdb": "duckdb", "for_all": "athena,unity,duckdb"} {
		s.createTopic(topic, 1, 300*time.Millisecond, "table.topic.engine.profile", engines)
		first := registerSchema(t, s, topic+"-value", narrow)
		second := registerSchema(t, s, topic+"-value", wide)
		produceAll(t, s, topic, encoded(t, first, narrow, obj{"id": int64(1), "u": uuid, "w": binary}),
			encoded(t, second, wide, obj{"id": int64(2), "u": uuid, "w": binary, "clock": in("long.time-micros", 45_296*time.Second+7*time.Microsecond), "f": in("F", [2]byte{0xab, 0xcd})}))
	}
	for topic, want := range map[string]string{
		"for_duckdb": "id,u,w,clock,f,types\n1," + uuid + "," + uuid + ",NULL,NULL,UUID UUID TIME BLOB\n2," + uuid + "," + uuid + ",12:34:56.000007,ABCD,UUID UUID TIME BLOB\n",
		"for_all":    "id,u,w,clock,f,types\n1," + uuid + "," + uuid + ",NULL,NULL,VARCHAR VARCHAR VARCHAR BLOB\n2," + uuid + "," + uuid + ",12:34:56.000007,ABCD,VARCHAR VARCHAR VARCHAR BLOB\n",
	} {
		waitForTable(t, s, topic, 2, time.Minute)
		got := l.query(t, s, "duckdb", "SELECT id, u::VARCHAR AS u, w::VARCHAR AS w, clock::VARCHAR AS clock, hex(f) AS f, typeof(u) || ' ' || typeof(w) || ' ' || typeof(clock) || ' ' || typeof(f) AS types FROM ice.default."+topic)
		if got != want {
			t.Errorf("%s: %s", topic, diffLines(want, got))
		}
		if got, want := l.query(t, s, "pyiceberg", "SELECT id, u, w, clock, f FROM ice.default."+topic), "id,u,w,clock,f\n1,"+uuid+","+uuid+",NULL,NULL\n2,"+uuid+","+uuid+",12:34:56.000007,abcd\n"; got != want {
			t.Errorf("%s by PyIceberg: %s", topic, diffLines(want, got))
		}
		types := map[string]string{"for_duckdb": "long, uuid, uuid, time, fixed[2]\n", "for_all": "long, string, string, string, binary\n"}[topic]
		if got := run(t, nil, "lab/query", "pyiceberg", "--uri", s.catalogURL(), "--types", "SELECT id, u, w, clock, f FROM ice.default."+topic); got != types {
			t.Errorf("%s has columns of %s, want %s", topic, got, types)
		}
	}
	for setting, hint := range map[string]string{
		"athena": "column u is uuid, which engine athena does not read (https://docs.aws.amazon.com/",
		"presto": "want generic, athena, unity or duckdb",
	} {
		if out, code := s.cli("", "topic", "alter", "for_duckdb", "--config", "table.topic.engine.profile="+setting); code != 1 || !strings.Contains(out, hint) {
			t.Errorf("%s: exit %d, want %q in %s", setting, code, hint, out)
		}
	}
	if out, code := s.cli("", "topic", "alter", "for_all", "--config", "table.topic.engine.profile=unity"); code != 0 {
		t.Errorf("exit %d: %s", code, out)
	}
}
