package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/tabletopic/tabletopic/streamstore"
)

// ObjectStatus is a data object of the log as `tabletopic object list` shows it.
type ObjectStatus struct {
	ID       int64                   `json:"id"`
	Key      string                  `json:"key"`
	Kind     string                  `json:"kind,omitempty"` // stream-set, stream or composite; empty if nobody knows
	State    streamstore.ObjectState `json:"state"`
	Missing  bool                    `json:"missing,omitempty"` // it is referenced, and not in the bucket
	Bytes    int64                   `json:"bytes"`             // in the bucket, or as metadata says
	Modified *time.Time              `json:"modified,omitempty"`
	Since    *time.Time              `json:"since,omitempty"` // committed, destroyed, or when its preparation expires
	Node     *int32                  `json:"node,omitempty"`
	Ranges   []RangeStatus           `json:"ranges,omitempty"`
	Parts    []int64                 `json:"parts,omitempty"` // objects that a composite links
}

// RangeStatus is a part of a stream.
type RangeStatus struct {
	Stream int64  `json:"stream"`
	Start  int64  `json:"start"`
	End    int64  `json:"end"`
	Of     string `json:"of,omitempty"` // TOPIC-PARTITION, with /meta for the stream beside the records
}

// CheckStatus is a line of the answer to a check: a problem, how far it is, or the end.
type CheckStatus struct {
	Problem   *ProblemStatus `json:"problem,omitempty"`
	Total     int64          `json:"total"`   // objects that are referenced
	Objects   int64          `json:"objects"` // … checked
	Bytes     int64          `json:"bytes"`   // … read
	Problems  int64          `json:"problems"`
	Prepared  int64          `json:"prepared"`
	Destroyed int64          `json:"destroyed"`
	Orphaned  int64          `json:"orphaned"`
	Done      bool           `json:"done"`
	Error     string         `json:"error,omitempty"`
}

// ProblemStatus says what is wrong with an object, and which offsets cannot be read.
type ProblemStatus struct {
	ID      int64         `json:"id"`
	Key     string        `json:"key"`
	Kind    string        `json:"kind"`
	Problem string        `json:"problem"`
	Lost    []RangeStatus `json:"lost"`
}

// ObjectKinds are the words for kinds of objects.
var ObjectKinds = []string{"stream-set", "stream", "composite"}

func objectKind(k streamstore.ObjectKind) string {
	if k < 1 || int(k) > len(ObjectKinds) {
		return ""
	}
	return ObjectKinds[k-1]
}

// handleObjects adds the administration of data objects. Answers are JSON, one object a line.
//
//	GET  /api/objects?state=&kind=&stream=&node=   ObjectStatus, …
//	POST /api/objects/check?deep=true              CheckStatus, …; the last is done or has an error
func (n *Node) handleObjects(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/objects", n.listObjects)
	mux.HandleFunc("POST /api/objects/check", n.checkObjects)
}

// streamNames tells what the streams of partitions are called.
func (n *Node) streamNames() map[streamstore.StreamID]string {
	names := make(map[streamstore.StreamID]string)
	for _, t := range n.set.Topics() {
		for _, p := range t.Partitions {
			names[p.Log] = fmt.Sprintf("%s-%d", t.Name, p.Index)
			names[p.Meta] = names[p.Log] + "/meta"
		}
	}
	return names
}

func rangeStatus(ranges []streamstore.StreamRange, names map[streamstore.StreamID]string) []RangeStatus {
	list := make([]RangeStatus, len(ranges))
	for i, r := range ranges {
		list[i] = RangeStatus{Stream: int64(r.Stream), Start: r.Start, End: r.End, Of: names[r.Stream]}
	}
	return list
}

func objectStatus(o streamstore.FoundObject, names map[streamstore.StreamID]string) ObjectStatus {
	s := ObjectStatus{ID: int64(o.ID), Key: streamstore.ObjectKey(o.ID), Kind: objectKind(o.Kind), State: o.State, Bytes: o.Size, Ranges: rangeStatus(o.Ranges, names)}
	s.Missing = o.State == streamstore.ObjectReferenced && !o.Stored
	if o.Stored {
		modified := o.Modified.UTC()
		s.Bytes, s.Modified = o.Length, &modified
	}
	if o.State != streamstore.ObjectOrphaned {
		node, since := int32(o.Node), o.Since.UTC()
		s.Node, s.Since = &node, &since
	}
	for _, p := range o.Parts {
		s.Parts = append(s.Parts, int64(p))
	}
	return s
}

