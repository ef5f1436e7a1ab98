package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
)

// Manager runs a Worker for each topic with a table, on the partitions that this node leads.
type Manager struct {
	keeper *control.Keeper

	mu      sync.Mutex
	workers map[uuid.UUID]*Worker // guarded by mu; the last of each topic
}

// Locators finds the files of a catalog's tables, by its name; "" is the built-in one.
type Locators func(catalog string) catalog.Locator

// Open starts the workers of a node.
func Open(set *partition.Set, ctl control.Log, schemas Schemas, locators Locators, shared *Shared, log *slog.Logger) *Manager {
	m := &Manager{workers: map[uuid.UUID]*Worker{}}
	m.keeper = control.Keep(set, log, set.Led, func(t metadata.Topic, cfg partition.TopicConfig) (control.Task, error) {
		sources := map[int32]Source{}
		for i := range int32(len(t.Partitions)) {
			p, err := set.Partition(t.Name, i)
			if errors.Is(err, partition.ErrNotLeader) || errors.Is(err, partition.ErrUnknownTopicOrPartition) {
				continue
			}
			if err != nil {
				return nil, err
			}
			sources[i] = Partition{p}
		}
		if len(sources) == 0 {
			m.forget(t.ID)
			return nil, nil
		}
		dead := NewDeadLetterTopic(set, t, cfg.Table.DLQ)
		settings := configOf(t.Name, cfg.Table, shared)
		start, err := partition.ParseStart(cfg.Table.Start)
		if err != nil {
			return nil, err
		}
		if settings.Engines, err = parquetio.ParseEngines(cfg.Table.Engines); err != nil {
			return nil, err
		}
		settings.Start = func(ctx context.Context, index int32) (int64, error) {
			return start.Offset(ctx, sources[index].(Partition).P)
		}
		w := New(Topic{t.ID, t.Name}, sources, ctl, schemas, dead, locators(cfg.Table.Catalog), shared, settings, log)
		m.mu.Lock()
		m.workers[t.ID] = w
		m.mu.Unlock()
		return w, nil
	}, func(t metadata.Topic) {
		m.forget(t.ID)
		if _, ok := set.Topic(t.Name); !ok {
			shared.metrics.forget(t.Name)
		}
		if now, ok := set.Topic(t.Name); !ok || now.ID != t.ID {
			return // deleted; another of the name holds its own records
		}
		for i := range int32(len(t.Partitions)) {
			if p, err := set.Partition(t.Name, i); err == nil {
				p.Release()
			}
		}
	})
	return m
}

// configOf returns the settings of a topic's worker.
func configOf(topic string, t partition.TableConfig, shared *Shared) Config {
	return Config{
		TargetFileBytes: t.TargetFileBytes, Grace: shared.Grace,
		Value: t.Value.Of(topic + "-value"), Key: t.Key.Of(topic + "-key"), KeyColumn: t.ColumnOfKey(),
		SkipTombstones: t.Tombstone == partition.TombstoneSkip, Tolerance: t.Tolerance, Rules: t.Mapping,
	}
}

func (m *Manager) forget(topic uuid.UUID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.workers, topic)
}

// Close returns when the last worker has ended.
func (m *Manager) Close() { m.keeper.Close() }

// Worker returns the worker of a topic, nil if it has none here.
func (m *Manager) Worker(topic uuid.UUID) *Worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.workers[topic]
}
