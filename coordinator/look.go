package coordinator

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// The policies of table.topic.on.rewind.
const (
	RewindPause  = "pause"  // stop until the table is as it was, or the policy changes
	RewindReplay = "replay" // read again what the table lost, as far as the log has it
	RewindAccept = "accept" // leave it out, and record it
)

var (
	// ErrFenced says that another coordinator has the table: a later epoch, or a later
	// topic of the same name.
	ErrFenced = errors.New("fenced by a newer coordinator")

	// errRewound says that main no longer descends from the last commit.
	errRewound = errors.New("table was rewound")
)

// A view is what a loaded table says to one coordinator.
type view struct {
	position Position        // zero if the table never had a data commit
	own      bool            // position is of this topic id
	next     map[int32]int64 // what the next commit continues, after policy
	rewrite  bool            // the next commit sets every offset, not only those that move
	accepted []span          // and records these
}

// look reads a table for the coordinator of topic in epoch. It decides by the loaded
// metadata alone, and decides the same as often as it is asked.
func look(meta table.Metadata, topic uuid.UUID, epoch int32, policy string) (view, error) {
	p, ok, err := ReadPosition(meta.Properties())
	if err != nil {
		return view{}, err
	}
	if !ok {
		if reached, _ := ancestry(meta, topic); len(reached) > 0 {
			return view{}, fmt.Errorf("%w: its snapshots hold data of this topic and the property %s is gone: restore the property, or drop the table to begin again", errRewound, keyState)
		}
		return view{next: map[int32]int64{}, rewrite: true}, nil
	}
	if p.Topic != topic && !invariant.Off("topic-incarnation") {
		// An earlier topic of the name. This one begins its own line of offsets.
		return view{position: p, next: map[int32]int64{}, rewrite: true}, nil
	}
	if p.Epoch > epoch && !invariant.Off("coordinator-epoch") {
		return view{}, fmt.Errorf("%w: the table was committed by epoch %d, this is epoch %d", ErrFenced, p.Epoch, epoch)
	}
	v := view{position: p, own: true, next: p.Next}
	if descends(meta, p.Sequence) || invariant.Off("table-rewind") {
		return v, nil
	}
	reached, complete := ancestry(meta, topic)
	for i := range p.Next {
		if _, ok := reached[i]; !ok && !complete && policy == RewindReplay {
			return view{}, fmt.Errorf("%w, and where partition %d now ends was in a snapshot that has expired: set table.topic.on.rewind=accept, or drop the table to begin again", errRewound, i)
		}
	}
	v.rewrite = true
	switch policy {
	case RewindReplay:
		v.next = reached
		for i := range p.Next {
			v.next[i] = reached[i] // begun once, if only at 0: what the log has lost since is a gap
		}
	case RewindAccept:
		for _, i := range slices.Sorted(maps.Keys(p.Next)) {
			if reached[i] < p.Next[i] {
				v.accepted = append(v.accepted, span{i, reached[i], p.Next[i]})
			}
		}
	default:
		return view{}, fmt.Errorf("%w: main does not descend from the last commit, snapshot sequence %d: restore it, or set table.topic.on.rewind to replay or accept", errRewound, p.Sequence)
	}
	return v, nil
}

// descends reports whether main contains the snapshot of sequence. Where the ancestors of
// main were expired above it, main contains it unless the snapshot is still there aside.
func descends(meta table.Metadata, sequence int64) bool {
	s := meta.CurrentSnapshot()
	for s != nil && s.SequenceNumber > sequence {
		if s.ParentSnapshotID == nil {
			return false // a replaced table: its history begins anew
		}
		parent := meta.SnapshotByID(*s.ParentSnapshotID)
		if parent == nil {
			return !slices.ContainsFunc(meta.Snapshots(), func(o table.Snapshot) bool { return o.SequenceNumber == sequence })
		}
		s = parent
	}
	return s != nil && s.SequenceNumber == sequence
}

// ancestry returns how far main is by the summaries of its snapshots, and whether all of
// them are there.
func ancestry(meta table.Metadata, topic uuid.UUID) (reached map[int32]int64, complete bool) {
	reached = map[int32]int64{}
	for s := meta.CurrentSnapshot(); s != nil; {
		if s.Summary != nil {
			sum, ok, err := ReadSummary(s.Summary.Properties)
			if err == nil && ok && sum.Topic == topic {
				for _, r := range sum.Ranges {
					reached[r.Partition] = max(reached[r.Partition], r.End)
				}
			}
		}
		if s.ParentSnapshotID == nil {
			return reached, true
		}
		s = meta.SnapshotByID(*s.ParentSnapshotID)
		if s == nil {
			return reached, false
		}
	}
	return reached, true
}
