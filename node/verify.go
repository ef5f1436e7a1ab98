package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
	"github.com/tabletopic/tabletopic/worker"
)

// VerifyStatus is a line of the answer to a verification. The last one has Report or Error.
type VerifyStatus struct {
	coordinator.Progress
	Report *coordinator.Report `json:"report,omitempty"`
	Error  string              `json:"error,omitempty"`
}

// verifyTable compares a table with its log and answers in lines.
func (n *Node) verifyTable(w http.ResponseWriter, r *http.Request) {
	route, err := n.tableOf(r.PathValue("topic"))
	if err != nil {
		answer(w, http.StatusNotFound, message(err))
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, flush := json.NewEncoder(w), http.NewResponseController(w)
	var last time.Time
	in := coordinator.Verification{
		Deep: r.URL.Query().Get("deep") == "true", Strict: r.URL.Query().Get("strict") == "true",
		Progress: func(p coordinator.Progress) {
			if time.Since(last) < recoverTick {
				return
			}
			last = time.Now()
			_ = lines.Encode(VerifyStatus{Progress: p}) // whoever is gone ends it by the request's context
			_ = flush.Flush()
		},
	}
	end := VerifyStatus{}
	if end.Report, err = n.verify(r.Context(), route, in); err != nil {
		end.Error = err.Error()
	}
	_ = lines.Encode(end)
}

// verify compares the partitions with their table. The report names those whose leader is away.
func (n *Node) verify(ctx context.Context, r partition.Route, in coordinator.Verification) (*coordinator.Report, error) {
	t, cfg := r.Topic, r.Table
	_, tbl, err := n.load(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("table of topic %s: %w", r.Name, err)
	}
	in.Topic = coordinator.Topic{ID: r.ID, Name: r.Name, Partitions: int32(len(t.Partitions))}
	in.KafkaColumn, in.Locator = cfg.KafkaColumn, n.locatorOf(cfg.Catalog)
	in.LeavesOut = cfg.Tolerance == partition.TolerateSkip || cfg.Tombstone == partition.TombstoneSkip
	in.Letters = worker.NewDeadLetterTopic(n.set, r).Each
	if e := worker.NewElsewhere(r, coordinator.Elsewhere(tbl), n.schemas); e != nil {
		in.Elsewhere = e.Has
	}
	in.Logs = map[int32]coordinator.LogReader{}
	away := map[int32]error{}
	logs := &logs{n, t, peerPatience, map[streamstore.NodeID]error{}}
	for i := range int32(len(t.Partitions)) {
		log, err := logs.open(ctx, i)
		switch {
		case errors.Is(err, errAway), errors.Is(err, partition.ErrNotLeader):
			away[i] = err
		case err != nil:
			return nil, err
		default:
			in.Logs[i] = worker.Committed{Log: log}
		}
	}
	report, err := coordinator.Verify(ctx, tbl, in)
	if err != nil {
		return nil, err
	}
	for i, why := range away {
		report.Pass(i, why)
	}
	return report, nil
}
