package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/security"
)

// handleDescribeClientQuotas lists the limits whose entities match (KIP-546).
func handleDescribeClientQuotas(_ context.Context, b *Broker, r *request, req *kmsg.DescribeClientQuotasRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeClientQuotasResponse()
	entries, err := b.describeQuotas(r, req)
	resp.ErrorCode, resp.ErrorMessage = codeAndText(err)
	resp.Entries = entries
	return resp
}

func (b *Broker) describeQuotas(r *request, req *kmsg.DescribeClientQuotasRequest) ([]kmsg.DescribeClientQuotasResponseEntry, error) {
	if !r.may(opDescribeConfig, onCluster, cluster) {
		return nil, kerr.ClusterAuthorizationFailed
	}
	seen := map[string]bool{}
	for _, c := range req.Components {
		switch {
		case seen[c.EntityType]:
			return nil, refuse(kerr.InvalidRequest, "entity type %q is in the request twice", c.EntityType)
		case c.MatchType < kmsg.QuotasMatchTypeExact || c.MatchType > kmsg.QuotasMatchTypeAny || (c.MatchType == kmsg.QuotasMatchTypeExact) != (c.Match != nil):
			return nil, refuse(kerr.InvalidRequest, "match type %d of %s, with a name or without: want 0 with one, 1 or 2 without", c.MatchType, c.EntityType)
		}
		seen[c.EntityType] = true
	}
	entries := []kmsg.DescribeClientQuotasResponseEntry{} // null would be an error
	var last string
	for _, q := range b.access.Quotas().All() { // by entity
		e, err := security.ParseQuotaEntity(q.Entity)
		if err != nil {
			return nil, err
		}
		if !quotaMatches(e, req) {
			continue
		}
		if len(entries) == 0 || q.Entity != last {
			entry := kmsg.NewDescribeClientQuotasResponseEntry()
			for _, typ := range slices.Sorted(maps.Keys(e)) {
				part := kmsg.NewDescribeClientQuotasResponseEntryEntity()
				part.Type, part.Name = typ, e[typ]
				entry.Entity = append(entry.Entity, part)
			}
			entries, last = append(entries, entry), q.Entity
		}
		value := kmsg.NewDescribeClientQuotasResponseEntryValue()
		value.Key, value.Value = q.Name, q.Value
		entry := &entries[len(entries)-1]
		entry.Values = append(entry.Values, value)
	}
	return entries, nil
}

// quotaMatches reports whether an entity has every component that is asked for, and if strict no
// other.
func quotaMatches(e security.QuotaEntity, req *kmsg.DescribeClientQuotasRequest) bool {
	if req.Strict && len(e) != len(req.Components) {
		return false
	}
	for _, c := range req.Components {
		name, is := e[c.EntityType]
		switch {
		case !is,
			c.MatchType == kmsg.QuotasMatchTypeExact && (name == nil || *name != *c.Match),
			c.MatchType == kmsg.QuotasMatchTypeDefault && name != nil:
			return false
		}
	}
	return true
}

// handleAlterClientQuotas sets and removes limits (KIP-546). An entity of which anything is wrong is
// left as it was, the others are changed.
func handleAlterClientQuotas(ctx context.Context, b *Broker, r *request, req *kmsg.AlterClientQuotasRequest) kmsg.Response {
	resp := kmsg.NewPtrAlterClientQuotasResponse()
	allowed := r.may(opAlterConfig, onCluster, cluster)
	entities := make([]security.QuotaEntity, len(req.Entries))
	times := map[string]int{}
	for i, entry := range req.Entries {
		entities[i] = security.QuotaEntity{}
		for _, part := range entry.Entity {
			entities[i][part.Type] = part.Name
		}
		times[entities[i].String()]++
	}
	for i, entry := range req.Entries {
		e := entities[i]
		set, remove, err := quotaChanges(e, entry)
		switch {
		case !allowed:
			err = kerr.ClusterAuthorizationFailed
		case err != nil:
		case times[e.String()] > 1:
			err = refuse(kerr.InvalidRequest, "%s is in the request twice", e)
		case len(e) != len(entry.Entity):
			err = refuse(kerr.InvalidRequest, "an entity type is twice in one entity")
		case !req.ValidateOnly:
			if err = b.access.AlterQuotas(ctx, set, remove); err == nil {
				b.log.Info("quotas changed", "entity", e.String(), "principal", r.conn.session.client.Principal, "set", fmt.Sprint(set), "removed", len(remove))
			} else {
				b.log.Error("alter quotas", "entity", e.String(), "err", err)
			}
		}
		result := kmsg.NewAlterClientQuotasResponseEntry()
		result.ErrorCode, result.ErrorMessage = codeAndText(err)
		for _, part := range entry.Entity {
			p := kmsg.NewAlterClientQuotasResponseEntryEntity()
			p.Type, p.Name = part.Type, part.Name
			result.Entity = append(result.Entity, p)
		}
		resp.Entries = append(resp.Entries, result)
	}
	return resp
}

func quotaChanges(e security.QuotaEntity, entry kmsg.AlterClientQuotasRequestEntry) (set, remove []metadata.ClientQuota, err error) {
	seen := map[string]bool{}
	for _, op := range entry.Ops {
		value := op.Value
		if op.Remove {
			value = 1 // is not looked at
		}
		if err := security.CheckQuota(e, op.Key, value); err != nil {
			return nil, nil, refuse(kerr.InvalidRequest, "%v", err)
		}
		if seen[op.Key] {
			return nil, nil, refuse(kerr.InvalidRequest, "%s of %s is in the request twice", op.Key, e)
		}
		seen[op.Key] = true
		q := metadata.ClientQuota{Entity: e.String(), Name: op.Key, Value: op.Value}
		if op.Remove {
			remove = append(remove, q)
		} else {
			set = append(set, q)
		}
	}
	return set, remove, nil
}
