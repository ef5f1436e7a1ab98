package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

// An answer that was made while the partition of the group went away does not count: whoever
// leads it now may know better.
func TestAnswersOnlyWhileLedHere(t *testing.T) {
	ctx, log := t.Context(), slog.New(slog.DiscardHandler)
	set := openSet(t, log)
	m := Open(set, Config{}, nil, log)
	defer m.Close()
	answers := func(meanwhile func()) error {
		_, err := do[int](ctx, m, "g", func(_ *State, _ time.Time, t shard.Ticket) shard.Step {
			meanwhile()
			return shard.Step{Answers: []shard.Answer{{To: t, Value: 1}}}
		})
		return err
	}
	if err := answers(func() {}); err != nil {
		t.Fatal(err)
	}
	err := answers(func() {
		if err := set.DeleteTopic(ctx, Topic); err != nil { // it could as well have moved
			t.Error(err)
		}
	})
	if !errors.Is(err, ErrNotCoordinator) {
		t.Fatalf("answered while the partition went away: %v, want %v", err, ErrNotCoordinator)
	}
}

// Each partition of __consumer_offsets has its part of the memory for groups, of as many as there are, whatever was
// asked for. Where it is full, the log says so, with the name of the setting.
func TestFullMemoryOfGroupsIsInTheLog(t *testing.T) {
	var logged bytes.Buffer // written in the handlers, each of which is over before its answer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	set := openSet(t, slog.New(slog.DiscardHandler))
	first := Open(set, Config{Partitions: 2}, nil, log)
	if _, _, err := first.Find(t.Context(), "g"); err != nil { // makes the topic
		t.Fatal(err)
	}
	first.Close()
	m := Open(set, Config{Partitions: 16, MemoryBytes: 40_000}, nil, log)
	defer m.Close()
	if _, err := set.CreateTopic(t.Context(), metadata.NewTopic{Name: "t", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	accepted := 0
	for i := range 100 {
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Version, req.Group, req.Generation = 8, fmt.Sprint("group-", i), -1
		req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{}}}}
		resp, err := m.Commit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		switch code := resp.Topics[0].Partitions[0].ErrorCode; code {
		case 0:
			accepted++
		case kerr.PolicyViolation.Code:
		default:
			t.Fatal(kerr.ErrorForCode(code))
		}
	}
	// Three quarters of 20,000 bytes for each of two partitions, and a group of one offset takes about 1,000.
	if accepted < 2*12 || accepted > 2*15 {
		t.Errorf("%d groups were accepted", accepted)
	}
	shown := gauges(t, m.Collectors())
	if n, full := shown["tabletopic_groups_memory_bytes"], shown["tabletopic_groups_memory_used_ratio"]; n < 900*float64(accepted) || n > 30_000 || full < 0.70 || full > 0.75 {
		t.Errorf("%d groups take %v bytes, and the fullest partition is full to %v", accepted, n, full)
	}
	m.Close()
	for name, got := range gauges(t, m.Collectors()) {
		if got != 0 {
			t.Errorf("%s is %v where nothing is open", name, got)
		}
	}
	if got := logged.String(); strings.Count(got, "groups-memory-bytes") != 100-accepted || !strings.Contains(got, "limit=20000") {
		t.Errorf("%d were refused, the log has:\n%s", 100-accepted, got)
	}
}

// A member of the classic protocol is recognized by its id, which begins with the name of its instance, or else of its client.
// A name that is too long for that is left out, and the group is there again after a restart.
func TestMemberIDsBeginWithTheNameOfInstanceOrClient(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	set := openSet(t, log)
	m := Open(set, Config{}, nil, log)
	long := strings.Repeat("x", math.MaxInt16)
	for _, c := range []struct{ group, instance, client, begins string }{
		{"dynamic", "", "loader", "loader-"}, {"static", "one", "loader", "one-"}, {"long client", "", long, ""}, {"long instance", long, "loader", ""},
	} {
		req := kmsg.NewPtrJoinGroupRequest()
		req.Version, req.Group, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis, req.ProtocolType = 5, c.group, 60_000, 60_000, "consumer"
		req.InstanceID = nonEmpty(c.instance)
		req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range"}}
		join := func() *kmsg.JoinGroupResponse {
			resp, err := m.Join(t.Context(), req, Client{ID: c.client})
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		resp := join()
		if resp.ErrorCode == kerr.MemberIDRequired.Code {
			req.MemberID = resp.MemberID
			resp = join()
		}
		if name := resp.MemberID[:len(resp.MemberID)-len(uuid.Nil.String())]; resp.ErrorCode != 0 || name != c.begins || len(resp.MemberID) > math.MaxInt16 {
			t.Errorf("%s: an id of %d bytes, %.20s…, %v; want one that begins with %q", c.group, len(resp.MemberID), resp.MemberID, kerr.ErrorForCode(resp.ErrorCode), c.begins)
		}
		sync := kmsg.NewPtrSyncGroupRequest()
		sync.Version, sync.Group, sync.MemberID, sync.Generation, sync.InstanceID = 4, c.group, resp.MemberID, resp.Generation, req.InstanceID
		if resp, err := m.Sync(t.Context(), sync); err != nil {
			t.Fatal(c.group, err)
		} else if resp.ErrorCode != 0 {
			t.Fatal(c.group, kerr.ErrorForCode(resp.ErrorCode))
		}
	}
	m.Close()
	m = Open(set, Config{}, nil, log)
	defer m.Close()
	for _, group := range []string{"dynamic", "static", "long client", "long instance"} {
		g, err := m.Describe(t.Context(), group, 5)
		if err != nil {
			t.Errorf("%s after a restart: %v", group, err)
		} else if g.ErrorCode != 0 || len(g.Members) != 1 {
			t.Errorf("%s after a restart: %d members, %v", group, len(g.Members), kerr.ErrorForCode(g.ErrorCode))
		}
	}
}

// gauges returns the values of gauges by name.
func gauges(t *testing.T, collectors []prometheus.Collector) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(collectors...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		values[f.GetName()] = f.Metric[0].Gauge.GetValue()
	}
	return values
}

// openSet opens the partitions of a node, in memory.
func openSet(t *testing.T, log *slog.Logger) *partition.Set {
	t.Helper()
	ctx := t.Context()
	meta, err := metadata.Open(ctx, "sqlite::memory:", log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meta.Close() })
	store, err := streamstore.Open(ctx, streamstore.Config{WALLinger: time.Millisecond}, 1, objectstore.NewMemory(), meta, meta, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close(context.Background()) })
	set, err := partition.OpenSet(ctx, partition.Config{}, store, meta, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close(context.Background()) })
	return set
}
