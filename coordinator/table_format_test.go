package coordinator

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/coordinator/control"
)

var (
	topicID  = uuid.MustParse("7a6c1f52-3f5d-4a63-8d0e-0c1f7b1a0001")
	commitID = uuid.MustParse("7a6c1f52-3f5d-4a63-8d0e-0c1f7b1a0002")
)

func examplePosition() Position {
	return Position{Topic: topicID, Epoch: 3, Sequence: 17, Commit: commitID, Next: map[int32]int64{0: 1000, 2: 0, 130: 1 << 62}}
}

func exampleSummary() Summary {
	return Summary{Topic: topicID, Epoch: 3, Commit: commitID,
		Ranges: []control.Range{{Partition: 0, Start: 900, End: 1000, Rows: 97, Dead: 3}, {Partition: 130, Start: 5, End: 1 << 62, Rows: 1}},
		Lost:   []LostSpan{{130, 0, 5, LostRetention}, {0, 10, 20, LostRewind}},
	}
}

// What a table of version 1 says is read as it was written, and written the same.
func TestTableFormatV1(t *testing.T) {
	props := examplePosition().properties(nil)
	props[keyTopic] = "orders"
	for k, v := range exampleSummary().properties() {
		props[k] = v
	}
	checkFixture(t, "v1/table", props, examplePosition())
	s, ok, err := ReadSummary(props)
	if err != nil || !ok || !reflect.DeepEqual(s, exampleSummary()) {
		t.Errorf("summary %+v, %t, %v", s, ok, err)
	}
}

// checkFixture fails unless properties are those of a fixture, with its dump, and say want.
func checkFixture(t *testing.T, name string, props iceberg.Properties, want Position) {
	t.Helper()
	base := filepath.Join("testdata", "format", filepath.FromSlash(name))
	encoded := encodeProperties(props)
	var dump bytes.Buffer
	if err := DumpProperties(&dump, props); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("TABLETOPIC_NEW_FIXTURES") != "" {
		if err := errors.Join(os.MkdirAll(filepath.Dir(base), 0o755), os.WriteFile(base+".bin", encoded, 0o644), os.WriteFile(base+".txt", dump.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for suffix, got := range map[string][]byte{".bin": encoded, ".txt": dump.Bytes()} {
		want, err := os.ReadFile(base + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), string(got)); d != "" {
			t.Errorf("%s: %s", suffix, d)
		}
	}
	got, ok, err := ReadPosition(props)
	if err != nil || !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("position %+v, %t, %v", got, ok, err)
	}
}

// encodeProperties is a line per property.
func encodeProperties(props iceberg.Properties) []byte {
	var b bytes.Buffer
	for _, k := range sortedNames(props) {
		fmt.Fprintf(&b, "%s=%s\n", k, props[k])
	}
	return b.Bytes()
}

func sortedNames(props iceberg.Properties) []string {
	var out []string
	for k := range props {
		out = append(out, k)
	}
	for i := range out {
		for j := i; j > 0 && out[j] < out[j-1]; j-- {
			out[j], out[j-1] = out[j-1], out[j]
		}
	}
	return out
}

// With 10,000 partitions at the largest offsets no property is longer than a catalog keeps,
// and a commit that moves one partition sets two of them.
func TestTenThousandPartitions(t *testing.T) {
	p := Position{Topic: topicID, Epoch: 1<<31 - 1, Sequence: 1<<63 - 1, Commit: commitID, Next: map[int32]int64{}}
	s := Summary{Topic: topicID, Epoch: 1, Commit: commitID}
	for i := range int32(10_000) {
		p.Next[i] = 1<<63 - 1 - int64(i)
		s.Ranges = append(s.Ranges, control.Range{Partition: i, Start: 1 << 62, End: 1<<63 - 1, Rows: 1 << 40, Dead: 1 << 40})
	}
	props := p.properties(nil)
	summary := s.properties()
	for _, all := range []iceberg.Properties{props, summary} {
		for k, v := range all {
			if len(v) > maxValue {
				t.Errorf("%s has %d bytes, want at most %d", k, len(v), maxValue)
			}
		}
	}
	got, ok, err := ReadPosition(props)
	if err != nil || !ok || !reflect.DeepEqual(got, p) {
		t.Fatalf("position differs: %t, %v", ok, err)
	}
	gotSummary, ok, err := ReadSummary(summary)
	if err != nil || !ok || !reflect.DeepEqual(gotSummary, s) {
		t.Fatalf("summary differs: %t, %v", ok, err)
	}
	if n := len(p.properties([]int32{5000})); n != 2 {
		t.Errorf("a commit of one partition sets %d properties, want 2", n)
	}
}

// A changed character anywhere is noticed.
func TestChangedPropertyIsCorrupt(t *testing.T) {
	for key, value := range examplePosition().properties(nil) {
		for i := range value {
			props := examplePosition().properties(nil)
			props[key] = value[:i] + string(value[i]^1) + value[i+1:]
			if p, _, err := ReadPosition(props); err == nil {
				t.Fatalf("%s with character %d changed: %+v", key, i, p)
			}
		}
	}
}

// What an earlier topic of the name left counts for nothing.
func TestOffsetsOfAnotherTopicAreIgnored(t *testing.T) {
	old := Position{Topic: commitID, Next: map[int32]int64{0: 5, 200: 7}}
	props := old.properties(nil)
	for k, v := range (Position{Topic: topicID, Next: map[int32]int64{0: 1}}).properties(nil) {
		props[k] = v
	}
	p, ok, err := ReadPosition(props)
	if err != nil || !ok || len(p.Next) != 1 || p.Next[0] != 1 {
		t.Errorf("position %+v, %t, %v; want partition 0 at 1 alone", p, ok, err)
	}
}

func FuzzReadPosition(f *testing.F) {
	for k, v := range examplePosition().properties(nil) {
		f.Add(k, v)
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		props := examplePosition().properties(nil)
		props[key] = value
		p, ok, err := ReadPosition(props)
		if err != nil || !ok {
			return
		}
		again, _, err := ReadPosition(p.properties(nil))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(p, again) {
			t.Fatalf("%+v became %+v", p, again)
		}
	})
}

