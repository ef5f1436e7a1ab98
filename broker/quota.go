package broker

import (
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/security"
)

const (
	// quotaWindow is how long clients may save up what they do not use: a burst may have this
	// many seconds' worth of a quota. In Kafka it is the time over which rates are taken, the
	// default of quota.window.num × quota.window.size.seconds.
	quotaWindow = 10 * time.Second
	// maxThrottle bounds one wait, so that clients do not take a connection for dead. What is
	// left of a debt is waited for after the next request.
	maxThrottle = quotaWindow
	// maxBuckets bounds those who have used a quota lately. Further ones share a bucket.
	maxBuckets = 100_000
)

// quotas makes clients wait that do more than they may. A token bucket a holder: it fills at the
// rate of the quota, and what is taken beyond is a debt. As in Kafka since KIP-219, a request is done
// and answered, the answer says for how long the client should be silent, and no request of the
// connection is taken before that.
type quotas struct {
	limits func() *security.Quotas
	m      *metrics

	mu      sync.Mutex
	buckets map[bucketKey]*bucket // guarded by mu; at most maxBuckets, and one of each quota
	forgot  time.Time             // guarded by mu; when forget has looked
}

type bucketKey struct {
	quota  string
	holder security.QuotaHolder
}

type bucket struct {
	tokens float64 // below zero: a debt
	limit  float64 // a second
	at     time.Time
}

func newQuotas(limits func() *security.Quotas, m *metrics) *quotas {
	return &quotas{limits: limits, m: m, buckets: map[bucketKey]*bucket{}}
}

// fill brings a bucket to a moment, and to the limit that holds from then on.
func (b *bucket) fill(limit float64, now time.Time) {
	most := limit * quotaWindow.Seconds()
	if b.at.IsZero() {
		b.tokens = most
	} else {
		b.tokens = min(most, b.tokens+max(now.Sub(b.at), 0).Seconds()*b.limit)
	}
	b.limit, b.at = limit, now
}

// debt is how long it takes until the bucket owes nothing.
func (b *bucket) debt() time.Duration {
	if b.tokens >= 0 || invariant.Off("quota-debt") {
		return 0
	}
	return min(time.Duration(-b.tokens/b.limit*float64(time.Second)), maxThrottle)
}

// bucket returns that of a holder, filled.
func (q *quotas) bucket(quota string, holder security.QuotaHolder, limit float64, now time.Time) *bucket {
	key := bucketKey{quota, holder}
	b := q.buckets[key]
	if b == nil {
		if len(q.buckets) >= maxBuckets {
			q.forget(now)
		}
		if len(q.buckets) >= maxBuckets {
			key.holder = security.QuotaHolder{}
			b = q.buckets[key]
		}
		if b == nil {
			b = &bucket{}
			q.buckets[key] = b
		}
	}
	b.fill(limit, now)
	return b
}

// forget drops the buckets that are full: a new one is, too. It looks once a second at most.
func (q *quotas) forget(now time.Time) {
	if now.Sub(q.forgot) < time.Second {
		return
	}
	q.forgot = now
	for key, b := range q.buckets {
		if b.fill(b.limit, now); b.tokens >= b.limit*quotaWindow.Seconds() {
			delete(q.buckets, key)
		}
	}
}

// take notes that a client did n of what a quota limits, and returns how long it should be silent.
func (q *quotas) take(quota string, r *request, n float64) time.Duration {
	limit, holder, ok := q.clientLimit(quota, r)
	if !ok || n == 0 {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.bucket(quota, holder, limit, time.Now())
	b.tokens -= n
	wait := b.debt()
	q.m.throttled(quota, wait)
	return wait
}

// admits reports whether a client owes nothing of a quota, and else how long it will: for requests
// that are refused then (KIP-599).
func (q *quotas) admits(quota string, r *request) (wait time.Duration, ok bool) {
	limit, holder, limited := q.clientLimit(quota, r)
	if !limited {
		return 0, true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	wait = q.bucket(quota, holder, limit, time.Now()).debt()
	q.m.throttled(quota, wait)
	return wait, wait == 0
}

func (q *quotas) clientLimit(quota string, r *request) (limit float64, holder security.QuotaHolder, ok bool) {
	limits := q.limits()
	if limits.None() || r.conn.b.fromPeer(r) { // nodes do the work of clients that have been counted
		return 0, holder, false
	}
	_, user, _ := strings.Cut(r.conn.session.client.Principal, ":")
	return limits.Client(quota, user, r.clientID)
}

// mayMutate returns why a client may not make or delete partitions now. From a version on clients
// expect to be refused; before it they only wait.
func (r *request) mayMutate(refusedFrom int16) error {
	wait, ok := r.conn.b.quotas.admits(security.ControllerMutationRate, r)
	if ok || r.version < refusedFrom {
		return nil
	}
	r.mute = max(r.mute, wait)
	return refuse(kerr.ThrottlingQuotaExceeded, "%s is used up: try again in %v", security.ControllerMutationRate, wait.Round(time.Millisecond))
}

// mutated notes partitions that were made or deleted.
func (r *request) mutated(partitions int) {
	r.mute = max(r.mute, r.conn.b.quotas.take(security.ControllerMutationRate, r, float64(partitions)))
}

// connect notes a connection from an address, and returns how long the address should be silent.
func (q *quotas) connect(host string) time.Duration {
	limit, ok := q.limits().Address(host)
	if !ok {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.bucket(security.ConnectionCreationRate, security.QuotaHolder{IP: host}, limit, time.Now())
	b.tokens--
	wait := b.debt()
	if wait > 0 {
		b.tokens++ // it is refused
	}
	q.m.throttled(security.ConnectionCreationRate, wait)
	return wait
}

// throttle notes the time that a request took, tells the client in resp how long it should be
// silent, and sees to it. wait is what other quotas ask for.
func (r *request) throttle(resp kmsg.Response, wait time.Duration) {
	wait = r.silence(wait)
	if t, ok := resp.(kmsg.SetThrottleResponse); ok && wait > 0 {
		t.SetThrottle(millis(wait))
	}
}

// silence is throttle for answers that are built otherwise.
func (r *request) silence(wait time.Duration) time.Duration {
	if !waits(r.api.key) {
		took := max(time.Since(r.start)-r.waited, 0)
		wait = max(wait, r.conn.b.quotas.take(security.RequestPercentage, r, 100*took.Seconds()))
	}
	r.mute = time.Duration(millis(max(r.mute, wait))) * time.Millisecond // as the client is told
	return r.mute
}

// waits reports whether requests of an API mostly wait for other clients, or for a decision: their
// time is not work.
func waits(key kmsg.Key) bool {
	switch key {
	case kmsg.JoinGroup, kmsg.SyncGroup, kmsg.ConsumerGroupHeartbeat, kmsg.ShareGroupHeartbeat, kmsg.InitProducerID, kmsg.EndTxn, kmsg.AddPartitionsToTxn, kmsg.SASLHandshake, kmsg.SASLAuthenticate, kmsg.ApiVersions:
		return true
	}
	return false
}

// millis rounds up, so that a client which waits this long owes nothing.
func millis(d time.Duration) int32 {
	return int32((d + time.Millisecond - 1) / time.Millisecond)
}

// muted waits until the connection may go on, or its peer is gone.
func (c *conn) muted(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	}
}
