// Package streamstore is a library of append-only streams whose only durable store is an
// object store, after the design of S3Stream.
//
// A node appends the batches of all its streams to one write-ahead log, acknowledges them
// in order, keeps them in the log cache, and uploads the cache to stream objects and
// stream set objects in the background. Payloads are opaque; package partition gives them
// meaning. What must be agreed between nodes is kept by a [StreamManager] and an
// [ObjectManager], which package metadata implements; [MemoryManager] stands in for it.
//
// # What it promises
//
// An append whose done was called without an error survives the death of every node, as
// long as bucket and metadata live (the file WAL: as long as its disk does). Two lives of a node never
// both acknowledge: see fencing below. Appends of a stream complete in the order of their
// offsets. Back-pressure delays appends and never drops one. Tail reads make no request.
//
// Metadata that is restored after a loss, from a state as old as Config.Settled waits for, loses no
// append and no stream. Only a trim may be undone by it: the stream starts where it did before.
//
// # Using it
//
// A process opens a [Store] with a node id of its own, a bucket, and the managers of the
// metadata that it shares with other nodes; package examples/streamlog is a small program that
// does. Streams are created once, get an id that is never given again, and belong to one node at a
// time. To open one the caller names an epoch, higher than any before: whoever opens with a
// higher one, after the stream was closed or its node recovered, is the only writer from then on. Where epochs
// come from is for the caller; a counter next to whatever names the stream will do.
//
//	open      [Open] recovers what earlier processes of the node left, and serves. [Store.OpenStreams]
//	          opens many streams in one transaction.
//	append    [Stream.Append] gives the batch its offset and returns; done is called when it is
//	          durable, for all appends of a stream in order. One that fails fences the handle: those
//	          after it fail too, and what became of them the next open tells.
//	fetch     [Stream.Fetch] returns whole batches from an offset on, up to the confirm offset, as
//	          many as a size allows.
//	trim      [Stream.Trim] moves the start forward. A fetch that has begun gets its batches all the
//	          same, or ErrOffsetOutOfRange; the bytes are kept for DeleteGrace.
//	close     [Stream.Close] waits for appends, uploads what only the WAL holds, and lets go of the
//	          stream: any node may open it then.
//	destroy   [Stream.Destroy] deletes the stream, and after DeleteGrace its bytes.
//	recover   [Store.Recover] does for a node that died what its own start would do, and closes its
//	          streams.
//	end       [Store.Close] uploads everything; streams stay the node's. A process that is killed
//	          instead leaves its WAL, for the next Open or for Recover.
//
// # Errors
//
// Errors wrap one of these where a caller has something to decide; all others say what failed,
// and where. Requests to the bucket and to metadata are repeated inside for as long as they may
// succeed.
//
//	ErrNodeFenced       another process runs under this node id, or recovered the node: end this one
//	ErrStreamFenced     an append failed, or the stream was opened with a higher epoch: open it again, if it is still yours
//	ErrStreamClosed     the handle was closed
//	ErrStoreClosed      the store was closed
//	ErrStreamNotExist   the stream was destroyed, or never created
//	ErrNodeNotExist     the node to recover was never registered
//	ErrOffsetOutOfRange a fetch asked for what is trimmed, or not durable yet; a trim for what is not there
//	ErrNotInMemory      FetchFast did not find the batch in memory: Load or Fetch it
//	ErrConflict         the stream is open on another node: close it there, or recover the node
//	ErrCorrupt          stored bytes are not what was written: the text names object and position
//
// What a newer version of the program wrote is refused by its version, and left as it is.
//
// # Walks
//
//	append    stream.go Append → wal.go append: an offset, and a place in the current bulk, into
//	          which the payload is copied, once. wal.go run closes the bulk and writes it by its
//	          walDevice: wal_object.go or wal_file.go. Once all before it are durable: store.go
//	          acknowledge → logcache.go add → confirm offsets → done.
//	upload    logcache.go archives a block by size or age → upload.go run: prepare ids → putBlock →
//	          CommitUpload, which makes the objects visible and moves the WAL's mark in one
//	          transaction → trim the WAL → the block may be evicted.
//	compact   compaction.go run: compaction_plan.go groupSets, groupSmall and groupLinks decide what
//	          goes together → compaction_write.go reads it, checks it and writes it anew, or a
//	          composite links it → CommitCompaction, which puts the results in the place of the
//	          sources in one transaction → after DeleteGrace store.go Clean deletes the sources.
//	sweep     sweep.go Sweep: what lies in the bucket and metadata does not know is deleted after
//	          SweepGrace, by one node at a time.
//	fetch     stream.go Fetch → logcache.go read, or reader.go read: a session knows its next blocks,
//	          else metadata names the object and its index the block, each kept in a cache. What is
//	          not in memory waits for its turn in lane.go; neighbours are read ahead, and
//	          blockcache.go keeps what is read again.
//	recovery  store.go Open → RegisterNode raises the epoch → recovery.go recoverWALs: fence, read
//	          stream ends, replay what they lack, commit, retire.
//	failover  recovery.go Recover, on any node → TakeOverNode raises the epoch → recoverWALs, as
//	          above → ReleaseNode closes the streams and hands over the stream set objects.
//
// # Reads
//
// What is in memory, in the log cache or in cached blocks, is read at once. What is not waits in
// a lane of its own, where readers take turns ([WithReader]), read-ahead comes after reads that
// somebody waits for, and what waits near by in one object becomes one request.
// [Stream.FetchFast] never waits; [Stream.Load] reads what it did not find. What was fetched may be
// kept; who says with a [Lease] when it has done lets the memory be used again. Read-ahead grows
// with a sequential reader from 512 KiB to ReadAheadBytes, takes at most half of the block
// cache, and is halved when it went unread. A fetch under way when its data is trimmed
// finishes, or says that it is out of range.
//
// # Fencing
//
// The bulks of one life of a node have dense numbers, and each is created only if its name is
// free. Many are in flight, but they are acknowledged as a contiguous prefix. Whoever
// takes over raises the node's epoch in metadata, so that the earlier life commits nothing
// more, and then occupies the first free number with a fence: the earlier life cannot write
// that number, so it acknowledges nothing from there on, however late it wakes. Fences are
// never deleted. What lies above a fence was never acknowledged; a number missing below one
// is a lost object, and recovery refuses it. A writer whose create meets an object reads the
// nonce in it: its own means that an answer was lost, any other that it is fenced. The file
// WAL does the same with a file; see fileWAL.
//
// # Latency and cost of appends
//
// An append takes the PUT of its bulk, and waits for the bulk to close. An object store charges by the
// request, so bulks that are not full are WALLinger apart (250 ms), which is 4 requests a second;
// half of that when nothing is being written, for a producer that awaits each answer would wait for
// the rest in vain. An idle node closes a bulk 10 ms after its first batch. A longer
// WALIdleLinger makes a node that takes less than 1 MiB/s write that often only: 1 s is 60 requests a
// minute instead of 240, and a second more for each append. Uploads, compaction and reads never
// stand in the way of an append, unless the log cache is full of what is not uploaded.
//
// A PUT that takes longer than 99 of the last 100 or so of about its size is sent a second time
// (WALHedgeMin, WALHedgeInflight, WALHedgePercent): both carry the same bytes to the same key, if it is free, so
// whichever comes second changes nothing.
//
// # Requests
//
// What the object store is asked, and so what a node costs:
//
//	append      a PUT for each bulk: of WALBytes, or 4 a second if fewer bytes come; hedges on top
//	upload      a PUT for each object: one for each UploadBytes, or UploadInterval, and one for each
//	            stream with SplitBytes in it; a DELETE for the WAL objects that it sets free
//	tail read   none
//	cold read   a GET for the index of an object, and one for each 4 MiB of a sequential reader, once
//	            its read-ahead has grown
//	compaction  a GET for the index of a source, one for adjacent blocks, a PUT for each result
//	clean       a DELETE for each 1,000 objects
//	sweep       a LIST for each 1,000 keys in SweepInterval, of the whole cluster
//	start       for each WAL that is not retired a LIST, a PUT of its fence and a GET for each bulk
//
// All together a node that takes 33 MiB/s makes fewer than 400 requests for a GiB, and a cold reader
// fewer than 1.3 for 4 MiB after compaction; TestRequestsPerGiB and TestRequestsPerColdRead count them.
//
// # Bounds
//
// LogCacheBytes bounds all appended data in memory, whole buffers counted; BlockCacheBytes and half as much
// again bound what reads of objects hold (a batch that a caller keeps holds its block on top);
// IndexCacheBytes the indexes; 8 MiB the places of sequential readers; ReadInflight the reads of
// objects at a time; CompactionBytes what
// compaction holds. Recovery holds UploadBytes and a few bulks.
//
// # Formats
//
// wal_format.go, object_format.go and composite_format.go draw what is stored, keys.go names
// it; [DumpWAL], [DumpObject] and [DumpComposite] print it.
package streamstore
