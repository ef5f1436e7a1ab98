package metadata

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/streamstore"
)

// RegisterNode starts a new life of id: it raises the epoch and returns it with the WALs of
// earlier lives that are not retired, oldest first.
func (s *Store) RegisterNode(ctx context.Context, id streamstore.NodeID, wal streamstore.WALKind) (streamstore.Node, []streamstore.WALState, error) {
	node := streamstore.Node{ID: id}
	var earlier []streamstore.WALState
	if wal != streamstore.WALObject && wal != streamstore.WALFile {
		return node, nil, fmt.Errorf("register node %d: unknown WAL kind %q", id, wal)
	}
	err := s.updateDurably(ctx, fmt.Sprintf("register node %d", id), func(t *tx) (err error) {
		err = t.QueryRowContext(ctx, `INSERT INTO node (id, epoch, registered) VALUES ($1, 1, $2)
			ON CONFLICT (id) DO UPDATE SET epoch = node.epoch + 1, registered = excluded.registered, leader = NULL, leader_epoch = NULL
			RETURNING epoch`, id, s.now().UnixMilli()).Scan(&node.Epoch)
		if err != nil {
			return err
		}
		if earlier, err = t.wals(id); err != nil {
			return err
		}
		if _, err := t.exec(`INSERT INTO node_wal (node, epoch, kind, mark) VALUES ($1, $2, $3, 0)`, id, node.Epoch, string(wal)); err != nil {
			return err
		}
		return t.change(ChangeNode, id)
	})
	if err != nil {
		return streamstore.Node{}, nil, err
	}
	return node, earlier, nil
}

// TakeOverNode starts a life of id that by leads, to recover the WALs of the lives before. It
// has no WAL of its own.
func (s *Store) TakeOverNode(ctx context.Context, by streamstore.Node, id streamstore.NodeID) (streamstore.Node, []streamstore.WALState, error) {
	node := streamstore.Node{ID: id}
	var earlier []streamstore.WALState
	what := fmt.Sprintf("take node %d over by node %d", id, by.ID)
	if id == by.ID {
		return node, nil, fmt.Errorf("%s: a node recovers itself when it starts: %w", what, streamstore.ErrConflict)
	}
	err := s.updateDurablyAs(ctx, by, what, func(t *tx) error {
		raise := 1
		if invariant.Off("metadata-takeover-epoch") {
			raise = 0
		}
		err := t.QueryRowContext(ctx, `UPDATE node SET epoch = epoch + $1, leader = $2, leader_epoch = $3 WHERE id = $4 RETURNING epoch`,
			raise, by.ID, by.Epoch, id).Scan(&node.Epoch)
		if errors.Is(err, sql.ErrNoRows) {
			return streamstore.ErrNodeNotExist
		}
		if err != nil {
			return err
		}
		if earlier, err = t.wals(id); err != nil {
			return err
		}
		return t.change(ChangeNode, id)
	})
	if err != nil {
		return streamstore.Node{}, nil, err
	}
	return node, earlier, nil
}

// ReleaseNode ends a life that by leads, once all WALs of the node are retired: its streams
// are closed, and its stream set objects become by's to compact.
func (s *Store) ReleaseNode(ctx context.Context, by, node streamstore.Node) error {
	return s.updateAs(ctx, by, fmt.Sprintf("release node %d", node.ID), func(t *tx) error {
		if err := t.checkNode(node); err != nil {
			return err
		}
		if err := t.checkReleasable(by, node); err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE stream SET is_open = 0 WHERE node = $1 AND is_open = 1`, node.ID); err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE object SET node = $1 WHERE node = $2 AND kind = $3 AND state = $4`,
			by.ID, node.ID, streamstore.KindStreamSet, objectCommitted); err != nil {
			return err
		}
		return t.change(ChangeNode, node.ID)
	})
}

