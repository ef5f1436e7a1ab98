package metadata

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/streamstore"
)

// streamsPerPartition counts the meta and the log stream.
const streamsPerPartition = 2

// scopeTopic is the scope of a topic's settings in table config.
const scopeTopic = "topic"

// CreateTopic makes a topic with its partitions and their streams, led by node or as
// n.Leaders says. The streams are open for their leaders with the partitions' leader epoch, 0.
// An error wraps ErrTopicExists if the name is taken, and ErrTopicCollides if one like it is: here,
// because several nodes create topics at the same time. Otherwise name and config are not judged here.
func (s *Store) CreateTopic(ctx context.Context, node streamstore.Node, n NewTopic) (Topic, error) {
	if n.Name == "" || n.Partitions <= 0 {
		return Topic{}, fmt.Errorf("create topic %q with %d partitions: want a name and at least 1", n.Name, n.Partitions)
	}
	id := uuid.New()
	var topic Topic
	err := s.updateDurablyAs(ctx, node, fmt.Sprintf("create topic %s", n.Name), func(t *tx) error {
		rows, err := t.exec(`INSERT INTO topic (id, name, internal, created) VALUES ($1, $2, $3, $4) ON CONFLICT (name) DO NOTHING`,
			id.String(), n.Name, flag(n.Internal), s.now().UnixMilli())
		if err != nil {
			return err
		}
		if rows == 0 {
			return ErrTopicExists
		}
		if !n.Internal {
			if err := t.checkCollision(n.Name); err != nil {
				return err
			}
		}
		if err := t.addPartitions(node, id, 0, n.Partitions, n.Leaders); err != nil {
			return err
		}
		for k, v := range n.Config {
			if err := t.setConfig(id, k, v); err != nil {
				return err
			}
		}
		topic, err = t.topicChanged(id)
		return err
	})
	return topic, err
}

// checkCollision refuses a name that differs from another topic's only in '.' and '_'.
func (t *tx) checkCollision(name string) error {
	if !strings.ContainsAny(name, "._") {
		return nil
	}
	var other string
	err := t.QueryRowContext(t.ctx, `SELECT name FROM topic WHERE name <> $1 AND replace(name, '.', '_') = $2`, name, strings.ReplaceAll(name, ".", "_")).Scan(&other)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("names of topics: %w", err)
	}
	return fmt.Errorf("%s collides with the topic %s: %w", name, other, ErrTopicCollides)
}

// addPartitions makes the partitions [from, to) of a topic, led in turn by leaders, by node
// if there are none.
func (t *tx) addPartitions(node streamstore.Node, id uuid.UUID, from, to int, leaders []streamstore.NodeID) error {
	owners := []streamstore.Node{node}
	if len(leaders) > 0 {
		owners = make([]streamstore.Node, len(leaders))
	}
	for i, leader := range leaders {
		epoch, _, err := t.life(leader)
		if err != nil {
			return fmt.Errorf("leader %d: %w", leader, err)
		}
		owners[i] = streamstore.Node{ID: leader, Epoch: epoch}
	}
	streams := make([]streamstore.Node, 0, streamsPerPartition*(to-from))
	for i := range to - from {
		for range streamsPerPartition {
			streams = append(streams, owners[i%len(owners)])
		}
	}
	first, err := t.createStreams(streams)
	if err != nil {
		return err
	}
	for i := from; i < to; i++ {
		if _, err := t.exec(`INSERT INTO topic_partition (topic, idx, leader, leader_epoch, meta_stream, log_stream) VALUES ($1, $2, $3, 0, $4, $5)`,
			id.String(), i, owners[(i-from)%len(owners)].ID, first, first+1); err != nil {
			return err
		}
		first += streamsPerPartition
	}
	return nil
}

func (t *tx) setConfig(id uuid.UUID, key, value string) error {
	_, err := t.exec(`INSERT INTO config (scope, name, key, value) VALUES ($1, $2, $3, $4)
		ON CONFLICT (scope, name, key) DO UPDATE SET value = excluded.value`, scopeTopic, id.String(), key, value)
	return err
}

