package broker

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/security"
)

func strp(s string) *string { return &s }

// alterQuota sets a limit by request; a value of 0 removes it.
func alterQuota(t testing.TB, w *wire, quota string, value float64, entity ...kmsg.AlterClientQuotasRequestEntryEntity) int16 {
	t.Helper()
	req := kmsg.NewPtrAlterClientQuotasRequest()
	req.Version = 1
	req.Entries = []kmsg.AlterClientQuotasRequestEntry{{Entity: entity, Ops: []kmsg.AlterClientQuotasRequestEntryOp{{Key: quota, Value: value, Remove: value == 0}}}}
	return w.ask(req).(*kmsg.AlterClientQuotasResponse).Entries[0].ErrorCode
}

func setQuota(t testing.TB, w *wire, quota string, value float64, entity ...kmsg.AlterClientQuotasRequestEntryEntity) {
	t.Helper()
	if code := alterQuota(t, w, quota, value, entity...); code != 0 {
		t.Fatal(kerr.ErrorForCode(code))
	}
}

func quotaOf(typ string, name *string) kmsg.AlterClientQuotasRequestEntryEntity {
	return kmsg.AlterClientQuotasRequestEntryEntity{Type: typ, Name: name}
}

// A bucket lets pass what was saved up, and then makes its holder wait until the debt is gone,
// neither more nor less, whatever the limit becomes meanwhile.
func TestBucketFillsAtItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuotas(nil, newMetrics(nil, newAPITable()))
		holder := security.QuotaHolder{User: "alice"}
		take := func(limit, n float64) time.Duration {
			b := q.bucket("q", holder, limit, time.Now())
			b.tokens -= n
			return b.debt()
		}
		for _, step := range []struct {
			after     time.Duration
			limit, n  float64
			wantedFor time.Duration
		}{
			{0, 100, 1000, 0},                    // ten seconds' worth
			{0, 100, 50, 500 * time.Millisecond}, // and half a second's of debt
			{400 * time.Millisecond, 100, 0, 100 * time.Millisecond},
			{100 * time.Millisecond, 100, 0, 0},
			{time.Hour, 100, 1001, 10 * time.Millisecond},  // no more than ten seconds' worth was saved
			{10 * time.Millisecond, 1, 5, 5 * time.Second}, // the debt was paid at the old rate
			{0, 10, 0, 500 * time.Millisecond},
			{0, 10, 1e6, maxThrottle},
		} {
			<-time.After(step.after)
			if wait := take(step.limit, step.n); wait.Round(time.Microsecond) != step.wantedFor {
				t.Errorf("%+v: wait %v", step, wait)
			}
		}
	})
}

// However many there are who use a quota, so many buckets are kept, and idle ones make room.
func TestBucketsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuotas(nil, newMetrics(nil, newAPITable()))
		for i := range maxBuckets + 1000 {
			q.bucket("q", security.QuotaHolder{ClientID: strconv.Itoa(i)}, 1, time.Now()).tokens--
		}
		if len(q.buckets) > maxBuckets+1 {
			t.Errorf("%d buckets", len(q.buckets))
		}
		if b := q.buckets[bucketKey{"q", security.QuotaHolder{}}]; b == nil || b.debt() == 0 {
			t.Error("those beyond do not share a bucket")
		}
		<-time.After(time.Minute)
		q.bucket("q", security.QuotaHolder{ClientID: "late"}, 1, time.Now()).tokens--
		if len(q.buckets) > 2 {
			t.Errorf("%d buckets are kept, all but one of them are full", len(q.buckets))
		}
	})
}

// A client that has used more than it may is answered, told to be silent, and its next request is
// taken no sooner. Other clients are not.
func TestClientsAreSilentForWhatTheyOwe(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	admin := b.dial(t)
	const rate = 10_000
	setQuota(t, admin, security.ProducerByteRate, rate, quotaOf("client-id", strp("loud")))
	setQuota(t, admin, security.ConsumerByteRate, rate, quotaOf("client-id", strp("loud")))
	loud := b.dial(t)
	loud.clientID = "loud"
	batch := testBatch(t, 1, 12*rate) // two seconds' worth more than what is saved up

	throttled := func(w *wire, req kmsg.Request) (time.Duration, time.Duration) {
		begin := time.Now()
		ms, _ := w.ask(req).(kmsg.ThrottleResponse).Throttle()
		wait := time.Duration(ms) * time.Millisecond
		w.ask(kmsg.NewPtrApiVersionsRequest())
		return wait, time.Since(begin)
	}
	fetch := fetchRequest(12, topic, 0)
	fetch.Topics[0].Partitions[0].PartitionMaxBytes = 1 // and so the first batch
	for _, req := range []kmsg.Request{produceRequest(9, topic, 0, -1, batch), fetch} {
		name := kmsg.NameForKey(req.Key())
		wait, next := throttled(loud, req)
		if wait < time.Second || wait > maxThrottle {
			t.Errorf("%s: told to be silent for %v", name, wait)
		}
		if next < wait {
			t.Errorf("%s: the next request was answered after %v, the client should be silent for %v", name, next, wait)
		}
		if wait, _ := throttled(admin, req); wait != 0 {
			t.Errorf("%s: another client is told to be silent for %v", name, wait)
		}
	}
}

