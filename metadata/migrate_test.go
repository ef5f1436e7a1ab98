package metadata

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/streamstore"
)

// populate puts something into every table that this version writes. The fixtures in
// testdata/versions were made from it: one for each version, never made again.
func populate(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	node := register(t, s)
	topic := create(t, s, node, NewTopic{Name: "clicks", Partitions: 2, Config: map[string]string{"table.topic.enable": "true"}})
	first, err := s.PrepareObjects(ctx, node, 4, time.Hour)
	must(err)
	p := topic.Partitions
	must(s.CommitUpload(ctx, node, streamstore.Upload{
		StreamSet: &streamstore.StreamSetObject{ID: first, Size: 100, Ranges: []streamstore.StreamRange{{Stream: p[0].Log, End: 10}, {Stream: p[1].Log, End: 20}}},
		Streams:   []streamstore.StreamObject{{ID: first + 1, Size: 50, Range: streamstore.StreamRange{Stream: p[0].Log, Start: 10, End: 30}}},
		WALEpoch:  node.Epoch, WALMark: 7}))
	must(s.CommitUpload(ctx, node, streamstore.Upload{
		Streams:  []streamstore.StreamObject{{ID: first + 2, Size: 60, Range: streamstore.StreamRange{Stream: p[1].Meta, End: 5}}},
		WALEpoch: node.Epoch, WALMark: 8}))
	must(s.TrimStream(ctx, node, p[1].Meta, 0, 5))
	_, err = s.AllocateProducerIDs(ctx, node, 1000)
	must(err)
	registerSchema(t, s, "base", `"string"`)
	registerSchema(t, s, "clicks-value", `{"type":"array","items":"x"}`, SchemaReference{"x", "base", 1})
	must(s.ChangeSubjectConfig(ctx, "", func(c *SubjectConfig) { c.Compatibility = "FULL" }))
	populateCompaction(t, s, node)
	populateTakeover(t, s, node)
	populateRegistry(t, s)
	populateRetired(t, s)
	populateSecurity(t, s)
	populateGUID(t, s)
}

// checkPopulated proves that a database holds what populate wrote, and that work goes on.
func checkPopulated(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	topic := topics(t, s)[0]
	p := topic.Partitions
	if topic.Name != "clicks" || len(p) != 2 || topic.Config["table.topic.enable"] != "true" {
		t.Fatalf("topic %+v", topic)
	}
	node, wals, err := s.RegisterNode(ctx, 1, streamstore.WALFile)
	if err != nil || node.Epoch != 2 {
		t.Fatalf("node %+v, %v", node, err)
	}
	if d := cmp.Diff(wals, []streamstore.WALState{{Epoch: 1, Kind: streamstore.WALObject, Mark: 8}}); d != "" {
		t.Fatalf("WALs (-got +want):\n%s", d)
	}
	found, err := s.StreamObjects(ctx, p[0].Log, 0, 100, 10)
	want := []streamstore.ObjectRange{
		{ObjectRef: streamstore.ObjectRef{ID: 1, Kind: streamstore.KindStreamSet, Size: 100}, Start: 0, End: 10},
		{ObjectRef: streamstore.ObjectRef{ID: 2, Kind: streamstore.KindStream, Size: 50}, Start: 10, End: 30}}
	if d := cmp.Diff(found, want); err != nil || d != "" {
		t.Fatalf("objects, %v (-got +want):\n%s", err, d)
	}
	var packed []byte
	if err := s.readers.QueryRow(`SELECT ranges FROM stream_set_object WHERE object = 1`).Scan(&packed); err != nil {
		t.Fatal(err)
	}
	if ranges, err := parseRanges(packed); err != nil || len(ranges) != 2 {
		t.Fatalf("ranges %v, %v", ranges, err)
	}
	gone, err := s.DeletableObjects(ctx, node, 0, 10)
	if err != nil || len(gone) != 2 || gone[0].ID != 3 || gone[1].ID != 4 {
		t.Fatalf("deletable %v, %v", gone, err)
	}
	if id, err := s.AllocateProducerIDs(ctx, node, 1); err != nil || id != 1000 {
		t.Fatalf("producer id %d, %v", id, err)
	}
	u := subject(t, s, "clicks-value")
	if len(u.Versions) != 1 || u.Versions[0].Schema.ID != 2 || len(u.Versions[0].Schema.References) != 1 {
		t.Fatalf("subject %+v", u)
	}
	if c, err := s.SubjectConfig(ctx, ""); err != nil || c.Compatibility != "FULL" {
		t.Fatalf("config %+v, %v", c, err)
	}
	checkCompaction(t, s, node)
	checkTakeover(t, s)
	checkRegistry(t, s)
	checkRetired(t, s)
	checkSecurity(t, s)
	checkGUID(t, s)
}

