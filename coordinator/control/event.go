// Package control is the conversation between the coordinator of a topic and its workers.
//
// Neither calls the other: both append events to a log and read it, so that leadership,
// whichever node holds it, reaches all parts the same way. The log is the internal topic
// [TopicName]; a topic's events are in the partition that [Partition] tells, in order, and
// each record's key is the topic id. [Topic] is that log on the partitions of this node,
// [Memory] the same in memory for tests.
//
// The log holds no truth about a table: how far it is lies in the table itself. Losing the
// log loses requests and answers, which are asked again, and the journal of file names,
// whose files then stay behind if no commit adopts them.
package control

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/parquetio"
)

// TopicName is the internal topic that carries the events.
const TopicName = "__tabletopic_control"

// Partition returns the partition of the control topic that carries the events of topic.
func Partition(topic uuid.UUID, partitions int) int32 {
	h := fnv.New64a()
	h.Write(topic[:])
	return int32(h.Sum64() % uint64(partitions))
}

// A Log carries events. It is safe for concurrent use.
type Log interface {
	// Append returns when the events are durable. They are in the log in their order.
	// After an error some of them may be there.
	Append(ctx context.Context, topic uuid.UUID, events ...Event) error
	// Tail reads the events of topic that are appended after it returned.
	Tail(topic uuid.UUID) (Tail, error)
}

// A Tail is read by one goroutine.
type Tail interface {
	// Next waits for the next event. It returns ErrLost if events were passed unread.
	Next(ctx context.Context) (Event, error)
	Close()
}

// ErrLost says that the log no longer holds the events that follow, so that the reader
// must begin anew.
var ErrLost = errors.New("control events lost")

// An Event is one of the types of this file.
type Event interface {
	kind() kind
	appendBody(dst []byte) []byte
}

type (
	// Hello is what a worker says first: it knows nothing of the table yet.
	Hello struct {
		Worker     uuid.UUID
		Partitions []int32
	}

	// Began is what a coordinator says first. Whatever bears a lower epoch is void, and
	// workers say again what they wait for. Table is zero if there is none: what workers
	// have for another table is void.
	Began struct {
		Epoch int32
		Table uuid.UUID
	}

	// Table describes the table to the workers: at the beginning, after each Hello, and
	// after each change.
	Table struct {
		Epoch         int32
		UUID          uuid.UUID
		Location      string
		FormatVersion int
		Spec          int    // id of the partition spec
		Partitions    []byte // that spec as Iceberg's JSON; empty if the table is unpartitioned
		LastColumnID  int
		KafkaColumn   string
		NewColumns    bool         // as in parquetio.Mapping
		Former        []FormerName // names that columns had before, by id and then in their order
		Schema        []byte       // the current schema as Iceberg's JSON
		Fits          []Writer     // what it is known to hold
		Next          []Offset     // what the table holds; a partition that is absent has not begun
		Order         []byte       // the sort order as Iceberg's JSON; empty if files are not sorted
		Writing       []Property   // properties of the table that files follow, by name
	}

	// Needed asks the coordinator for a table that holds what the writer writes; the zero Writer
	// asks for a table whatever its columns.
	Needed struct {
		Writer Writer
	}

	// Refused answers Needed when the table cannot hold it.
	Refused struct {
		Epoch  int32
		Writer Writer
		Reason string
	}

	// Pending says that a worker has read records that no commit holds.
	Pending struct {
		Worker uuid.UUID
		Since  time.Time // arrival of the first
		Full   bool      // a file has its full size: commit now
	}

	// Request asks each worker for its files. They continue at Next.
	Request struct {
		Epoch  int32
		Commit uuid.UUID
		Next   []Offset
	}

	// Answer is what a worker has for a request. The files are durable, and named as by a
	// Journal: it is their entry of At.
	Answer struct {
		Epoch      int32
		Commit     uuid.UUID
		At         time.Time
		Table      uuid.UUID
		Worker     uuid.UUID
		Partitions []int32 // those that the worker speaks for, also without a file
		Files      []File
		Since      time.Time // arrival of the first record that is not in the files; zero if none
	}

	// Journal names files before they are written, and again while they wait for a commit: data
	// files, and what a commit writes itself. A file whose last entry is older than the grace of
	// the sweep, and which the table does not name, is garbage. Whoever holds a file gives it up before: see [Lapses].
	Journal struct {
		At    time.Time
		Table uuid.UUID
		Names []string
	}

	// Committed says what a commit added to the table. One without records, of columns or
	// properties, has names alone.
	Committed struct {
		Epoch    int32
		Commit   uuid.UUID
		Snapshot int64
		Next     []Offset // of the partitions that moved
		Names    []string // files that the table now holds
	}
)