// topicChanged leaves the entry in the change log and returns the topic as it is now.
func (t *tx) topicChanged(id uuid.UUID) (Topic, error) {
	if err := t.change(ChangeTopic, id); err != nil {
		return Topic{}, err
	}
	topics, err := readTopics(t.ctx, t, id.String())
	if err != nil {
		return Topic{}, err
	}
	if len(topics) != 1 {
		return Topic{}, fmt.Errorf("topic %s: %d rows", id, len(topics))
	}
	return topics[0], nil
}

// DeleteTopic removes a topic with its streams, whoever has them open: what their leaders
// still upload of them is dropped. A topic that is gone is ErrTopicNotExist.
func (s *Store) DeleteTopic(ctx context.Context, node streamstore.Node, id uuid.UUID) error {
	return s.updateDurablyAs(ctx, node, fmt.Sprintf("delete topic %s", id), func(t *tx) error {
		topics, err := readTopics(ctx, t, id.String())
		if err != nil {
			return err
		}
		if len(topics) == 0 {
			return ErrTopicNotExist
		}
		for _, p := range topics[0].Partitions {
			for _, stream := range []streamstore.StreamID{p.Meta, p.Log} {
				if err := t.dropStream(stream); err != nil {
					return err
				}
			}
		}
		for _, q := range []string{
			`DELETE FROM topic_partition WHERE topic = $1`,
			`DELETE FROM config WHERE scope = '` + scopeTopic + `' AND name = $1`,
			`DELETE FROM topic WHERE id = $1`,
		} {
			if _, err := t.exec(q, id.String()); err != nil {
				return err
			}
		}
		return t.change(ChangeTopic, id)
	})
}

// CreatePartitions raises the number of a topic's partitions to count; the new ones are led
// in turn by leaders, by node if there are none. A topic that has so many already is returned
// as it is; fewer is an error.
func (s *Store) CreatePartitions(ctx context.Context, node streamstore.Node, name string, count int, leaders ...streamstore.NodeID) (Topic, error) {
	var topic Topic
	err := s.updateDurablyAs(ctx, node, fmt.Sprintf("create partitions of topic %s", name), func(t *tx) error {
		id, err := t.topicID(name)
		if err != nil {
			return err
		}
		var have int
		if err := t.QueryRowContext(ctx, `SELECT count(*) FROM topic_partition WHERE topic = $1`, id.String()).Scan(&have); err != nil {
			return err
		}
		if count < have || count > math.MaxInt32 {
			return fmt.Errorf("the topic has %d partitions, cannot make it %d", have, count)
		}
		if count > have {
			if err := t.addPartitions(node, id, have, count, leaders); err != nil {
				return err
			}
		}
		topic, err = t.topicChanged(id)
		return err
	})
	return topic, err
}

// AlterTopicConfig sets and removes settings of a topic. Removing one that is not set
// changes nothing.
func (s *Store) AlterTopicConfig(ctx context.Context, node streamstore.Node, name string, set map[string]string, remove []string) (Topic, error) {
	var topic Topic
	err := s.updateDurablyAs(ctx, node, fmt.Sprintf("alter config of topic %s", name), func(t *tx) error {
		id, err := t.topicID(name)
		if err != nil {
			return err
		}
		for k, v := range set {
			if err := t.setConfig(id, k, v); err != nil {
				return err
			}
		}
		for _, k := range remove {
			if _, err := t.exec(`DELETE FROM config WHERE scope = $1 AND name = $2 AND key = $3`, scopeTopic, id.String(), k); err != nil {
				return err
			}
		}
		topic, err = t.topicChanged(id)
		return err
	})
	return topic, err
}

