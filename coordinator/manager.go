package coordinator

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/maintenance"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
)

// Catalogs gives the catalog of a name; "" is the built-in one.
type Catalogs func(name string) (catalog.Catalog, error)

// Locators finds the files of a catalog's tables, by its name.
type Locators func(catalog string) catalog.Locator

// Manager runs a Coordinator for each table of the topics whose partition 0 this node leads, and the
// sweep of the control log.
type Manager struct {
	keeper *control.Keeper
	cancel context.CancelFunc
	owned  sync.WaitGroup

	mu           sync.Mutex
	coordinators map[uuid.UUID]*Coordinator // guarded by mu; the last of each route

	turns turns
	slots *slots
}

// SweepConfig says when files that no commit took are deleted.
type SweepConfig struct {
	Interval time.Duration // how often they are looked for. 10 min if zero
	Grace    time.Duration // how long they are kept; see [Sweeper]. 1 h if zero
}

// Open starts the coordinators of a node. The metrics may be nil, and cores, which compactions share with
// the workers.
func Open(set *partition.Set, ctl *control.Topic, catalogs Catalogs, schemas Schemas, locators Locators, sweep SweepConfig, cores maintenance.Cores, m *Metrics, log *slog.Logger) *Manager {
	ctx, cancel := context.WithCancel(context.Background())
	out := &Manager{cancel: cancel, coordinators: map[uuid.UUID]*Coordinator{}, slots: newSlots()}
	first := func(topic string) map[int32]int32 {
		led := set.Led(topic)
		maps.DeleteFunc(led, func(index, _ int32) bool { return index != 0 })
		return led
	}
	out.keeper = control.Keep(set, log, first, func(r partition.Route) (control.Task, error) {
		first, err := set.Partition(r.Topic.Name, 0)
		if errors.Is(err, partition.ErrNotLeader) || errors.Is(err, partition.ErrUnknownTopicOrPartition) {
			out.forget(r.ID)
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		cat, err := catalogs(r.Table.Catalog)
		if err != nil {
			return nil, err
		}
		settings := ConfigOf(r.Table)
		settings.Grace = sweep.Grace
		c, err := New(Topic{r.ID, r.Name, int32(len(r.Topic.Partitions)), first.LeaderEpoch()}, cat, ctl, schemas, settings, m, log)
		if err != nil {
			return nil, err
		}
		c.turns, c.slots, c.cores = &out.turns, out.slots, cores
		c.keepPin = func(ctx context.Context, id string) error {
			_, err := set.AlterConfig(ctx, r.Topic.Name, map[string]string{"table.topic.table.id": id}, nil)
			return err
		}
		out.mu.Lock()
		out.coordinators[r.ID] = c
		out.mu.Unlock()
		return c, nil
	}, func(r partition.Route) {
		out.forget(r.ID)
		if _, ok := set.Topic(r.Topic.Name); !ok || r.Table.Record != "" {
			m.forget(r.Name)
		}
	})
	s := &Sweeper{Log: ctl, Logger: log, Grace: cmp.Or(sweep.Grace, time.Hour), Load: func(ctx context.Context, id uuid.UUID) (*table.Table, catalog.Locator, error) {
		return sweepTarget(ctx, set, catalogs, locators, id)
	}}
	out.owned.Go(func() { s.Run(ctx, cmp.Or(sweep.Interval, 10*time.Minute)) })
	return out
}

func (m *Manager) forget(topic uuid.UUID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.coordinators, topic)
}

// Close returns when the last coordinator has ended.
func (m *Manager) Close() {
	m.cancel()
	m.keeper.Close()
	m.owned.Wait()
}

// ConfigOf returns the settings of a topic's coordinator.
func ConfigOf(t partition.TableConfig) Config {
	return Config{
		Namespace: t.Namespace, Table: t.Name, KafkaColumn: t.KafkaColumn, KeyColumn: t.ColumnOfKey(), PartitionBy: t.PartitionBy, SortBy: t.SortBy, Properties: t.Properties, Engines: t.Engines, OnRewind: t.OnRewind, OnRecreate: t.OnRecreate, OnDrop: t.OnDrop, Catalog: t.Catalog, TableID: t.TableID, OnIncompatible: t.OnIncompatible, ColumnCase: parquetio.Case(t.ColumnCase), Rules: t.Mapping, FormatVersion: t.FormatVersion, Lag: t.TargetLag,
		KeepAll: !t.ExpireSnapshots, ExpireAfter: t.ExpireAfter, ExpireRetain: t.ExpireRetain,
		StuckLags: t.StuckLags, Takes: t.Takes(),
		Compact: t.Compact, CompactMinFiles: t.CompactMinFiles, CompactSmall: float64(t.CompactSmallPercent) / 100, TargetFileBytes: t.TargetFileBytes,
	}
}
