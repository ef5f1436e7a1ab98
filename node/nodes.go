package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/streamstore"
)

// NodeState says what is known of a node.
type NodeState string

const (
	NodeServing    NodeState = "serving"    // it answers at its HTTP address, in its newest life
	NodeSilent     NodeState = "silent"     // nobody answers there as this node
	NodeUnknown    NodeState = "unknown"    // it never said where it is reached
	NodeRecovering NodeState = "recovering" // another node recovers it, or died while it did
	NodeRecovered  NodeState = "recovered"  // another node has recovered it, and it did not start since
)

// NodeStatus is a node of the cluster as [NodeState] and metadata have it.
type NodeStatus struct {
	ID          int32     `json:"id"`
	Epoch       int64     `json:"epoch"` // rises with each start, and when another node recovers it
	State       NodeState `json:"state"`
	Kafka       string    `json:"kafka,omitempty"` // HOST:PORT
	HTTP        string    `json:"http,omitempty"`  // HOST:PORT
	Rack        string    `json:"rack,omitempty"`
	OpenStreams int       `json:"open_streams"`
	WALs        int       `json:"wals"` // of its lives, that may hold records which no object has
	RecoveredBy *int32    `json:"recovered_by,omitempty"`
}

// RecoverStatus is a line of the answer to a recovery. The last one has Done or Error.
type RecoverStatus struct {
	Node       int32  `json:"node"`
	Streams    int    `json:"streams"` // that the node had open, closed when it is done
	WALs       int    `json:"wals"`
	Bulks      int64  `json:"bulks"` // read of the write-ahead logs …
	TotalBulks int64  `json:"total_bulks"`
	Batches    int64  `json:"batches"` // batches of records that no object held
	Bytes      int64  `json:"bytes"`
	Done       bool   `json:"done"`
	Error      string `json:"error,omitempty"`
}

// handleNodes adds the API of the cluster's nodes.
//
//	GET  /api/node                            the server itself: {"id": …, "epoch": …}
//	GET  /api/nodes                           {"nodes": [NodeStatus, …]}
//	POST /api/nodes/{id}/recover?force=true   RecoverStatus, …: JSON lines as it goes on
//
// A node that answers at its HTTP address, or that never said where that is, is not recovered
// (409) unless force is true.
func (n *Node) handleNodes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/node", func(w http.ResponseWriter, _ *http.Request) {
		self := n.store.Node()
		answer(w, http.StatusOK, nodeIdentity{int32(self.ID), self.Epoch})
	})
	mux.HandleFunc("GET /api/nodes", func(w http.ResponseWriter, r *http.Request) {
		nodes, err := n.nodes(r.Context())
		if err != nil {
			answer(w, http.StatusInternalServerError, message(err))
			return
		}
		answer(w, http.StatusOK, map[string]any{"nodes": nodes})
	})
	mux.HandleFunc("POST /api/nodes/{id}/recover", n.recoverNode)
}

// nodeIdentity is how a server says which node it is.
type nodeIdentity struct {
	ID    int32 `json:"id"`
	Epoch int64 `json:"epoch"`
}

// nodes returns the nodes of the cluster, after asking each at its address.
func (n *Node) nodes(ctx context.Context) ([]NodeStatus, error) {
	states, err := n.meta.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	at, err := n.meta.NodeAddresses(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]NodeStatus, len(states))
	var asked sync.WaitGroup
	for i, s := range states {
		all[i] = NodeStatus{ID: int32(s.ID), Epoch: s.Epoch, Kafka: at[s.ID].Kafka, HTTP: at[s.ID].HTTP, Rack: at[s.ID].Rack, OpenStreams: s.Open, WALs: len(s.WALs)}
		if s.Leader.Epoch != 0 {
			leader := int32(s.Leader.ID)
			all[i].RecoveredBy = &leader
		}
		asked.Go(func() { all[i].State = n.state(ctx, s, at[s.ID]) })
	}
	asked.Wait()
	return all, nil
}

func (n *Node) state(ctx context.Context, s streamstore.NodeState, at metadata.NodeAddress) NodeState {
	switch {
	case s.Node == n.store.Node():
		return NodeServing
	case s.Leader.Epoch != 0 && s.Open+len(s.WALs) > 0:
		return NodeRecovering
	case s.Leader.Epoch != 0:
		return NodeRecovered
	case at.HTTP == "":
		return NodeUnknown
	}
	if n.peers.answers(ctx, at.HTTP, s.Node) {
		return NodeServing
	}
	return NodeSilent
}