func (t *tx) topicID(name string) (uuid.UUID, error) {
	var id string
	err := t.QueryRowContext(t.ctx, `SELECT id FROM topic WHERE name = $1`, name).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return uuid.UUID{}, ErrTopicNotExist
	}
	if err != nil {
		return uuid.UUID{}, err
	}
	return uuid.Parse(id)
}

// Topic returns the topic with that id, or ErrTopicNotExist.
func (s *Store) Topic(ctx context.Context, id uuid.UUID) (Topic, error) {
	topics, err := s.readTopics(ctx, id.String())
	if err == nil && len(topics) == 0 {
		err = ErrTopicNotExist
	}
	if err != nil {
		return Topic{}, fmt.Errorf("read topic %s: %w", id, err)
	}
	return topics[0], nil
}

// Topics returns all topics by name.
func (s *Store) Topics(ctx context.Context) ([]Topic, error) {
	topics, err := s.readTopics(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read topics: %w", err)
	}
	return topics, nil
}

func (s *Store) readTopics(ctx context.Context, id string) ([]Topic, error) {
	// One transaction, for topics, partitions and settings of one moment.
	t, err := s.readers.BeginTx(ctx, &s.dialect.snapshot)
	if err != nil {
		return nil, err
	}
	defer t.Rollback()
	return readTopics(ctx, t, id)
}

// A PartitionMove gives a partition to another leader.
type PartitionMove struct {
	Topic uuid.UUID
	Index int32
	From  streamstore.NodeID // who leads it
	To    streamstore.NodeID
}

