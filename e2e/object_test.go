package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/node"
	"github.com/tabletopic/tabletopic/streamstore"
)

// objects returns what `object list` prints with these arguments.
func (s *server) objects(args ...string) (all []node.ObjectStatus) {
	s.t.Helper()
	out, code := s.cli("", append([]string{"object", "list", "--output", "json"}, args...)...)
	if code != 0 {
		s.t.Fatalf("object list %v: exit %d\n%s", args, code, out)
	}
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var o node.ObjectStatus
		if err := d.Decode(&o); err != nil {
			s.t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

// An object that goes missing is named with the partition and the offsets that are lost; one
// that is damaged is found by a deep check. A stray object is an orphan, no error, and swept
// when it is older than the grace.
func TestObjectListAndCheck(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--upload-interval", "200ms", "--orphan-sweep-interval", "500ms", "--compaction-interval", "1h")
	const topic = "orders"
	if _, err := s.admin().CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	cl := s.client(kgo.DefaultProduceTopic(topic))
	for i := range 20 {
		if err := cl.ProduceSync(t.Context(), kgo.StringRecord(fmt.Sprint("record-", i, strings.Repeat("x", 1000)))).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	var victim node.ObjectStatus
	var lost node.RangeStatus
	eventually(t, 2*time.Minute, "records in objects", func() error {
		for _, o := range s.objects("--state", "referenced") {
			for _, r := range o.Ranges {
				if r.Of == topic+"-0" && r.End == 20 {
					victim, lost = o, r
					return nil
				}
			}
		}
		return errors.New("none holds the last record")
	})
	if got := s.objects("--stream", fmt.Sprint(lost.Stream)); len(got) == 0 || len(got) > 20 {
		t.Errorf("%d objects of stream %d", len(got), lost.Stream)
	}
	if out, code := s.cli("", "object", "list"); code != 0 || !strings.Contains(out, topic+"-0 [") || !strings.Contains(out, "HOLDS") {
		t.Errorf("object list: exit %d\n%s", code, out)
	}
	if out, code := s.cli("", "object", "list", "--state", "lost"); code != 1 || !strings.Contains(out, "want one of") {
		t.Errorf("a wrong state: exit %d\n%s", code, out)
	}
	for _, args := range [][]string{{"object", "check"}, {"object", "check", "--deep"}} {
		if out, code := s.cli("", args...); code != 0 || !strings.Contains(out, " 0 problems") {
			t.Fatalf("%v: exit %d\n%s", args, code, out)
		}
	}

	path := func(id int64) string {
		return filepath.Join(s.data, "objects", filepath.FromSlash(streamstore.ObjectKey(streamstore.ObjectID(id))))
	}
	good, err := os.ReadFile(path(victim.ID))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path(victim.ID)); err != nil {
		t.Fatal(err)
	}
	out, code := s.cli("", "object", "check")
	if want := fmt.Sprintf("%s-0 [%d, %d)", topic, lost.Start, lost.End); code != 1 || !strings.Contains(out, want) || !strings.Contains(out, "does not exist") {
		t.Fatalf("a missing object: exit %d, want 1 and %q\n%s", code, want, out)
	}
	if got := s.objects("--state", "referenced"); !func() bool {
		for _, o := range got {
			if o.ID == victim.ID && o.Missing {
				return true
			}
		}
		return false
	}() {
		t.Errorf("no object is missing in %+v", got)
	}
	bad := append([]byte(nil), good...)
	bad[len(bad)/2] ^= 1
	if err := os.WriteFile(path(victim.ID), bad, 0o644); err != nil {
		t.Fatal(err)
	}
	out, code = s.cli("", "object", "check", "--deep", "--output", "json")
	var result struct {
		node.CheckStatus
		Found []node.ProblemStatus
	}
	out, _, _ = strings.Cut(out, "\ntabletopic:")
	if err := json.Unmarshal([]byte(out), &result); code != 1 || err != nil || len(result.Found) != 1 || result.Found[0].ID != victim.ID || !strings.Contains(result.Found[0].Problem, "checksum") {
		t.Fatalf("a damaged object: exit %d, %v\n%s", code, err, out)
	}
	if err := os.WriteFile(path(victim.ID), good, 0o644); err != nil {
		t.Fatal(err)
	}

	const stray = 0 // an id that is never given away
	if err := os.MkdirAll(filepath.Dir(path(stray)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path(stray), []byte("left behind"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := s.objects("--state", "orphaned"); len(got) != 1 || got[0].ID != stray || got[0].Bytes != 11 {
		t.Fatalf("orphans: %+v", got)
	}
	if out, code := s.cli("", "object", "check", "--deep"); code != 0 || !strings.Contains(out, "1 orphaned") {
		t.Fatalf("a check with an orphan: exit %d\n%s", code, out)
	}
	old := time.Now().Add(-7 * time.Hour)
	if err := os.Chtimes(path(stray), old, old); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "orphan swept", func() error {
		if _, err := os.Stat(path(stray)); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	if out, code := s.cli("", "object", "check", "--deep"); code != 0 || !strings.Contains(out, " 0 problems") || !strings.Contains(out, "0 orphaned") {
		t.Fatalf("after the sweep: exit %d\n%s", code, out)
	}
}
