package metadata

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCredentials(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		other := testCredential
		other.Mechanism = 1
		if err := s.AlterCredentials(t.Context(), []ScramCredential{testCredential, other}, nil); err != nil {
			t.Fatal(err)
		}
		again := testCredential
		again.Salt = []byte("pepper")
		if err := s.AlterCredentials(t.Context(), []ScramCredential{again}, []ScramCredential{other}); err != nil {
			t.Fatal(err)
		}
		// What is not there takes the rest of the change with it.
		if err := s.AlterCredentials(t.Context(), []ScramCredential{other}, []ScramCredential{other}); !errors.Is(err, ErrCredentialNotExist) {
			t.Fatalf("got %v, want %v", err, ErrCredentialNotExist)
		}
		all, err := s.Credentials(t.Context())
		if diff := cmp.Diff(all, []ScramCredential{again}); err != nil || diff != "" {
			t.Fatalf("%v (-got +want):\n%s", err, diff)
		}
	})
}

func TestACLs(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		deny := testACL
		deny.Permission = 2
		before, err := s.LastChange(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.CreateACLs(t.Context(), []ACL{testACL, deny}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.DeleteACLs(t.Context(), []ACL{testACL, testACL}); err != nil {
			t.Fatal(err)
		}
		all, err := s.ACLs(t.Context())
		if diff := cmp.Diff(all, []ACL{deny}); err != nil || diff != "" {
			t.Fatalf("%v (-got +want):\n%s", err, diff)
		}
		changes, err := s.Changes(t.Context(), before, 10)
		if err != nil || len(changes) != 3 || changes[2].Kind != ChangeACL {
			t.Fatalf("changes %v, %v", changes, err)
		}
	})
}

func TestQuotas(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		other := ClientQuota{Entity: testQuota.Entity, Name: "consumer_byte_rate", Value: 1e300}
		if err := s.AlterQuotas(t.Context(), []ClientQuota{testQuota, other}, nil); err != nil {
			t.Fatal(err)
		}
		changed := testQuota
		changed.Value = 7
		if err := s.AlterQuotas(t.Context(), []ClientQuota{changed}, []ClientQuota{other}); err != nil {
			t.Fatal(err)
		}
		all, err := s.Quotas(t.Context())
		if diff := cmp.Diff(all, []ClientQuota{changed}); err != nil || diff != "" {
			t.Fatalf("%v (-got +want):\n%s", err, diff)
		}
	})
}

// A snapshot has what logins are checked against, for a restore; what is shown of it has not.
func TestDumpShowsNoSecrets(t *testing.T) {
	w := newSnapshotWriter(SnapshotInfo{Cluster: strings.Repeat("c", clusterIDSize)})
	w.table("scram_credential", []string{"name", "salt", "stored_key", "server_key"})
	if err := w.row([]any{"alice", []byte("salt"), []byte("stored"), []byte("server")}); err != nil {
		t.Fatal(err)
	}
	w.end()
	data, err := w.finish()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := DumpSnapshot(&out, data); err != nil {
		t.Fatal(err)
	}
	if want := "\"alice\", secret, secret, secret\n"; !strings.Contains(out.String(), want) {
		t.Fatalf("want %q in:\n%s", want, out.String())
	}
}

func TestGroupConfigs(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		for _, change := range []struct {
			set    map[string]string
			remove []string
		}{{set: map[string]string{"a": "1", "b": "2"}}, {set: map[string]string{"a": "3"}, remove: []string{"b", "c"}}} {
			if err := s.AlterGroupConfig(t.Context(), "g", change.set, change.remove); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.AlterGroupConfig(t.Context(), "h", map[string]string{"b": "4"}, nil); err != nil {
			t.Fatal(err)
		}
		all, err := s.GroupConfigs(t.Context())
		if diff := cmp.Diff(all, map[string]map[string]string{"g": {"a": "3"}, "h": {"b": "4"}}); err != nil || diff != "" {
			t.Fatalf("%v (-got +want):\n%s", err, diff)
		}
	})
}

// Text that PostgreSQL cannot hold is refused by both databases, whichever way it comes: what is in one can be
// restored into the other.
func TestTextThatADatabaseCannotHoldIsRefused(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		for _, text := range []string{"a\x00b", "a\xffb", "\xed\xa0\x80"} {
			acl, credential := testACL, testCredential
			acl.Principal, credential.User = "User:"+text, text
			for what, err := range map[string]error{
				"ACL":             s.CreateACLs(t.Context(), []ACL{acl}),
				"credential":      s.AlterCredentials(t.Context(), []ScramCredential{credential}, nil),
				"quota":           s.AlterQuotas(t.Context(), []ClientQuota{{Entity: text, Name: "x", Value: 1}}, nil),
				"group":           s.AlterGroupConfig(t.Context(), text, map[string]string{"k": "v"}, nil),
				"value":           s.AlterGroupConfig(t.Context(), "g", map[string]string{"k": text}, nil),
				"of what is gone": s.AlterGroupConfig(t.Context(), text, nil, []string{"k"}),
			} {
				if !errors.Is(err, ErrInvalidText) {
					t.Errorf("%s %q: %v, want %v", what, text, err, ErrInvalidText)
				}
			}
		}
		if err := s.AlterGroupConfig(t.Context(), "gruppe ä \u2603 \U0001f600", map[string]string{"k": "\u007f"}, nil); err != nil {
			t.Error(err)
		}
	})
}