// MovePartitions gives partitions to other leaders, all or none, and raises their leader
// epochs. Their streams must be closed. Node is the leader of each, or the leader was
// recovered by another node and has not started since. A partition that From does not lead
// is ErrConflict. A move to the leader itself raises the epoch only, open or not.
//
// It is durable once the new leader's OpenStreams is: before that, nobody has acknowledged
// anything in the new epoch.
func (s *Store) MovePartitions(ctx context.Context, node streamstore.Node, moves []PartitionMove) error {
	return s.updateAs(ctx, node, fmt.Sprintf("move %d partitions", len(moves)), func(t *tx) error {
		changed := map[uuid.UUID]bool{}
		for _, m := range moves {
			if err := t.movePartition(node, m); err != nil {
				return fmt.Errorf("partition %d of topic %s: %w", m.Index, m.Topic, err)
			}
			if changed[m.Topic] {
				continue
			}
			changed[m.Topic] = true
			if err := t.change(ChangeTopic, m.Topic); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *tx) movePartition(node streamstore.Node, m PartitionMove) error {
	var leader streamstore.NodeID
	var open int
	err := t.QueryRowContext(t.ctx, `SELECT p.leader, (SELECT count(*) FROM stream s WHERE s.id IN (p.meta_stream, p.log_stream) AND s.is_open = 1)
		FROM topic_partition p WHERE p.topic = $1 AND p.idx = $2`, m.Topic.String(), m.Index).Scan(&leader, &open)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrTopicNotExist
	}
	if err != nil {
		return err
	}
	if leader != m.From && !invariant.Off("metadata-move-from") {
		return fmt.Errorf("node %d leads it, not node %d: %w", leader, m.From, streamstore.ErrConflict)
	}
	if leader != node.ID && !invariant.Off("metadata-move-leader") {
		if _, recovered, err := t.life(leader); err != nil || !recovered {
			return errors.Join(err, fmt.Errorf("node %d leads it and was not recovered: %w", leader, streamstore.ErrConflict))
		}
	}
	if m.To != leader {
		if open > 0 && !invariant.Off("metadata-move-closed") {
			return fmt.Errorf("%d of its streams are open: %w", open, streamstore.ErrConflict)
		}
		if _, recovered, err := t.life(m.To); err != nil || recovered {
			return errors.Join(err, fmt.Errorf("node %d does not live: %w", m.To, streamstore.ErrConflict))
		}
	}
	_, err = t.exec(`UPDATE topic_partition SET leader = $1, leader_epoch = leader_epoch + 1 WHERE topic = $2 AND idx = $3`, m.To, m.Topic.String(), m.Index)
	return err
}

// TakePartitions raises the leader epoch of every partition that node leads and returns
// their topics, by name, with all partitions. It is called at the start of a life, before
// the streams are opened with the new epochs.
func (s *Store) TakePartitions(ctx context.Context, node streamstore.Node) ([]Topic, error) {
	var mine []Topic
	err := s.updateDurablyAs(ctx, node, fmt.Sprintf("take partitions of node %d", node.ID), func(t *tx) error {
		n, err := t.exec(`UPDATE topic_partition SET leader_epoch = leader_epoch + 1 WHERE leader = $1`, node.ID)
		if err != nil || n == 0 {
			return err
		}
		topics, err := readTopics(ctx, t, "")
		if err != nil {
			return err
		}
		for _, topic := range topics {
			if !slices.ContainsFunc(topic.Partitions, func(p Partition) bool { return p.Leader == node.ID }) {
				continue
			}
			mine = append(mine, topic)
			if err := t.change(ChangeTopic, topic.ID); err != nil {
				return err
			}
		}
		return nil
	})
	return mine, err
}

// AllocateProducerIDs reserves n consecutive producer ids, which are never given again.
func (s *Store) AllocateProducerIDs(ctx context.Context, node streamstore.Node, n int) (first int64, err error) {
	if n <= 0 {
		return 0, fmt.Errorf("allocate %d producer ids: want at least 1", n)
	}
	err = s.updateAs(ctx, node, "allocate producer ids", func(t *tx) error {
		first, err = t.next("producer", int64(n))
		return err
	})
	return first, err
}

type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// readTopics reads the topic with that id, or all if it is empty, by name.
func readTopics(ctx context.Context, q queryer, id string) ([]Topic, error) {
	var topics []Topic
	index := map[string]int{}
	err := eachRow(ctx, q, func(rows *sql.Rows) error {
		var key string
		var created int64
		var t Topic
		if err := rows.Scan(&key, &t.Name, &t.Internal, &created); err != nil {
			return err
		}
		var err error
		if t.ID, err = uuid.Parse(key); err != nil {
			return fmt.Errorf("topic %s: %w", t.Name, err)
		}
		t.Created, t.Config = time.UnixMilli(created), map[string]string{}
		index[key] = len(topics)
		topics = append(topics, t)
		return nil
	}, `SELECT id, name, internal, created FROM topic WHERE $1 = '' OR id = $1 ORDER BY name`, id)
	if err != nil {
		return nil, err
	}
	err = eachRow(ctx, q, func(rows *sql.Rows) error {
		var key string
		var p Partition
		if err := rows.Scan(&key, &p.Index, &p.Leader, &p.LeaderEpoch, &p.Meta, &p.Log); err != nil {
			return err
		}
		i, ok := index[key]
		if !ok || int(p.Index) != len(topics[i].Partitions) {
			return fmt.Errorf("partition %d of topic %s has no place", p.Index, key)
		}
		topics[i].Partitions = append(topics[i].Partitions, p)
		return nil
	}, `SELECT topic, idx, leader, leader_epoch, meta_stream, log_stream FROM topic_partition WHERE $1 = '' OR topic = $1 ORDER BY topic, idx`, id)
	if err != nil {
		return nil, err
	}
	err = eachRow(ctx, q, func(rows *sql.Rows) error {
		var key, k, v string
		if err := rows.Scan(&key, &k, &v); err != nil {
			return err
		}
		if i, ok := index[key]; ok {
			topics[i].Config[k] = v
		}
		return nil
	}, `SELECT name, key, value FROM config WHERE scope = '`+scopeTopic+`' AND ($1 = '' OR name = $1)`, id)
	return topics, err
}

func eachRow(ctx context.Context, q queryer, fn func(*sql.Rows) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
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
