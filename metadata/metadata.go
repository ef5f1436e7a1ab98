// Package metadata is the shared truth of a cluster in a SQL database: nodes, streams and
// their objects, topics and partitions, schemas, and the SQL catalog's tables.
//
// Every change is one transaction, guarded by the epochs of its caller and by the number of
// rows that it changed, and leaves an entry in the change log. Writes happen per uploaded
// object or administrative act, never per batch; no read lies on the path of a produce or fetch.
//
// The database is SQLite for one process, or PostgreSQL for several: dialect.go has what differs.
// [Store.Backup] keeps a copy in the bucket from which [Restore] makes a lost database again:
// backup.go says why nothing that was acknowledged is missing then.
package metadata

import (
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/streamstore"
)

// Topic is a topic as metadata knows it. It must not be modified.
type Topic struct {
	ID         uuid.UUID
	Name       string
	Internal   bool
	Config     map[string]string // what was set; defaults are not stored
	Partitions []Partition       // by index
	Created    time.Time
}

// Partition is one partition of a topic, with its streams.
type Partition struct {
	Index       int32
	Leader      streamstore.NodeID
	LeaderEpoch int32 // also the epoch of its streams; raised whenever a node takes it over
	Meta        streamstore.StreamID
	Log         streamstore.StreamID
}

// NewTopic asks for a topic.
type NewTopic struct {
	Name       string
	Partitions int
	Config     map[string]string
	Internal   bool
	// Leaders lead the partitions in turn: partition 0 the first. The caller if empty.
	Leaders []streamstore.NodeID
}

var (
	ErrTopicExists = errors.New("topic already exists")
	// ErrTopicCollides says that a new topic's name differs from another's only in '.' and '_', which
	// are the same in names of metrics and tables.
	ErrTopicCollides  = errors.New("names that differ only in '.' and '_' get the same metrics and tables")
	ErrTopicNotExist  = errors.New("topic does not exist")
	ErrSchemaNotExist = errors.New("schema does not exist")
	// ErrInvalidText says that a name or a value is not UTF-8, or holds a zero byte.
	ErrInvalidText = errors.New("text that is not UTF-8, or holds a zero byte")
)
