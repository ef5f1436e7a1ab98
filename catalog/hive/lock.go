package hive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/beltran/gohive/hive_metastore"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// lockPoll is how often a lock that others have is asked for.
const lockPoll = 50 * time.Millisecond

// A lock is the exclusive lock of a table, kept alive until it is released.
type lock struct {
	m       *metastore
	id      int64
	stop    context.CancelFunc // ends the heartbeat
	stopped chan struct{}      // the heartbeat has ended
}

// lock takes the lock of a table, or returns ErrCommitConflict after LockWait. It is nil
// without locking.
func (m *metastore) lock(ctx context.Context, id table.Identifier) (*lock, error) {
	if m.cfg.NoLock || invariant.Off("hive-lock") {
		return nil, nil
	}
	agent := "tabletopic " + uuid.NewString()
	name := fold(id[1])
	component := hive_metastore.NewLockComponent()
	component.Type, component.Level = hive_metastore.LockType_EXCLUSIVE, hive_metastore.LockLevel_TABLE
	component.Dbname, component.Tablename = fold(id[0]), &name
	request := hive_metastore.NewLockRequest()
	request.Component, request.User, request.AgentInfo = []*hive_metastore.LockComponent{component}, "tabletopic", agent
	request.Hostname, _ = os.Hostname() // for people who look at the locks

	waiting, cancel := context.WithTimeout(ctx, m.cfg.LockWait)
	defer cancel()
	var taken *hive_metastore.LockResponse
	err := m.call(waiting, func(h *hive_metastore.ThriftHiveMetastoreClient) (err error) {
		if taken, err = h.Lock(waiting, request); err != nil {
			return err
		}
		tick := time.NewTicker(lockPoll)
		defer tick.Stop()
		for taken.State == hive_metastore.LockState_WAITING {
			select {
			case <-tick.C:
			case <-waiting.Done():
				return fmt.Errorf("another writer had the lock for %v", m.cfg.LockWait)
			}
			asked, err := h.CheckLock(waiting, &hive_metastore.CheckLockRequest{Lockid: taken.Lockid})
			if err != nil {
				return err
			}
			taken = asked
		}
		if taken.State != hive_metastore.LockState_ACQUIRED {
			return fmt.Errorf("lock %d is %v", taken.Lockid, taken.State)
		}
		return nil
	})
	if err != nil {
		m.withdraw(component, agent, taken)
		return nil, fmt.Errorf("%w: lock of table %v: %w", catalog.ErrCommitConflict, id, err)
	}
	l := &lock{m: m, id: taken.Lockid, stopped: make(chan struct{})}
	beating, stop := context.WithCancel(m.life)
	l.stop = stop
	m.owned.Go(func() { l.keep(beating) })
	return l, nil
}

// withdraw unlocks what a failed attempt to lock may have left: its own lock if it knows it,
// else that of its agent.
func (m *metastore) withdraw(c *hive_metastore.LockComponent, agent string, taken *hive_metastore.LockResponse) {
	ctx, cancel := context.WithTimeout(m.life, m.cfg.Timeout)
	defer cancel()
	_ = m.call(ctx, func(h *hive_metastore.ThriftHiveMetastoreClient) error { // else the metastore's time-out ends it
		if taken != nil {
			return h.Unlock(ctx, &hive_metastore.UnlockRequest{Lockid: taken.Lockid})
		}
		locks, err := h.ShowLocks(ctx, &hive_metastore.ShowLocksRequest{Dbname: &c.Dbname, Tablename: c.Tablename})
		if err != nil {
			return err
		}
		for _, l := range locks.Locks {
			if l.AgentInfo != nil && *l.AgentInfo == agent {
				return h.Unlock(ctx, &hive_metastore.UnlockRequest{Lockid: l.Lockid})
			}
		}
		return nil
	})
}

// keep sends heartbeats until ctx ends. One that fails is no matter: verify asks in time.
func (l *lock) keep(ctx context.Context) {
	defer close(l.stopped)
	tick := time.NewTicker(l.m.cfg.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		_ = l.m.call(ctx, func(h *hive_metastore.ThriftHiveMetastoreClient) error {
			return h.Heartbeat(ctx, &hive_metastore.HeartbeatRequest{Lockid: &l.id})
		})
	}
}

// verify fails if the lock is not ours any more: the metastore drops one that was not kept
// alive, of a process that was stopped for long, say.
func (l *lock) verify(ctx context.Context, h *hive_metastore.ThriftHiveMetastoreClient) error {
	if l == nil || invariant.Off("hive-lock-verified") {
		return nil
	}
	now, err := h.CheckLock(ctx, &hive_metastore.CheckLockRequest{Lockid: l.id})
	if err != nil {
		return fmt.Errorf("lock %d: %w", l.id, err)
	}
	if now.State != hive_metastore.LockState_ACQUIRED {
		return errors.New("the lock is lost")
	}
	return nil
}

// release unlocks, within the time given.
func (l *lock) release(within time.Duration) {
	if l == nil {
		return
	}
	l.stop()
	<-l.stopped
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_ = l.m.call(ctx, func(h *hive_metastore.ThriftHiveMetastoreClient) error { // else the metastore's time-out ends it
		return h.Unlock(ctx, &hive_metastore.UnlockRequest{Lockid: l.id})
	})
}

// releaseAfter keeps the lock for a while, in which a request that got no answer lands or is
// lost.
func (l *lock) releaseAfter(settle time.Duration) {
	if l == nil {
		return
	}
	if invariant.Off("hive-lock-settles") {
		l.release(l.m.cfg.Timeout)
		return
	}
	l.m.owned.Go(func() {
		timer := time.NewTimer(settle)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.m.life.Done():
		}
		l.release(l.m.cfg.Timeout)
	})
}
