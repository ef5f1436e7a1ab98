package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/security"
)

// secured is a broker that asks everybody who it is, with the users admin, a super user, and alice.
type secured struct {
	*testBroker
	access *security.Access
}

func startSecured(t testing.TB, cfg Config, sec security.Config) secured {
	t.Helper()
	set, meta, node := openSet(t)
	sec.Authorize, sec.SuperUsers = true, []string{"User:admin"}
	if sec.Mechanisms == nil {
		sec.Mechanisms = []string{security.Plain, security.ScramSHA256Name, security.ScramSHA512Name}
	}
	access := openAccess(t, sec, meta)
	for _, user := range []string{"admin", "alice"} {
		if err := access.SetPassword(t.Context(), user, user+"'s password"); err != nil {
			t.Fatal(err)
		}
	}
	return secured{startWith(t, cfg, Listener{Listener: listen(t), SASL: true}, access, set, meta, node), access}
}

// as is a client of a user, by a mechanism.
func (b secured) as(t testing.TB, user, mechanism string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	return b.client(t, append(opts, kgo.SASL(mechanismOf(user, user+"'s password", mechanism)))...)
}

func mechanismOf(user, password, mechanism string) sasl.Mechanism {
	switch mechanism {
	case security.ScramSHA256Name:
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
	case security.ScramSHA512Name:
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
	}
	return plain.Auth{User: user, Pass: password}.AsMechanism()
}

// A user that no ACL gives anything gets nothing, by whatever mechanism it came; what an ACL
// gives it has, and no more.
func TestUsersHaveWhatACLsGive(t *testing.T) {
	b := startSecured(t, Config{}, security.Config{})
	b.topic(t, "clicks", 1)
	b.topic(t, "orders", 1)
	ctx := t.Context()
	for _, mechanism := range []string{security.Plain, security.ScramSHA256Name, security.ScramSHA512Name} {
		alice := b.as(t, "alice", mechanism)
		err := alice.ProduceSync(ctx, &kgo.Record{Topic: "clicks", Value: []byte("x")}).FirstErr()
		if !errors.Is(err, kerr.TopicAuthorizationFailed) {
			t.Fatalf("%s: produce without rights: %v", mechanism, err)
		}
		if topics, err := kadm.NewClient(alice).ListTopics(ctx); err != nil || len(topics) != 0 {
			t.Fatalf("%s: sees %v, %v", mechanism, topics.Names(), err)
		}
	}
	admin := kadm.NewClient(b.as(t, "admin", security.ScramSHA512Name))
	acls := kadm.NewACLs().Topics("cli").ResourcePatternType(kadm.ACLPatternPrefixed).Operations(kadm.OpWrite).Allow("User:alice").AllowHosts("*")
	if results, err := admin.CreateACLs(ctx, acls); err != nil || len(results) != 1 || results[0].Err != nil {
		t.Fatalf("create ACLs: %v, %v", results, err)
	}
	alice := b.as(t, "alice", security.ScramSHA256Name, kgo.ConsumeTopics("clicks"))
	if err := alice.ProduceSync(ctx, &kgo.Record{Topic: "clicks", Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := alice.ProduceSync(ctx, &kgo.Record{Topic: "orders", Value: []byte("x")}).FirstErr(); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Fatalf("produce to another topic: %v", err)
	}
	if topics, err := kadm.NewClient(alice).ListTopics(ctx); err != nil || !slices.Equal(topics.Names(), []string{"clicks"}) {
		t.Fatalf("sees %v, %v", topics.Names(), err)
	}
	if err := alice.PollFetches(ctx).Err(); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Fatalf("consume: %v", err)
	}
	described, err := admin.DescribeACLs(ctx, kadm.NewACLs().AnyResource().ResourcePatternType(kadm.ACLPatternAny).Operations().Allow().Deny().AllowHosts().DenyHosts())
	if err != nil || len(described) == 0 || len(described[0].Described) != 1 {
		t.Fatalf("described %+v, %v", described, err)
	}
	if results, err := admin.DeleteACLs(ctx, acls); err != nil || len(results) != 1 || len(results[0].Deleted) != 1 {
		t.Fatalf("delete ACLs: %+v, %v", results, err)
	}
	if err := alice.ProduceSync(ctx, &kgo.Record{Topic: "clicks", Value: []byte("x")}).FirstErr(); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Fatalf("produce after the ACL is gone: %v", err)
	}
}

// A regular expression of a consumer matches the topics that it may describe, and no others, also
// after its ACLs have changed.
func TestRegularExpressionsMatchWhatMayBeDescribed(t *testing.T) {
	b := startSecured(t, Config{}, security.Config{})
	b.topic(t, "clicks", 1)
	b.topic(t, "orders", 1)
	ctx := t.Context()
	admin := kadm.NewClient(b.as(t, "admin", security.ScramSHA512Name))
	allow := func(acls *kadm.ACLBuilder) *kadm.ACLBuilder {
		t.Helper()
		acls = acls.Allow("User:alice").AllowHosts("*").ResourcePatternType(kadm.ACLPatternLiteral)
		if results, err := admin.CreateACLs(ctx, acls); err != nil || results[0].Err != nil {
			t.Fatalf("create ACLs: %v, %v", results, err)
		}
		return acls
	}
	allow(kadm.NewACLs().Groups("g").Operations(kadm.OpRead))
	allow(kadm.NewACLs().Topics("clicks").Operations(kadm.OpDescribe))
	alice := b.as(t, "alice", security.ScramSHA256Name)
	epoch, owns := int32(0), []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	// assigned sends heartbeats as a consumer does until nothing changes, and returns the topics.
	assigned := func() string {
		t.Helper()
		for {
			req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
			req.Group, req.MemberID, req.MemberEpoch, req.Topics = "g", "m", epoch, owns
			if epoch == 0 {
				req.RebalanceTimeoutMillis, req.SubscribedTopicRegex = 60_000, kmsg.StringPtr(".*")
			}
			resp, err := req.RequestWith(ctx, alice)
			if err != nil || resp.ErrorCode != 0 {
				t.Fatal(err, kerr.ErrorForCode(resp.ErrorCode))
			}
			epoch = resp.MemberEpoch
			if resp.Assignment == nil {
				break
			}
			owns = owns[:0]
			for _, a := range resp.Assignment.Topics {
				owns = append(owns, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: a.TopicID, Partitions: a.Partitions})
			}
		}
		var names []string
		for _, o := range owns {
			topic, _ := b.set.TopicByID(uuid.UUID(o.TopicID))
			names = append(names, topic.Name)
		}
		slices.Sort(names)
		return fmt.Sprint(names)
	}
	if got := assigned(); got != "[clicks]" {
		t.Errorf("assigned %s, want what alice may describe, [clicks]", got)
	}
	orders := allow(kadm.NewACLs().Topics("orders").Operations(kadm.OpDescribe))
	if got := assigned(); got != "[clicks orders]" {
		t.Errorf("assigned %s after an ACL came, want [clicks orders]", got)
	}
	if results, err := admin.DeleteACLs(ctx, orders); err != nil || len(results) != 1 || len(results[0].Deleted) != 1 {
		t.Fatalf("delete ACLs: %+v, %v", results, err)
	}
	if got := assigned(); got != "[clicks]" {
		t.Errorf("assigned %s after the ACL is gone, want [clicks]", got)
	}
}

