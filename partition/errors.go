package partition

import (
	"errors"
	"fmt"

	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// What a broker answers differently. After ErrNotLeader and before any answer to an append,
// its outcome is unknown; all other errors of Append say that nothing was appended.
var (
	// ErrUnknownTopicOrPartition says that there is no such topic, or not so many partitions.
	ErrUnknownTopicOrPartition = errors.New("unknown topic or partition")
	// ErrNotLeader says that this node does not lead the partition, or no more: it was
	// closed, or an append failed.
	ErrNotLeader = errors.New("not the leader of the partition")
	// ErrDamaged says that an object of the log is missing, or not what was written.
	ErrDamaged = errors.New("log damaged")
	// ErrCorrupt says that the bytes are no sound record batch.
	ErrCorrupt = record.ErrCorrupt
	// ErrTooLarge says that a batch is over max.message.bytes.
	ErrTooLarge = record.ErrTooLarge
	// ErrInvalidRecord says that a sound batch holds what the topic does not take.
	ErrInvalidRecord = errors.New("invalid record")
	// ErrNotValidated says that it is not known now whether a record is what the topic takes.
	ErrNotValidated = errors.New("records not validated: the schema registry does not answer")
	// ErrInvalidTimestamp says that a record's time is out of the topic's bounds.
	ErrInvalidTimestamp = errors.New("invalid timestamp")
	// ErrOutOfOrderSequence says that an idempotent producer skipped or repeats numbers.
	ErrOutOfOrderSequence = errors.New("out of order sequence number")
	// ErrInvalidProducerEpoch says that a newer producer has the id.
	ErrInvalidProducerEpoch = errors.New("invalid producer epoch")
	// ErrInvalidTxnState says that a batch does not belong to a transaction that its coordinator
	// knows, or is not part of the one that is open.
	ErrInvalidTxnState = errors.New("invalid transaction state")
	// ErrTooManyTransactions says that the partition can keep no more of what is aborted or open.
	ErrTooManyTransactions = errors.New("too many transactions")
	// ErrCoordinatorFenced says that a newer coordinator has written markers of the producer.
	ErrCoordinatorFenced = errors.New("transaction coordinator fenced")
	// ErrOffsetOutOfRange says that an offset is below the log start or above the high watermark.
	ErrOffsetOutOfRange = errors.New("offset out of range")
	// ErrNotInMemory says that ReadFast did not find the batch in memory.
	ErrNotInMemory = streamstore.ErrNotInMemory
	// ErrInvalidTopicName, ErrInvalidConfig and ErrInvalidPartitions refuse a change of a
	// topic; the text says what to change.
	ErrInvalidTopicName  = errors.New("invalid topic name")
	ErrInvalidConfig     = errors.New("invalid topic configuration")
	ErrInvalidPartitions = errors.New("invalid number of partitions")
)

// An InvalidRecordsError is an ErrInvalidRecord that says which records of a batch the topic does
// not take. The batch may have more of them behind the last one.
type InvalidRecordsError struct {
	Records []RecordError
}

// A RecordError is why one record of a batch is not taken.
type RecordError struct {
	Index  int32 // in the batch, from 0
	Reason string
}

// maxRecordErrors bounds an [InvalidRecordsError], and what a batch can have the registry look up in vain.
const maxRecordErrors = 100

func (e *InvalidRecordsError) Error() string {
	first := e.Records[0]
	s := fmt.Sprintf("%v: record %d: %s", ErrInvalidRecord, first.Index, first.Reason)
	if n := len(e.Records) - 1; n > 0 {
		s += fmt.Sprintf("; and %d more", n)
	}
	return s
}

func (e *InvalidRecordsError) Unwrap() error { return ErrInvalidRecord }

// streamError turns the errors of a stream into those of a partition.
func streamError(err error) error {
	switch {
	case errors.Is(err, streamstore.ErrOffsetOutOfRange):
		return fmt.Errorf("%w: %w", ErrOffsetOutOfRange, err)
	case errors.Is(err, streamstore.ErrNodeFenced), errors.Is(err, streamstore.ErrStreamFenced),
		errors.Is(err, streamstore.ErrStreamNotExist), errors.Is(err, streamstore.ErrStreamClosed),
		errors.Is(err, streamstore.ErrStoreClosed):
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	case errors.Is(err, streamstore.ErrCorrupt), errors.Is(err, objectstore.ErrNotFound):
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}
