package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

// PartitionRow is a partition and who leads it.
type PartitionRow struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Leader    int32  `json:"leader"`
	Epoch     int32  `json:"epoch"`
	Alive     bool   `json:"alive"`             // the leader answers
	Address   string `json:"address,omitempty"` // of the leader, Kafka HOST:PORT
	LogStart  int64  `json:"log_start"`         // -1 if the leader did not say
	LogEnd    int64  `json:"log_end"`           // -1 if the leader did not say
}

// MoveStatus is a line of the answer to a move. The last one has Done or Error.
type MoveStatus struct {
	Moved  int    `json:"moved"`
	Total  int    `json:"total"`
	To     int32  `json:"to"`
	Millis int64  `json:"millis"`   // since the move began
	Pause  int64  `json:"pause_ms"` // the longest that partitions were not served, until now
	Done   bool   `json:"done"`
	Error  string `json:"error,omitempty"`
}

// moveRequest asks for a move of partitions; of all that From leads if none are named.
type moveRequest struct {
	Partitions []partition.ID
	From       *streamstore.NodeID
	To         streamstore.NodeID
}

// moveChunk is how many partitions move at a time.
const moveChunk = 64

// handlePartitions adds the API of partitions.
//
//	GET  /api/partitions?topic=T   {"partitions": [PartitionRow, …]}; local=true: only those led here
//	POST /api/partitions/move      {"partitions": [{"Topic": …, "Index": …}, …], "to": 2} or {"from": 1, "to": 2}
//	                               MoveStatus, …: JSON lines as it goes on
func (n *Node) handlePartitions(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/partitions", func(w http.ResponseWriter, r *http.Request) {
		topic := r.URL.Query().Get("topic")
		if _, ok := n.set.Topic(topic); topic != "" && !ok {
			answer(w, http.StatusNotFound, message(fmt.Errorf("topic %s does not exist: 'tabletopic topic list' shows those there are", topic)))
			return
		}
		rows := n.partitions(topic)
		if r.URL.Query().Get("local") == "true" {
			rows = n.ledHere(rows)
		} else {
			n.askEnds(r.Context(), topic, rows)
		}
		answer(w, http.StatusOK, map[string]any{"partitions": rows})
	})
	mux.HandleFunc("POST /api/partitions/move", n.movePartitions)
}

// partitions lists the partitions of a topic, of all if it is empty, with the offsets of those
// led here.
func (n *Node) partitions(topic string) []PartitionRow {
	addresses := map[streamstore.NodeID]string{n.set.Node().ID: n.KafkaAddr()}
	for _, m := range n.set.Members() {
		addresses[m.ID] = m.Kafka
	}
	rows := []PartitionRow{}
	for _, t := range n.set.Topics() {
		if topic != "" && t.Name != topic {
			continue
		}
		for _, p := range t.Partitions {
			row := PartitionRow{Topic: t.Name, Partition: p.Index, Leader: int32(p.Leader), Epoch: p.LeaderEpoch, Alive: n.set.Lives(p.Leader),
				Address: addresses[p.Leader], LogStart: -1, LogEnd: -1}
			if here, err := n.set.Partition(t.Name, p.Index); err == nil && here.Err() == nil {
				o := here.Offsets()
				row.LogStart, row.LogEnd = o.LogStart, o.HighWatermark
			}
			rows = append(rows, row)
		}
	}
	return rows
}

func (n *Node) ledHere(rows []PartitionRow) []PartitionRow {
	here := []PartitionRow{}
	for _, r := range rows {
		if r.LogEnd >= 0 {
			here = append(here, r)
		}
	}
	return here
}

// askEnds asks each other node once for the offsets of what it leads.
func (n *Node) askEnds(ctx context.Context, topic string, rows []PartitionRow) {
	ctx, cancel := context.WithTimeout(ctx, lifeSign)
	defer cancel()
	index := map[partition.ID]int{}
	for i, r := range rows {
		index[partition.ID{Topic: r.Topic, Index: r.Partition}] = i
	}
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, m := range n.set.Members() {
		if m.ID == n.set.Node().ID || !m.Alive {
			continue
		}
		asked.Go(func() {
			resp, err := n.peers.do(ctx, m.Member, http.MethodGet, "/api/partitions?local=true&topic="+url.QueryEscape(topic), nil)
			if err != nil {
				return // its offsets stay unknown, which the rows say
			}
			defer resp.Body.Close()
			var list struct{ Partitions []PartitionRow }
			if json.NewDecoder(http.MaxBytesReader(nil, resp.Body, maxPeerBody)).Decode(&list) != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, r := range list.Partitions {
				if i, ok := index[partition.ID{Topic: r.Topic, Index: r.Partition}]; ok {
					rows[i].LogStart, rows[i].LogEnd = r.LogStart, r.LogEnd
				}
			}
		})
	}
	asked.Wait()
}