func TestWrongPasswordsAreRefused(t *testing.T) {
	b := startSecured(t, Config{}, security.Config{})
	for _, mechanism := range []string{security.Plain, security.ScramSHA256Name, security.ScramSHA512Name} {
		for _, user := range []string{"alice", "nobody", "__node"} {
			cl := b.client(t, kgo.SASL(mechanismOf(user, "wrong", mechanism)), kgo.RequestRetries(0), kgo.RetryTimeout(5*time.Second))
			if err := cl.Ping(t.Context()); !errors.Is(err, kerr.SaslAuthenticationFailed) {
				t.Errorf("%s as %s: %v", mechanism, user, err)
			}
		}
	}
	if cl := b.client(t, kgo.SASL(mechanismOf("alice", "alice's password", security.OAuthBearer)), kgo.RequestRetries(0)); cl.Ping(t.Context()) != nil {
		t.Error("PLAIN is refused")
	}
}

// The password of a user is changed by Kafka's own request, which salts it at the client.
func TestUsersAreChangedByClients(t *testing.T) {
	b := startSecured(t, Config{}, security.Config{})
	admin := kadm.NewClient(b.as(t, "admin", security.ScramSHA512Name))
	ctx := t.Context()
	up := []kadm.UpsertSCRAM{{User: "bob", Mechanism: kadm.ScramSha512, Iterations: 4096, Password: "bob's password"}}
	altered, err := admin.AlterUserSCRAMs(ctx, []kadm.DeleteSCRAM{{User: "alice", Mechanism: kadm.ScramSha256}}, up)
	if err != nil || altered.Error() != nil {
		t.Fatalf("%v, %v", altered, err)
	}
	for _, mechanism := range []string{security.ScramSHA512Name, security.Plain} {
		if err := b.as(t, "bob", mechanism).Ping(ctx); err != nil {
			t.Errorf("%s: %v", mechanism, err)
		}
	}
	if err := b.as(t, "alice", security.ScramSHA256Name, kgo.RequestRetries(0)).Ping(ctx); !errors.Is(err, kerr.SaslAuthenticationFailed) {
		t.Errorf("with a removed password: %v", err)
	}
	users, err := admin.DescribeUserSCRAMs(ctx)
	if err != nil || len(users) != 3 || len(users["alice"].CredInfos) != 1 || users["bob"].CredInfos[0].Iterations != 4096 {
		t.Errorf("users %+v, %v", users, err)
	}
	bob := kadm.NewClient(b.as(t, "bob", security.Plain))
	if altered, err := bob.AlterUserSCRAMs(ctx, nil, up); err == nil && altered.Error() == nil {
		t.Error("a user without rights changes passwords")
	}
}

func ask(t *testing.T, w *wire, mechanism string, tokens ...string) *kmsg.SASLAuthenticateResponse {
	t.Helper()
	handshake := kmsg.NewPtrSASLHandshakeRequest()
	handshake.Version, handshake.Mechanism = 1, mechanism
	if resp := w.ask(handshake).(*kmsg.SASLHandshakeResponse); resp.ErrorCode != 0 {
		return &kmsg.SASLAuthenticateResponse{ErrorCode: resp.ErrorCode}
	}
	var resp *kmsg.SASLAuthenticateResponse
	for _, token := range tokens {
		req := kmsg.NewPtrSASLAuthenticateRequest()
		req.Version, req.SASLAuthBytes = 2, []byte(token)
		resp = w.ask(req).(*kmsg.SASLAuthenticateResponse)
	}
	return resp
}

// Who has a session proves again who it is before it ends (KIP-368), as the same user and by
// the same mechanism; whoever does not is let go.
func TestSessionsEnd(t *testing.T) {
	b := startSecured(t, Config{}, security.Config{SessionLifetime: 300 * time.Millisecond})
	alice, admin := "\x00alice\x00alice's password", "\x00admin\x00admin's password"
	w := b.dial(t)
	if resp := ask(t, w, security.Plain, alice); resp.ErrorCode != 0 || resp.SessionLifetimeMillis < 200 || resp.SessionLifetimeMillis > 300 {
		t.Fatalf("%+v", resp)
	}
	if resp := ask(t, w, security.Plain, alice); resp.ErrorCode != 0 {
		t.Fatalf("again: %+v", resp)
	}
	if resp := ask(t, w, security.ScramSHA256Name); resp.ErrorCode != kerr.UnsupportedSaslMechanism.Code {
		t.Fatalf("by another mechanism: %+v", resp)
	}
	w = b.dial(t)
	ask(t, w, security.Plain, alice)
	if resp := ask(t, w, security.Plain, admin); resp.ErrorCode != kerr.SaslAuthenticationFailed.Code {
		t.Fatalf("as another user: %+v", resp)
	}
	w = b.dial(t)
	ask(t, w, security.Plain, alice)
	eventually(t, "end of the session", func() bool {
		_, err := w.Write(kmsg.NewRequestFormatter().AppendRequest(nil, kmsg.NewPtrMetadataRequest(), 7))
		if err == nil {
			_, err = w.frame()
		}
		return err != nil
	})
}

// Clients before Kafka 1.0 send their tokens as they are.
func TestTokensWithoutRequests(t *testing.T) {
	b := startSecured(t, Config{}, security.Config{})
	w := b.dial(t)
	handshake := kmsg.NewPtrSASLHandshakeRequest()
	handshake.Mechanism = security.Plain
	w.ask(handshake)
	if _, err := w.Write(framed([]byte("\x00alice\x00alice's password"))); err != nil {
		t.Fatal(err)
	}
	if raw, err := w.frame(); err != nil || len(raw) != 0 {
		t.Fatalf("token %x, %v", raw, err)
	}
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 9
	if resp := w.ask(req).(*kmsg.MetadataResponse); len(resp.Brokers) != 1 {
		t.Fatalf("%+v", resp)
	}
	w = b.dial(t)
	w.ask(handshake)
	if _, err := w.Write(framed([]byte("\x00a\x00b"))); err != nil {
		t.Fatal(err)
	}
	if raw, err := w.frame(); err == nil {
		t.Fatalf("a wrong password: %x", raw)
	}
}

