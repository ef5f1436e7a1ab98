package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/broker/share"
	"github.com/tabletopic/tabletopic/broker/txn"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// What nodes ask of each other, over their HTTP addresses. None of it decides who leads what:
// metadata does.

// peers implements partition.Peers and txn.Peers.
type peers struct {
	client         *http.Client
	user, password string // by which the others know this node
}

func newPeers(trust *tls.Config, user, password string) peers {
	return peers{&http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: peerPatience, TLSClientConfig: trust,
	}}, user, password}
}

// sign adds who this node is, where nodes ask for it.
func (p peers) sign(req *http.Request) {
	if p.password != "" {
		req.SetBasicAuth(p.user, p.password)
	}
}

// httpURL is where a node is reached: HTTP addresses of nodes are HOST:PORT, or https://HOST:PORT.
func httpURL(address string) string {
	if strings.Contains(address, "://") {
		return address
	}
	return "http://" + address
}

// peerPatience is how long a node has to begin its answer.
const peerPatience = 30 * time.Second

// maxPeerBody bounds what one node sends another in a message.
const maxPeerBody = 256 << 20

// Alive implements partition.Peers.
func (p peers) Alive(ctx context.Context, m metadata.Member) bool {
	return p.answers(ctx, m.HTTP, m.Node)
}