// An objectFilter passes the objects that were asked for.
type objectFilter struct {
	state, kind  string
	stream, node *int64
}

func parseObjectFilter(q url.Values) (f objectFilter, err error) {
	f.state, f.kind = q.Get("state"), q.Get("kind")
	states := []string{string(streamstore.ObjectPrepared), string(streamstore.ObjectReferenced), string(streamstore.ObjectDestroyed), string(streamstore.ObjectOrphaned)}
	if f.state != "" && !slices.Contains(states, f.state) {
		return f, fmt.Errorf("state %q: want one of %v", f.state, states)
	}
	if f.kind != "" && !slices.Contains(ObjectKinds, f.kind) {
		return f, fmt.Errorf("kind %q: want one of %v", f.kind, ObjectKinds)
	}
	for name, into := range map[string]**int64{"stream": &f.stream, "node": &f.node} {
		if text := q.Get(name); text != "" {
			v, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return f, fmt.Errorf("%s %q: want a number", name, text)
			}
			*into = &v
		}
	}
	return f, nil
}

func (f objectFilter) passes(s ObjectStatus) bool {
	return (f.state == "" || f.state == string(s.State)) && (f.kind == "" || f.kind == s.Kind) &&
		(f.node == nil || s.Node != nil && *f.node == int64(*s.Node)) &&
		(f.stream == nil || slices.ContainsFunc(s.Ranges, func(r RangeStatus) bool { return r.Stream == *f.stream }))
}

func (n *Node) listObjects(w http.ResponseWriter, r *http.Request) {
	filter, err := parseObjectFilter(r.URL.Query())
	if err != nil {
		answer(w, http.StatusBadRequest, message(err))
		return
	}
	names := n.streamNames()
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines := json.NewEncoder(w)
	err = n.store.Survey(r.Context(), func(o streamstore.FoundObject) error {
		if s := objectStatus(o, names); filter.passes(s) {
			return lines.Encode(s)
		}
		return nil
	})
	if err != nil {
		_ = lines.Encode(message(err)) // the status is sent already
	}
}

func (n *Node) checkObjects(w http.ResponseWriter, r *http.Request) {
	deep, err := strconv.ParseBool(r.URL.Query().Get("deep"))
	if err != nil && r.URL.Query().Has("deep") {
		answer(w, http.StatusBadRequest, message(fmt.Errorf("deep %q: want true or false", r.URL.Query().Get("deep"))))
		return
	}
	names := n.streamNames()
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, flush := json.NewEncoder(w), http.NewResponseController(w)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	say := func(s CheckStatus) {
		if lines.Encode(s) != nil {
			cancel() // nobody listens
		}
	}
	var last time.Time
	sum, err := n.store.Check(ctx, deep, func(p streamstore.ObjectProblem) {
		say(CheckStatus{Problem: &ProblemStatus{ID: int64(p.ID), Key: streamstore.ObjectKey(p.ID), Kind: objectKind(p.Kind), Problem: p.Problem, Lost: rangeStatus(p.Lost, names)}})
	}, func(sum streamstore.CheckSummary) {
		if time.Since(last) >= checkTick {
			last = time.Now()
			say(checkStatus(sum))
			_ = flush.Flush()
		}
	})
	end := checkStatus(sum)
	if end.Done = err == nil; !end.Done {
		end.Error = err.Error()
	}
	say(end)
}

// checkTick is how often a check says how far it is.
const checkTick = 200 * time.Millisecond

func checkStatus(s streamstore.CheckSummary) CheckStatus {
	return CheckStatus{Total: s.Total, Objects: s.Objects, Bytes: s.Bytes, Problems: s.Problems, Prepared: s.Prepared, Destroyed: s.Destroyed, Orphaned: s.Orphaned}
}
