package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
	"github.com/tabletopic/tabletopic/worker"
)

// routes returns the tables of these topics, or the ones of routes that are named themselves, or all if
// there are no names.
func (n *Node) routes(names []string) (out []partition.Route, err error) {
	for _, name := range names {
		r, err := n.tableOf(name)
		if err != nil {
			return nil, err
		}
		if r.Table.Record != "" {
			out = append(out, r)
			continue
		}
		all, err := n.set.Routes(r.Topic)
		if err != nil {
			return nil, err
		}
		out = append(out, all...)
	}
	if len(names) > 0 {
		return out, nil
	}
	for _, t := range n.set.Topics() {
		if all, err := n.set.Routes(t); err == nil {
			out = append(out, all...)
		}
	}
	return out, nil
}

// status returns how a table is, as its coordinator and the workers of this node know it.
// With live it is loaded from its catalog, and with its columns. Nodes that are away are added
// to away, and not asked if they are there.
func (n *Node) status(ctx context.Context, r partition.Route, live bool, away map[streamstore.NodeID]error) TableStatus {
	now, t, cfg := time.Now(), r.Topic, r.Table
	s := TableStatus{Topic: r.Name, Catalog: cfg.Catalog, State: coordinator.TableWaiting, Partitions: []PartitionStatus{}}
	if id, err := coordinator.Identifier(cfg.Namespace, cfg.Name, r.Name); err == nil {
		s.Table = strings.Join(id, ".")
	}
	lags := n.partitionLags(r, now)
	known, coordinated := n.coordinators.Status(r.ID, now, n.work(r, now))
	if coordinated {
		s.says(known.State, known.Ailment)
	}
	if known.Survey != nil {
		s.Small = &known.Survey.Small
	}
	tbl := known.Table
	if live || !coordinated {
		_, loaded, err := n.load(ctx, r)
		switch {
		case err == nil:
			tbl = loaded
		case errors.Is(err, catalog.ErrNoTable): // made with the first record
		case s.Message == "":
			s.says(coordinator.TableDegraded, coordinator.Ailment{Message: err.Error(), Since: now})
		}
	}
	next := map[int32]int64{}
	if tbl != nil {
		if err := s.describe(tbl, r, next, live); err != nil && s.Message == "" {
			s.says(coordinator.TableDegraded, coordinator.Ailment{Message: err.Error(), Since: now})
		}
		if snapshot, at := coordinator.LastCommit(tbl); snapshot != 0 {
			s.Committed, s.CommitAge = &at, max(0, now.Sub(at).Milliseconds())
		}
		if at := coordinator.LastCompaction(tbl); !at.IsZero() {
			s.Compacted = &at
		}
	}
	if leader := t.Partitions[0].Leader; !coordinated && !n.set.Lives(leader) {
		s.says(coordinator.TableUnknown, coordinator.Ailment{Message: "its coordinator is with partition 0: " + leaderAway(leader, nil).Error(), Since: now})
	} else if !coordinated && s.Message == "" {
		s.elsewhere(now, n.work(r, now), cfg, len(next) > 0)
	}
	logs := &logs{n, t, lifeSign, away}
	for i := range int32(len(t.Partitions)) {
		s.add(partitionStatus(ctx, logs, i, next, lags[i], now))
	}
	if w := n.workers.Worker(r.ID); w != nil {
		s.Waiting, s.DeadLetters = w.Files(), w.DeadLetters()
	}
	return s
}

// askStates asks each other node that has coordinators of these tables for their states.
func (n *Node) askStates(ctx context.Context, routes []partition.Route, list []TableStatus, away map[streamstore.NodeID]error) {
	ctx, cancel := context.WithTimeout(ctx, lifeSign)
	defer cancel()
	led := map[streamstore.NodeID]map[string]*TableStatus{}
	for i, r := range routes {
		if leader := r.Topic.Partitions[0].Leader; leader != n.set.Node().ID && away[leader] == nil {
			if led[leader] == nil {
				led[leader] = map[string]*TableStatus{}
			}
			led[leader][r.Name] = &list[i]
		}
	}
	var asked sync.WaitGroup
	for _, m := range n.set.Members() {
		if len(led[m.ID]) > 0 && m.Alive {
			asked.Go(func() { n.askNode(ctx, m.Member, led[m.ID]) })
		}
	}
	asked.Wait()
}