// Sync implements partition.Peers.
func (p peers) Sync(ctx context.Context, m metadata.Member) error {
	resp, err := p.do(ctx, m, http.MethodPost, "/api/peer/sync", nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// offsetsHeader is log start, high watermark and last stable offset of a partition.
const offsetsHeader = "Tabletopic-Offsets"

// abortedHeader is the aborted transactions among the batches, as JSON.
const abortedHeader = "Tabletopic-Aborted"

// Read implements partition.Peers.
func (p peers) Read(ctx context.Context, m metadata.Member, id partition.ID, from int64, maxBytes int, isolation partition.Isolation) (res partition.ReadResult, err error) {
	resp, err := p.do(ctx, m, http.MethodGet, fmt.Sprintf("/api/peer/partitions/%s/%d?from=%d&max=%d&isolation=%d", url.PathEscape(id.Topic), id.Index, from, maxBytes, isolation), nil)
	if resp != nil {
		_, _ = fmt.Sscan(resp.Header.Get(offsetsHeader), &res.LogStartOffset, &res.HighWatermark, &res.LastStableOffset)
	}
	if err != nil {
		return res, err
	}
	defer resp.Body.Close()
	if aborted := resp.Header.Get(abortedHeader); aborted != "" {
		if err := json.Unmarshal([]byte(aborted), &res.Aborted); err != nil {
			return res, fmt.Errorf("%s: %w", abortedHeader, err)
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, resp.Body, maxPeerBody))
	for err == nil && len(body) > 0 {
		var b record.Batch
		if b, body, err = record.Split(body); err == nil {
			res.Batches = append(res.Batches, b)
		}
	}
	return res, err
}

// AppendDeadLetters implements partition.Peers. It sends letters one by one once they are
// large; the leader drops those that it has.
func (p peers) AppendDeadLetters(ctx context.Context, m metadata.Member, id partition.ID, sourceTopic uuid.UUID, sourcePartition int32, letters []partition.DeadLetter) error {
	const message = 1 << 20
	for len(letters) > 0 {
		n, size := 0, 0
		for n < len(letters) && (n == 0 || size < message) {
			size += len(letters[n].Record.Key) + len(letters[n].Record.Value)
			n++
		}
		resp, err := p.do(ctx, m, http.MethodPost, fmt.Sprintf("/api/peer/deadletters/%s/%d", url.PathEscape(id.Topic), id.Index),
			deadLetters{sourceTopic, sourcePartition, letters[:n]})
		if err != nil {
			return err
		}
		resp.Body.Close()
		letters = letters[n:]
	}
	return nil
}

// Enlist implements txn.Peers.
func (p peers) Enlist(ctx context.Context, m metadata.Member, e txn.Enlistment) (*kerr.Error, error) {
	resp, err := p.do(ctx, m, http.MethodPost, "/api/peer/transactions", e)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var code int16
	if err := json.NewDecoder(resp.Body).Decode(&code); err != nil || code == 0 {
		return nil, err
	}
	return kerr.TypedErrorForCode(code), nil
}

// AppendMarker implements txn.Peers.
func (p peers) AppendMarker(ctx context.Context, m metadata.Member, id partition.ID, marker record.Marker, bumped bool) error {
	resp, err := p.do(ctx, m, http.MethodPost, fmt.Sprintf("/api/peer/markers/%s/%d", url.PathEscape(id.Topic), id.Index), markerMessage{marker, bumped})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// LoadShare implements group.Peers.
func (p peers) LoadShare(ctx context.Context, m metadata.Member, k share.Key, leaderEpoch int32) (loaded share.Loaded, err error) {
	resp, err := p.do(ctx, m, http.MethodPost, "/api/peer/share/load", shareMessage{Key: k, LeaderEpoch: leaderEpoch})
	if err != nil {
		return loaded, err
	}
	defer resp.Body.Close()
	err = json.NewDecoder(resp.Body).Decode(&loaded)
	return loaded, err
}

// SaveShare implements group.Peers.
func (p peers) SaveShare(ctx context.Context, m metadata.Member, k share.Key, stateEpoch, leaderEpoch int32, saved share.Saved) error {
	resp, err := p.do(ctx, m, http.MethodPost, "/api/peer/share/save", shareMessage{k, leaderEpoch, stateEpoch, saved})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// shareMessage is a message of one node to another.
type shareMessage struct {
	Key         share.Key
	LeaderEpoch int32
	StateEpoch  int32
	Saved       share.Saved
}

// markerMessage is a message of one node to another.
type markerMessage struct {
	Marker record.Marker
	Bumped bool
}

// deadLetters is a message of one node to another.
type deadLetters struct {
	SourceTopic     uuid.UUID
	SourcePartition int32
	Letters         []partition.DeadLetter
}

// do asks a node. Its refusals come back as the errors that they were; resp is set then too.
func (p peers) do(ctx context.Context, m metadata.Member, method, path string, in any) (resp *http.Response, err error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, httpURL(m.HTTP)+path, body)
	if err != nil {
		return nil, err
	}
	p.sign(req)
	if resp, err = p.client.Do(req); err != nil {
		return nil, err
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	var e struct{ Message string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&e); err != nil {
		e.Message = resp.Status
	}
	for sentinel, code := range peerCodes {
		if code == resp.StatusCode {
			return resp, fmt.Errorf("%w: %s", sentinel, e.Message)
		}
	}
	return resp, errors.New(e.Message)
}

// peerCodes are the refusals that callers tell apart.
var peerCodes = map[error]int{
	partition.ErrNotLeader:               http.StatusMisdirectedRequest,
	partition.ErrOffsetOutOfRange:        http.StatusRequestedRangeNotSatisfiable,
	partition.ErrUnknownTopicOrPartition: http.StatusNotFound,
	partition.ErrInvalidProducerEpoch:    http.StatusConflict,
	partition.ErrCoordinatorFenced:       http.StatusPreconditionFailed,
	txn.ErrNotCoordinator:                http.StatusServiceUnavailable,
	group.ErrShareFenced:                 http.StatusLocked,
}

func refusePeer(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	for sentinel, c := range peerCodes {
		if errors.Is(err, sentinel) {
			code = c
		}
	}
	answer(w, code, message(err))
}

// handlePeers adds what other nodes ask.
//
//	POST /api/peer/sync                              look at what others changed
//	GET  /api/peer/partitions/{topic}/{partition}    record batches, and offsets in a header
//	POST /api/peer/deadletters/{topic}/{partition}   deadLetters
//	POST /api/peer/transactions                      txn.Enlistment; the Kafka code of a refusal
//	POST /api/peer/markers/{topic}/{partition}       markerMessage
//	POST /api/peer/share/load                        shareMessage; share.Loaded
//	POST /api/peer/share/save                        shareMessage
//	POST /api/peer/move                              moveRequest, of partitions led here; nanoseconds of pause
func (n *Node) handlePeers(mux *http.ServeMux) {
	mux.HandleFunc("POST /api/peer/sync", func(w http.ResponseWriter, r *http.Request) {
		if err := n.set.Sync(r.Context()); err != nil {
			refusePeer(w, err)
			return
		}
		answer(w, http.StatusOK, struct{}{})
	})
	mux.HandleFunc("GET /api/peer/partitions/{topic}/{partition}", n.peerRead)
	mux.HandleFunc("POST /api/peer/deadletters/{topic}/{partition}", func(w http.ResponseWriter, r *http.Request) {
		var in deadLetters
		p, err := n.peerPartition(r)
		if err == nil {
			err = json.NewDecoder(http.MaxBytesReader(w, r.Body, maxPeerBody)).Decode(&in)
		}
		if err == nil {
			err = p.AppendDeadLetters(r.Context(), in.SourceTopic, in.SourcePartition, in.Letters)
		}
		if err != nil {
			refusePeer(w, err)
			return
		}
		answer(w, http.StatusOK, struct{}{})
	})
	mux.HandleFunc("POST /api/peer/transactions", func(w http.ResponseWriter, r *http.Request) {
		var in txn.Enlistment
		var refused *kerr.Error
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<20)).Decode(&in)
		if err == nil {
			refused, err = n.txns.EnlistHere(r.Context(), in)
		}
		switch {
		case err != nil:
			refusePeer(w, err)
		case refused != nil:
			answer(w, http.StatusOK, refused.Code)
		default:
			answer(w, http.StatusOK, 0)
		}
	})
	mux.HandleFunc("POST /api/peer/markers/{topic}/{partition}", func(w http.ResponseWriter, r *http.Request) {
		var in markerMessage
		p, err := n.peerPartition(r)
		if err == nil {
			err = json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in)
		}
		if err == nil {
			err = n.txns.AppendMarker(r.Context(), partition.ID{Topic: p.Topic(), Index: p.Index()}, in.Marker, in.Bumped)
		}
		if err != nil {
			refusePeer(w, err)
			return
		}
		answer(w, http.StatusOK, struct{}{})
	})
	mux.HandleFunc("POST /api/peer/share/load", func(w http.ResponseWriter, r *http.Request) {
		var in shareMessage
		var loaded share.Loaded
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<20)).Decode(&in)
		if err == nil {
			loaded, err = n.groups.LoadHere(r.Context(), in.Key, in.LeaderEpoch)
		}
		if err != nil {
			refusePeer(w, err)
			return
		}
		answer(w, http.StatusOK, loaded)
	})
	mux.HandleFunc("POST /api/peer/share/save", func(w http.ResponseWriter, r *http.Request) {
		var in shareMessage
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<20)).Decode(&in)
		if err == nil {
			err = n.groups.SaveHere(r.Context(), in.Key, in.StateEpoch, in.LeaderEpoch, in.Saved)
		}
		if err != nil {
			refusePeer(w, err)
			return
		}
		answer(w, http.StatusOK, struct{}{})
	})
	mux.HandleFunc("POST /api/peer/move", func(w http.ResponseWriter, r *http.Request) {
		var in moveRequest
		var pause time.Duration
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in)
		if err == nil {
			pause, err = n.set.Move(r.Context(), in.Partitions, in.To)
		}
		if err != nil {
			refusePeer(w, err)
			return
		}
		answer(w, http.StatusOK, pause)
	})
}

