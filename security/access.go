package security

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/semaphore"

	"github.com/tabletopic/tabletopic/internal/limitlog"
	"github.com/tabletopic/tabletopic/metadata"
)

// Config of an Access. The zero value lets everybody do everything.
type Config struct {
	// Authorize asks the ACLs. Everything is allowed if false.
	Authorize bool
	// SuperUsers are principals that ACLs do not bind.
	SuperUsers []string
	// AllowOrphans allows what is done to a resource that no ACL names: Kafka's
	// allow.everyone.if.no.acl.found.
	AllowOrphans bool
	// Mechanisms are the names of the SASL mechanisms that listeners offer.
	Mechanisms []string
	// SessionLifetime ends a SASL session that does not authenticate again before (KIP-368).
	// Never if zero; a token ends it in any case when it expires.
	SessionLifetime time.Duration
	// OAuth checks bearer tokens; none is accepted if nil.
	OAuth *OAuth
	// Refresh is how often changes by other nodes are looked for. 1 s if zero.
	Refresh time.Duration
}

// Access is the users, rules and quotas of a cluster as one node sees them. It is closed with Close.
type Access struct {
	cfg   Config
	meta  *metadata.Store
	log   *slog.Logger
	m     metrics
	audit *limitlog.Logger

	secret  []byte                            // of the cluster
	node    map[int8]metadata.ScramCredential // of its nodes, by mechanism
	local   []byte                            // of this process: what is hashed with it is compared only here
	hashing *semaphore.Weighted               // passwords that are hashed at a time
	proven  provenPasswords

	rules  atomic.Pointer[Rules]
	reads  atomic.Uint64 // how often rules were replaced
	users  atomic.Pointer[map[userKey]metadata.ScramCredential]
	quotas atomic.Pointer[Quotas]

	mu     sync.Mutex // held while reading metadata
	seq    int64      // guarded by mu; of the change log, as far as it is known
	cancel context.CancelFunc
	done   chan struct{}
}

type userKey struct {
	name      string
	mechanism int8
}

// Open reads users and rules from metadata and follows it until Close. Metrics are
// registered with reg unless it is nil.
func Open(ctx context.Context, cfg Config, meta *metadata.Store, log *slog.Logger, reg prometheus.Registerer) (*Access, error) {
	if cfg.Refresh == 0 {
		cfg.Refresh = time.Second
	}
	for _, m := range cfg.Mechanisms {
		if !knownMechanism(m) {
			return nil, fmt.Errorf("sasl mechanism %q: want some of %s", m, strings.Join(Mechanisms, ", "))
		}
		if m == OAuthBearer && cfg.OAuth == nil {
			return nil, fmt.Errorf("sasl mechanism %s: say whose tokens are accepted", m)
		}
	}
	a := &Access{
		cfg: cfg, meta: meta, log: log, m: newMetrics(reg), audit: limitlog.New(log),
		local: make([]byte, 32), hashing: semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0))), done: make(chan struct{}),
	}
	_, _ = rand.Read(a.local) // it never fails
	var err error
	if a.secret, err = meta.ClusterSecret(ctx); err != nil {
		return nil, err
	}
	a.node = a.nodeCredentials()
	if a.seq, err = meta.LastChange(ctx); err != nil {
		return nil, err
	}
	if err := a.read(ctx); err != nil {
		return nil, err
	}
	follow, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	go func() {
		defer close(a.done)
		a.follow(follow)
	}()
	return a, nil
}

// Close ends following metadata.
func (a *Access) Close() {
	a.cancel()
	<-a.done
}

// follow looks for changes of other nodes until ctx ends.
func (a *Access) follow(ctx context.Context) {
	if !a.meta.Shared() {
		return
	}
	tick := time.NewTicker(a.cfg.Refresh)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		// Who was known stays known while the database is away: it is needed for every change.
		if err := a.Sync(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("users, ACLs and quotas are as they were before: the metadata does not answer", "err", err)
		}
	}
}

