package streamstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Config holds the settings of a [Store]. The zero value of a field means its default.
type Config struct {
	// WAL says where the write-ahead log lives. WALObject if empty.
	WAL WALKind
	// WALDir is the directory of the file WAL; it is required for WALFile and unused otherwise.
	WALDir string
	// WALFS is the file system of the file WAL. The machine's own if nil, past the page cache
	// where it can be; tests pass one that loses what was not synced.
	WALFS vfs.FS
	// WALBytes closes a WAL bulk when it holds this many bytes. 8 MiB if zero.
	WALBytes int64
	// WALLinger closes a WAL bulk this long after the one before it, or after half of that if
	// none is being written. 250 ms if zero. The file WAL does not linger: what arrives during
	// one fsync makes up the next.
	WALLinger time.Duration
	// WALIdleLinger closes a WAL bulk this long after its first append, if the one before it is
	// older than WALLinger says: the wait on an idle node. 10 ms if zero, or WALLinger if that is
	// shorter; at most 10 s. Longer than WALLinger, it makes a node that takes less than
	// 1 MiB/s write a bulk that often only: objects cost by the request.
	WALIdleLinger time.Duration
	// WALInflight is the number of WAL objects written at the same time. 16 if zero.
	WALInflight int
	// WALHedgeMin: a WAL object is sent a second time when its PUT takes longer than 99 of
	// 100 PUTs of about its size did, and at least this long. 100 ms if zero, never if negative.
	WALHedgeMin time.Duration
	// WALHedgeInflight is the number of second PUTs at the same time. 4 if zero.
	WALHedgeInflight int
	// WALHedgePercent bounds second PUTs, in percent of all. 5 if zero.
	WALHedgePercent int
	// WALUnflushedBytes is how much may wait for the WAL before appends block. 1 GiB if zero.
	WALUnflushedBytes int64
	// LogCacheBytes bounds all appended data in memory: waiting for the WAL, waiting for
	// upload, and kept for tail reads; the buffers of a WAL bulk may come on top. Appends
	// block when the first two reach it. 128 MiB if zero; at least twice UploadBytes.
	LogCacheBytes int64
	// UploadBytes archives the log cache's active block for upload. As much memory of dropped blocks is kept for
	// those that come, for 20 s at most while nothing needs it. 32 MiB if zero.
	UploadBytes int64
	// UploadStreams archives it before it holds data of more streams than this, which bounds
	// the streams of a stream set object, compacted ones too, and the transactions that commit
	// them: a compaction joins at most six objects of so many. 20,000 if zero.
	UploadStreams int
	// UploadInterval archives it when its oldest batch is this old. 60 s if zero.
	UploadInterval time.Duration
	// UploadInflight is the number of blocks uploaded at the same time. 3 if zero.
	UploadInflight int
	// SplitBytes gives a stream an object of its own when a block holds this much of it. 8 MiB if zero.
	SplitBytes int64
	// BlockBytes is the size at which a data block of an object is closed. 512 KiB if zero.
	BlockBytes int
	// BlockCacheBytes bounds the data blocks kept after reads of objects; half as much more
	// may be in flight, or one block if that is more. 64 MiB if zero.
	BlockCacheBytes int64
	// IndexCacheBytes bounds the object indexes kept in memory. 16 MiB if zero.
	IndexCacheBytes int64
	// ReadAheadBytes is the most that is read ahead of one sequential reader. 16 MiB if
	// zero; at most a quarter of BlockCacheBytes is used.
	ReadAheadBytes int64
	// ReadInflight is the number of reads of objects at the same time, three quarters of them
	// for read-ahead. Fetches of what is in memory do not count. 32 if zero.
	ReadInflight int
	// CleanInterval is how often deletable objects are looked for. 60 s if zero, never if negative.
	CleanInterval time.Duration
	// CompactionInterval is how often stream set objects are compacted. 5 min if zero, never if negative.
	CompactionInterval time.Duration
	// CompactionBytes bounds the memory of compaction; SplitBytes and MinorBytes count as at
	// most three sixteenths of it. 200 MiB if zero.
	CompactionBytes int64
	// CompactionObjects is the number of stream set objects looked at in one run. 500 if zero.
	CompactionObjects int
	// CompactionRate is the number of bytes a second that compaction may read. A run that
	// cannot end within four fifths of CompactionInterval so reads faster. It is a quarter while
	// a fetch waits for an object, or half of LogCacheBytes for upload. 32 MiB if zero.
	CompactionRate int64
	// ForceSplit is the age at which what is left in stream set objects becomes stream
	// objects, however small. 120 min if zero.
	ForceSplit time.Duration
	// CleanupInterval is how often composite objects let go of parts that were trimmed.
	// 1 min if zero, never if negative.
	CleanupInterval time.Duration
	// CleanupBytes is how much trimmed data a composite object must hold for that. 512 MiB if zero.
	CleanupBytes int64
	// MinorInterval is how often small stream objects are merged. 10 min if zero, never if negative.
	MinorInterval time.Duration
	// MinorBytes is the size from which on a stream object is not small. 8 MiB if zero.
	MinorBytes int64
	// MajorInterval is how often stream objects are linked to composite objects. 60 min if
	// zero, never if negative.
	MajorInterval time.Duration
	// MajorBytes is how much data a composite object links at most. 10 GiB if zero.
	MajorBytes int64
	// Settled returns when metadata as it was at the call survives the loss of its database.
	// WALs are trimmed, and objects deleted, only after it: a database that is restored then
	// still finds what it names. At once if nil.
	Settled func(ctx context.Context) error
	// Jitter returns numbers from [0, 1) by which the waits before repeated requests vary, for
	// many goroutines. Random if nil; a simulation passes numbers that its seed decides.
	Jitter func() float64
	// DeleteGrace is how long an object that nothing names is kept for readers that still
	// know it. It must be longer than a commit whose answer was lost takes to be repeated, 5 s
	// and the time of the call: the repeat of one whose objects are trimmed and forgotten
	// meanwhile is refused, and stops the node, though nothing is lost. 10 min if zero.
	DeleteGrace time.Duration
	// SweepInterval is how often one node of the cluster looks for objects in the bucket that
	// metadata does not know, and deletes them. 24 h if zero, never if negative.
	SweepInterval time.Duration
	// SweepGrace is how long such an object is left alone after it was written. 6 h if zero.
	SweepGrace time.Duration
}