func (n *Node) movePartitions(w http.ResponseWriter, r *http.Request) {
	var in moveRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<20)).Decode(&in); err != nil {
		answer(w, http.StatusBadRequest, message(fmt.Errorf("body: %w", err)))
		return
	}
	begin := time.Now()
	byLeader, err := n.planMove(r.Context(), in)
	if err != nil {
		answer(w, http.StatusConflict, message(err))
		return
	}
	status := MoveStatus{To: int32(in.To)}
	for _, ids := range byLeader {
		status.Total += len(ids)
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, flush := json.NewEncoder(w), http.NewResponseController(w)
	say := func() {
		status.Millis = time.Since(begin).Milliseconds()
		_ = lines.Encode(status) // whoever is gone ends the move by the request's context
		_ = flush.Flush()
	}
	for leader, ids := range byLeader {
		for len(ids) > 0 {
			chunk := ids[:min(len(ids), moveChunk)]
			ids = ids[len(chunk):]
			pause, err := n.move(r.Context(), leader, chunk, in.To)
			status.Pause = max(status.Pause, pause.Milliseconds())
			if err != nil {
				status.Error = err.Error()
				n.log.Warn("partitions not moved", "from", leader, "to", in.To, "error", err)
				say()
				return
			}
			status.Moved += len(chunk)
			if status.Done = status.Moved == status.Total; !status.Done {
				say()
			}
		}
	}
	status.Done = true
	say()
}

// Move moves partitions from whoever leads them. With an error, some of them may have moved.
func (n *Node) Move(ctx context.Context, ids []partition.ID, to streamstore.NodeID) error {
	byLeader, err := n.planMove(ctx, moveRequest{Partitions: ids, To: to})
	if err != nil {
		return err
	}
	for leader, ids := range byLeader {
		for chunk := range slices.Chunk(ids, moveChunk) {
			if _, err := n.move(ctx, leader, chunk, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// planMove finds who leads what is to move, and refuses what cannot.
func (n *Node) planMove(ctx context.Context, in moveRequest) (map[streamstore.NodeID][]partition.ID, error) {
	if err := n.set.Sync(ctx); err != nil {
		return nil, err
	}
	ids := in.Partitions
	if len(ids) == 0 && in.From != nil {
		for _, t := range n.set.Topics() {
			for _, p := range t.Partitions {
				if p.Leader == *in.From {
					ids = append(ids, partition.ID{Topic: t.Name, Index: p.Index})
				}
			}
		}
	}
	byLeader := map[streamstore.NodeID][]partition.ID{}
	for _, id := range ids {
		t, ok := n.set.Topic(id.Topic)
		if !ok || id.Index < 0 || int(id.Index) >= len(t.Partitions) {
			return nil, fmt.Errorf("%w: %s: 'tabletopic partition list' shows those there are", partition.ErrUnknownTopicOrPartition, id)
		}
		if leader := t.Partitions[id.Index].Leader; leader != in.To {
			byLeader[leader] = append(byLeader[leader], id)
		}
	}
	nodes, err := n.nodes(ctx)
	if err != nil {
		return nil, err
	}
	state := map[streamstore.NodeID]NodeState{}
	for _, s := range nodes {
		state[streamstore.NodeID(s.ID)] = s.State
	}
	switch s, ok := state[in.To]; {
	case !ok:
		return nil, fmt.Errorf("node %d: %w: 'tabletopic node list' shows those there are", in.To, streamstore.ErrNodeNotExist)
	case s != NodeServing:
		return nil, fmt.Errorf("node %d is %s, and cannot lead partitions: start it, or name a node that is serving in 'tabletopic node list'", in.To, s)
	}
	for leader, ids := range byLeader {
		switch s := state[leader]; s {
		case NodeServing, NodeRecovered:
		default:
			return nil, fmt.Errorf("node %d, which leads %s, is %s, and may have acknowledged records that no object holds: "+
				"start it, or recover it first with 'tabletopic node recover %d'", leader, ids[0], s, leader)
		}
	}
	return byLeader, nil
}

// move has partitions moved by who leads them; by this node if the leader is gone.
func (n *Node) move(ctx context.Context, leader streamstore.NodeID, ids []partition.ID, to streamstore.NodeID) (pause time.Duration, err error) {
	m, ok := n.member(leader)
	if leader == n.set.Node().ID || !ok {
		return n.set.Move(ctx, ids, to)
	}
	resp, err := n.peers.do(ctx, m, http.MethodPost, "/api/peer/move", moveRequest{Partitions: ids, To: to})
	if err != nil {
		return 0, fmt.Errorf("node %d: %w", leader, err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&pause); err != nil {
		return 0, fmt.Errorf("node %d: %w", leader, err)
	}
	return pause, n.set.Sync(ctx)
}

func (n *Node) member(id streamstore.NodeID) (metadata.Member, bool) {
	for _, m := range n.set.Members() {
		if m.ID == id {
			return m.Member, true
		}
	}
	return metadata.Member{}, false
}