// Before a client has proved who it is, it can ask for nothing but that.
func TestRequestsBeforeAuthentication(t *testing.T) {
	b := startSecured(t, Config{}, security.Config{})
	for _, a := range b.apis.list {
		if a.key == kmsg.ApiVersions || a.key == kmsg.SASLHandshake || a.key == kmsg.SASLAuthenticate {
			continue
		}
		w := b.dial(t)
		req := a.key.Request()
		req.SetVersion(a.max)
		w.send(1, req)
		if raw, err := w.frame(); err == nil {
			t.Errorf("%s is answered: %x", a.name(), raw)
		}
	}
	w := b.dial(t)
	versions := kmsg.NewPtrApiVersionsRequest()
	if resp := w.ask(versions).(*kmsg.ApiVersionsResponse); resp.ErrorCode != 0 {
		t.Errorf("ApiVersions: %+v", resp)
	}
	authenticate := kmsg.NewPtrSASLAuthenticateRequest()
	authenticate.SASLAuthBytes = []byte("\x00alice\x00alice's password")
	if resp := w.ask(authenticate).(*kmsg.SASLAuthenticateResponse); resp.ErrorCode != kerr.IllegalSaslState.Code {
		t.Errorf("SaslAuthenticate without SaslHandshake: %+v", resp)
	}
	if raw, err := w.frame(); err == nil {
		t.Errorf("and then %x", raw)
	}
}

// Requests of SASL that come twice, or in another order than that of the protocol, make nobody somebody.
func TestAuthenticationOutOfOrder(t *testing.T) {
	b := startSecured(t, Config{}, security.Config{})
	alice := "\x00alice\x00alice's password"
	handshake := func(version int16, mechanism string) kmsg.Request {
		return &kmsg.SASLHandshakeRequest{Version: version, Mechanism: mechanism}
	}
	authenticate := func(token string) kmsg.Request {
		return &kmsg.SASLAuthenticateRequest{Version: 2, SASLAuthBytes: []byte(token)}
	}
	metadata := &kmsg.MetadataRequest{Version: 9}
	const closed = -2 // in place of an error code
	code := func(w *wire, req kmsg.Request) int16 {
		if _, err := w.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, 7)); err != nil {
			return closed
		}
		raw, err := w.frame()
		if err != nil {
			return closed
		}
		resp := req.ResponseKind()
		if req.IsFlexible() {
			raw = raw[1:]
		}
		if err := resp.ReadFrom(raw[4:]); err != nil {
			t.Fatal(err)
		}
		switch resp := resp.(type) {
		case *kmsg.SASLHandshakeResponse:
			return resp.ErrorCode
		case *kmsg.SASLAuthenticateResponse:
			return resp.ErrorCode
		}
		return 0
	}
	illegal, failed, unsupported := kerr.IllegalSaslState.Code, kerr.SaslAuthenticationFailed.Code, kerr.UnsupportedSaslMechanism.Code
	for name, tc := range map[string]struct {
		steps []kmsg.Request
		want  []int16
	}{
		"in order":                            {[]kmsg.Request{handshake(1, "PLAIN"), authenticate(alice), metadata}, []int16{0, 0, 0}},
		"a token first":                       {[]kmsg.Request{authenticate(alice), handshake(1, "PLAIN")}, []int16{illegal, closed}},
		"a request between":                   {[]kmsg.Request{handshake(1, "PLAIN"), metadata}, []int16{0, closed}},
		"a request in the middle of SCRAM":    {[]kmsg.Request{handshake(1, "SCRAM-SHA-256"), authenticate("n,,n=alice,r=abc"), metadata}, []int16{0, 0, closed}},
		"two handshakes":                      {[]kmsg.Request{handshake(1, "SCRAM-SHA-256"), handshake(1, "PLAIN"), authenticate(alice)}, []int16{0, illegal, failed}},
		"handshakes of two versions":          {[]kmsg.Request{handshake(1, "PLAIN"), handshake(0, "PLAIN"), authenticate(alice), metadata}, []int16{0, illegal, 0, 0}},
		"a handshake in the middle of SCRAM":  {[]kmsg.Request{handshake(1, "SCRAM-SHA-256"), authenticate("n,,n=alice,r=abc"), handshake(1, "PLAIN"), authenticate(alice)}, []int16{0, 0, illegal, failed}},
		"a mechanism that is not there":       {[]kmsg.Request{handshake(1, "GSSAPI"), handshake(1, "PLAIN")}, []int16{unsupported, closed}},
		"a mechanism with NUL":                {[]kmsg.Request{handshake(1, "PLAIN\x00"), handshake(1, "PLAIN")}, []int16{unsupported, closed}},
		"the last message of SCRAM first":     {[]kmsg.Request{handshake(1, "SCRAM-SHA-256"), authenticate("c=biws,r=abc,p=AAAA"), metadata}, []int16{0, failed, closed}},
		"a token of another mechanism":        {[]kmsg.Request{handshake(1, "SCRAM-SHA-256"), authenticate(alice), metadata}, []int16{0, failed, closed}},
		"an empty token":                      {[]kmsg.Request{handshake(1, "PLAIN"), authenticate(""), metadata}, []int16{0, failed, closed}},
		"a token after a failure":             {[]kmsg.Request{handshake(1, "PLAIN"), authenticate("\x00alice\x00wrong"), authenticate(alice)}, []int16{0, failed, closed}},
		"a token after success":               {[]kmsg.Request{handshake(1, "PLAIN"), authenticate(alice), authenticate(alice), metadata}, []int16{0, 0, illegal, 0}},
		"twice where sessions do not end":     {[]kmsg.Request{handshake(1, "PLAIN"), authenticate(alice), handshake(1, "PLAIN"), metadata}, []int16{0, 0, illegal, 0}},
		"another user on the same connection": {[]kmsg.Request{handshake(1, "PLAIN"), authenticate(alice), authenticate("\x00admin\x00admin's password"), metadata}, []int16{0, 0, illegal, 0}},
	} {
		w := b.dial(t)
		var got []int16
		for _, step := range tc.steps {
			got = append(got, code(w, step))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
		w.Close()
	}
	if err := b.as(t, "alice", security.ScramSHA512Name).Ping(t.Context()); err != nil {
		t.Error(err)
	}
	assertIdle(t, b.testBroker)
}

