package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
)

// Manager runs a Worker for each table of a topic, on the partitions that this node leads.
type Manager struct {
	keeper *control.Keeper

	mu      sync.Mutex
	workers map[uuid.UUID]*Worker // guarded by mu; the last of each route
}

// Locators finds the files of a catalog's tables, by its name; "" is the built-in one.
type Locators func(catalog string) catalog.Locator

// Open starts the workers of a node.
func Open(set *partition.Set, ctl control.Log, schemas Schemas, locators Locators, shared *Shared, log *slog.Logger) *Manager {
	m := &Manager{workers: map[uuid.UUID]*Worker{}}
	m.keeper = control.Keep(set, log, set.Led, func(r partition.Route) (control.Task, error) {
		t, sources := r.Topic, map[int32]Source{}
		for i := range int32(len(t.Partitions)) {
			p, err := set.Partition(t.Name, i)
			if errors.Is(err, partition.ErrNotLeader) || errors.Is(err, partition.ErrUnknownTopicOrPartition) {
				continue
			}
			if err != nil {
				return nil, err
			}
			sources[i] = Partition{p, r.ID}
		}
		if len(sources) == 0 {
			m.forget(r.ID)
			return nil, nil
		}
		dead := NewDeadLetterTopic(set, r)
		settings := configOf(r, shared)
		start, err := partition.ParseStart(r.Table.Start)
		if err != nil {
			return nil, err
		}
		if settings.Engines, err = parquetio.ParseEngines(r.Table.Engines); err != nil {
			return nil, err
		}
		settings.Start = func(ctx context.Context, index int32) (int64, error) {
			return start.Offset(ctx, sources[index].(Partition).P)
		}
		w := New(Topic{r.ID, r.Name}, sources, ctl, schemas, dead, locators(r.Table.Catalog), shared, settings, log)
		m.mu.Lock()
		m.workers[r.ID] = w
		m.mu.Unlock()
		return w, nil
	}, func(r partition.Route) {
		t := r.Topic
		m.forget(r.ID)
		if _, ok := set.Topic(t.Name); !ok || r.Table.Record != "" {
			shared.metrics.forget(r.Name)
		}
		if now, ok := set.Topic(t.Name); !ok || now.ID != t.ID {
			return // deleted; another of the name holds its own records
		}
		for i := range int32(len(t.Partitions)) {
			if p, err := set.Partition(t.Name, i); err == nil {
				p.Release(r.ID)
			}
		}
	})
	return m
}

// configOf returns the settings of a route's worker.
func configOf(r partition.Route, shared *Shared) Config {
	topic, t := r.Topic.Name, r.Table
	return Config{
		Share:           ShareOf(r),
		TargetFileBytes: t.TargetFileBytes, Grace: shared.Grace,
		Value: t.Value.Of(topic + "-value"), Key: t.Key.Of(topic + "-key"), KeyColumn: t.ColumnOfKey(),
		SkipTombstones: t.Tombstone == partition.TombstoneSkip, Tolerance: t.Tolerance, Rules: t.Mapping,
	}
}

func (m *Manager) forget(route uuid.UUID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.workers, route)
}

// Close returns when the last worker has ended.
func (m *Manager) Close() { m.keeper.Close() }

// Worker returns the worker of a route, nil if it has none here.
func (m *Manager) Worker(route uuid.UUID) *Worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.workers[route]
}