func (n *Node) peerPartition(r *http.Request) (*partition.Partition, error) {
	index, err := strconv.ParseInt(r.PathValue("partition"), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("partition %q: %w", r.PathValue("partition"), err)
	}
	return n.set.Partition(r.PathValue("topic"), int32(index))
}

func (n *Node) peerRead(w http.ResponseWriter, r *http.Request) {
	p, err := n.peerPartition(r)
	if err != nil {
		refusePeer(w, err)
		return
	}
	var from int64
	var maxBytes, isolation int
	q := r.URL.Query()
	if _, err := fmt.Sscan(strings.Join([]string{q.Get("from"), q.Get("max"), q.Get("isolation")}, " "), &from, &maxBytes, &isolation); err != nil {
		answer(w, http.StatusBadRequest, message(fmt.Errorf("want from, max and isolation: %w", err)))
		return
	}
	var res partition.ReadResult
	if err = p.Err(); err == nil && maxBytes > 0 {
		res, err = p.Read(r.Context(), from, maxBytes, partition.Isolation(isolation))
	}
	o := p.Offsets()
	w.Header().Set(offsetsHeader, fmt.Sprint(o.LogStart, o.HighWatermark, o.LastStable))
	if err != nil {
		refusePeer(w, err)
		return
	}
	if len(res.Aborted) > 0 {
		aborted, err := json.Marshal(res.Aborted)
		if err != nil {
			refusePeer(w, err)
			return
		}
		w.Header().Set(abortedHeader, string(aborted))
	}
	for _, b := range res.Batches {
		if _, err := w.Write(b); err != nil {
			return // the peer is gone
		}
	}
}
