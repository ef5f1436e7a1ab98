package broker

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

// peer is a node of the cluster as clients reach it.
type peer struct {
	id   int32
	host string
	port int32
	rack *string // nil if unknown
}

// nobody is what clients are told where no node can be named.
var nobody = peer{id: -1, port: -1}

// isNode reports whether a node is one of the cluster, alive or not.
func (b *Broker) isNode(id int32) bool {
	node := streamstore.NodeID(id)
	return node == b.node.ID || slices.ContainsFunc(b.set.Members(), func(m partition.Member) bool { return m.ID == node })
}

// peers returns the nodes that live, by id, this one among them, as clients of a listener
// reach them: by the listener of the same name.
func (b *Broker) peers(l *Listener) []peer {
	all := []peer{{int32(b.node.ID), l.host, l.port, rackOf(b.cfg.Rack)}}
	for _, m := range b.set.Members() {
		if m.ID == b.node.ID || !m.Alive {
			continue
		}
		host, port, err := net.SplitHostPort(m.Listener(l.Name))
		if err != nil {
			continue // it announced what it could not have listened on
		}
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			all = append(all, peer{int32(m.ID), host, int32(n), rackOf(m.Rack)})
		}
	}
	slices.SortFunc(all, func(a, b peer) int { return cmp.Compare(a.id, b.id) })
	return all
}

func rackOf(name string) *string {
	if name == "" {
		return nil
	}
	return &name
}

// peer returns a node that lives.
func (b *Broker) peer(l *Listener, id streamstore.NodeID) (peer, error) {
	for _, p := range b.peers(l) {
		if p.id == int32(id) {
			return p, nil
		}
	}
	return nobody, refuse(kerr.CoordinatorNotAvailable, "node %d, which would have to answer, is not alive: recover it, and move what it leads to another node", id)
}

// moveWait bounds how long a request for a partition that moves waits to learn where to.
const moveWait = time.Second

// newLeader returns who leads a partition, for the answer to a client that was refused with err
// (KIP-951): it goes there at once, and does not look around first. ok is false if that is
// unknown, or this node.
func (b *Broker) newLeader(ctx context.Context, l *Listener, topic string, index int32, err error) (at peer, epoch int32, ok bool) {
	if !errors.Is(err, kerr.NotLeaderForPartition) {
		return peer{}, 0, false
	}
	ctx, cancel := context.WithTimeout(ctx, moveWait)
	defer cancel()
	leader, epoch, ok := b.set.Leader(ctx, partition.ID{Topic: topic, Index: index})
	if !ok || leader == b.node.ID {
		return peer{}, 0, false
	}
	at, err = b.peer(l, leader)
	return at, epoch, err == nil
}