// askNode has a node say how the tables are that it coordinates.
func (n *Node) askNode(ctx context.Context, m metadata.Member, tables map[string]*TableStatus) {
	q := url.Values{"local": {"true"}}
	if len(tables) <= 100 { // of all topics else, or the request would be too long
		q["topic"] = slices.Sorted(maps.Keys(tables))
	}
	var list struct{ Tables []TableStatus }
	resp, err := n.peers.do(ctx, m, http.MethodGet, "/api/tables?"+q.Encode(), nil)
	if err == nil {
		err = json.NewDecoder(http.MaxBytesReader(nil, resp.Body, maxPeerBody)).Decode(&list)
		resp.Body.Close()
	}
	if err != nil {
		now := time.Now()
		for _, s := range tables {
			s.says(coordinator.TableUnknown, coordinator.Ailment{Message: "its coordinator is with partition 0: " + leaderAway(m.ID, err).Error(), Since: now})
		}
		return
	}
	for _, said := range list.Tables {
		if s := tables[said.Topic]; s != nil {
			s.State, s.Message, s.Since, s.Small = said.State, said.Message, said.Since, said.Small
		}
	}
}

// elsewhere decides the state of a table whose coordinator is not on this node, by what the
// workers here wait for. The coordinator knows better.
func (s *TableStatus) elsewhere(now time.Time, w coordinator.Work, cfg partition.TableConfig, filled bool) {
	var h coordinator.Health
	h.Filled(filled)
	state, a := h.State(now, w, coordinator.Patience{Call: cfg.TargetLag, Stuck: cfg.TargetLag * time.Duration(cfg.StuckLags)})
	if a.Message != "" {
		a.Message += ": the coordinator is with partition 0, on another server: does it live ('tabletopic node list')?"
	}
	s.says(state, a)
}

func (s *TableStatus) says(state coordinator.TableState, a coordinator.Ailment) {
	s.State, s.Message, s.Since = state, a.Message, nil
	if a.Message != "" {
		s.Since = &a.Since
	}
}

// add counts a partition in.
func (s *TableStatus) add(p PartitionStatus) {
	s.LagRecords += p.LagRecords
	s.UnwrittenRecords += p.UnwrittenRecords
	s.LagMillis = max(s.LagMillis, p.LagMillis)
	s.UnwrittenMillis = max(s.UnwrittenMillis, p.UnwrittenMillis)
	s.Partitions = append(s.Partitions, p)
}

// partitionLags returns what the worker of this node knows of its partitions.
func (n *Node) partitionLags(r partition.Route, now time.Time) map[int32]worker.PartitionLag {
	lags := map[int32]worker.PartitionLag{}
	if w := n.workers.Worker(r.ID); w != nil {
		for _, l := range w.Lag(now) {
			lags[l.Partition] = l
		}
	}
	return lags
}

// logs opens the partitions of a topic, wherever they are led. A node that is away is asked once.
type logs struct {
	n        *Node
	topic    metadata.Topic
	patience time.Duration                // for the answer of another node
	away     map[streamstore.NodeID]error // nodes that did not answer
}

// errAway says that nothing is known of a partition, because the node that leads it is away.
var errAway = errors.New("log unknown")

func leaderAway(leader streamstore.NodeID, cause error) error {
	why := ""
	if cause != nil {
		why = ": " + cause.Error()
	}
	return fmt.Errorf("%w: node %d, which leads it, does not answer%s: see 'tabletopic node list', and start it, or recover it with 'tabletopic node recover %d'", errAway, leader, why, leader)
}

// open returns a partition to read from. errAway if its leader does not live or does not answer.
func (l *logs) open(ctx context.Context, index int32) (partition.Log, error) {
	id, leader := partition.ID{Topic: l.topic.Name, Index: index}, l.topic.Partitions[index].Leader
	if leader == l.n.set.Node().ID {
		return l.n.set.Log(ctx, id)
	}
	if err := l.away[leader]; err != nil {
		return nil, err
	}
	var err error
	if l.n.set.Lives(leader) {
		within, cancel := context.WithTimeout(ctx, l.patience)
		defer cancel()
		var log partition.Log
		if log, err = l.n.set.Log(within, id); err == nil {
			return log, nil
		}
	}
	l.away[leader] = leaderAway(leader, err)
	return nil, l.away[leader]
}

// partitionStatus compares a partition with next, of the table.
func partitionStatus(ctx context.Context, logs *logs, i int32, next map[int32]int64, l worker.PartitionLag, now time.Time) PartitionStatus {
	s := PartitionStatus{Partition: i, LogStart: -1, LogEnd: -1, TableNext: -1, WrittenNext: -1}
	if at, ok := next[i]; ok {
		s.TableNext, s.WrittenNext = at, at
	}
	p, err := logs.open(ctx, i)
	if err != nil {
		s.Message = err.Error()
		return s
	}
	o := p.Offsets()
	s.LogStart, s.LogEnd = o.LogStart, o.LastStable
	s.WrittenNext = max(s.WrittenNext, l.Written)
	s.LagRecords = max(0, s.LogEnd-max(s.LogStart, s.TableNext))
	s.UnwrittenRecords = max(0, s.LogEnd-max(s.LogStart, s.WrittenNext))
	if s.LagRecords > 0 {
		s.LagMillis = millis(l.Oldest, now)
	}
	if s.UnwrittenRecords > 0 {
		s.UnwrittenMillis = millis(l.OldestUnwritten, now)
	}
	return s
}

