package metadata

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/streamstore"
)

var (
	_ streamstore.StreamManager = (*Store)(nil)
	_ streamstore.ObjectManager = (*Store)(nil)
)

// streamRow is a row of table stream. Start may lie above End, when the trim passed data
// that only the WAL holds yet.
type streamRow struct {
	streamstore.StreamState
	nodeEpoch int64
}

const selectStream = `SELECT id, epoch, start_offset, end_offset, node, node_epoch, is_open FROM stream `

func scanStream(scan func(...any) error) (r streamRow, err error) {
	err = scan(&r.ID, &r.Epoch, &r.Start, &r.End, &r.Node, &r.nodeEpoch, &r.Open)
	return r, err
}

// each calls fn with the rows of a query.
func (t *tx) each(fn func(*sql.Rows) error, query string, args ...any) error {
	rows, err := t.QueryContext(t.ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// readStream returns the row of a stream, or ErrStreamNotExist.
func (t *tx) readStream(id streamstore.StreamID) (streamRow, error) {
	row, err := scanStream(t.QueryRowContext(t.ctx, selectStream+`WHERE id = $1`, id).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return row, fmt.Errorf("stream %d: %w", id, streamstore.ErrStreamNotExist)
	}
	return row, err
}

// execOne is exec of a statement that must change one row.
func (t *tx) execOne(query string, args ...any) error {
	n, err := t.exec(query, args...)
	if err != nil {
		return err
	}
	if n != 1 {
		return fmt.Errorf("%d rows changed, want 1: %w", n, streamstore.ErrConflict)
	}
	return nil
}

// CreateStreams makes n closed streams with consecutive ids and epoch 0.
func (s *Store) CreateStreams(ctx context.Context, node streamstore.Node, n int) (first streamstore.StreamID, err error) {
	if n <= 0 {
		return 0, fmt.Errorf("create %d streams: want at least 1", n)
	}
	err = s.updateDurablyAs(ctx, node, "create streams", func(t *tx) error {
		if first, err = t.createStreams(make([]streamstore.Node, n)); err != nil {
			return err
		}
		return t.change(ChangeStream, first)
	})
	return first, err
}

// createStreams makes streams of epoch 0 with consecutive ids, each open for its owner unless
// that is zero.
func (t *tx) createStreams(owners []streamstore.Node) (streamstore.StreamID, error) {
	first, err := t.next("stream", int64(len(owners)))
	if err != nil {
		return 0, err
	}
	var made, owned []any
	for i, owner := range owners {
		id := first + int64(i)
		made = append(made, id, owner.ID, owner.Epoch, flag(owner.Epoch != 0))
		if owner.Epoch != 0 {
			owned = append(owned, id, 0, 0, owner.ID)
		}
	}
	err = t.batch(`WITH made (id, node, node_epoch, is_open) AS (VALUES %s)
		INSERT INTO stream (id, epoch, start_offset, end_offset, node, node_epoch, is_open) SELECT id, 0, 0, 0, node, node_epoch, is_open FROM made`, 4, made)
	if err != nil {
		return 0, err
	}
	return streamstore.StreamID(first), t.batch(putRanges, 4, owned)
}

// putRanges says who writes streams from an offset on: stream, start_offset, epoch, node. An
// epoch in which nothing was written leaves no row. (WHERE keeps SQLite from reading ON
// CONFLICT as the condition of a join.)
const putRanges = `WITH put (stream, start_offset, epoch, node) AS (VALUES %s)
	INSERT INTO stream_range (stream, start_offset, epoch, node) SELECT stream, start_offset, epoch, node FROM put WHERE true
	ON CONFLICT (stream, start_offset) DO UPDATE SET epoch = excluded.epoch, node = excluded.node`

// OpenStreams gives the streams to node, all or none.
func (s *Store) OpenStreams(ctx context.Context, node streamstore.Node, open []streamstore.OpenRequest) ([]streamstore.StreamState, error) {
	if len(open) == 0 {
		return nil, nil
	}
	states := make([]streamstore.StreamState, 0, len(open))
	err := s.updateDurablyAs(ctx, node, "open streams", func(t *tx) error {
		rows, err := t.readStreams(idsOf(open))
		if err != nil {
			return err
		}
		var opened, written []any
		for _, o := range open {
			row, repeat, err := openRow(rows, node, o)
			if err != nil {
				return err
			}
			rows[o.ID] = row
			states = append(states, row.StreamState)
			if !repeat {
				opened = append(opened, row.ID, row.Epoch, row.Node, row.nodeEpoch)
				written = append(written, row.ID, row.End, row.Epoch, row.Node)
			}
		}
		if err := t.batch(`WITH opened (id, epoch, node, node_epoch) AS (VALUES %s)
			UPDATE stream SET epoch = opened.epoch, node = opened.node, node_epoch = opened.node_epoch, is_open = 1
			FROM opened WHERE stream.id = opened.id`, 4, opened); err != nil {
			return err
		}
		if err := t.batch(putRanges, 4, written); err != nil {
			return err
		}
		return t.change(ChangeStream, open[0].ID)
	})
	if err != nil {
		return nil, err
	}
	return states, nil
}

func idsOf(list []streamstore.OpenRequest) []streamstore.StreamID {
	ids := make([]streamstore.StreamID, len(list))
	for i, o := range list {
		ids[i] = o.ID
	}
	return ids
}

// openRow returns the row of a stream as it is when node has opened it; repeat if it has
// already.
func openRow(rows map[streamstore.StreamID]streamRow, node streamstore.Node, o streamstore.OpenRequest) (row streamRow, repeat bool, err error) {
	row, ok := rows[o.ID]
	if !ok {
		return row, false, fmt.Errorf("stream %d: %w", o.ID, streamstore.ErrStreamNotExist)
	}
	if row.Open && row.Epoch == o.Epoch && row.Node == node.ID && row.nodeEpoch == node.Epoch {
		return row, true, nil
	}
	if row.Open && row.Node != node.ID && !invariant.Off("metadata-open-owner") {
		return row, false, fmt.Errorf("stream %d is open by node %d, asked by node %d: %w", o.ID, row.Node, node.ID, streamstore.ErrConflict)
	}
	if o.Epoch <= row.Epoch && !invariant.Off("metadata-open-epoch") {
		return row, false, fmt.Errorf("stream %d has epoch %d, asked %d: %w", o.ID, row.Epoch, o.Epoch, streamstore.ErrStreamFenced)
	}
	row.Epoch, row.Node, row.nodeEpoch, row.Open = o.Epoch, node.ID, node.Epoch, true
	return row, false, nil
}

// Streams returns the current state of the streams that node id has open, by id.
func (s *Store) Streams(ctx context.Context, id streamstore.NodeID) ([]streamstore.StreamState, error) {
	states, err := s.openStreams(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read streams of node %d: %w", id, err)
	}
	return states, nil
}

func (s *Store) openStreams(ctx context.Context, id streamstore.NodeID) ([]streamstore.StreamState, error) {
	rows, err := s.readers.QueryContext(ctx, selectStream+`WHERE node = $1 AND is_open = 1 ORDER BY id`, id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var states []streamstore.StreamState
	for rows.Next() {
		row, err := scanStream(rows.Scan)
		if err != nil {
			return nil, err
		}
		states = append(states, row.StreamState)
	}
	return states, rows.Err()
}

// TrimStream moves the start offset forward; a start that is not ahead changes nothing. It
// may pass the committed end: what the WAL still holds below the start is then not indexed
// when it is uploaded. A database that is restored from a snapshot before the trim has the
// older start: nothing was deleted until a snapshot had the newer one ([Store.Settled]). To wait
// for a snapshot would cost one, a request, for each partition that retention looks at.
func (s *Store) TrimStream(ctx context.Context, node streamstore.Node, id streamstore.StreamID, epoch, start int64) error {
	return s.updateAs(ctx, node, fmt.Sprintf("trim stream %d to %d", id, start), func(t *tx) error {
		row, err := t.ownedStream(node, streamstore.OpenRequest{ID: id, Epoch: epoch})
		if err != nil {
			return err
		}
		if start <= row.Start {
			return nil
		}
		if err := t.execOne(`UPDATE stream SET start_offset = $1 WHERE id = $2`, start, id); err != nil {
			return err
		}
		if err := t.dropRanges(id, start); err != nil {
			return err
		}
		// A stream range ends where the next one starts: those that end at or below start go.
		if _, err := t.exec(`DELETE FROM stream_range WHERE stream = $1 AND start_offset <
			(SELECT max(start_offset) FROM stream_range WHERE stream = $1 AND start_offset <= $2)`, id, start); err != nil {
			return err
		}
		return t.change(ChangeStream, id)
	})
}

// ownedStream reads a stream that node must have open with that epoch.
func (t *tx) ownedStream(node streamstore.Node, o streamstore.OpenRequest) (streamRow, error) {
	row, err := t.readStream(o.ID)
	if err != nil {
		return row, err
	}
	return row, row.check(node, o)
}

// check refuses a stream that node does not have open with that epoch.
func (row streamRow) check(node streamstore.Node, o streamstore.OpenRequest) error {
	if mine := row.Open && row.Epoch == o.Epoch && row.Node == node.ID; !mine && !invariant.Off("metadata-stream-owner") {
		return fmt.Errorf("stream %d has epoch %d of node %d (open: %t), asked epoch %d of node %d: %w",
			o.ID, row.Epoch, row.Node, row.Open, o.Epoch, node.ID, streamstore.ErrStreamFenced)
	}
	return nil
}

// CloseStreams releases streams whose data up to the end offset is committed. A stream that
// is closed with the same epoch, or deleted, stays so.
func (s *Store) CloseStreams(ctx context.Context, node streamstore.Node, close []streamstore.OpenRequest) error {
	if len(close) == 0 {
		return nil
	}
	return s.updateAs(ctx, node, "close streams", func(t *tx) error {
		rows, err := t.readStreams(idsOf(close))
		if err != nil {
			return err
		}
		var closed []any
		for _, o := range close {
			row, ok := rows[o.ID]
			if !ok || !row.Open && row.Epoch == o.Epoch {
				continue
			}
			if err := row.check(node, o); err != nil {
				return err
			}
			closed = append(closed, o.ID)
			row.Open = false
			rows[o.ID] = row
		}
		if err := t.batch(`WITH closed (id) AS (VALUES %s) UPDATE stream SET is_open = 0 WHERE id IN (SELECT id FROM closed)`, 1, closed); err != nil {
			return err
		}
		return t.change(ChangeStream, close[0].ID)
	})
}

// DeleteStreams removes closed or own streams; their objects become deletable. One that is
// gone stays so. The loss of the database does not bring one back, which nobody would name.
func (s *Store) DeleteStreams(ctx context.Context, node streamstore.Node, ids []streamstore.StreamID) error {
	if len(ids) == 0 {
		return nil
	}
	return s.updateDurablyAs(ctx, node, "delete streams", func(t *tx) error {
		if there, err := t.readStreams(ids); err != nil || len(there) == 0 {
			return err
		}
		for _, id := range ids {
			if err := t.deleteStream(node, id); err != nil {
				return err
			}
		}
		return t.change(ChangeStream, ids[0])
	})
}

func (t *tx) deleteStream(node streamstore.Node, id streamstore.StreamID) error {
	row, err := t.readStream(id)
	if errors.Is(err, streamstore.ErrStreamNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if row.Open && row.Node != node.ID && !invariant.Off("metadata-delete-owner") {
		return fmt.Errorf("stream %d is open by node %d: %w", id, row.Node, streamstore.ErrConflict)
	}
	return t.dropStream(id)
}

// dropStream removes a stream, if it is there, whoever has it open.
func (t *tx) dropStream(id streamstore.StreamID) error {
	if err := t.dropRanges(id, 1<<63-1); err != nil {
		return err
	}
	if _, err := t.exec(`DELETE FROM stream_range WHERE stream = $1`, id); err != nil {
		return err
	}
	_, err := t.exec(`DELETE FROM stream WHERE id = $1`, id)
	return err
}
