package security

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tabletopic/tabletopic/metadata"
)

// Quotas of clients (KIP-13, KIP-124, KIP-599) and of addresses (KIP-612).
const (
	ProducerByteRate       = "producer_byte_rate"       // bytes a second
	ConsumerByteRate       = "consumer_byte_rate"       // bytes a second
	RequestPercentage      = "request_percentage"       // % of a core
	ControllerMutationRate = "controller_mutation_rate" // partitions made or deleted a second
	ConnectionCreationRate = "connection_creation_rate" // connections a second
)

// Types of what quotas are for.
const (
	quotaUser   = "user"
	quotaClient = "client-id"
	quotaIP     = "ip"
)

// A QuotaEntity is what a quota is for: names by type (user, client-id, or both; or ip). A nil name
// is the default of those that have no quota of their own.
type QuotaEntity map[string]*string

// String is the text that is stored.
func (e QuotaEntity) String() string {
	text, _ := json.Marshal(e) // strings always marshal
	return string(text)
}

// CheckQuota returns why an entity cannot have a limit.
func CheckQuota(e QuotaEntity, name string, value float64) error {
	_, ip := e[quotaIP]
	known := []string{ProducerByteRate, ConsumerByteRate, RequestPercentage, ControllerMutationRate}
	if ip {
		known = []string{ConnectionCreationRate}
	}
	for typ, name := range e {
		switch {
		case typ != quotaUser && typ != quotaClient && typ != quotaIP:
			return fmt.Errorf("there are no quotas for %q: want user, client-id or ip", typ)
		case name != nil && (*name == "" || len(*name) > maxName):
			return fmt.Errorf("the name of a %s has %d bytes: want 1 to %d", typ, len(*name), maxName)
		}
	}
	switch {
	case len(e) == 0 || ip && len(e) > 1:
		return fmt.Errorf("quotas are for user, client-id, both, or ip alone, not for %s", e)
	case !slices.Contains(known, name):
		return fmt.Errorf("quota %q: want one of %s", name, strings.Join(known, ", "))
	case math.IsNaN(value) || math.IsInf(value, 0) || value <= 0:
		return fmt.Errorf("%s is %v: want a number above 0", name, value)
	case (name == ProducerByteRate || name == ConsumerByteRate || ip) && value != math.Trunc(value):
		return fmt.Errorf("%s is %v: want a whole number", name, value)
	case ip && value > math.MaxInt32, value >= math.MaxInt64 && (name == ProducerByteRate || name == ConsumerByteRate):
		return fmt.Errorf("%s is %v: that is more than any limit", name, value)
	}
	return nil
}

// A QuotaHolder is who shares a limit: a user, a client id, one of both, or an address. What is
// empty does not count.
type QuotaHolder struct {
	User, ClientID, IP string
}

// Quotas are limits, as looked up.
type Quotas struct {
	entities []metadata.ClientQuota
	limits   map[quotaKey]float64
}

type quotaKey struct {
	name         string
	user, client quotaName
	ip           quotaName
}

type quotaName struct {
	is   bool
	name string // "" for the default
}

// NewQuotas indexes limits. Those whose entity cannot be read are left out.
func NewQuotas(all []metadata.ClientQuota) *Quotas {
	q := &Quotas{entities: all, limits: make(map[quotaKey]float64, len(all))}
	for _, one := range all {
		e, err := ParseQuotaEntity(one.Entity)
		if err != nil {
			continue
		}
		of := func(typ string) (n quotaName) {
			name, is := e[typ]
			if n.is = is; name != nil {
				n.name = *name
			}
			return n
		}
		q.limits[quotaKey{one.Name, of(quotaUser), of(quotaClient), of(quotaIP)}] = one.Value
	}
	return q
}

// ParseQuotaEntity reads what String wrote.
func ParseQuotaEntity(text string) (e QuotaEntity, err error) {
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return nil, fmt.Errorf("quota entity %q: %w", text, err)
	}
	return e, nil
}

// None reports whether nobody is limited.
func (q *Quotas) None() bool { return len(q.limits) == 0 }

// Client returns the limit of a client, and who shares it; ok is false if there is none. The first
// of these that has one counts, as in Kafka: the user with the client id, with the default client
// id, alone; the same of the default user; the client id, and the default one.
func (q *Quotas) Client(name, user, clientID string) (limit float64, holder QuotaHolder, ok bool) {
	both, users, clients := QuotaHolder{User: user, ClientID: clientID}, QuotaHolder{User: user}, QuotaHolder{ClientID: clientID}
	u, c, standard, none := quotaName{true, user}, quotaName{true, clientID}, quotaName{true, ""}, quotaName{}
	if user == "" {
		u = standard
	}
	if clientID == "" {
		c = standard
	}
	for _, try := range [...]struct {
		user, client quotaName
		holder       QuotaHolder
	}{
		{u, c, both}, {u, standard, both}, {u, none, users},
		{standard, c, both}, {standard, standard, both}, {standard, none, users},
		{none, c, clients}, {none, standard, clients},
	} {
		if limit, ok := q.limits[quotaKey{name, try.user, try.client, none}]; ok {
			return limit, try.holder, true
		}
	}
	return 0, QuotaHolder{}, false
}

// Address returns the limit of connections from an address.
func (q *Quotas) Address(ip string) (limit float64, ok bool) {
	if q.None() {
		return 0, false
	}
	for _, n := range []quotaName{{true, ip}, {true, ""}} {
		if limit, ok := q.limits[quotaKey{name: ConnectionCreationRate, ip: n}]; ok {
			return limit, true
		}
	}
	return 0, false
}

// All returns every limit, by entity.
func (q *Quotas) All() []metadata.ClientQuota { return q.entities }

// Quotas are those of now.
func (a *Access) Quotas() *Quotas { return a.quotas.Load() }

// AlterQuotas sets limits that CheckQuota accepts, and removes others.
func (a *Access) AlterQuotas(ctx context.Context, set, remove []metadata.ClientQuota) error {
	return a.changed(ctx, a.meta.AlterQuotas(ctx, set, remove))
}