// What changes metadata is refused while a client owes; clients of the time before are told to wait.
func TestChangesOfTopicsAreCounted(t *testing.T) {
	b := start(t, Config{})
	admin := b.dial(t)
	setQuota(t, admin, security.ControllerMutationRate, 0.001, quotaOf("user", nil))
	create := func(version int16, name string, partitions int32) (int16, int32) {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Version = version
		req.Topics = []kmsg.CreateTopicsRequestTopic{{Topic: name, NumPartitions: partitions, ReplicationFactor: 1}}
		w := b.dial(t) // each silence is of a connection
		resp := w.ask(req).(*kmsg.CreateTopicsResponse)
		return resp.Topics[0].ErrorCode, resp.ThrottleMillis
	}
	if code, ms := create(7, "first", 2); code != 0 || ms == 0 {
		t.Errorf("with something saved up: %v, throttled for %d ms", kerr.ErrorForCode(code), ms)
	}
	if code, ms := create(7, "second", 1); code != kerr.ThrottlingQuotaExceeded.Code || ms == 0 {
		t.Errorf("beyond the quota: %v, throttled for %d ms", kerr.ErrorForCode(code), ms)
	}
	if code, ms := create(5, "third", 1); code != 0 || ms == 0 {
		t.Errorf("beyond the quota, an old client: %v, throttled for %d ms", kerr.ErrorForCode(code), ms)
	}
	more := kmsg.NewPtrCreatePartitionsRequest()
	more.Version, more.Topics = 3, []kmsg.CreatePartitionsRequestTopic{{Topic: "first", Count: 3}}
	if code := b.dial(t).ask(more).(*kmsg.CreatePartitionsResponse).Topics[0].ErrorCode; code != kerr.ThrottlingQuotaExceeded.Code {
		t.Errorf("more partitions: %v", kerr.ErrorForCode(code))
	}
	gone := kmsg.NewPtrDeleteTopicsRequest()
	gone.Version, gone.Topics = 6, []kmsg.DeleteTopicsRequestTopic{{Topic: strp("first")}}
	if code := b.dial(t).ask(gone).(*kmsg.DeleteTopicsResponse).Topics[0].ErrorCode; code != kerr.ThrottlingQuotaExceeded.Code {
		t.Errorf("deleted: %v", kerr.ErrorForCode(code))
	}
	setQuota(t, b.dial(t), security.ControllerMutationRate, 0, quotaOf("user", nil))
	if code, ms := create(7, "second", 1); code != 0 || ms != 0 {
		t.Errorf("without the quota: %v, throttled for %d ms", kerr.ErrorForCode(code), ms)
	}
}

// The time that requests take counts, whatever they are.
func TestTimeOfRequestsIsCounted(t *testing.T) {
	b := start(t, Config{})
	w := b.dial(t)
	setQuota(t, b.dial(t), security.RequestPercentage, 0.01, quotaOf("client-id", nil))
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 12
	for range 10_000 {
		if ms := w.ask(req).(*kmsg.MetadataResponse).ThrottleMillis; ms > 0 {
			return
		}
	}
	t.Error("10,000 requests took less than 1 ms in all")
}

// Connections that come faster than their address may make them are closed.
func TestConnectionsOfAnAddressAreCounted(t *testing.T) {
	b := start(t, Config{})
	setQuota(t, b.dial(t), security.ConnectionCreationRate, 1, quotaOf("ip", strp("127.0.0.1")))
	for range 1000 {
		w := b.dial(t)
		w.send(1, kmsg.NewPtrApiVersionsRequest())
		if _, err := w.frame(); err != nil {
			return
		}
	}
	t.Error("1,000 connections were served at a rate of 1 a second")
}