// populateCompaction leaves a composite of two stream objects; it came with version 2.
func populateCompaction(t *testing.T, s *Store, node streamstore.Node) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	create(t, s, node, NewTopic{Name: "compacted", Partitions: 1})
	id := topics(t, s)[1].Partitions[0].Log
	first, err := s.PrepareObjects(ctx, node, 3, time.Hour)
	must(err)
	for i := range int64(2) {
		must(s.CommitUpload(ctx, node, streamstore.Upload{
			Streams:  []streamstore.StreamObject{{ID: first + streamstore.ObjectID(i), Size: 40, Range: streamstore.StreamRange{Stream: id, Start: 10 * i, End: 10*i + 10}}},
			WALEpoch: node.Epoch, WALMark: 8}))
	}
	must(s.CommitCompaction(ctx, node, streamstore.Compaction{
		Sources: []streamstore.ObjectID{first, first + 1},
		Streams: []streamstore.StreamObject{{ID: first + 2, Size: 30, Range: streamstore.StreamRange{Stream: id, End: 20}, Parts: []streamstore.ObjectID{first, first + 1}}},
	}))
}

// checkCompaction proves that the composite is there, and that its parts go with it.
func checkCompaction(t *testing.T, s *Store, node streamstore.Node) {
	t.Helper()
	if len(topics(t, s)) < 2 {
		return // a database of version 1
	}
	ctx := t.Context()
	p := topics(t, s)[1].Partitions[0]
	found, err := s.StreamObjects(ctx, p.Log, 0, 100, 10)
	if err != nil || len(found) != 1 || found[0].Kind != streamstore.KindComposite || found[0].End != 20 {
		t.Fatalf("objects %v, %v", found, err)
	}
	before, err := s.DeletableObjects(ctx, node, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteStreams(ctx, node, []streamstore.StreamID{p.Log}); err != nil {
		t.Fatal(err)
	}
	after, err := s.DeletableObjects(ctx, node, 0, 10)
	if err != nil || len(after) != len(before)+3 {
		t.Fatalf("deletable %v, %v; before the composite was dropped %v", after, err, before)
	}
}

// populateTakeover leaves a node that another one leads; it came with version 4.
func populateTakeover(t *testing.T, s *Store, node streamstore.Node) {
	t.Helper()
	other, _, err := s.RegisterNode(t.Context(), 2, streamstore.WALObject)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AnnounceNode(t.Context(), other, NodeAddress{Kafka: "b:9092", HTTP: "b:8081"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.TakeOverNode(t.Context(), node, other.ID); err != nil {
		t.Fatal(err)
	}
}

// checkTakeover proves that the node is as it was left, and that nodes of versions that knew
// no takeover are led by nobody else.
func checkTakeover(t *testing.T, s *Store) {
	t.Helper()
	nodes, err := s.Nodes(t.Context())
	if err != nil || nodes[0].Leader != (streamstore.Node{}) {
		t.Fatalf("nodes %+v, %v", nodes, err)
	}
	at, err := s.NodeAddresses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) == 1 {
		if len(at) != 0 {
			t.Fatalf("addresses %v of a version that knew none", at)
		}
		return
	}
	want := streamstore.NodeState{
		Node: streamstore.Node{ID: 2, Epoch: 2}, Leader: streamstore.Node{ID: 1, Epoch: 1},
		WALs: []streamstore.WALState{{Epoch: 1, Kind: streamstore.WALObject}}}
	if d := cmp.Diff(nodes[1], want); d != "" {
		t.Fatalf("node 2 (-got +want):\n%s", d)
	}
	if at[2] != (NodeAddress{Kafka: "b:9092", HTTP: "b:8081"}) {
		t.Fatalf("addresses %v", at)
	}
}

// populateRegistry leaves a schema with all that it may have; it came with version 5.
func populateRegistry(t *testing.T, s *Store) {
	t.Helper()
	if err := s.ChangeSubjectConfig(t.Context(), "imported", func(c *SubjectConfig) { *c = SubjectConfig{Settings: `{"normalize":true}`, Mode: "IMPORT"} }); err != nil {
		t.Fatal(err)
	}
	_, err := s.RegisterSchema(t.Context(), subject(t, s, "imported"), 7, Schema{ID: 40, Type: "JSON", Text: "{}", Metadata: `{"tags":{}}`, RuleSet: `{"domainRules":[]}`})
	if err != nil {
		t.Fatal(err)
	}
}

// checkRegistry proves that the schema is as it was left, and its id never given away again.
func checkRegistry(t *testing.T, s *Store) {
	t.Helper()
	u := subject(t, s, "imported")
	if len(u.Versions) == 0 {
		return // a database of version 4 or before
	}
	want := SubjectVersion{Subject: "imported", Version: 7, Schema: Schema{ID: 40, Type: "JSON", Text: "{}", Metadata: `{"tags":{}}`, RuleSet: `{"domainRules":[]}`}}
	var err error
	if want.Schema.GUID, err = want.Schema.Identity(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(u.Versions, []SubjectVersion{want}); d != "" {
		t.Fatalf("versions (-got +want):\n%s", d)
	}
	if found, err := s.SchemaByGUID(t.Context(), want.Schema.GUID); err != nil || found.ID != 40 {
		t.Fatalf("by GUID %+v, %v", found, err)
	}
	if c, err := s.SubjectConfig(t.Context(), "imported"); err != nil || c != (SubjectConfig{Settings: `{"normalize":true}`, Mode: "IMPORT"}) {
		t.Fatalf("config %+v, %v", c, err)
	}
	if v := registerSchema(t, s, "after", `"bytes"`); v.Schema.ID != 41 {
		t.Fatalf("the next id is %d", v.Schema.ID)
	}
}

// populateRetired leaves the id of a schema that is gone for good; it came with version 6.
func populateRetired(t *testing.T, s *Store) {
	t.Helper()
	if _, err := s.RegisterSchema(t.Context(), subject(t, s, "gone"), 0, Schema{ID: 30, Type: "AVRO", Text: `"int"`}); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteVersions(t.Context(), subject(t, s, "gone"), []int{1}, true); err != nil {
		t.Fatal(err)
	}
}

// checkRetired proves that the id is not given to another schema, in a database of version 5
// none that was given away and is free.
func checkRetired(t *testing.T, s *Store) {
	t.Helper()
	if len(subject(t, s, "imported").Versions) == 0 {
		return // a database of version 4 or before, which has no such ids
	}
	_, err := s.RegisterSchema(t.Context(), subject(t, s, "new"), 0, Schema{ID: 30, Type: "AVRO", Text: `"double"`})
	if !errors.Is(err, ErrSchemaIDTaken) {
		t.Fatalf("an id that is gone: %v", err)
	}
}

// populateSecurity leaves a user, an ACL, a quota and the secret of the nodes; it came with version 7.
func populateSecurity(t *testing.T, s *Store) {
	t.Helper()
	_, err := s.ClusterSecret(t.Context())
	for _, err := range []error{err,
		s.AlterCredentials(t.Context(), []ScramCredential{testCredential}, nil),
		s.CreateACLs(t.Context(), []ACL{testACL}),
		s.AlterQuotas(t.Context(), []ClientQuota{testQuota}, nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

var (
	testCredential = ScramCredential{User: "alice", Mechanism: 2, Iterations: 4096, Salt: []byte("salt"), StoredKey: []byte("stored"), ServerKey: []byte("server")}
	testACL        = ACL{ResourceType: 2, ResourceName: "clicks", PatternType: 3, Principal: "User:alice", Host: "*", Operation: 3, Permission: 3}
	testQuota      = ClientQuota{Entity: `{"user":"alice"}`, Name: "producer_byte_rate", Value: 1024.5}
)

// checkSecurity proves that they are there, unless the database is of a version before.
func checkSecurity(t *testing.T, s *Store) {
	t.Helper()
	users, err := s.Credentials(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(users) == 0 {
		return
	}
	acls, err := s.ACLs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	quotas, err := s.Quotas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]any{users, acls, quotas}, []any{[]ScramCredential{testCredential}, []ACL{testACL}, []ClientQuota{testQuota}}); d != "" {
		t.Fatalf("got + want -:\n%s", d)
	}
	a, err := s.ClusterSecret(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if b, err := s.ClusterSecret(t.Context()); err != nil || len(a) != 32 || string(a) != string(b) {
		t.Fatalf("secrets of %d and %d bytes, %v", len(a), len(b), err)
	}
}

// populateGUID leaves a schema with the GUID of another registry; it came with version 8.
func populateGUID(t *testing.T, s *Store) {
	t.Helper()
	if _, err := s.RegisterSchema(t.Context(), subject(t, s, "foreign"), 0, Schema{ID: 39, Type: "AVRO", Text: `"float"`, GUID: testGUID}); err != nil {
		t.Fatal(err)
	}
}

var testGUID = uuid.MustParse("89791762-2336-186f-9674-299b90a80029")

// checkGUID proves that it has it, unless the database is of a version before.
func checkGUID(t *testing.T, s *Store) {
	t.Helper()
	u := subject(t, s, "foreign")
	if len(u.Versions) == 0 {
		return
	}
	if found, err := s.SchemaByGUID(t.Context(), testGUID); err != nil || found.Text != `"float"` || u.Versions[0].Schema.GUID != testGUID {
		t.Fatalf("by its GUID %+v, %v; version %+v", found, err, u.Versions[0])
	}
}

// A database of every version ever released opens, is brought up to date and keeps its data.
func TestMigrateFromEveryVersion(t *testing.T) {
	all, err := loadMigrations(migrations)
	if err != nil {
		t.Fatal(err)
	}
	fixtures, err := filepath.Glob("testdata/versions/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	if len(fixtures) != len(all) {
		t.Fatalf("%d fixtures for %d versions", len(fixtures), len(all))
	}
	for _, fixture := range fixtures {
		t.Run(filepath.Base(fixture), func(t *testing.T) {
			text, err := os.ReadFile(fixture)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "metadata.db")
			db, err := sql.Open("sqlite", sqliteDSN(path, false))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(string(text)); err != nil {
				t.Fatal(err)
			}
			db.Close()
			checkPopulated(t, openStore(t, sqliteDatabase(path, false), nil))
		})
	}
}

// What is written now is read again by the same version.
func TestReopen(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, newClock())
		populate(t, s)
		id := s.ClusterID()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, d, nil)
		if s.ClusterID() != id {
			t.Fatalf("cluster id %s, was %s", s.ClusterID(), id)
		}
		checkPopulated(t, s)
	})
}

// A database of a newer program, or of another history, is refused with a reason.
func TestMigrateRefusesOtherHistories(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
		one := fstest.MapFS{"migrations/0001_a.sql": file("CREATE TABLE a (x BIGINT)")}
		two := fstest.MapFS{"migrations/0001_a.sql": one["migrations/0001_a.sql"], "migrations/0002_b.sql": file("CREATE TABLE b (x BIGINT); INSERT INTO b (x) VALUES (1)")}
		changed := fstest.MapFS{"migrations/0001_a.sql": file("CREATE TABLE a (y BIGINT)"), "migrations/0002_b.sql": two["migrations/0002_b.sql"]}
		broken := fstest.MapFS{"migrations/0001_a.sql": one["migrations/0001_a.sql"], "migrations/0002_b.sql": file("CREATE TABLE b (x BIGINT); INSERT INTO none (x) VALUES (1)")}

		db, err := d.open(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		apply := func(dir fstest.MapFS) error {
			all, err := loadMigrations(dir)
			if err != nil {
				t.Fatal(err)
			}
			_, err = migrate(t.Context(), db, d.dialect, all, time.Now())
			return err
		}
		for _, step := range []struct {
			dir  fstest.MapFS
			want string // part of the error
		}{
			{one, ""}, {one, ""}, {broken, "0002_b"}, {two, ""}, {two, ""}, {one, "run a newer tabletopic"}, {changed, "changed migration"},
		} {
			if err := apply(step.dir); step.want == "" && err != nil || step.want != "" && (err == nil || !strings.Contains(err.Error(), step.want)) {
				t.Fatalf("got %v, want %q", err, step.want)
			}
		}
		var n int
		if err := db.QueryRow(`SELECT count(*) FROM b`).Scan(&n); err != nil || n != 1 {
			t.Fatalf("%d rows, %v: the migration ran other than once", n, err)
		}
		if _, err := loadMigrations(fstest.MapFS{"migrations/0002_b.sql": file("")}); err == nil {
			t.Fatal("a gap in the numbers was accepted")
		}
	})
}

func TestParseURL(t *testing.T) {
	for url, want := range map[string]string{"sqlite:/a b/m.db": "/a b/m.db", "sqlite:m.db": "m.db"} {
		if d, path, err := parseURL(url); err != nil || d.name != "sqlite" || path != want {
			t.Fatalf("%s: got %q, %v", url, path, err)
		}
	}
	for _, url := range []string{"", "m.db", "postgres:x", "mysql://me:secret@host/db", "sqlite:", "postgres://me:secret@host:port/db"} {
		_, _, err := parseURL(url)
		if err == nil || !strings.Contains(err.Error(), "metadata URL") || strings.Contains(err.Error(), "secret") {
			t.Fatalf("%s: got %v", url, err)
		}
	}
	// Characters that mean something in a URI are part of the name.
	path := filepath.Join(t.TempDir(), "a b?c#d%20é", "m.db")
	s, err := Open(t.Context(), "sqlite:"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
}