// millis is the time since then, and at least 1, unless then is zero.
func millis(then, now time.Time) int64 {
	if then.IsZero() {
		return 0
	}
	return max(1, now.Sub(then).Milliseconds())
}

// describe fills in what the table says of itself.
func (s *TableStatus) describe(tbl *table.Table, r partition.Route, next map[int32]int64, columns bool) error {
	meta := tbl.Metadata()
	s.Location, s.Snapshots = tbl.Location(), len(meta.Snapshots())
	if snap := meta.CurrentSnapshot(); snap != nil {
		s.Snapshot = snap.SnapshotID
		if snap.Summary != nil {
			s.Rows, _ = strconv.ParseInt(snap.Summary.Properties["total-records"], 10, 64)
			s.Files, _ = strconv.ParseInt(snap.Summary.Properties["total-data-files"], 10, 64)
		}
	}
	if columns {
		for _, f := range tbl.Schema().Fields() {
			s.Columns = append(s.Columns, Column{f.Name, typeName(f.Type)})
		}
	}
	pos, ok, err := coordinator.ReadPosition(meta.Properties())
	if err != nil || !ok || pos.Topic != r.ID {
		return err
	}
	maps.Copy(next, pos.Next)
	return nil
}

// work is what the worker of this node says of a route.
func (n *Node) work(r partition.Route, now time.Time) coordinator.Work {
	var w coordinator.Work
	for _, l := range n.partitionLags(r, now) {
		if !l.Oldest.IsZero() && (w.Oldest.IsZero() || l.Oldest.Before(w.Oldest)) {
			w.Oldest = l.Oldest
		}
		if l.Trouble != "" && (w.Trouble.Since.IsZero() || l.Since.Before(w.Trouble.Since)) {
			w.Trouble = coordinator.Ailment{Message: l.Trouble, Since: l.Since}
		}
	}
	return w
}

// A coordinated table is one whose coordinator is on this node.
type coordinated struct {
	topic string
	coordinator.Status
}

func (n *Node) coordinated() (out []coordinated) {
	routes, _ := n.routes(nil)
	now := time.Now()
	for _, r := range routes {
		if s, ok := n.coordinators.Status(r.ID, now, n.work(r, now)); ok {
			out = append(out, coordinated{r.Name, s})
		}
	}
	return out
}

// ready answers 200 as long as the node serves, and tells of the tables that are not well:
// records are taken all the same. With ?tables=required it answers 503 then.
func (n *Node) ready(w http.ResponseWriter, r *http.Request) {
	if err := n.store.Err(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if !n.announced.Load() {
		http.Error(w, "starting: the cluster does not know yet where this node is reached", http.StatusServiceUnavailable)
		return
	}
	var ill []string
	for _, t := range n.coordinated() {
		if t.Ailment.Message != "" {
			ill = append(ill, fmt.Sprintf("table of topic %s is %s: %s\n", t.topic, t.State, t.Ailment.Message))
		}
	}
	slices.Sort(ill)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	switch {
	case len(ill) == 0:
		fmt.Fprint(w, "ok\n")
		return
	case r.URL.Query().Get("tables") == "required":
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		fmt.Fprint(w, "ok, but\n")
	}
	const most = 100
	for i, line := range ill {
		if i == most {
			fmt.Fprintf(w, "… and %d more\n", len(ill)-most)
			break
		}
		fmt.Fprint(w, line)
	}
}

// stateMetrics shows the states of the tables whose coordinators are on the node.
type stateMetrics struct{ n *Node }

var tableState = prometheus.NewDesc("tabletopic_table_state", "1 for the state that the table is in, 0 for the others.", []string{"topic", "state"}, nil)

// Describe implements prometheus.Collector.
func (m stateMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- tableState }

// Collect implements prometheus.Collector.
func (m stateMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, t := range m.n.coordinated() {
		for _, s := range coordinator.TableStates {
			v := 0.0
			if s == t.State {
				v = 1
			}
			ch <- prometheus.MustNewConstMetric(tableState, prometheus.GaugeValue, v, t.topic, string(s))
		}
	}
}
