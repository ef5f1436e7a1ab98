package security

import (
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/tabletopic/tabletopic/metadata"
)

func openMetadata(t testing.TB) *metadata.Store {
	t.Helper()
	meta, err := metadata.Open(t.Context(), "sqlite::memory:", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meta.Close() })
	return meta
}

// openAccess has the user alice, with the password secret.
func openAccess(t testing.TB, cfg Config) *Access {
	t.Helper()
	if cfg.Mechanisms == nil {
		cfg.Mechanisms = []string{Plain, ScramSHA256Name, ScramSHA512Name}
	}
	a, err := Open(t.Context(), cfg, openMetadata(t), slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	if err := a.SetPassword(t.Context(), "alice", "secret"); err != nil {
		t.Fatal(err)
	}
	return a
}

func exchange(t testing.TB, a *Access, mechanism string) Exchange {
	t.Helper()
	e, ok := a.Exchange(mechanism)
	if !ok {
		t.Fatalf("%s is not offered", mechanism)
	}
	return e
}

// scramLogin runs a whole exchange with the client of franz-go, and returns its last message too.
func scramLogin(t testing.TB, a *Access, mechanism, user, password string) (last []byte, id *Identity, err error) {
	t.Helper()
	client := scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
	if mechanism == ScramSHA512Name {
		client = scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
	}
	session, out, err := client.Authenticate(t.Context(), "host")
	if err != nil {
		t.Fatal(err)
	}
	e := exchange(t, a, mechanism)
	for {
		answer, id, err := e.Next(t.Context(), out)
		if err != nil {
			return out, nil, err
		}
		done, next, err := session.Challenge(answer)
		if err != nil {
			t.Fatalf("the client refuses the server: %v", err)
		}
		if id != nil {
			if !done {
				t.Fatal("the client wants more")
			}
			return out, id, nil
		}
		out = next
	}
}

func TestScram(t *testing.T) {
	a := openAccess(t, Config{})
	if err := a.SetPassword(t.Context(), "a=b,c", "pässword"); err != nil {
		t.Fatal(err)
	}
	for _, mechanism := range []string{ScramSHA256Name, ScramSHA512Name} {
		for user, password := range map[string]string{"alice": "secret", "a=b,c": "pässword", a.NodeUser(): a.NodePassword()} {
			if mechanism == ScramSHA512Name && user == a.NodeUser() {
				continue
			}
			if _, id, err := scramLogin(t, a, mechanism, user, password); err != nil || id.Principal != "User:"+user {
				t.Errorf("%s %s: %+v, %v", mechanism, user, id, err)
			}
			for _, wrong := range []string{"wrong", strings.ToUpper(password)} {
				if _, _, err := scramLogin(t, a, mechanism, user, wrong); !errors.As(err, new(*AuthenticationError)) {
					t.Errorf("%s %s with a wrong password: %v", mechanism, user, err)
				}
			}
		}
	}
}

// Whoever listens cannot log in with what it heard: the nonce of the next exchange is another.
func TestReplayedNonceIsRefused(t *testing.T) {
	a := openAccess(t, Config{})
	first := exchange(t, a, ScramSHA256Name).(*scramExchange)
	client, hello, err := scram.Auth{User: "alice", Pass: "secret", Nonce: []byte("abc")}.AsSha256Mechanism().Authenticate(t.Context(), "host")
	if err != nil {
		t.Fatal(err)
	}
	challenge, _, err := first.Next(t.Context(), hello)
	if err != nil {
		t.Fatal(err)
	}
	_, proof, err := client.Challenge(challenge)
	if err != nil {
		t.Fatal(err)
	}
	if _, id, err := first.Next(t.Context(), proof); err != nil || id == nil {
		t.Fatalf("the first time: %v", err)
	}
	again := exchange(t, a, ScramSHA256Name)
	if _, _, err := again.Next(t.Context(), hello); err != nil {
		t.Fatal(err)
	}
	if _, id, err := again.Next(t.Context(), proof); !errors.As(err, new(*AuthenticationError)) {
		t.Fatalf("a replayed proof makes %+v, %v", id, err)
	}
}

// Nothing in the first answer tells whether a user exists: each has a salt that stays.
func TestExchangeDoesNotTellWhoExists(t *testing.T) {
	a := openAccess(t, Config{})
	salt := func(user string) string {
		answer, _, err := exchange(t, a, ScramSHA512Name).Next(t.Context(), []byte("n,,n="+user+",r=abc"))
		if err != nil {
			t.Fatalf("%s: %v", user, err)
		}
		_, rest, _ := strings.Cut(string(answer), ",s=")
		return rest
	}
	nobody, again, noone, alice := salt("nobody"), salt("nobody"), salt("noone"), salt("alice")
	if nobody != again || nobody == noone || len(nobody) != len(alice) {
		t.Fatalf("nobody %s and %s, noone %s, alice %s", nobody, again, noone, alice)
	}
}

func TestMalformedTokensAreRefused(t *testing.T) {
	a := openAccess(t, Config{})
	for mechanism, tokens := range map[string][]string{
		Plain: {"", "alice", "\x00alice", "\x00\x00secret", "\x00alice\x00", "other\x00alice\x00secret", "\x00alice\x00secret\x00", "\x00alice\x00" + strings.Repeat("x", 1<<20)},
		ScramSHA256Name: {"", "n", "n,,", "n,,n=alice", "p=tls-unique,,n=alice,r=x", "n,a=bob,n=alice,r=x", "n,,n=,r=x", "n,,n=al=ice,r=x", "n,,n=alice,r=",
			"n,,n=alice,r=" + strings.Repeat("x", 300), "n,,n=alice,r=x,tokenauth=true", "\xff\xfe", "n,,m=ext,n=alice,r=x"},
	} {
		for _, token := range tokens {
			if answer, id, err := exchange(t, a, mechanism).Next(t.Context(), []byte(token)); !errors.As(err, new(*AuthenticationError)) {
				t.Errorf("%s %.40q: %q, %+v, %v", mechanism, token, answer, id, err)
			}
		}
	}
	for _, final := range []string{"", "c=biws", "c=biws,r=x,p=AAAA", "c=biws,r=x,p=!", "c=eSws,r=x,p=" + strings.Repeat("A", 43) + "="} {
		e := exchange(t, a, ScramSHA256Name)
		if _, _, err := e.Next(t.Context(), []byte("n,,n=alice,r=x")); err != nil {
			t.Fatal(err)
		}
		if _, id, err := e.Next(t.Context(), []byte(final)); !errors.As(err, new(*AuthenticationError)) {
			t.Errorf("%q: %+v, %v", final, id, err)
		}
	}
}

// A password that was right is not hashed again, and is forgotten when it is changed.
func TestChangedPasswordIsForgotten(t *testing.T) {
	a := openAccess(t, Config{})
	for range 2 {
		if p, err := a.Password(t.Context(), "alice", "secret"); err != nil || p != "User:alice" {
			t.Fatalf("%s, %v", p, err)
		}
	}
	token, err := a.IssueToken(t.Context(), "alice", "secret")
	if err != nil {
		t.Fatal(err)
	}
	if id, err := a.Bearer(t.Context(), token); err != nil || id.Principal != "User:alice" {
		t.Fatalf("%+v, %v", id, err)
	}
	if err := a.SetPassword(t.Context(), "alice", "other"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Password(t.Context(), "alice", "secret"); err == nil {
		t.Error("the old password is good")
	}
	if _, err := a.Bearer(t.Context(), token); err == nil {
		t.Error("a token of the old password is good")
	}
	for _, changed := range []string{"", "tt1.", token + "x", strings.Replace(token, ".", "..", 1), "tt1.e30." + strings.Repeat("A", 43)} {
		if _, err := a.Bearer(t.Context(), changed); err == nil {
			t.Errorf("token %q is good", changed)
		}
	}
}

func FuzzExchange(f *testing.F) {
	a := openAccess(f, Config{})
	f.Add(uint8(0), []byte("\x00alice\x00secret"), []byte("x"))
	f.Add(uint8(1), []byte("n,,n=alice,r=x"), []byte("c=biws,r=x,p=AAAA"))
	f.Add(uint8(3), []byte("n,,\x01auth=Bearer tt1.e30.x\x01\x01"), []byte("\x01"))
	f.Fuzz(func(t *testing.T, which uint8, first, second []byte) {
		if which %= 4; which == 0 && len(first) > 0 && strings.Contains(string(first), "secret") {
			return
		}
		e := []Exchange{&plainExchange{a}, &scramExchange{a: a, mechanism: ScramSHA256}, &scramExchange{a: a, mechanism: ScramSHA512}, &oauthExchange{a: a}}[which]
		for _, token := range [][]byte{first, second} {
			_, id, err := e.Next(t.Context(), token)
			if id != nil {
				t.Fatalf("%q, %q: became %s", first, second, id.Principal)
			}
			if err != nil {
				return
			}
		}
	})
}