func (t *tx) checkReleasable(by, node streamstore.Node) error {
	var leader, epoch sql.NullInt64
	if err := t.QueryRowContext(t.ctx, `SELECT leader, leader_epoch FROM node WHERE id = $1`, node.ID).Scan(&leader, &epoch); err != nil {
		return err
	}
	led := streamstore.Node{ID: streamstore.NodeID(leader.Int64), Epoch: epoch.Int64}
	if (!leader.Valid || led != by) && !invariant.Off("metadata-release-leader") {
		return fmt.Errorf("its epoch %d is not led by node %d epoch %d: %w", node.Epoch, by.ID, by.Epoch, streamstore.ErrConflict)
	}
	left, err := t.wals(node.ID)
	if err == nil && len(left) > 0 && !invariant.Off("metadata-release-retired") {
		err = fmt.Errorf("its WAL of epoch %d is not retired: %w", left[0].Epoch, streamstore.ErrConflict)
	}
	return err
}

// CheckNode returns [streamstore.ErrNodeFenced] if a later life of the node has begun.
func (s *Store) CheckNode(ctx context.Context, node streamstore.Node) error {
	return checkNode(ctx, s.readers, node)
}

// Nodes returns all nodes that were ever registered, by id.
func (s *Store) Nodes(ctx context.Context) ([]streamstore.NodeState, error) {
	nodes, err := s.nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	return nodes, nil
}

func (s *Store) nodes(ctx context.Context) ([]streamstore.NodeState, error) {
	// One transaction, for nodes, WALs and streams of one moment.
	t, err := s.readers.BeginTx(ctx, &s.dialect.snapshot)
	if err != nil {
		return nil, err
	}
	defer t.Rollback()
	var nodes []streamstore.NodeState
	index := map[streamstore.NodeID]int{}
	err = eachRow(ctx, t, func(rows *sql.Rows) error {
		var n streamstore.NodeState
		var leader, epoch sql.NullInt64
		if err := rows.Scan(&n.ID, &n.Epoch, &leader, &epoch); err != nil {
			return err
		}
		n.Leader = streamstore.Node{ID: streamstore.NodeID(leader.Int64), Epoch: epoch.Int64}
		index[n.ID] = len(nodes)
		nodes = append(nodes, n)
		return nil
	}, `SELECT id, epoch, leader, leader_epoch FROM node ORDER BY id`)
	if err != nil {
		return nil, err
	}
	err = eachRow(ctx, t, func(rows *sql.Rows) error {
		var id streamstore.NodeID
		var w streamstore.WALState
		if err := rows.Scan(&id, &w.Epoch, &w.Kind, &w.Mark); err != nil {
			return err
		}
		n := &nodes[index[id]]
		n.WALs = append(n.WALs, w)
		return nil
	}, `SELECT node, epoch, kind, mark FROM node_wal ORDER BY node, epoch`)
	if err != nil {
		return nil, err
	}
	err = eachRow(ctx, t, func(rows *sql.Rows) error {
		var id streamstore.NodeID
		var open int
		if err := rows.Scan(&id, &open); err != nil {
			return err
		}
		nodes[index[id]].Open = open
		return nil
	}, `SELECT node, count(*) FROM stream WHERE is_open = 1 GROUP BY node`)
	return nodes, err
}

// life returns the newest epoch of a node, and whether another node leads it, to recover what
// the node left.
func (t *tx) life(id streamstore.NodeID) (epoch int64, recovered bool, err error) {
	var leader sql.NullInt64
	err = t.QueryRowContext(t.ctx, `SELECT epoch, leader FROM node WHERE id = $1`, id).Scan(&epoch, &leader)
	if errors.Is(err, sql.ErrNoRows) {
		err = streamstore.ErrNodeNotExist
	}
	return epoch, leader.Valid, err
}

// A Member is a node that takes part in the cluster: it has announced where it is reached, and
// was not recovered since. Whether it lives is for others to find out.
type Member struct {
	streamstore.Node
	NodeAddress
}