// A Writer is what the values, or keys, of records were written with: a schema of the registry, and
// of a Protobuf schema one message; or a format that needs no registry.
type Writer struct {
	Schema  int32  // id in the registry
	Message string // indexes of the message as the payload has them; empty for the first one, and for other formats
	Format  Format // of payloads without a registered schema
	Text    string // of a JSON schema that is not in the registry, for FormatJSON
	Key     bool   // it writes keys
}

// A Format says how payloads become columns.
type Format byte

// The numbers are on disk.
const (
	FormatRegistered Format = iota // as the schema in the registry says
	FormatString                   // UTF-8 text, one column
	FormatBytes                    // any bytes, one column
	FormatJSON                     // JSON as Text says
	FormatLetter                   // LetterSchema, made of a dead letter
)

func (f Format) String() string {
	switch f {
	case FormatString:
		return "string"
	case FormatBytes:
		return "bytes"
	case FormatJSON:
		return "json"
	case FormatLetter:
		return "dead-letter"
	}
	return "registered"
}

func (w Writer) String() string {
	s := strconv.Itoa(int(w.Schema))
	if w.Format != FormatRegistered {
		s = w.Format.String()
	}
	if w.Message != "" {
		s += fmt.Sprintf(", message %x", w.Message)
	}
	if w.Text != "" {
		s += " " + strings.ToValidUTF8(w.Text[:min(len(w.Text), 200)], "")
	}
	if w.Key {
		s += ", of the key"
	}
	return s
}

// A Property is one of a table.
type Property struct{ Name, Value string }

// Properties lists properties by name.
func Properties(by iceberg.Properties) (all []Property) {
	for _, name := range slices.Sorted(maps.Keys(by)) {
		all = append(all, Property{name, by[name]})
	}
	return all
}

// A FormerName is a name that the column of that id had before.
type FormerName struct {
	ID   int
	Name string
}

// FormerNames lists the former names of columns, by id.
func FormerNames(by map[int][]string) (all []FormerName) {
	for _, id := range slices.Sorted(maps.Keys(by)) {
		for _, n := range by[id] {
			all = append(all, FormerName{id, n})
		}
	}
	return all
}

// Mapping says how schemas become columns of the table.
func (t Table) Mapping() parquetio.Mapping {
	m := parquetio.Mapping{KafkaColumn: t.KafkaColumn, NewColumns: t.NewColumns, Former: map[int][]string{}}
	for _, f := range t.Former {
		m.Former[f.ID] = append(m.Former[f.ID], f.Name)
	}
	return m
}

// Offset is a position in a partition.
type Offset struct {
	Partition int32
	Offset    int64
}

// A File is what covers its ranges of the log: all of it is committed, or nothing. It has one
// data file for each partition of the table that it has rows of, none if the ranges have only
// dead letters, markers and aborted records.
type File struct {
	Data   []DataFile
	Schema int // id of the table schema that they were written with
	Spec   int // id of the partition spec
	Rows   int64
	Bytes  int64
	Ranges []Range
}

// A DataFile is an object of the table.
type DataFile struct {
	Location string
	Entry    []byte // the manifest entry, as iceberg-go's codec writes it
}

// EntryBytes returns about what the data files take in memory and in events.
func (f File) EntryBytes() (n int64) {
	for _, d := range f.Data {
		n += int64(len(d.Location) + len(d.Entry) + 64)
	}
	return n
}

// Names returns the locations of the data files.
func (f File) Names() []string {
	names := make([]string, len(f.Data))
	for i, d := range f.Data {
		names[i] = d.Location
	}
	return names
}

// A Range is the offsets [Start, End) of a partition, of which Rows became rows and Dead
// became dead letters. The rest are markers, aborted records and offsets that compaction removed.
type Range struct {
	Partition int32
	Start     int64
	End       int64
	Gap       int64 // offsets before Start that the log had lost before they were read
	Rows      int64
	Dead      int64
}

type kind byte

// The numbers are on disk.
const (
	kindHello kind = iota + 1
	kindBegan
	kindTable
	kindNeeded
	kindRefused
	kindPending
	kindRequest
	kindAnswer
	kindJournal
	kindCommitted
)

func (Hello) kind() kind     { return kindHello }
func (Began) kind() kind     { return kindBegan }
func (Table) kind() kind     { return kindTable }
func (Needed) kind() kind    { return kindNeeded }
func (Refused) kind() kind   { return kindRefused }
func (Pending) kind() kind   { return kindPending }
func (Request) kind() kind   { return kindRequest }
func (Answer) kind() kind    { return kindAnswer }
func (Journal) kind() kind   { return kindJournal }
func (Committed) kind() kind { return kindCommitted }

func appendBytes[T ~string | ~[]byte](dst []byte, b T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}
