package control

import (
	"context"
	"log/slog"
	"maps"
	"sync"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
)

// A Keeper runs a task per topic whose table is enabled: workers and coordinators alike
// come and go with the topics of this node.
type Keeper struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// A Task of a Keeper. Run works until ctx ends; its error ends it until the topic changes.
type Task interface {
	Run(ctx context.Context) error
}

// Keep starts a task with start for each topic of set that has a table, again whenever its
// table settings, its number of partitions or what led says of it change, and ends it with the
// topic or its table. Led returns the leader epochs of the partitions here that the task depends on.
// Off, if it is not nil, is called after the task of a topic that was deleted, or whose table was
// switched off.
func Keep(set *partition.Set, log *slog.Logger, led func(topic string) map[int32]int32, start func(metadata.Topic, partition.TopicConfig) (Task, error), off func(metadata.Topic)) *Keeper {
	ctx, cancel := context.WithCancel(context.Background())
	k := &keeping{set: set, log: log, led: led, start: start, off: off, wanted: map[uuid.UUID]metadata.Topic{}, running: map[uuid.UUID]*kept{}}
	poke := make(chan struct{}, 1)
	stop := set.Watch(func(e partition.Event) {
		k.mu.Lock()
		if e.Kind == partition.TopicDeleted {
			delete(k.wanted, e.Topic.ID)
		} else {
			k.wanted[e.Topic.ID] = e.Topic
		}
		k.mu.Unlock()
		select {
		case poke <- struct{}{}:
		default:
		}
	})
	out := &Keeper{cancel, make(chan struct{})}
	go func() {
		defer close(out.done)
		defer stop()
		k.loop(ctx, poke)
	}()
	return out
}

// Close ends every task and returns when the last has ended.
func (k *Keeper) Close() {
	k.cancel()
	<-k.done
}

type keeping struct {
	set   *partition.Set
	log   *slog.Logger
	led   func(topic string) map[int32]int32
	start func(metadata.Topic, partition.TopicConfig) (Task, error)
	off   func(metadata.Topic)

	mu     sync.Mutex
	wanted map[uuid.UUID]metadata.Topic // guarded by mu

	running map[uuid.UUID]*kept // of the loop
}

// kept is a running task.
type kept struct {
	topic      metadata.Topic
	table      partition.TableConfig
	partitions int
	led        map[int32]int32
	cancel     context.CancelFunc
	done       chan struct{}
}

func (k *kept) end() {
	k.cancel()
	<-k.done
}

// loop brings running to wanted until ctx ends.
func (k *keeping) loop(ctx context.Context, poke <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			for _, r := range k.running {
				r.cancel()
			}
			for _, r := range k.running {
				<-r.done
			}
			return
		case <-poke:
		}
		k.mu.Lock()
		wanted := maps.Clone(k.wanted)
		k.mu.Unlock()
		for id, r := range k.running {
			if _, ok := wanted[id]; !ok {
				r.end()
				delete(k.running, id)
				if k.off != nil {
					k.off(r.topic)
				}
			}
		}
		for _, t := range wanted {
			k.apply(ctx, t)
		}
	}
}

// apply starts, restarts or ends the task of one topic.
func (k *keeping) apply(ctx context.Context, t metadata.Topic) {
	cfg, err := k.set.TopicConfig(t)
	if err != nil {
		k.log.Error("topic has no valid settings for its table", "topic", t.Name, "error", err)
		return
	}
	r, led := k.running[t.ID], k.led(t.Name)
	if r != nil && cfg.Table == r.table && len(t.Partitions) == r.partitions && maps.Equal(led, r.led) {
		return
	}
	if r != nil {
		r.end()
		delete(k.running, t.ID)
	}
	if !cfg.Table.Enable || t.Internal {
		if r != nil && k.off != nil {
			k.off(t)
		}
		return
	}
	task, err := k.start(t, cfg)
	if err != nil {
		k.log.Error("table not started", "topic", t.Name, "error", err)
		return
	}
	if task == nil {
		return
	}
	r = &kept{topic: t, table: cfg.Table, partitions: len(t.Partitions), led: led, done: make(chan struct{})}
	ctx, r.cancel = context.WithCancel(ctx)
	k.running[t.ID] = r
	go func() {
		defer close(r.done)
		if err := task.Run(ctx); err != nil && ctx.Err() == nil {
			k.log.Error("table stopped until its topic changes", "topic", t.Name, "error", err)
		}
	}()
}