// Members returns the members of the cluster, by id.
func (s *Store) Members(ctx context.Context) ([]Member, error) {
	var all []Member
	err := eachRow(ctx, s.readers, func(rows *sql.Rows) error {
		var m Member
		err := rows.Scan(&m.ID, &m.Epoch, &m.Kafka, &m.HTTP, &m.Listeners, &m.Rack)
		all = append(all, m)
		return err
	}, `SELECT id, epoch, kafka, http, listeners, rack FROM node WHERE kafka <> '' AND http <> '' AND leader IS NULL ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("read members of the cluster: %w", err)
	}
	return all, nil
}

// NodeAddress is where a node is, and is reached, as HOST:PORT.
type NodeAddress struct {
	Kafka string // for other nodes
	HTTP  string // also https://HOST:PORT
	// Listeners is where clients reach each of its Kafka listeners: NAME=HOST:PORT, separated
	// by commas. Kafka is for those that it does not name.
	Listeners string
	Rack      string // such as its availability zone; "" if unknown
}

// Listener returns where clients reach the listener of a name.
func (a NodeAddress) Listener(name string) string {
	for pair := range strings.SplitSeq(a.Listeners, ",") {
		if n, at, _ := strings.Cut(pair, "="); n == name && at != "" {
			return at
		}
	}
	return a.Kafka
}

// AnnounceNode makes known where the process that lives as node is reached.
func (s *Store) AnnounceNode(ctx context.Context, node streamstore.Node, at NodeAddress) error {
	return s.updateAs(ctx, node, fmt.Sprintf("announce node %d", node.ID), func(t *tx) error {
		if _, err := t.exec(`UPDATE node SET kafka = $1, http = $2, listeners = $3, rack = $4 WHERE id = $5`, at.Kafka, at.HTTP, at.Listeners, at.Rack, node.ID); err != nil {
			return err
		}
		return t.change(ChangeNode, node.ID)
	})
}

// NodeAddresses returns where each node was reached last. Nodes that never said are missing.
func (s *Store) NodeAddresses(ctx context.Context) (map[streamstore.NodeID]NodeAddress, error) {
	all := map[streamstore.NodeID]NodeAddress{}
	err := eachRow(ctx, s.readers, func(rows *sql.Rows) error {
		var id streamstore.NodeID
		var at NodeAddress
		if err := rows.Scan(&id, &at.Kafka, &at.HTTP, &at.Rack); err != nil {
			return err
		}
		all[id] = at
		return nil
	}, `SELECT id, kafka, http, rack FROM node WHERE kafka <> '' OR http <> ''`)
	if err != nil {
		return nil, fmt.Errorf("read addresses of nodes: %w", err)
	}
	return all, nil
}

func (t *tx) wals(id streamstore.NodeID) ([]streamstore.WALState, error) {
	rows, err := t.QueryContext(t.ctx, `SELECT epoch, kind, mark FROM node_wal WHERE node = $1 ORDER BY epoch`, id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []streamstore.WALState
	for rows.Next() {
		var w streamstore.WALState
		if err := rows.Scan(&w.Epoch, &w.Kind, &w.Mark); err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, rows.Err()
}

// RetireWAL forgets the WAL of an earlier life after its recovery.
func (s *Store) RetireWAL(ctx context.Context, node streamstore.Node, epoch int64) error {
	what := fmt.Sprintf("retire WAL %d of node %d", epoch, node.ID)
	if epoch >= node.Epoch {
		return fmt.Errorf("%s: the node lives in epoch %d, only earlier ones retire", what, node.Epoch)
	}
	return s.updateAs(ctx, node, what, func(t *tx) error {
		n, err := t.exec(`DELETE FROM node_wal WHERE node = $1 AND epoch = $2`, node.ID, epoch)
		if err != nil || n == 0 {
			return err
		}
		return t.change(ChangeNode, node.ID)
	})
}

// moveWALMark moves the mark of one of the node's WALs forward.
func (t *tx) moveWALMark(id streamstore.NodeID, epoch int64, mark uint64) error {
	if mark > 1<<63-1 {
		return fmt.Errorf("WAL mark %d of node %d is out of range", mark, id)
	}
	var now int64
	err := t.QueryRowContext(t.ctx, `SELECT mark FROM node_wal WHERE node = $1 AND epoch = $2`, id, epoch).Scan(&now)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("WAL %d of node %d is retired or was never registered: %w", epoch, id, streamstore.ErrConflict)
	case err != nil:
		return err
	case int64(mark) <= now:
		return nil
	}
	_, err = t.exec(`UPDATE node_wal SET mark = $1 WHERE node = $2 AND epoch = $3`, int64(mark), id, epoch)
	return err
}
