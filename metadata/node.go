package metadata

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

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
			ON CONFLICT (id) DO UPDATE SET epoch = node.epoch + 1, registered = excluded.registered
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
