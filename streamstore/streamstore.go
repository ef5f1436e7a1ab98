package streamstore

import (
	"context"
	"errors"
	"time"
)

type (
	// StreamID names a stream; ids are never reused.
	StreamID int64
	// ObjectID names an uploaded object; ids are never reused.
	ObjectID int64
	// NodeID names a node of the cluster.
	NodeID int32
)

// A RecordBatch is the unit of append and fetch: an opaque payload that spans Count
// consecutive offsets.
type RecordBatch struct {
	BaseOffset   int64  // first offset; assigned by Append, set on fetch
	Count        int32  // offsets spanned, at least 1
	MaxTimestamp int64  // largest timestamp within, in ms since 1970, for FindTimestamp; -1 if none
	Payload      []byte // must not be modified after Append, nor by a reader
}

// End is the offset after the batch.
func (b RecordBatch) End() int64 { return b.BaseOffset + int64(b.Count) }

// Node is a node in one of its lives. Every change of metadata names it, and a change by
// a life that a later one has replaced is refused with ErrNodeFenced.
type Node struct {
	ID    NodeID
	Epoch int64
}

var (
	// ErrNodeFenced says that a newer process runs under this node id.
	ErrNodeFenced = errors.New("node fenced by a newer process with the same node id")
	// ErrStreamFenced says that the stream was opened with a newer epoch, or that this
	// handle failed an append before.
	ErrStreamFenced = errors.New("stream fenced")
	// ErrStreamNotExist says that the stream was never created or is destroyed.
	ErrStreamNotExist = errors.New("stream does not exist")
	// ErrStreamClosed says that the handle was closed.
	ErrStreamClosed = errors.New("stream closed")
	// ErrOffsetOutOfRange says that a fetch asked below the start or above the confirm offset.
	ErrOffsetOutOfRange = errors.New("offset out of range")
	// ErrNodeNotExist says that no node was ever registered under this id.
	ErrNodeNotExist = errors.New("node was never registered")
	// ErrConflict says that a metadata change was built on a state that is no more.
	ErrConflict = errors.New("metadata conflict")
)

// A StreamManager keeps the streams and who owns them. Each call is one transaction,
// refused with ErrNodeFenced unless node is the newest life of its id. A repeated call
// whose first answer was lost succeeds.
type StreamManager interface {
	// RegisterNode starts a new life of id: it raises the epoch and returns it with the
	// WALs of earlier lives that are not retired.
	RegisterNode(ctx context.Context, id NodeID, wal WALKind) (Node, []WALState, error)
	// RetireWAL forgets the WAL of an earlier life after its recovery.
	RetireWAL(ctx context.Context, node Node, epoch int64) error
	// CreateStreams makes n closed streams with consecutive ids and epoch 0.
	CreateStreams(ctx context.Context, node Node, n int) (first StreamID, err error)
	// OpenStreams gives the streams to node, all or none. Each epoch must be greater than
	// the stream's, or equal to it and already this node's (a repeat); else ErrStreamFenced.
	// A stream that another node has open is refused with ErrConflict: recover that node first.
	OpenStreams(ctx context.Context, node Node, open []OpenRequest) ([]StreamState, error)
	// Streams returns the current state of the streams that node id has open, all epochs.
	Streams(ctx context.Context, id NodeID) ([]StreamState, error)
	// TrimStream moves the start offset forward; a start that is not ahead changes nothing.
	// It may pass the committed end: what the WAL holds below it is then not indexed. It is the one
	// change of streams that may be undone by the loss of the metadata database.
	TrimStream(ctx context.Context, node Node, id StreamID, epoch, start int64) error
	// CloseStreams releases streams whose data up to the end offset is committed.
	CloseStreams(ctx context.Context, node Node, close []OpenRequest) error
	// DeleteStreams removes closed or own streams; their objects become deletable.
	DeleteStreams(ctx context.Context, node Node, ids []StreamID) error
	// TakeOverNode starts a life of id that by leads, to recover the WALs of the lives
	// before: it raises the epoch as RegisterNode does, but the new life has no WAL of its
	// own. Whatever starts the next life ends it: by's own second attempt, another rescuer, or
	// the node itself. ErrNodeNotExist if id was never registered.
	TakeOverNode(ctx context.Context, by Node, id NodeID) (Node, []WALState, error)
	// ReleaseNode ends a life that by leads, as one change: streams that the node has open are
	// closed, and the stream set objects that it wrote become by's to compact. ErrConflict
	// while a WAL of the node is not retired, or if by does not lead this life.
	ReleaseNode(ctx context.Context, by, node Node) error
	// Nodes returns all nodes that were ever registered, by id.
	Nodes(ctx context.Context) ([]NodeState, error)
}