// Sync looks for changes of other nodes now.
func (a *Access) Sync(ctx context.Context) error {
	const page = 1000
	a.mu.Lock()
	defer a.mu.Unlock()
	stale := false
	for {
		changes, err := a.meta.Changes(ctx, a.seq, page)
		if errors.Is(err, metadata.ErrChangesPruned) {
			if a.seq, err = a.meta.LastChange(ctx); err != nil {
				return err
			}
			stale = true
			continue
		}
		if err != nil {
			return err
		}
		for _, c := range changes {
			switch c.Kind {
			case metadata.ChangeUser, metadata.ChangeACL, metadata.ChangeQuota:
				stale = true
			}
		}
		if len(changes) == page {
			a.seq = changes[page-1].Seq
			continue
		}
		if stale {
			if err := a.read(ctx); err != nil {
				return err // and the changes are met again
			}
		}
		if len(changes) > 0 {
			a.seq = changes[len(changes)-1].Seq
		}
		return nil
	}
}

// read replaces what is known.
func (a *Access) read(ctx context.Context) error {
	acls, err := a.meta.ACLs(ctx)
	if err != nil {
		return err
	}
	credentials, err := a.meta.Credentials(ctx)
	if err != nil {
		return err
	}
	quotas, err := a.meta.Quotas(ctx)
	if err != nil {
		return err
	}
	users := make(map[userKey]metadata.ScramCredential, len(credentials))
	for _, c := range credentials {
		users[userKey{c.User, c.Mechanism}] = c
	}
	a.rules.Store(NewRules(acls, a.cfg.SuperUsers, a.cfg.AllowOrphans))
	a.reads.Add(1) // after the rules: who has the number has rules as new as that
	a.users.Store(&users)
	a.quotas.Store(NewQuotas(quotas))
	return nil
}

// changed reads what this node has changed itself.
func (a *Access) changed(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.read(ctx)
}

// Enabled reports whether ACLs are asked at all.
func (a *Access) Enabled() bool { return a.cfg.Authorize }

// Version is another number whenever Allows may answer something else than before.
func (a *Access) Version() uint64 { return a.reads.Load() }

// Mechanisms are the SASL mechanisms that are offered.
func (a *Access) Mechanisms() []string { return a.cfg.Mechanisms }

// SessionLifetime is how long a session lasts that no token ends, 0 for ever.
func (a *Access) SessionLifetime() time.Duration { return a.cfg.SessionLifetime }

// Allows reports whether c may do op to a resource, for answers that show only what one may see.
func (a *Access) Allows(c Client, op kmsg.ACLOperation, typ kmsg.ACLResourceType, name string) bool {
	return !a.cfg.Authorize || a.rules.Load().Allows(c, op, typ, name)
}

// Authorize is Allows for what c asked for: that it was denied is written down.
func (a *Access) Authorize(c Client, op kmsg.ACLOperation, typ kmsg.ACLResourceType, name string) bool {
	return a.Allows(c, op, typ, name) || a.deny(c, op, typ, name)
}

// AuthorizeAny reports whether c may do op to anything of a type.
func (a *Access) AuthorizeAny(c Client, op kmsg.ACLOperation, typ kmsg.ACLResourceType) bool {
	return !a.cfg.Authorize || a.rules.Load().AllowsAny(c, op, typ)
}

func (a *Access) deny(c Client, op kmsg.ACLOperation, typ kmsg.ACLResourceType, name string) bool {
	a.m.denied.WithLabelValues(TypeName(typ), op.String()).Inc()
	a.audit.Warn("denied", "principal", c.Principal, "host", c.Host, "operation", op.String(), "resource_type", TypeName(typ), "resource", name)
	return false
}

// Operations returns what c may do to a resource, as bits of Kafka's numbers (KIP-430), out of
// those that its type knows.
func (a *Access) Operations(c Client, typ kmsg.ACLResourceType, name string) int32 {
	bits := int32(0)
	for _, op := range operations[typ] {
		if a.Allows(c, op, typ, name) {
			bits |= 1 << op
		}
	}
	return bits
}