// maxIdleLinger leaves room below the 30 s after which producers of Kafka give up.
const maxIdleLinger = 10 * time.Second

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (c *Config) setDefaults() {
	if c.WAL == "" {
		c.WAL = WALObject
	}
	if c.WALFS == nil {
		c.WALFS = machineFS{vfs.Default}
	}
	if c.Jitter == nil {
		c.Jitter = rand.Float64
	}
	setDefault(&c.WALBytes, 8<<20)
	setDefault(&c.WALLinger, 250*time.Millisecond)
	setDefault(&c.WALIdleLinger, min(10*time.Millisecond, c.WALLinger))
	setDefault(&c.WALInflight, 16)
	setDefault(&c.WALHedgeMin, 100*time.Millisecond)
	setDefault(&c.WALHedgeInflight, 4)
	setDefault(&c.WALHedgePercent, 5)
	setDefault(&c.WALUnflushedBytes, 1<<30)
	setDefault(&c.LogCacheBytes, 128<<20)
	setDefault(&c.UploadBytes, 32<<20)
	setDefault(&c.UploadStreams, 20_000)
	setDefault(&c.UploadInterval, time.Minute)
	setDefault(&c.UploadInflight, 3)
	setDefault(&c.SplitBytes, 8<<20)
	setDefault(&c.BlockBytes, 512<<10)
	setDefault(&c.BlockCacheBytes, 64<<20)
	setDefault(&c.IndexCacheBytes, 16<<20)
	setDefault(&c.ReadAheadBytes, 16<<20)
	setDefault(&c.ReadInflight, 32)
	setDefault(&c.CleanInterval, time.Minute)
	setDefault(&c.CompactionInterval, 5*time.Minute)
	setDefault(&c.CompactionBytes, 200<<20)
	setDefault(&c.CompactionObjects, 500)
	setDefault(&c.CompactionRate, 32<<20)
	setDefault(&c.ForceSplit, 120*time.Minute)
	setDefault(&c.CleanupInterval, time.Minute)
	setDefault(&c.CleanupBytes, 512<<20)
	setDefault(&c.MinorInterval, 10*time.Minute)
	setDefault(&c.MinorBytes, 8<<20)
	setDefault(&c.MajorInterval, 60*time.Minute)
	setDefault(&c.MajorBytes, 10<<30)
	setDefault(&c.DeleteGrace, 10*time.Minute)
	setDefault(&c.SweepInterval, 24*time.Hour)
	setDefault(&c.SweepGrace, 6*time.Hour)
}

func (c *Config) validate() error {
	switch c.WAL {
	case WALObject:
	case WALFile:
		if c.WALDir == "" {
			return fmt.Errorf("WAL kind %q needs WALDir, the directory of its files", c.WAL)
		}
	default:
		return fmt.Errorf("WAL kind %q is unknown: use %q or %q", c.WAL, WALObject, WALFile)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"WALBytes", c.WALBytes}, {"WALLinger", int64(c.WALLinger)}, {"WALIdleLinger", int64(c.WALIdleLinger)}, {"WALInflight", int64(c.WALInflight)},
		{"WALHedgeInflight", int64(c.WALHedgeInflight)}, {"WALHedgePercent", int64(c.WALHedgePercent)},
		{"WALUnflushedBytes", c.WALUnflushedBytes}, {"LogCacheBytes", c.LogCacheBytes}, {"UploadBytes", c.UploadBytes}, {"UploadStreams", int64(c.UploadStreams)},
		{"UploadInterval", int64(c.UploadInterval)}, {"UploadInflight", int64(c.UploadInflight)}, {"SplitBytes", c.SplitBytes},
		{"BlockBytes", int64(c.BlockBytes)}, {"BlockCacheBytes", c.BlockCacheBytes}, {"IndexCacheBytes", c.IndexCacheBytes},
		{"ReadAheadBytes", c.ReadAheadBytes}, {"ReadInflight", int64(c.ReadInflight)}, {"DeleteGrace", int64(c.DeleteGrace)}, {"SweepGrace", int64(c.SweepGrace)},
		{"CompactionBytes", c.CompactionBytes}, {"CompactionObjects", int64(c.CompactionObjects)}, {"CompactionRate", c.CompactionRate},
		{"ForceSplit", int64(c.ForceSplit)}, {"CleanupBytes", c.CleanupBytes}, {"MinorBytes", c.MinorBytes}, {"MajorBytes", c.MajorBytes},
	} {
		if f.value < 0 {
			return fmt.Errorf("%s is %d: it must be positive, or zero for its default", f.name, f.value)
		}
	}
	if c.WALIdleLinger > maxIdleLinger {
		return fmt.Errorf("WALIdleLinger is %v: it must be at most %v, or appends are given up before they are written", c.WALIdleLinger, maxIdleLinger)
	}
	if c.LogCacheBytes/2 < c.UploadBytes {
		return fmt.Errorf("LogCacheBytes is %d: it must be at least twice UploadBytes (%d), or appends wait for every upload", c.LogCacheBytes, c.UploadBytes)
	}
	return nil
}
