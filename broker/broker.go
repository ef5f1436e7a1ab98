// Package broker serves the Kafka protocol over TCP.
//
// A connection is three goroutines in a row: one reads frames, one handles requests in
// the order of arrival, one writes the answers in the same order. A Produce is handled
// when its batches have their offsets; its answer waits for durability while later
// requests of the connection are handled, so that the latency of the store does not
// bound the throughput of a client. All other requests are answered by their handler.
//
// A Fetch is answered with what is in memory once that is enough. For partitions whose records
// must be read from the bucket a connection has a few goroutines more, which go on when the
// answer is sent: the next Fetch finds their records in memory. Thus consumers at the tail are not
// delayed by partitions that catch up, not even their own.
//
// One table ([newAPITable]) names every request that is served with its versions: ApiVersions
// is answered from it and requests are dispatched by it. The handler of an API lives in
// api_<name>.go, which is also the one place where its error codes are chosen.
//
// # Limits
//
// Whatever clients send, memory stays within [Config]: bytes of requests are reserved
// before they are read and until they are handled, large ones such that small ones go on, decoding a request reserves what its
// arrays may unfold to, and answers are reserved, those of fetches before the read, until
// they are written. What breaks the protocol closes its
// connection with a log line that names the peer and the reason; of such lines there are a few a second
// at most (package limitlog). A panic in a handler
// is answered with UNKNOWN_SERVER_ERROR and logged with its stack.
package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/broker/share"
	"github.com/tabletopic/tabletopic/broker/txn"
	"github.com/tabletopic/tabletopic/internal/limitlog"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/security"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Config holds the settings of a broker. The zero value of a field means its default.
type Config struct {
	// MaxConnections bounds the open connections; one more is closed at once. 10,000 if zero.
	MaxConnections int
	// MaxConnectionsPerAddress bounds those of one IP address. MaxConnections if zero.
	MaxConnectionsPerAddress int
	// AuthTimeout closes a connection whose peer has not proved who it is, where a listener
	// wants that, TLS handshake included. 10 s if zero.
	AuthTimeout time.Duration
	// MaxRequestBytes bounds one request. 100 MiB if zero.
	MaxRequestBytes int
	// MaxRequestMemory bounds the bytes of all requests that are read and not yet
	// handled; a connection waits for its share. What a Produce has appended is bounded
	// by the stream store from then on. A quarter is for the first 64 KiB of each alone, unless
	// MaxRequestBytes needs it. 256 MiB if zero, at least MaxRequestBytes.
	MaxRequestMemory int64
	// MaxInFlight bounds the requests of one connection that are handled and not yet
	// answered. 128 if zero.
	MaxInFlight int
	// MaxFetchBytes bounds the records in one fetch answer, but for a single batch that
	// is larger. 55 MiB if zero.
	MaxFetchBytes int
	// MaxSessionPartitions bounds the partitions in the fetch sessions (KIP-227) of all
	// connections, of about 300 bytes each. A client without a session names all its
	// partitions in each request. 200,000 if zero.
	MaxSessionPartitions int
	// MaxShareSessions bounds the share sessions (KIP-932) of all connections; what they fetch counts
	// in MaxSessionPartitions (group.share.max.share.sessions). 2,000 if zero.
	MaxShareSessions int
	// ShareRecordLock is how long a member of a share group has a record that it was given
	// (group.share.record.lock.duration.ms). 30 s if zero.
	ShareRecordLock time.Duration
	// ShareDeliveries is how often a record is given to members of a share group before it is given
	// up (group.share.delivery.count.limit). 5 if zero.
	ShareDeliveries int
	// ShareRecordLocks bounds the records in flight of a share-partition
	// (group.share.partition.max.record.locks). 2,000 if zero.
	ShareRecordLocks int
	// MaxAnswerMemory bounds all answers that are not yet written; a request waits for
	// its share. 256 MiB if zero.
	MaxAnswerMemory int64

	// IdleTimeout closes a connection without request. 10 min if zero.
	IdleTimeout time.Duration
	// StallTimeout closes a connection whose peer, in the middle of a request or of an
	// answer, sends or takes neither 256 KiB nor the rest of it within this time. 30 s if zero.
	StallTimeout time.Duration

	// NoAutoCreate switches off the creation of a topic by a client that asks for its metadata.
	NoAutoCreate bool
	// MaxAutoCreate is how many topics one such request creates; of the rest it says LEADER_NOT_AVAILABLE, and the
	// client asks again. 100 if zero.
	MaxAutoCreate int
	// DefaultPartitions is the number of partitions where a client leaves it open. 1 if zero.
	DefaultPartitions int
	// MaxPartitions bounds the partitions of one topic, and those that one CreateTopics or CreatePartitions makes
	// (POLICY_VIOLATION, as Kafka's controller says). 10,000 if zero.
	MaxPartitions int
	// ReservedTopics are names that clients cannot create, besides the internal topics
	// that exist. __consumer_offsets and __transaction_state if nil.
	ReservedTopics []string

	// Rack is where this node stands (broker.rack), as its availability zone; other nodes announce theirs.
	// Unknown if empty.
	Rack string

	// Mover moves partitions that clients reassign. If nil, there is no other node.
	Mover Mover

	// PeerTopic is an internal topic that clients which call themselves PeerClientID may write
	// to: other nodes of the cluster. None if empty.
	PeerTopic    string
	PeerClientID string
}