// lifeSign is how long a node has to answer who it is.
const lifeSign = 2 * time.Second

// answers asks at an HTTP address whether the node lives there in that epoch.
func (p peers) answers(ctx context.Context, address string, node streamstore.Node) bool {
	ctx, cancel := context.WithTimeout(ctx, lifeSign)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, httpURL(address)+"/api/node", nil)
	if err != nil {
		return false
	}
	p.sign(req)
	resp, err := p.client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var id nodeIdentity
	err = json.NewDecoder(http.MaxBytesReader(nil, resp.Body, 4<<10)).Decode(&id)
	return err == nil && id == nodeIdentity{int32(node.ID), node.Epoch}
}

func (n *Node) recoverNode(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 32)
	if err != nil || id < 0 {
		answer(w, http.StatusBadRequest, message(fmt.Errorf("node id %q: want 0 to 2147483647", r.PathValue("id"))))
		return
	}
	if code, err := n.mayRecover(r.Context(), int32(id), r.URL.Query().Get("force") == "true"); err != nil {
		answer(w, code, message(err))
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, flush := json.NewEncoder(w), http.NewResponseController(w)
	status := func(p streamstore.RecoveryProgress) RecoverStatus {
		return RecoverStatus{Node: int32(id), Streams: p.Streams, WALs: p.WALs, Bulks: p.Bulks, TotalBulks: p.TotalBulks, Batches: p.Records, Bytes: p.Bytes}
	}
	var last time.Time
	p, err := n.store.Recover(r.Context(), streamstore.NodeID(id), func(p streamstore.RecoveryProgress) {
		if time.Since(last) < recoverTick {
			return
		}
		last = time.Now()
		_ = lines.Encode(status(p)) // whoever is gone ends the recovery by the request's context
		_ = flush.Flush()
	})
	end := status(p)
	if end.Done = err == nil; !end.Done {
		end.Error = err.Error()
		n.log.Warn("node not recovered", "node", id, "error", err)
	}
	_ = lines.Encode(end)
}

// recoverTick is how often a recovery says how far it is.
const recoverTick = 200 * time.Millisecond

// mayRecover refuses a node that cannot be recovered, or that may be alive.
func (n *Node) mayRecover(ctx context.Context, id int32, force bool) (code int, err error) {
	nodes, err := n.nodes(ctx)
	if err != nil {
		return http.StatusInternalServerError, err
	}
	for _, other := range nodes {
		switch {
		case other.ID != id:
			continue
		case int(id) == n.cfg.NodeID:
			return http.StatusConflict, fmt.Errorf("node %d is this server, which recovered its own write-ahead logs when it started: ask another server", id)
		case other.State == NodeServing && !force:
			return http.StatusConflict, fmt.Errorf("node %d is alive: it answers at %s. Stop it, and it leaves nothing to recover. "+
				"Recovered by force it stops by itself and its streams are closed", id, httpURL(other.HTTP))
		case other.State == NodeUnknown && !force:
			return http.StatusConflict, fmt.Errorf("node %d never said where it is reached, so that nobody can tell whether it lives: it may be starting. "+
				"See that its process is gone, and recover it by force", id)
		}
		return 0, nil
	}
	return http.StatusNotFound, fmt.Errorf("node %d: %w: 'tabletopic node list' shows those there are", id, streamstore.ErrNodeNotExist)
}

// announce makes known to the cluster where this server is reached.
func (n *Node) announce(ctx context.Context) error {
	kafka, listeners := n.advertised()
	at := metadata.NodeAddress{Kafka: kafka, HTTP: n.HTTPAddr(), Listeners: listeners, Rack: n.cfg.Rack}
	if host, port, err := net.SplitHostPort(at.HTTP); err == nil && net.ParseIP(host).IsUnspecified() {
		if host, err = n.kafkaHost(); err != nil {
			if host, err = os.Hostname(); err != nil {
				return fmt.Errorf("host name, for other nodes to reach this one: %w: set kafka-advertised, or let http listen on one address", err)
			}
		}
		at.HTTP = net.JoinHostPort(host, port)
	}
	if n.cfg.HTTPTLS {
		at.HTTP = "https://" + at.HTTP
	}
	return n.meta.AnnounceNode(ctx, n.store.Node(), at)
}
