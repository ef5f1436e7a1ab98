package node

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/streamstore"
)

func (c *cluster) nodes(n *Node) map[int32]NodeStatus {
	c.t.Helper()
	resp, err := http.Get("http://" + n.HTTPAddr() + "/api/nodes")
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	var list struct{ Nodes []NodeStatus }
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		c.t.Fatal(err)
	}
	byID := map[int32]NodeStatus{}
	for _, s := range list.Nodes {
		byID[s.ID] = s
	}
	return byID
}

// recover asks n to recover a node and returns the code and the last line of the answer.
func (c *cluster) recover(n *Node, id string) (code int, last string) {
	c.t.Helper()
	resp, err := http.Post("http://"+n.HTTPAddr()+"/api/nodes/"+id, "", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		last = lines.Text()
	}
	return resp.StatusCode, last
}

// A node that answers is refused, without force; one that is gone is recovered, stays known
// as such, and has all its records when it starts again. By force a living one is stopped.
func TestRecoverANode(t *testing.T) {
	t.Parallel() // mostly waits
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir(), metadata: lab.Postgres(t)}
	one, two := c.open(1), c.open(2)
	if _, err := one.set.CreateTopic(t.Context(), metadata.NewTopic{Name: "events", Partitions: 3, Leaders: []streamstore.NodeID{1}}); err != nil {
		t.Fatal(err)
	}
	c.produce(one, "events", "a", "b", "c")
	if got := c.nodes(two); len(got) != 2 || got[1].State != NodeServing || got[2].State != NodeServing || got[1].OpenStreams < 6 || got[1].WALs != 1 ||
		got[1].Kafka != one.KafkaAddr() || got[1].HTTP != one.HTTPAddr() {
		t.Fatalf("nodes %+v", got)
	}
	for id, want := range map[string]struct {
		code int
		text string
	}{
		"1/recover":   {http.StatusConflict, "node 1 is alive: it answers at http://" + one.HTTPAddr()},
		"2/recover":   {http.StatusConflict, "is this server"},
		"9/recover":   {http.StatusNotFound, "never registered"},
		"one/recover": {http.StatusBadRequest, "node id"},
	} {
		if code, text := c.recover(two, id); code != want.code || !strings.Contains(text, want.text) {
			t.Errorf("%s: %d %s, want %d %s", id, code, text, want.code, want.text)
		}
	}
	if _, _, err := two.meta.RegisterNode(t.Context(), 3, streamstore.WALObject); err != nil { // it starts, and has not announced itself
		t.Fatal(err)
	}
	if code, text := c.recover(two, "3/recover"); code != http.StatusConflict || !strings.Contains(text, "never said where it is reached") {
		t.Errorf("a node that may be starting: %d %s", code, text)
	}
	if code, text := c.recover(two, "3/recover?force=true"); code != http.StatusOK || !strings.Contains(text, `"done":true`) {
		t.Errorf("a node that never announced itself, by force: %d %s", code, text)
	}
	if code, text := c.recover(two, "1/recover?force=true"); code != http.StatusOK || !strings.Contains(text, `"done":true`) {
		t.Fatalf("by force: %d %s", code, text)
	}
	if got := c.nodes(two)[1]; got.State != NodeRecovered || got.RecoveredBy == nil || *got.RecoveredBy != 2 || got.OpenStreams != 0 || got.WALs != 0 {
		t.Fatalf("recovered node %+v", got)
	}
	// It learns of it with the next record, and stops by itself.
	cl := c.client(one)
	cl.Produce(t.Context(), &kgo.Record{Topic: "events", Value: []byte("late")}, func(_ *kgo.Record, err error) {})
	<-one.store.Fenced()
	cl.Close()
	_ = one.Close() // fenced: what it says of that does not matter here

	one = c.open(1)
	if got := c.nodes(two)[1]; got.State != NodeServing || got.RecoveredBy != nil || got.OpenStreams < 6 {
		t.Fatalf("node that came back %+v", got)
	}
	got := c.consume(one, "events", "readers", 3)
	if slices.Sort(got); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Fatalf("consumed %q", got)
	}
	c.produce(one, "events", "d")
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	if got := c.nodes(two)[1]; got.State != NodeSilent {
		t.Fatalf("closed node %+v", got)
	}
	resp, err := http.Post("http://"+two.HTTPAddr()+"/api/nodes/1/recover", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	var last RecoverStatus
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || !last.Done || last.WALs != 1 || last.Streams < 6 {
		t.Fatalf("recovered %s", text)
	}
	one = c.open(1)
	if got := c.consume(one, "events", "others", 4); len(got) != 4 {
		t.Fatalf("consumed %q", got)
	}
}