// Strangers that announce much and send little are let go when their time is up, and until then
// take nothing from those who have proved who they are.
func TestStrangersTakeNoMemoryOfOthers(t *testing.T) {
	b := startSecured(t, Config{AuthTimeout: time.Second, MaxRequestBytes: maxAuthBytes, MaxRequestMemory: 2 * maxAuthBytes}, security.Config{})
	var strangers []*wire
	for range 300 {
		w := b.dial(t)
		if _, err := w.Write(append(binary.BigEndian.AppendUint32(nil, maxAuthBytes), make([]byte, 8)...)); err != nil {
			t.Fatal(err)
		}
		strangers = append(strangers, w)
	}
	eventually(t, "memory of strangers in use", func() bool {
		if b.authMemory.TryAcquire(authMemory) {
			b.authMemory.Release(authMemory)
			return false
		}
		return true
	})
	if !b.reqMemory.TryAcquire(2 * maxAuthBytes) {
		t.Error("strangers take memory of others")
	} else {
		b.reqMemory.Release(2 * maxAuthBytes)
	}
	for _, w := range strangers {
		if raw, err := w.frame(); err == nil {
			t.Fatalf("a stranger is answered: %x", raw)
		}
	}
	if w := b.dial(t); ask(t, w, security.Plain, "\x00alice\x00alice's password").ErrorCode != 0 {
		t.Error("nobody can log in afterwards")
	}
}

// A request that is larger than a login needs is cut off where its client has not logged in, as soon as its length is there; who has
// logged in may send it.
func TestLargeRequestsBeforeALogin(t *testing.T) {
	b := startSecured(t, Config{}, security.Config{})
	handshake := &kmsg.SASLHandshakeRequest{Version: 1, Mechanism: security.Plain}
	token := func(n int) []byte {
		return kmsg.NewRequestFormatter().AppendRequest(nil, &kmsg.SASLAuthenticateRequest{Version: 2, SASLAuthBytes: make([]byte, n)}, 7)
	}
	w := b.dial(t)
	w.ask(handshake)
	if _, err := w.Write(token(maxAuthBytes)[:4]); err != nil { // its length
		t.Fatal(err)
	}
	if raw, err := w.frame(); !errors.Is(err, io.EOF) {
		t.Errorf("a token of more than %d bytes: an answer of %d bytes, %v, want the end of the connection", maxAuthBytes, len(raw), err)
	}
	w = b.dial(t)
	w.ask(handshake)
	if _, err := w.Write(token(maxAuthBytes - 100)); err != nil {
		t.Fatal(err)
	}
	var refused kmsg.SASLAuthenticateResponse
	refused.Version = 2
	if raw, err := w.frame(); err != nil || refused.ReadFrom(raw[5:]) != nil || refused.ErrorCode != kerr.SaslAuthenticationFailed.Code {
		t.Errorf("a token of nearly %d bytes: %v, %v", maxAuthBytes, kerr.ErrorForCode(refused.ErrorCode), err)
	}
	w = b.dial(t)
	if got := ask(t, w, security.Plain, "\x00alice\x00alice's password"); got.ErrorCode != 0 {
		t.Fatal(kerr.ErrorForCode(got.ErrorCode))
	}
	var topics []string
	for range 10_000 {
		topics = append(topics, "a-topic-that-is-not-there")
	}
	if got := w.ask(metadataRequest(topics...)).(*kmsg.MetadataResponse); len(got.Topics) != 1 || got.Topics[0].ErrorCode != kerr.TopicAuthorizationFailed.Code {
		t.Errorf("a request of more than %d bytes after the login: %d topics", maxAuthBytes, len(got.Topics))
	}
}

// One address cannot take all connections.
func TestConnectionsPerAddress(t *testing.T) {
	b := start(t, Config{MaxConnectionsPerAddress: 2})
	first, second := b.dial(t), b.dial(t)
	for _, w := range []*wire{first, second} {
		w.ask(kmsg.NewPtrApiVersionsRequest())
	}
	if _, err := b.dial(t).frame(); err == nil {
		t.Fatal("a third connection was served")
	}
	first.Close()
	eventually(t, "a place for another", func() bool {
		w := b.dial(t)
		w.Write(kmsg.NewRequestFormatter().AppendRequest(nil, kmsg.NewPtrApiVersionsRequest(), 1))
		_, err := w.frame()
		return err == nil
	})
}

// rightRow is a row of the table of docs/security.md: alternatives, each of rights that are all needed.
type rightRow struct {
	text    [][]string
	without string
}

// documentedRights reads the table.
func documentedRights(t *testing.T) map[string]rightRow {
	t.Helper()
	text, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]rightRow{}
	row := regexp.MustCompile(`(?m)^\| (\w+) \| ([A-Z_]+ [A-Z_]+(?: (?:or|and) [A-Z_]+ [A-Z_]+)*|nothing) \| ?(.*?) ?\|$`)
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		r := rightRow{without: m[3]}
		if m[2] != "nothing" {
			for alternative := range strings.SplitSeq(m[2], " or ") {
				r.text = append(r.text, strings.Split(alternative, " and "))
			}
		}
		rows[m[1]] = r
	}
	return rows
}

// errorCodes are all errors in an answer.
func errorCodes(v reflect.Value, into map[int16]bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			errorCodes(v.Elem(), into)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct {
			for i := range v.Len() {
				errorCodes(v.Index(i), into)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Name == "ErrorCode" {
				into[int16(v.Field(i).Int())] = true
			} else {
				errorCodes(v.Field(i), into)
			}
		}
	}
}

