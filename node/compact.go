package node

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/tabletopic/tabletopic/coordinator"
)

// CompactStatus is a line of the answer to a compaction. The last one has Done or Error.
type CompactStatus struct {
	Topic string `json:"topic"`
	Table string `json:"table"`
	coordinator.CompactionReport
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`
}

// compactTable makes the small files of a table large, and answers in lines. It is the coordinator
// that does, so the node that leads partition 0 must be asked.
func (n *Node) compactTable(w http.ResponseWriter, r *http.Request) {
	route, err := n.tableOf(r.PathValue("topic"))
	if err != nil {
		answer(w, http.StatusNotFound, message(err))
		return
	}
	id, err := coordinator.Identifier(route.Table.Namespace, route.Table.Name, route.Name)
	if err != nil {
		answer(w, http.StatusConflict, message(err))
		return
	}
	if leader := route.Topic.Partitions[0].Leader; leader != n.set.Node().ID {
		answer(w, http.StatusConflict, message(fmt.Errorf("table of topic %s is compacted by the server that leads partition 0, which is %d: ask that one", route.Name, leader)))
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, flush := json.NewEncoder(w), http.NewResponseController(w)
	s := CompactStatus{Topic: route.Name, Table: strings.Join(id, ".")}
	s.CompactionReport, err = n.coordinators.Compact(r.Context(), route.ID, func(p coordinator.CompactionReport) {
		_ = lines.Encode(CompactStatus{Topic: s.Topic, Table: s.Table, CompactionReport: p}) // whoever is gone ends it by the request's context
		_ = flush.Flush()
	})
	if s.Done = err == nil; err != nil {
		s.Error = err.Error()
	}
	_ = lines.Encode(s)
}