// operations are those that a type of resource knows.
var operations = map[kmsg.ACLResourceType][]kmsg.ACLOperation{
	kmsg.ACLResourceTypeTopic: {kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationCreate, kmsg.ACLOperationDelete, kmsg.ACLOperationAlter,
		kmsg.ACLOperationDescribe, kmsg.ACLOperationDescribeConfigs, kmsg.ACLOperationAlterConfigs},
	kmsg.ACLResourceTypeGroup: {kmsg.ACLOperationRead, kmsg.ACLOperationDelete, kmsg.ACLOperationDescribe,
		kmsg.ACLOperationDescribeConfigs, kmsg.ACLOperationAlterConfigs},
	kmsg.ACLResourceTypeCluster: {kmsg.ACLOperationCreate, kmsg.ACLOperationAlter, kmsg.ACLOperationDescribe, kmsg.ACLOperationClusterAction,
		kmsg.ACLOperationDescribeConfigs, kmsg.ACLOperationAlterConfigs, kmsg.ACLOperationIdempotentWrite},
	kmsg.ACLResourceTypeTransactionalId: {kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe},
	ResourceSubject: {kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDelete, kmsg.ACLOperationDescribe,
		kmsg.ACLOperationDescribeConfigs, kmsg.ACLOperationAlterConfigs},
	ResourceTable: {kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationCreate, kmsg.ACLOperationDelete, kmsg.ACLOperationDescribe},
}

// TypeName is the name of a resource type, ours among them.
func TypeName(typ kmsg.ACLResourceType) string {
	switch typ {
	case ResourceSubject:
		return "SUBJECT"
	case ResourceTable:
		return "TABLE"
	}
	return typ.String()
}

// ErrInvalidACL says that an ACL, or a filter of them, cannot be meant.
var ErrInvalidACL = errors.New("invalid ACL")

// CheckACL refuses an ACL that would never hold, or that this server does not know.
func CheckACL(a metadata.ACL) error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrInvalidACL}, args...)...)
	}
	typ, op := kmsg.ACLResourceType(a.ResourceType), kmsg.ACLOperation(a.Operation)
	ops := operations[typ]
	known := op == kmsg.ACLOperationAll
	for _, o := range ops {
		known = known || o == op
	}
	switch pattern := kmsg.ACLResourcePatternType(a.PatternType); {
	case ops == nil:
		return invalid("resources of type %s are not known", TypeName(typ))
	case a.ResourceName == "":
		return invalid("the name of the resource is empty")
	case len(a.ResourceName) > maxName || len(a.Principal) > maxName || len(a.Host) > maxName:
		return invalid("a name is longer than %d bytes", maxName)
	case typ == kmsg.ACLResourceTypeCluster && a.ResourceName != ClusterName && a.ResourceName != "*":
		return invalid("the only resource of type CLUSTER is called %s", ClusterName)
	case pattern != kmsg.ACLResourcePatternTypeLiteral && pattern != kmsg.ACLResourcePatternTypePrefixed:
		return invalid("patterns of type %s are for filters: want LITERAL or PREFIXED", pattern)
	case !known:
		return invalid("operation %s is not known for resources of type %s", op, TypeName(typ))
	case kmsg.ACLPermissionType(a.Permission) != kmsg.ACLPermissionTypeAllow && kmsg.ACLPermissionType(a.Permission) != kmsg.ACLPermissionTypeDeny:
		return invalid("the permission is neither ALLOW nor DENY")
	case !strings.HasPrefix(a.Principal, "User:") || a.Principal == "User:":
		return invalid("principal %q: want User:NAME, or User:* for everybody", a.Principal)
	case a.Host == "":
		return invalid("the host is empty: want an address, or * for all")
	}
	return nil
}

// maxName bounds the texts of an ACL: topics have at most 249 letters, certificates' names more.
const maxName = 2048

// CreateACLs adds ACLs that CheckACL accepts.
func (a *Access) CreateACLs(ctx context.Context, acls []metadata.ACL) error {
	return a.changed(ctx, a.meta.CreateACLs(ctx, acls))
}

// DeleteACLs removes ACLs.
func (a *Access) DeleteACLs(ctx context.Context, acls []metadata.ACL) error {
	return a.changed(ctx, a.meta.DeleteACLs(ctx, acls))
}

// ACLs returns those that a filter matches.
func (a *Access) ACLs(f Filter) []metadata.ACL { return a.rules.Load().ACLs(f) }
