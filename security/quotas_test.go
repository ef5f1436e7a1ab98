package security

import (
	"math"
	"testing"

	"github.com/tabletopic/tabletopic/metadata"
)

func entity(parts ...string) QuotaEntity {
	e := QuotaEntity{}
	for i := 0; i < len(parts); i += 2 {
		if e[parts[i]] = &parts[i+1]; parts[i+1] == "<default>" {
			e[parts[i]] = nil
		}
	}
	return e
}

// Of the quotas that fit a client the most special one counts, in the order of KIP-13 and KIP-55; who shares it is
// what it names.
func TestMostSpecialQuotaCounts(t *testing.T) {
	order := []struct {
		entity QuotaEntity
		holder QuotaHolder
	}{
		{entity("user", "alice", "client-id", "app"), QuotaHolder{User: "alice", ClientID: "app"}},
		{entity("user", "alice", "client-id", "<default>"), QuotaHolder{User: "alice", ClientID: "app"}},
		{entity("user", "alice"), QuotaHolder{User: "alice"}},
		{entity("user", "<default>", "client-id", "app"), QuotaHolder{User: "alice", ClientID: "app"}},
		{entity("user", "<default>", "client-id", "<default>"), QuotaHolder{User: "alice", ClientID: "app"}},
		{entity("user", "<default>"), QuotaHolder{User: "alice"}},
		{entity("client-id", "app"), QuotaHolder{ClientID: "app"}},
		{entity("client-id", "<default>"), QuotaHolder{ClientID: "app"}},
	}
	var all []metadata.ClientQuota
	for i, o := range order {
		all = append(all, metadata.ClientQuota{Entity: o.entity.String(), Name: ProducerByteRate, Value: float64(i + 1)})
	}
	others := []metadata.ClientQuota{
		{Entity: entity("user", "bob").String(), Name: ProducerByteRate, Value: 100},
		{Entity: entity("user", "alice").String(), Name: ConsumerByteRate, Value: 101},
		{Entity: entity("user", "bob", "client-id", "app").String(), Name: ProducerByteRate, Value: 102},
	}
	for i, o := range order {
		limit, holder, ok := NewQuotas(append(others, all[i:]...)).Client(ProducerByteRate, "alice", "app")
		if !ok || limit != float64(i+1) || holder != o.holder {
			t.Errorf("of %v and what follows: %v of %+v, want %d of %+v", o.entity, limit, holder, i+1, o.holder)
		}
	}
	if limit, holder, ok := NewQuotas(others).Client(ProducerByteRate, "alice", "app"); ok {
		t.Errorf("%v of %+v, want none", limit, holder)
	}
	if limit, _, _ := NewQuotas(all).Client(ProducerByteRate, "carol", ""); limit != 5 {
		t.Errorf("a client without an id has %v, want that of the defaults", limit)
	}
}

func TestQuotaOfAnAddress(t *testing.T) {
	q := NewQuotas([]metadata.ClientQuota{
		{Entity: entity("ip", "10.0.0.1").String(), Name: ConnectionCreationRate, Value: 3},
		{Entity: entity("ip", "<default>").String(), Name: ConnectionCreationRate, Value: 7},
	})
	for ip, want := range map[string]float64{"10.0.0.1": 3, "10.0.0.2": 7} {
		if got, ok := q.Address(ip); !ok || got != want {
			t.Errorf("%s: %v, want %v", ip, got, want)
		}
	}
	if _, ok := NewQuotas(nil).Address("10.0.0.1"); ok {
		t.Error("a limit out of nothing")
	}
}

func TestQuotasThatCannotBe(t *testing.T) {
	for _, ok := range []struct {
		e     QuotaEntity
		name  string
		value float64
	}{
		{entity("user", "a"), ProducerByteRate, 1},
		{entity("user", "a", "client-id", "b"), RequestPercentage, 0.5},
		{entity("client-id", "<default>"), ControllerMutationRate, 2.5},
		{entity("ip", "10.0.0.1"), ConnectionCreationRate, 2},
		{entity("user", "a"), ConsumerByteRate, 1e18},
	} {
		if err := CheckQuota(ok.e, ok.name, ok.value); err != nil {
			t.Errorf("%v %s: %v", ok.e, ok.name, err)
		}
	}
	for _, bad := range []struct {
		e     QuotaEntity
		name  string
		value float64
	}{
		{entity(), ProducerByteRate, 1},
		{entity("group", "a"), ProducerByteRate, 1},
		{entity("user", ""), ProducerByteRate, 1},
		{entity("user", "a", "ip", "10.0.0.1"), ConnectionCreationRate, 1},
		{entity("user", "a"), ConnectionCreationRate, 1},
		{entity("ip", "10.0.0.1"), ProducerByteRate, 1},
		{entity("user", "a"), "producer_rate", 1},
		{entity("user", "a"), ProducerByteRate, 0},
		{entity("user", "a"), ProducerByteRate, -1},
		{entity("user", "a"), ProducerByteRate, 1.5},
		{entity("user", "a"), RequestPercentage, math.NaN()},
		{entity("user", "a"), RequestPercentage, math.Inf(1)},
		{entity("ip", "10.0.0.1"), ConnectionCreationRate, 0.5},
		{entity("ip", "10.0.0.1"), ConnectionCreationRate, 1 << 31},
		{entity("user", "a"), ProducerByteRate, 1e30},
		{entity("user", "a"), ConsumerByteRate, 1 << 63},
	} {
		if err := CheckQuota(bad.e, bad.name, bad.value); err == nil {
			t.Errorf("%v %s = %v is accepted", bad.e, bad.name, bad.value)
		}
	}
}