// An ObjectManager keeps which objects hold which ranges of the streams.
type ObjectManager interface {
	// PrepareObjects reserves n consecutive ids. Ids not committed within ttl become deletable.
	PrepareObjects(ctx context.Context, node Node, n int, ttl time.Duration) (first ObjectID, err error)
	// CommitUpload makes uploaded objects visible, advances the end offsets and moves the
	// WAL mark, as one change. Each range must start at its stream's end offset and carry
	// its epoch, else ErrConflict; ranges of streams deleted meanwhile are dropped. A
	// repeat of a commit that happened succeeds, as long as its objects are not forgotten:
	// see Config.DeleteGrace.
	CommitUpload(ctx context.Context, node Node, u Upload) error
	// CommitCompaction replaces objects by others that hold the same, as one change: from the
	// start of each stream on, the results must cover exactly the ranges that metadata finds
	// in the sources, and no range of a source may be left over, else ErrConflict. End
	// offsets stay. Ranges of streams deleted meanwhile are dropped. Sources become deletable
	// unless a composite names them. A repeat of a commit that happened succeeds.
	CommitCompaction(ctx context.Context, node Node, c Compaction) error
	// StreamSetObjects returns stream set objects with an id above after that node id wrote,
	// by id, with the ranges that metadata finds in them; at most limit. None is the end.
	StreamSetObjects(ctx context.Context, id NodeID, after ObjectID, limit int) ([]LiveStreamSet, error)
	// StreamObjects returns up to limit entries that intersect [start, end) of the stream,
	// by offset, without gap from start on as far as data is committed. A start below the
	// stream's start is refused with ErrOffsetOutOfRange.
	StreamObjects(ctx context.Context, id StreamID, start, end int64, limit int) ([]ObjectRange, error)
	// DeletableObjects returns up to limit objects that nothing names any more, or whose
	// preparation expired, for at least grace; of the latter Kind and Size are not known and 0.
	DeletableObjects(ctx context.Context, node Node, grace time.Duration, limit int) ([]ObjectRef, error)
	// ForgetObjects removes the rows of objects that were deleted from the bucket.
	ForgetObjects(ctx context.Context, node Node, ids []ObjectID) error
	ObjectInventory
}

// An ObjectInventory tells which objects there are, so that the bucket can be compared with it.
type ObjectInventory interface {
	// Objects returns objects with an id above after, by id, as of one moment; at most limit,
	// and fewer if they hold many ranges. None is the end.
	Objects(ctx context.Context, after ObjectID, limit int) ([]KnownObject, error)
	// FindObjects returns those of the ids that are known, by id, without Ranges and Parts.
	FindObjects(ctx context.Context, ids []ObjectID) ([]KnownObject, error)
	// Composites returns the composites that link a stream object, by id.
	Composites(ctx context.Context, part ObjectID) ([]ObjectID, error)
	// CountObjects returns how many objects are in each state; states without any may lack.
	CountObjects(ctx context.Context) (map[ObjectState]ObjectCount, error)
	// ClaimSweep makes node the one that may sweep the bucket until ttl from now, or renews
	// that; it does not while another has the turn. It is refused to a superseded database.
	ClaimSweep(ctx context.Context, node Node, ttl time.Duration) (SweepClaim, error)
}

// WALKind says where a node's write-ahead log lives.
type WALKind string

const (
	WALObject WALKind = "s3"   // objects in the bucket: survives the machine
	WALFile   WALKind = "file" // files with fsync: survives the process
)

// WALState is the WAL of one life of a node.
type WALState struct {
	Epoch int64
	Kind  WALKind
	Mark  uint64 // first sequence number that may hold data not yet in objects
}

