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

// A Keeper runs a task per table, which is a [partition.Route] of a topic whose table is enabled:
// workers and coordinators alike come and go with the topics of this node.
type Keeper struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// A Task of a Keeper. Run works until ctx ends; its error ends it until the topic changes.
type Task interface {
	Run(ctx context.Context) error
}

// Keep starts a task with start for each route of the topics of set that have tables, again whenever its
// table settings, its number of partitions or what led says of its topic change, and ends it with the
// topic or its table. Led returns the leader epochs of the partitions here that the task depends on.
// Off, if it is not nil, is called after the task of a route that is gone: its topic was deleted or its
// table switched off.
func Keep(set *partition.Set, log *slog.Logger, led func(topic string) map[int32]int32, start func(partition.Route) (Task, error), off func(partition.Route)) *Keeper {
	ctx, cancel := context.WithCancel(context.Background())
	k := &keeping{set: set, log: log, led: led, start: start, off: off, wanted: map[uuid.UUID]metadata.Topic{}, running: map[uuid.UUID]map[uuid.UUID]*kept{}}
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
	start func(partition.Route) (Task, error)
	off   func(partition.Route)

	mu     sync.Mutex
	wanted map[uuid.UUID]metadata.Topic // guarded by mu

	running map[uuid.UUID]map[uuid.UUID]*kept // of the loop; by topic and route
}

// kept is a running task.
type kept struct {
	route      partition.Route
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
			for _, routes := range k.running {
				for _, r := range routes {
					r.cancel()
				}
			}
			for _, routes := range k.running {
				for _, r := range routes {
					<-r.done
				}
			}
			return
		case <-poke:
		}
		k.mu.Lock()
		wanted := maps.Clone(k.wanted)
		k.mu.Unlock()
		for id, routes := range k.running {
			if _, ok := wanted[id]; ok {
				continue
			}
			for _, r := range routes {
				k.end(r)
			}
			delete(k.running, id)
		}
		for _, t := range wanted {
			k.apply(ctx, t)
		}
	}
}

// end ends the task of a route that is gone.
func (k *keeping) end(r *kept) {
	r.end()
	if k.off != nil {
		k.off(r.route)
	}
}

// apply starts, restarts or ends the tasks of one topic. Those that change have all ended before the
// first is started: what a record is to one table another one must not take as well.
func (k *keeping) apply(ctx context.Context, t metadata.Topic) {
	var routes []partition.Route
	if !t.Internal {
		var err error
		if routes, err = k.set.Routes(t); err != nil {
			k.log.Error("topic has no valid settings for its table", "topic", t.Name, "error", err)
			return
		}
	}
	running, led := k.running[t.ID], k.led(t.Name)
	wanted := map[uuid.UUID]partition.Route{}
	for _, r := range routes {
		wanted[r.ID] = r
	}
	for id, r := range running {
		want, ok := wanted[id]
		if ok && want.Table == r.route.Table && len(t.Partitions) == r.partitions && maps.Equal(led, r.led) {
			continue
		}
		delete(running, id)
		if ok {
			r.end()
		} else {
			k.end(r)
		}
	}
	for _, route := range routes {
		if running[route.ID] != nil {
			continue
		}
		task, err := k.start(route)
		if err != nil {
			k.log.Error("table not started", "topic", route.Name, "error", err)
			continue
		}
		if task == nil {
			continue
		}
		if running == nil {
			running = map[uuid.UUID]*kept{}
			k.running[t.ID] = running
		}
		running[route.ID] = k.run(ctx, route, len(t.Partitions), led, task)
	}
	if len(running) == 0 {
		delete(k.running, t.ID)
	}
}

// run runs a task until it is ended.
func (k *keeping) run(ctx context.Context, route partition.Route, partitions int, led map[int32]int32, task Task) *kept {
	r := &kept{route: route, partitions: partitions, led: led, done: make(chan struct{})}
	ctx, r.cancel = context.WithCancel(ctx)
	go func() {
		defer close(r.done)
		if err := task.Run(ctx); err != nil && ctx.Err() == nil {
			k.log.Error("table stopped until its topic changes", "topic", route.Name, "error", err)
		}
	}()
	return r
}