// Quotas are listed by what they are for: exactly, as a default, or any; strictly, or with more.
func TestQuotasAreListedAsAskedFor(t *testing.T) {
	b := start(t, Config{})
	w := b.dial(t)
	alice, app := quotaOf("user", strp("alice")), quotaOf("client-id", strp("app"))
	setQuota(t, w, security.ProducerByteRate, 1, alice)
	setQuota(t, w, security.ConsumerByteRate, 2, alice)
	setQuota(t, w, security.ProducerByteRate, 3, alice, app)
	setQuota(t, w, security.ProducerByteRate, 4, quotaOf("user", nil))
	setQuota(t, w, security.ProducerByteRate, 5, app)
	setQuota(t, w, security.ConnectionCreationRate, 6, quotaOf("ip", strp("10.0.0.1")))
	is := func(typ string, match kmsg.QuotasMatchType, name *string) kmsg.DescribeClientQuotasRequestComponent {
		return kmsg.DescribeClientQuotasRequestComponent{EntityType: typ, MatchType: match, Match: name}
	}
	for _, tc := range []struct {
		strict     bool
		components []kmsg.DescribeClientQuotasRequestComponent
		want       []float64
		code       int16
	}{
		{false, nil, []float64{1, 2, 3, 4, 5, 6}, 0},
		{false, []kmsg.DescribeClientQuotasRequestComponent{is("user", 0, strp("alice"))}, []float64{1, 2, 3}, 0},
		{true, []kmsg.DescribeClientQuotasRequestComponent{is("user", 0, strp("alice"))}, []float64{1, 2}, 0},
		{false, []kmsg.DescribeClientQuotasRequestComponent{is("user", 1, nil)}, []float64{4}, 0},
		{false, []kmsg.DescribeClientQuotasRequestComponent{is("user", 2, nil)}, []float64{1, 2, 3, 4}, 0},
		{true, []kmsg.DescribeClientQuotasRequestComponent{is("user", 2, nil), is("client-id", 0, strp("app"))}, []float64{3}, 0},
		{false, []kmsg.DescribeClientQuotasRequestComponent{is("ip", 2, nil)}, []float64{6}, 0},
		{false, []kmsg.DescribeClientQuotasRequestComponent{is("user", 0, nil)}, nil, kerr.InvalidRequest.Code},
		{false, []kmsg.DescribeClientQuotasRequestComponent{is("user", 2, nil), is("user", 1, nil)}, nil, kerr.InvalidRequest.Code},
	} {
		req := kmsg.NewPtrDescribeClientQuotasRequest()
		req.Version, req.Components, req.Strict = 1, tc.components, tc.strict
		resp := w.ask(req).(*kmsg.DescribeClientQuotasResponse)
		found := map[float64]bool{}
		for _, e := range resp.Entries {
			for _, v := range e.Values {
				found[v.Value] = true
			}
		}
		want := map[float64]bool{}
		for _, v := range tc.want {
			want[v] = true
		}
		if diff := cmp.Diff(want, found); diff != "" || resp.ErrorCode != tc.code {
			t.Errorf("%+v: %v\n%s", tc.components, kerr.ErrorForCode(resp.ErrorCode), diff)
		}
	}
}

// What cannot be a quota is refused, and what is only to be validated changes nothing.
func TestQuotasThatAreRefused(t *testing.T) {
	b := start(t, Config{})
	w := b.dial(t)
	user := quotaOf("user", strp("alice"))
	for name, code := range map[string]int16{
		"an unknown quota":     alterQuota(t, w, "producer_rate", 1, user),
		"a value below 0":      alterQuota(t, w, security.ProducerByteRate, -1, user),
		"no entity":            alterQuota(t, w, security.ProducerByteRate, 1),
		"an unknown entity":    alterQuota(t, w, security.ProducerByteRate, 1, quotaOf("group", strp("g"))),
		"one type twice":       alterQuota(t, w, security.ProducerByteRate, 1, user, quotaOf("user", nil)),
		"a quota of addresses": alterQuota(t, w, security.ConnectionCreationRate, 1, user),
	} {
		if code != kerr.InvalidRequest.Code {
			t.Errorf("%s: %v", name, kerr.ErrorForCode(code))
		}
	}
	req := kmsg.NewPtrAlterClientQuotasRequest()
	req.Version, req.ValidateOnly = 1, true
	req.Entries = []kmsg.AlterClientQuotasRequestEntry{{Entity: []kmsg.AlterClientQuotasRequestEntryEntity{user}, Ops: []kmsg.AlterClientQuotasRequestEntryOp{{Key: security.ProducerByteRate, Value: 1}}}}
	if code := w.ask(req).(*kmsg.AlterClientQuotasResponse).Entries[0].ErrorCode; code != 0 {
		t.Error(kerr.ErrorForCode(code))
	}
	if all := b.access.Quotas().All(); len(all) > 0 {
		t.Errorf("there are %v", all)
	}
}

// Quotas come back with the server, and hold at another node.
func TestQuotasAreKept(t *testing.T) {
	b := start(t, Config{})
	setQuota(t, b.dial(t), security.ProducerByteRate, 5, quotaOf("user", strp("alice")))
	other := openAccess(t, security.Config{}, b.meta)
	want := []metadata.ClientQuota{{Entity: `{"user":"alice"}`, Name: security.ProducerByteRate, Value: 5}}
	if diff := cmp.Diff(want, other.Quotas().All()); diff != "" {
		t.Error(diff)
	}
	setQuota(t, b.dial(t), security.ProducerByteRate, 6, quotaOf("user", strp("alice")))
	if err := other.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if limit, _, ok := other.Quotas().Client(security.ProducerByteRate, "alice", "app"); !ok || limit != 6 {
		t.Errorf("another node has the limit %v", limit)
	}
}