// Every request that is served asks for the rights of docs/security.md, answers with the code
// that is there when its client lacks one, and does not when it has them.
func TestEveryRequestNeedsItsRights(t *testing.T) {
	b := startSecured(t, Config{}, security.Config{})
	want := documentedRights(t)
	fill := requestsAbout("n")
	fill[kmsg.InitProducerID] = func(r kmsg.Request) { r.(*kmsg.InitProducerIDRequest).TransactionalID = nil }
	fill[kmsg.DescribeConfigs] = func(r kmsg.Request) {
		r.(*kmsg.DescribeConfigsRequest).Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "n"}}
	}
	fill[kmsg.AlterConfigs] = func(r kmsg.Request) {
		r.(*kmsg.AlterConfigsRequest).Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "n"}}
	}
	fill[kmsg.IncrementalAlterConfigs] = func(r kmsg.Request) {
		r.(*kmsg.IncrementalAlterConfigsRequest).Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "n"}}
	}
	fill[kmsg.OffsetDelete] = func(r kmsg.Request) {
		p := r.(*kmsg.OffsetDeleteRequest)
		p.Group, p.Topics = "n", []kmsg.OffsetDeleteRequestTopic{{Topic: "n", Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{}}}}
	}
	fill[kmsg.OffsetFetch] = func(r kmsg.Request) {
		r.(*kmsg.OffsetFetchRequest).Groups = []kmsg.OffsetFetchRequestGroup{{Group: "n", Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: "n", Partitions: []int32{0}}}}}
	}
	fill[kmsg.AlterReplicaLogDirs] = func(r kmsg.Request) {
		r.(*kmsg.AlterReplicaLogDirsRequest).Dirs = []kmsg.AlterReplicaLogDirsRequestDir{{Dir: logDir, Topics: []kmsg.AlterReplicaLogDirsRequestDirTopic{{Topic: "n", Partitions: []int32{0}}}}}
	}
	fill[kmsg.ConsumerGroupHeartbeat] = func(r kmsg.Request) {
		p := r.(*kmsg.ConsumerGroupHeartbeatRequest)
		p.Group, p.SubscribedTopicNames = "n", []string{"n"}
	}
	fill[kmsg.ShareGroupHeartbeat] = func(r kmsg.Request) {
		p := r.(*kmsg.ShareGroupHeartbeatRequest)
		p.GroupID, p.SubscribedTopicNames = "n", []string{"n"}
	}
	fill[kmsg.ShareFetch] = func(r kmsg.Request) {
		topic, ok := b.set.Topic("n")
		if !ok {
			topic = b.topic(t, "n", 1)
		}
		p := r.(*kmsg.ShareFetchRequest)
		p.GroupID, p.MemberID = kmsg.StringPtr("n"), kmsg.StringPtr("m")
		p.Topics = []kmsg.ShareFetchRequestTopic{{TopicID: topic.ID, Partitions: []kmsg.ShareFetchRequestTopicPartition{{}}}}
	}
	// shareGroup makes an empty share group, of whose topics there is something to say.
	shareGroup := func() {
		for _, epoch := range []int32{0, -1} {
			req := kmsg.NewPtrShareGroupHeartbeatRequest()
			req.Version, req.GroupID, req.MemberID, req.MemberEpoch, req.SubscribedTopicNames = 1, "n-shared", "m", epoch, []string{"n"}
			if resp, err := b.groups.ShareHeartbeat(t.Context(), req, group.Timeouts{Session: time.Minute, Heartbeat: time.Second}, group.Client{}); err != nil || resp.ErrorCode != 0 {
				t.Fatal(err, resp)
			}
		}
	}
	fill[kmsg.DescribeShareGroupOffsets] = func(r kmsg.Request) {
		shareGroup()
		r.(*kmsg.DescribeShareGroupOffsetsRequest).Groups = []kmsg.DescribeShareGroupOffsetsRequestGroup{{GroupID: "n-shared", Topics: []kmsg.DescribeShareGroupOffsetsRequestGroupTopic{{Topic: "n", Partitions: []int32{0}}}}}
	}
	for key, set := range map[kmsg.Key]func(kmsg.Request){
		kmsg.AlterShareGroupOffsets: func(r kmsg.Request) {
			shareGroup()
			r.(*kmsg.AlterShareGroupOffsetsRequest).GroupID = "n-shared"
		},
		kmsg.DeleteShareGroupOffsets: func(r kmsg.Request) {
			shareGroup()
			r.(*kmsg.DeleteShareGroupOffsetsRequest).GroupID = "n-shared"
		},
		kmsg.JoinGroup:    func(r kmsg.Request) { r.(*kmsg.JoinGroupRequest).Group = "n" },
		kmsg.SyncGroup:    func(r kmsg.Request) { r.(*kmsg.SyncGroupRequest).Group = "n" },
		kmsg.Heartbeat:    func(r kmsg.Request) { r.(*kmsg.HeartbeatRequest).Group = "n" },
		kmsg.LeaveGroup:   func(r kmsg.Request) { r.(*kmsg.LeaveGroupRequest).Group = "n" },
		kmsg.OffsetCommit: func(r kmsg.Request) { r.(*kmsg.OffsetCommitRequest).Group = "n" },
		kmsg.Produce:      func(r kmsg.Request) { r.(*kmsg.ProduceRequest).Acks = 1 },
		kmsg.AddOffsetsToTxn: func(r kmsg.Request) {
			r.(*kmsg.AddOffsetsToTxnRequest).TransactionalID, r.(*kmsg.AddOffsetsToTxnRequest).Group = "n", "n"
		},
		kmsg.EndTxn: func(r kmsg.Request) { r.(*kmsg.EndTxnRequest).TransactionalID = "n" },
		kmsg.TxnOffsetCommit: func(r kmsg.Request) {
			r.(*kmsg.TxnOffsetCommitRequest).TransactionalID, r.(*kmsg.TxnOffsetCommitRequest).Group = "n", "n"
		},
	} {
		before := fill[key]
		fill[key] = func(r kmsg.Request) { before(r); set(r) }
	}
	refused := map[int16]string{
		kerr.TopicAuthorizationFailed.Code: "TOPIC_AUTHORIZATION_FAILED", kerr.GroupAuthorizationFailed.Code: "GROUP_AUTHORIZATION_FAILED",
		kerr.ClusterAuthorizationFailed.Code: "CLUSTER_AUTHORIZATION_FAILED", kerr.TransactionalIDAuthorizationFailed.Code: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
	}
	byName := map[kmsg.Key]int16{kmsg.Produce: 12, kmsg.Fetch: 12, kmsg.Metadata: 12, kmsg.OffsetCommit: 9, kmsg.OffsetFetch: 9, kmsg.TxnOffsetCommit: 5} // later ones have ids of topics
	// asked returns which authorization failures are in the answer to alice.
	asked := func(a *api) []string {
		w := b.dial(t)
		ask(t, w, security.Plain, "\x00alice\x00alice's password")
		req := a.key.Request()
		req.SetVersion(a.max)
		if last, ok := byName[a.key]; ok {
			req.SetVersion(last)
		}
		fill[a.key](req)
		codes := map[int16]bool{}
		errorCodes(reflect.ValueOf(w.ask(req)), codes)
		w.Close()
		var out []string
		for code, name := range refused {
			if codes[code] {
				out = append(out, name)
			}
		}
		return out
	}
	for i := range b.apis.list {
		a := &b.apis.list[i]
		row, ok := want[a.name()]
		if !ok {
			t.Errorf("docs/security.md has no row for %s", a.name())
			continue
		}
		delete(want, a.name())
		if row.text == nil {
			continue
		}
		if got := asked(a); row.without != "left out" && !slices.Equal(got, []string{row.without}) {
			t.Errorf("%s without rights: %v, want %s", a.name(), got, row.without)
		}
		for _, alternative := range row.text {
			var acls []metadata.ACL
			for i, right := range alternative {
				acls = append(acls, parseRight(t, right))
				if err := b.access.CreateACLs(t.Context(), acls[i:]); err != nil {
					t.Fatal(err)
				}
				if got := asked(a); row.without != "left out" && len(got) > 0 != (i < len(alternative)-1) {
					t.Errorf("%s with %v: %v", a.name(), alternative[:i+1], got)
				}
			}
			if err := b.access.DeleteACLs(t.Context(), acls); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name := range want {
		t.Errorf("docs/security.md has a row for %s, which is not served", name)
	}
}

// What a request asks for and may not do is a line in the log, once for each resource, with who asked for what from
// where; what is left out of a list is none.
func TestDenialsAreLoggedOncePerResource(t *testing.T) {
	set, meta, node := openSet(t)
	denied := &logBuffer{}
	access, err := security.Open(t.Context(), security.Config{Authorize: true, SuperUsers: []string{"User:admin"}, Mechanisms: []string{security.Plain}}, meta, slog.New(slog.NewTextHandler(denied, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(access.Close)
	if err := access.SetPassword(t.Context(), "alice", "alice's password"); err != nil {
		t.Fatal(err)
	}
	b := startWith(t, Config{}, Listener{Listener: listen(t), SASL: true}, access, set, meta, node)
	one, two := b.topic(t, "one", 3), b.topic(t, "two", 1)
	produce := produceRequest(9, one, 0, -1, testBatch(t, 1, 10))
	produce.Topics[0].Partitions = append(produce.Topics[0].Partitions, produce.Topics[0].Partitions[0])
	produce.Topics = append(produce.Topics, produceRequest(9, two, 0, -1, testBatch(t, 1, 10)).Topics...)
	fetch := fetchRequest(12, one, 0)
	for p := range int32(2) {
		next := fetch.Topics[0].Partitions[0]
		next.Partition = p + 1
		fetch.Topics[0].Partitions = append(fetch.Topics[0].Partitions, next)
	}
	none := produceRequest(9, one, 0, 0, testBatch(t, 1, 10)) // acks=0: there is no answer
	inTxn := produceRequest(9, one, 0, -1, testBatch(t, 1, 10))
	inTxn.TransactionID = kmsg.StringPtr("id")
	inTxn.Topics = append(inTxn.Topics, produce.Topics[1])
	markers := &kmsg.WriteTxnMarkersRequest{Version: 1, Markers: []kmsg.WriteTxnMarkersRequestMarker{{Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: "one", Partitions: []int32{0, 1}}}}}}
	describe := &kmsg.DescribeGroupsRequest{Version: 5, Groups: []string{"g", "h"}}
	end := &kmsg.EndTxnRequest{Version: 3, TransactionalID: "id"}
	acls := &kmsg.CreateACLsRequest{Version: 1, Creations: []kmsg.CreateACLsRequestCreation{{ResourceType: 2, ResourceName: "x", ResourcePatternType: 3, Principal: "User:alice", Host: "*", Operation: 3, PermissionType: 3}}}
	named := &kmsg.MetadataRequest{Version: 9, Topics: []kmsg.MetadataRequestTopic{{Topic: kmsg.StringPtr("one")}, {Topic: kmsg.StringPtr("none\nsuch")}}}
	all := &kmsg.MetadataRequest{Version: 9}
	for _, tc := range []struct {
		req  kmsg.Request
		want []string // operation, type and resource
	}{
		{produce, []string{"WRITE TOPIC one", "WRITE TOPIC two"}},
		{none, []string{"WRITE TOPIC one"}},
		{inTxn, []string{"WRITE TRANSACTIONAL_ID id"}},
		{markers, []string{"CLUSTER_ACTION CLUSTER kafka-cluster"}},
		{fetch, []string{"READ TOPIC one"}},
		{describe, []string{"DESCRIBE GROUP g", "DESCRIBE GROUP h"}},
		{end, []string{"WRITE TRANSACTIONAL_ID id"}},
		{acls, []string{"ALTER CLUSTER kafka-cluster"}},
		{named, []string{"DESCRIBE TOPIC one", `DESCRIBE TOPIC "none\nsuch"`}},
		{all, nil},
	} {
		before := len(denied.String())
		w := b.dial(t)
		ask(t, w, security.Plain, "\x00alice\x00alice's password")
		w.send(7, tc.req)
		if tc.req != none {
			w.receive(7, tc.req)
		} else if _, err := w.frame(); err == nil {
			t.Errorf("a produce without acks is answered, want the connection closed")
		}
		var got []string
		for line := range strings.Lines(denied.String()[before:]) {
			m := regexp.MustCompile(`level=WARN msg=denied principal=User:alice host=127.0.0.1 operation=(\S+) resource_type=(\S+) resource=(.+)\n$`).FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("%s: a line %q", kmsg.NameForKey(tc.req.Key()), line)
			}
			got = append(got, strings.Join(m[1:], " "))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: denied %q, want %q", kmsg.NameForKey(tc.req.Key()), got, tc.want)
		}
	}
}

// requestForm is a form of a request that needs other rights than that of docs/security.md's table, or several; what is
// answered before the first, the second and so on of them is there; and how much is in the answer, of lists.
type requestForm struct {
	name   string
	req    func() kmsg.Request
	rights []string
	codes  []*kerr.Error
	shows  func(kmsg.Response) int // how much a client sees that has all rights; an error counts as nothing. Nil for requests that show nothing
}

// Requests in forms that TestEveryRequestNeedsItsRights does not have: other resources, older versions, several rights one
// after the other, each with its error; and lists, which leave out what one may not see.
func TestFormsOfRequestsNeedTheirRights(t *testing.T) {
	b := startSecured(t, Config{}, security.Config{})
	topic := b.topic(t, "n", 1)
	b.topic(t, "hidden", 1)
	admin := b.dial(t)
	ask(t, admin, security.Plain, "\x00admin\x00admin's password")
	for _, id := range []string{"n", "hidden"} {
		commit := kmsg.NewPtrOffsetCommitRequest()
		commit.Version, commit.Group, commit.Generation = 8, id, -1
		commit.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "n", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 1}}}}
		if code := admin.ask(commit).(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode; code != 0 {
			t.Fatal(kerr.ErrorForCode(code))
		}
		init := kmsg.NewPtrInitProducerIDRequest()
		init.Version, init.TransactionalID, init.TransactionTimeoutMillis = 4, &id, 10_000
		if code := admin.ask(init).(*kmsg.InitProducerIDResponse).ErrorCode; code != 0 {
			t.Fatal(kerr.ErrorForCode(code))
		}
	}
	n := kmsg.StringPtr("n")
	config := func(typ kmsg.ConfigResourceType, name string) func() kmsg.Request {
		return func() kmsg.Request {
			return &kmsg.DescribeConfigsRequest{Version: 4, Resources: []kmsg.DescribeConfigsRequestResource{{ResourceType: typ, ResourceName: name}}}
		}
	}
	alter := func(typ kmsg.ConfigResourceType, name, key string) func() kmsg.Request {
		return func() kmsg.Request {
			return &kmsg.IncrementalAlterConfigsRequest{Version: 1, Resources: []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: typ, ResourceName: name,
				Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: key, Op: kmsg.IncrementalAlterConfigOpDelete}}}}}
		}
	}
	topicFailed, groupFailed, txnFailed, clusterFailed := kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed, kerr.ClusterAuthorizationFailed
	for _, form := range []requestForm{
		{"Produce in a transaction", func() kmsg.Request {
			req := produceRequest(9, topic, 0, -1, testBatch(t, 1, 10))
			req.TransactionID = n
			return req
		}, []string{"WRITE TRANSACTIONAL_ID", "WRITE TOPIC"}, []*kerr.Error{txnFailed, topicFailed}, nil},
		{"Produce by id", func() kmsg.Request { return produceRequest(13, topic, 0, -1, testBatch(t, 1, 10)) }, []string{"WRITE TOPIC"}, []*kerr.Error{topicFailed}, nil},
		{"Fetch by id", func() kmsg.Request { return fetchRequest(13, topic, 0) }, []string{"READ TOPIC"}, []*kerr.Error{topicFailed}, nil},
		{"Metadata by id", func() kmsg.Request {
			return &kmsg.MetadataRequest{Version: 12, Topics: []kmsg.MetadataRequestTopic{{TopicID: topic.ID}}}
		}, []string{"DESCRIBE TOPIC"}, []*kerr.Error{kerr.UnknownTopicID}, nil},
		{"Metadata that creates", func() kmsg.Request {
			return &kmsg.MetadataRequest{Version: 9, AllowAutoTopicCreation: true, Topics: []kmsg.MetadataRequestTopic{{Topic: kmsg.StringPtr("new")}}}
		}, []string{"DESCRIBE TOPIC new", "CREATE TOPIC new"}, []*kerr.Error{topicFailed, topicFailed}, nil},
		{"InitProducerID of a transactional id", func() kmsg.Request {
			return &kmsg.InitProducerIDRequest{Version: 4, TransactionalID: n, TransactionTimeoutMillis: 1000, ProducerID: -1, ProducerEpoch: -1}
		}, []string{"WRITE TRANSACTIONAL_ID"}, []*kerr.Error{txnFailed}, nil},
		{"FindCoordinator v3 of a group", func() kmsg.Request { return &kmsg.FindCoordinatorRequest{Version: 3, CoordinatorKey: "n"} }, []string{"DESCRIBE GROUP"}, []*kerr.Error{groupFailed}, nil},
		{"FindCoordinator v3 of a transaction", func() kmsg.Request {
			return &kmsg.FindCoordinatorRequest{Version: 3, CoordinatorType: 1, CoordinatorKey: "n"}
		}, []string{"DESCRIBE TRANSACTIONAL_ID"}, []*kerr.Error{txnFailed}, nil},
		{"FindCoordinator of transactions", func() kmsg.Request {
			return &kmsg.FindCoordinatorRequest{Version: 5, CoordinatorType: 1, CoordinatorKeys: []string{"n"}}
		}, []string{"DESCRIBE TRANSACTIONAL_ID"}, []*kerr.Error{txnFailed}, nil},
		{"AddPartitionsToTxn v3", func() kmsg.Request {
			return &kmsg.AddPartitionsToTxnRequest{Version: 3, TransactionalID: "n", Topics: []kmsg.AddPartitionsToTxnRequestTopic{{Topic: "n", Partitions: []int32{0}}}}
		}, []string{"WRITE TRANSACTIONAL_ID", "WRITE TOPIC"}, []*kerr.Error{txnFailed, topicFailed}, nil},
		{"AddOffsetsToTxn", func() kmsg.Request { return &kmsg.AddOffsetsToTxnRequest{Version: 3, TransactionalID: "n", Group: "n"} },
			[]string{"WRITE TRANSACTIONAL_ID", "READ GROUP"}, []*kerr.Error{txnFailed, groupFailed}, nil},
		{"TxnOffsetCommit", func() kmsg.Request {
			return &kmsg.TxnOffsetCommitRequest{Version: 3, TransactionalID: "n", Group: "n", Generation: -1, Topics: []kmsg.TxnOffsetCommitRequestTopic{{Topic: "n", Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{}}}}}
		}, []string{"WRITE TRANSACTIONAL_ID", "READ GROUP", "READ TOPIC"}, []*kerr.Error{txnFailed, groupFailed, topicFailed}, nil},
		{"OffsetCommit", func() kmsg.Request {
			return &kmsg.OffsetCommitRequest{Version: 8, Group: "n", Generation: -1, Topics: []kmsg.OffsetCommitRequestTopic{{Topic: "n", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{}}}}}
		}, []string{"READ GROUP", "READ TOPIC"}, []*kerr.Error{groupFailed, topicFailed}, nil},
		{"OffsetFetch", func() kmsg.Request {
			return &kmsg.OffsetFetchRequest{Version: 8, Groups: []kmsg.OffsetFetchRequestGroup{{Group: "n", Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: "n", Partitions: []int32{0}}}}}}
		}, []string{"DESCRIBE GROUP", "DESCRIBE TOPIC"}, []*kerr.Error{groupFailed, topicFailed}, nil},
		{"OffsetDelete", func() kmsg.Request {
			return &kmsg.OffsetDeleteRequest{Group: "n", Topics: []kmsg.OffsetDeleteRequestTopic{{Topic: "n", Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 7}}}}}
		}, []string{"DELETE GROUP", "READ TOPIC"}, []*kerr.Error{groupFailed, topicFailed}, nil},
		{"DescribeConfigs of a broker", config(kmsg.ConfigResourceTypeBroker, "1"), []string{"DESCRIBE_CONFIGS CLUSTER"}, []*kerr.Error{clusterFailed}, nil},
		{"DescribeConfigs of a group", config(kmsg.ConfigResourceTypeGroupConfig, "n"), []string{"DESCRIBE_CONFIGS GROUP"}, []*kerr.Error{groupFailed}, nil},
		{"DescribeConfigs of a logger", config(kmsg.ConfigResourceTypeBrokerLogger, "1"), []string{"DESCRIBE_CONFIGS CLUSTER"}, []*kerr.Error{clusterFailed}, nil},
		{"IncrementalAlterConfigs of a broker", alter(kmsg.ConfigResourceTypeBroker, "1", "follower.replication.throttled.rate"), []string{"ALTER_CONFIGS CLUSTER"}, []*kerr.Error{clusterFailed}, nil},
		{"IncrementalAlterConfigs of client metrics", alter(kmsg.ConfigResourceTypeClientMetrics, "n", "interval.ms"), []string{"ALTER_CONFIGS CLUSTER"}, []*kerr.Error{clusterFailed}, nil},
		{"IncrementalAlterConfigs of a group", alter(kmsg.ConfigResourceTypeGroupConfig, "n", "consumer.session.timeout.ms"), []string{"ALTER_CONFIGS GROUP"}, []*kerr.Error{groupFailed}, nil},
		{"WriteTxnMarkers of a node", func() kmsg.Request {
			return &kmsg.WriteTxnMarkersRequest{Version: 1, Markers: []kmsg.WriteTxnMarkersRequestMarker{{ProducerID: -1, Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: "n", Partitions: []int32{0}}}}}}
		}, []string{"CLUSTER_ACTION CLUSTER"}, []*kerr.Error{clusterFailed}, nil},
		{"ListGroups", func() kmsg.Request { return &kmsg.ListGroupsRequest{Version: 4} }, []string{"DESCRIBE GROUP"}, nil,
			func(r kmsg.Response) int { return len(r.(*kmsg.ListGroupsResponse).Groups) }},
		{"ListTransactions", func() kmsg.Request { return &kmsg.ListTransactionsRequest{Version: 1, DurationFilterMillis: -1} }, []string{"DESCRIBE TRANSACTIONAL_ID"}, nil,
			func(r kmsg.Response) int { return len(r.(*kmsg.ListTransactionsResponse).TransactionStates) }},
		{"Metadata of all", func() kmsg.Request { return &kmsg.MetadataRequest{Version: 9} }, []string{"DESCRIBE TOPIC"}, nil,
			func(r kmsg.Response) int { return len(r.(*kmsg.MetadataResponse).Topics) }},
		{"DescribeTopicPartitions of all", func() kmsg.Request { return &kmsg.DescribeTopicPartitionsRequest{ResponsePartitionLimit: 100} }, []string{"DESCRIBE TOPIC"}, nil,
			func(r kmsg.Response) int { return len(r.(*kmsg.DescribeTopicPartitionsResponse).Topics) }},
		{"OffsetFetch of all", func() kmsg.Request {
			return &kmsg.OffsetFetchRequest{Version: 8, Groups: []kmsg.OffsetFetchRequestGroup{{Group: "hidden"}}}
		}, []string{"DESCRIBE GROUP hidden", "DESCRIBE TOPIC"}, []*kerr.Error{groupFailed, nil},
			func(r kmsg.Response) int { return len(r.(*kmsg.OffsetFetchResponse).Groups[0].Topics) }},
		{"DescribeCluster", func() kmsg.Request { return &kmsg.DescribeClusterRequest{} }, nil, nil, func(r kmsg.Response) int { return len(r.(*kmsg.DescribeClusterResponse).Brokers) }},
		{"GetTelemetrySubscriptions", func() kmsg.Request { return &kmsg.GetTelemetrySubscriptionsRequest{} }, nil, nil, nil},
		{"ApiVersions", func() kmsg.Request { return &kmsg.ApiVersionsRequest{} }, nil, nil, nil},
	} {
		// asked returns the errors in the answer to alice, and how much it shows.
		asked := func() (codes map[int16]bool, n int) {
			w := b.dial(t)
			defer w.Close()
			ask(t, w, security.Plain, "\x00alice\x00alice's password")
			resp := w.ask(form.req())
			codes = map[int16]bool{}
			errorCodes(reflect.ValueOf(resp), codes)
			if form.shows != nil {
				n = form.shows(resp)
			}
			return codes, n
		}
		var acls []metadata.ACL
		for i := 0; i <= len(form.rights); i++ {
			codes, n := asked()
			if i < len(form.codes) && form.codes[i] != nil && !codes[form.codes[i].Code] {
				t.Errorf("%s with %v: errors %v, want %v", form.name, form.rights[:i], codes, form.codes[i])
			}
			for _, err := range []*kerr.Error{topicFailed, groupFailed, txnFailed, clusterFailed, kerr.UnknownTopicID} {
				if codes[err.Code] && (i >= len(form.codes) || form.codes[i] != err) {
					t.Errorf("%s with %v: %v", form.name, form.rights[:i], err)
				}
			}
			if want := 0; form.shows != nil {
				if i == len(form.rights) {
					want = 1
				}
				if n != want {
					t.Errorf("%s with %v: shows %d, want %d", form.name, form.rights[:i], n, want)
				}
			}
			if i < len(form.rights) {
				acl := parseRight(t, form.rights[i])
				acls = append(acls, acl)
				if err := security.CheckACL(acl); err != nil {
					t.Fatal(err)
				}
				if err := b.access.CreateACLs(t.Context(), []metadata.ACL{acl}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := b.access.DeleteACLs(t.Context(), acls); err != nil {
			t.Fatal(err)
		}
	}
}

// parseRight reads OPERATION TYPE, of a resource n or of the name behind it.
func parseRight(t *testing.T, text string) metadata.ACL {
	t.Helper()
	name, of, _ := strings.Cut(text, " ")
	of, resource, named := strings.Cut(of, " ")
	op, err := kmsg.ParseACLOperation(name)
	if err != nil {
		t.Fatal(err)
	}
	typ, err := kmsg.ParseACLResourceType(of)
	if err != nil {
		t.Fatal(err)
	}
	pattern := kmsg.ACLResourcePatternTypeLiteral
	if !named {
		resource = "n"
	}
	switch typ {
	case onCluster:
		resource = cluster
	case onGroup: // share groups have another name than the others: "n-shared"
		pattern = kmsg.ACLResourcePatternTypePrefixed
	}
	return metadata.ACL{ResourceType: int8(typ), ResourceName: resource, PatternType: int8(pattern),
		Principal: "User:alice", Host: "*", Operation: int8(op), Permission: int8(kmsg.ACLPermissionTypeAllow)}
}