func (c *Config) setDefaults() {
	def(&c.MaxConnections, 10_000)
	def(&c.MaxConnectionsPerAddress, c.MaxConnections)
	def(&c.AuthTimeout, 10*time.Second)
	def(&c.MaxRequestBytes, 100<<20)
	def(&c.MaxRequestMemory, max(256<<20, int64(c.MaxRequestBytes)))
	def(&c.MaxInFlight, 128)
	def(&c.MaxFetchBytes, 55<<20)
	def(&c.MaxSessionPartitions, 200_000)
	def(&c.MaxShareSessions, 2000)
	def(&c.ShareRecordLock, 30*time.Second)
	def(&c.ShareDeliveries, 5)
	def(&c.ShareRecordLocks, 2000)
	def(&c.MaxAnswerMemory, 256<<20)
	def(&c.IdleTimeout, 10*time.Minute)
	def(&c.StallTimeout, 30*time.Second)
	def(&c.MaxAutoCreate, 100)
	def(&c.DefaultPartitions, 1)
	def(&c.MaxPartitions, 10_000)
	if c.ReservedTopics == nil {
		c.ReservedTopics = []string{group.Topic, txn.Topic}
	}
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (c *Config) validate() error {
	if c.MaxRequestMemory < int64(c.MaxRequestBytes) {
		return fmt.Errorf("broker: MaxRequestMemory %d is below MaxRequestBytes %d: one request could never be read", c.MaxRequestMemory, c.MaxRequestBytes)
	}
	if c.DefaultPartitions < 1 || c.DefaultPartitions > c.MaxPartitions {
		return fmt.Errorf("broker: DefaultPartitions %d is not between 1 and MaxPartitions %d", c.DefaultPartitions, c.MaxPartitions)
	}
	for name, v := range map[string]int64{
		"MaxConnections": int64(c.MaxConnections), "MaxConnectionsPerAddress": int64(c.MaxConnectionsPerAddress), "AuthTimeout": int64(c.AuthTimeout), "MaxRequestBytes": int64(c.MaxRequestBytes), "MaxInFlight": int64(c.MaxInFlight),
		"MaxFetchBytes": int64(c.MaxFetchBytes), "MaxAnswerMemory": c.MaxAnswerMemory, "MaxSessionPartitions": int64(c.MaxSessionPartitions), "MaxPartitions": int64(c.MaxPartitions), "MaxAutoCreate": int64(c.MaxAutoCreate),
		"MaxShareSessions": int64(c.MaxShareSessions), "ShareRecordLock": int64(c.ShareRecordLock), "ShareDeliveries": int64(c.ShareDeliveries), "ShareRecordLocks": int64(c.ShareRecordLocks),
		"IdleTimeout": int64(c.IdleTimeout), "StallTimeout": int64(c.StallTimeout),
	} {
		if v < 0 {
			return fmt.Errorf("broker: %s must not be negative", name)
		}
	}
	return nil
}

// largeMemory is what of MaxRequestMemory large requests may have, so that small ones go on, which
// heartbeats and fetches are.
func (c *Config) largeMemory() int64 {
	return max(c.MaxRequestMemory/4*3, int64(c.MaxRequestBytes))
}

// Broker is a running Kafka listener. It is closed with Close.
type Broker struct {
	cfg    Config
	set    *partition.Set
	groups *group.Manager
	txns   *txn.Manager
	meta   *metadata.Store
	access *security.Access
	node   streamstore.Node
	log    *slog.Logger
	warn   *limitlog.Logger // of what clients do wrong, which may be much
	m      *metrics
	apis   *apiTable
	quotas *quotas

	listeners   []Listener
	ids         producerIDs
	frames      frameBuffers
	reqMemory   *semaphore.Weighted // MaxRequestMemory
	largeMemory *semaphore.Weighted // what of it requests may have beyond their first stage
	decMemory   *semaphore.Weighted // decodeMemory
	ansMemory   *semaphore.Weighted // MaxAnswerMemory
	authMemory  *semaphore.Weighted // authMemory

	sessionRoom *semaphore.Weighted // MaxSessionPartitions
	lastSession atomic.Int32        // id of a fetch session

	shares        *share.Manager
	shareSessions shareSessions
	groupConfigs  groupConfigs

	ctx        context.Context // ends when Close gives up waiting
	cancel     context.CancelFunc
	stopping   atomic.Bool
	goroutines sync.WaitGroup

	mu    sync.Mutex
	conns map[*conn]struct{} // guarded by mu; nil after Close
	hosts map[string]int     // guarded by mu; how many of conns by address
}

// A Listener is where clients connect, and what is spoken there.
type Listener struct {
	net.Listener
	// Name tells listeners apart, as Kafka names them. PLAINTEXT if empty.
	Name string
	// Advertised is the host:port that clients are told to connect to. The address of the
	// listener if empty.
	Advertised string
	// TLS is nil where there is none.
	TLS *tls.Config
	// Mapping names the owners of clients' certificates.
	Mapping security.Mapping
	// SASL asks every client to prove who it is.
	SASL bool

	host string // advertised
	port int32
}

// Open serves the partitions of set, the groups and the transactions on listeners until Close,
// which closes them. access says who clients are and what they may do. Producer ids come from
// meta; node is this process. Metrics are registered with reg unless it is nil.
func Open(cfg Config, listeners []Listener, access *security.Access, set *partition.Set, groups *group.Manager, txns *txn.Manager, meta *metadata.Store, node streamstore.Node, log *slog.Logger, reg prometheus.Registerer) (*Broker, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	b := &Broker{
		cfg: cfg, set: set, groups: groups, txns: txns, meta: meta, access: access, node: node, log: log,

		warn:        limitlog.New(log),
		apis:        newAPITable(),
		listeners:   slices.Clone(listeners),
		reqMemory:   semaphore.NewWeighted(cfg.MaxRequestMemory),
		largeMemory: semaphore.NewWeighted(cfg.largeMemory()),
		decMemory:   semaphore.NewWeighted(decodeMemory),
		ansMemory:   semaphore.NewWeighted(cfg.MaxAnswerMemory),
		authMemory:  semaphore.NewWeighted(authMemory),
		conns:       make(map[*conn]struct{}),
		hosts:       make(map[string]int),

		sessionRoom: semaphore.NewWeighted(int64(cfg.MaxSessionPartitions)),
	}
	b.shares = share.Open(groups)
	b.shareSessions.byMember = make(map[shareMemberKey]*shareSession)
	b.m = newMetrics(reg, b.apis)
	b.quotas = newQuotas(access.Quotas, b.m)
	b.ids.allocate = func(ctx context.Context, n int) (int64, error) { return meta.AllocateProducerIDs(ctx, node, n) }
	for i := range b.listeners {
		if err := b.listeners[i].advertise(); err != nil {
			return nil, err
		}
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	for i := range b.listeners {
		b.goroutines.Go(func() { b.accept(&b.listeners[i]) })
	}
	return b, nil
}

func (l *Listener) advertise() error {
	if l.Name == "" {
		l.Name = "PLAINTEXT"
	}
	addr := l.Advertised
	if addr == "" {
		addr = l.Addr().String()
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("advertised address %q is not host:port: %w", addr, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("advertised address %q has no port between 1 and 65535", addr)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("the listener %q accepts on every address, so clients must be told one: set the advertised address to a host:port that they can reach", addr)
	}
	l.host, l.port = host, int32(n)
	return nil
}

// Addr returns the address of the first listener.
func (b *Broker) Addr() net.Addr { return b.listeners[0].Addr() }

// accept runs until the listener is closed.
func (b *Broker) accept(l *Listener) {
	for {
		nc, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of file descriptors, or a peer that was gone already
			b.log.Error("accept a connection", "err", err)
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-b.ctx.Done():
				return
			}
		}
		b.goroutines.Go(func() { b.serve(l, nc) })
	}
}

// ServeConn serves one connection that something else than the first listener accepted, as if
// that had, until it ends. It closes nc.
func (b *Broker) ServeConn(nc net.Conn) { b.serve(&b.listeners[0], nc) }

func (b *Broker) serve(l *Listener, nc net.Conn) {
	c := newConn(b, l, nc)
	if limit := b.enter(c); limit >= 0 {
		nc.Close()
		if limit > 0 {
			b.m.refused.Inc()
			b.warn.Warn("connection refused: too many", "peer", c.peer, "limit", limit)
		}
		return
	}
	b.m.connections.Inc()
	if wait := b.quotas.connect(hostOf(c.peer)); wait > 0 {
		c.muted(wait) // KIP-612: one that comes back at once would only cost more
		nc.Close()
	} else {
		c.serve()
	}
	b.m.connections.Dec()
	b.leave(c)
}

// enter counts a connection in. If there are too many it returns how many there may be, and 0
// if the broker is closed; else less.
func (b *Broker) enter(c *conn) (limit int) {
	host := hostOf(c.peer)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.conns == nil:
		return 0
	case len(b.conns) >= b.cfg.MaxConnections:
		return b.cfg.MaxConnections
	case b.hosts[host] >= b.cfg.MaxConnectionsPerAddress:
		return b.cfg.MaxConnectionsPerAddress
	}
	b.conns[c] = struct{}{}
	b.hosts[host]++
	return -1
}

func (b *Broker) leave(c *conn) {
	host := hostOf(c.peer)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, c)
	if b.hosts[host]--; b.hosts[host] == 0 {
		delete(b.hosts, host)
	}
}

// Close stops accepting connections and requests, lets requests that were read be
// answered until ctx ends, and closes what is left. It returns when all goroutines have.
func (b *Broker) Close(ctx context.Context) error {
	if b.stopping.Swap(true) {
		return nil
	}
	var err error
	for i := range b.listeners {
		err = errors.Join(err, b.listeners[i].Close())
	}
	b.mu.Lock()
	conns := b.conns
	b.conns = nil
	for c := range conns {
		c.stop()
	}
	b.mu.Unlock()
	done := make(chan struct{})
	go func() { b.goroutines.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		err = errors.Join(err, fmt.Errorf("close broker: requests were cut off: %w", ctx.Err()))
		b.cancel()
		b.mu.Lock()
		for c := range conns {
			c.nc.Close()
		}
		b.mu.Unlock()
		<-done
	}
	b.shares.Close(ctx)
	b.cancel()
	return err
}