func FuzzReadSummary(f *testing.F) {
	p := exampleSummary().properties()
	f.Add(p[keyRanges+"0"], p[keyGaps+"0"])
	f.Fuzz(func(t *testing.T, ranges, gaps string) {
		props := exampleSummary().properties()
		props[keyRanges+"0"], props[keyGaps+"0"] = ranges, gaps
		s, ok, err := ReadSummary(props)
		if err != nil || !ok {
			return
		}
		again, _, err := ReadSummary(s.properties())
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(s, again) {
			t.Fatalf("%+v became %+v", s, again)
		}
	})
}

func TestTableName(t *testing.T) {
	long := strings.Repeat("Topic.", 41)
	for topic, want := range map[string]string{
		"orders":    "orders",
		"orders.v1": "orders_v1",
		"Poc-Kafka": "poc_kafka",
		"a..b":      "a__b",
		"1abc":      "t_1abc",
	} {
		if got := TableName(topic); got != want {
			t.Errorf("TableName(%q) = %q, want %q", topic, got, want)
		}
	}
	if a, b := TableName(long), TableName(long+"x"); len(a) != maxName || len(b) != maxName || a == b {
		t.Errorf("long names became %q and %q", a, b)
	}
	for _, c := range []struct{ namespace, name, mention string }{
		{"Sales", "", "table.topic.namespace"},
		{"a..b", "", "table.topic.namespace"},
		{"", "x-y", "table.topic.name"},
	} {
		if _, err := Identifier(c.namespace, c.name, "t"); err == nil || !strings.Contains(err.Error(), c.mention) {
			t.Errorf("Identifier(%q, %q): error %v, want one that names %s", c.namespace, c.name, err, c.mention)
		}
	}
}

// The property that names the types with other tables keeps those of before, and forgets the first of them when it
// has no room.
func TestTypesOfOtherTablesFitTheirProperty(t *testing.T) {
	for _, c := range []struct{ had, takes, want string }{
		{"", "n.A", "n.A"},
		{"", "*,A,B", "*,A,B"},
		{"*,A,B", "*,B,C", "*,A,B,C"},
		{"*,A", "B", "B"},
		{"n.A", "*,B", "*,B"},
	} {
		if got := takesProperty(c.had, c.takes); got != c.want {
			t.Errorf("%q after %q is %q, want %q", c.takes, c.had, got, c.want)
		}
	}
	had := "*"
	for i := range 1000 {
		had = takesProperty(had, fmt.Sprintf("*,type%d", i))
	}
	types := elsewhere(had)
	if len(had) > maxValue || len(had) < maxValue-20 || types[len(types)-1] != "type999" || types[0] == "type0" {
		t.Errorf("%d bytes, from %s to %s", len(had), types[0], types[len(types)-1])
	}
}