// NodeState is what metadata knows of a node.
type NodeState struct {
	Node              // in its newest life
	Open   int        // streams that it has open
	WALs   []WALState // not retired, by epoch; while the node lives the last is in use
	Leader Node       // leads the newest life in the node's place; zero if the node itself does
}

// OpenRequest names a stream and the epoch to open it with, or the one it is open with.
type OpenRequest struct {
	ID    StreamID
	Epoch int64
}

// StreamState is what metadata knows of a stream. [Start, End) is what is committed in
// objects; a WAL may hold more.
type StreamState struct {
	ID    StreamID
	Epoch int64
	Start int64
	End   int64
	Node  NodeID // owner while Open
	Open  bool
}

// StreamRange is a part of a stream that an object holds.
type StreamRange struct {
	Stream StreamID
	Epoch  int64
	Start  int64
	End    int64
}

// Upload is one upload of a node's log cache.
type Upload struct {
	StreamSet *StreamSetObject // streams that share an object; nil if none
	Streams   []StreamObject   // streams with an object of their own
	WALEpoch  int64            // the WAL that the data came from …
	WALMark   uint64           // … may be trimmed below this
}

type StreamSetObject struct {
	ID     ObjectID
	Size   int64
	Ranges []StreamRange // by stream
}

type StreamObject struct {
	ID    ObjectID
	Size  int64
	Range StreamRange
	// Parts are the stream objects that a composite object links; nil for one that holds its
	// data itself. They are sources, or parts of sources, of the compaction that commits it,
	// and live as long as any composite names them.
	Parts []ObjectID
}

// Kind is KindComposite with parts, KindStream without.
func (o StreamObject) Kind() ObjectKind {
	if len(o.Parts) > 0 {
		return KindComposite
	}
	return KindStream
}

// Compaction replaces objects by others that hold the same ranges. The epochs of the ranges
// are not compared: what is committed belongs to no writer any more.
type Compaction struct {
	Sources    []ObjectID
	StreamSets []StreamSetObject
	Streams    []StreamObject
}

// LiveStreamSet is a stream set object as compaction finds it. Its ranges are those of
// streams that exist, cut off at their starts, without epochs.
type LiveStreamSet struct {
	StreamSetObject
	// Oldest is when the oldest data in it was first committed.
	Oldest time.Time
}

// ObjectKind tells the kinds of data objects apart.
type ObjectKind uint8

const (
	KindStreamSet ObjectKind = 1
	KindStream    ObjectKind = 2
	KindComposite ObjectKind = 3 // links to stream objects
)

// ObjectState is how far an object is in its life.
type ObjectState string

const (
	ObjectPrepared   ObjectState = "prepared"   // the id is given away, until it is committed or expires
	ObjectReferenced ObjectState = "referenced" // streams, or composites, hold data in it
	ObjectDestroyed  ObjectState = "destroyed"  // nothing names it any more: it is deleted after a grace
	ObjectOrphaned   ObjectState = "orphaned"   // it lies in the bucket, and metadata does not know it
)

// KnownObject is an object as metadata knows it.
type KnownObject struct {
	ObjectRef // of an id that was never committed Kind and Size are 0
	State     ObjectState
	Node      NodeID    // that has to compact it
	Since     time.Time // when it was committed or destroyed; of a prepared one when it expires
	// Ranges are those that metadata finds in it: of streams that exist, cut off at their
	// starts, without epochs, by stream.
	Ranges []StreamRange
	Parts  []ObjectID // that it links, by id
}

// ObjectCount is how many objects there are, and the bytes in them.
type ObjectCount struct{ Objects, Bytes int64 }

// SweepClaim is the answer of ClaimSweep.
type SweepClaim struct {
	Mine  bool
	Until time.Time // when the turn ends, whoever has it
	Last  ObjectID  // the highest id given away before the claim
}

type ObjectRef struct {
	ID   ObjectID
	Kind ObjectKind
	Size int64
}

// ObjectRange says that an object holds [Start, End) of the stream asked for.
type ObjectRange struct {
	ObjectRef
	Start int64
	End   int64
}
