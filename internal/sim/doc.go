// Package sim proves the promises of the log and of the tables by simulation: several nodes over
// one bucket and one metadata database, in virtual time, with faults, crashes and zombies, all
// drawn from a seed. One simulation is of package streamstore alone, one of all that is between a
// topic and its table.
//
// # The log
//
// A [world] has nodes; each lives many lives, one after the other or two at once. A life is a
// stream store with its own view of the bucket and its own way to the metadata, which lose
// answers, are slow, are cut off or stand still. Clients append, read, trim, move and destroy
// streams on it. What they are told is checked at once against a [stream], the model:
//
//   - an acknowledged batch is at its offset, with its bytes, for whoever reads, from then on;
//   - a batch that was not acknowledged is there whole, in its place, or not at all, and what a
//     handle appended is there up to some batch;
//   - no life acknowledges what a later owner of the stream does not find;
//   - nothing is read below a trim, and nothing above it is missing;
//   - no life ends by itself, memory and requests stay within their bounds.
//
// At the end, without faults, every node starts again, all streams are read from the log and
// from objects alone, and the bucket must hold what metadata names, and fences, and no more.
//
// # The tables
//
// A [tableWorld] has nodes with topics, workers, coordinators and the built-in catalog. Between any
// two requests that a life makes for a table is a step, where the seed decides: nothing happens;
// the life dies; another writer changes the table; the request waits, perhaps until a later life
// has begun; or it fails, before its effect or after. The catalog is part of the life, or another
// process that finishes what was sent to it. Lives get rivals and stand still, records cannot be
// decoded, administrators delete records, switch tables off and on, add partitions, make topics
// anew and lose the control topic. Producers have transactions, which are
// committed or aborted. Other writers, by iceberg-go, append, rewrite, expire, roll
// back, add columns, branches and tags, partition, drop and replace.
//
// A node may also be unable to write its log, for longer than unadopted files are spared, while its
// data files and the catalog go on, or the catalog may take no data for as long, while it answers all
// else; or both.
//
// At the end everything heals, and each table must catch up. Then these twelve properties are checked;
// what asserts each is named behind it, as a function of this package:
//
//   - I1: each record that the log has or had, as a reader of committed records sees it, is a row with its
//     values, once (internal/sim/table_end_test.go:tableLife.comparePartition, and no row twice:
//     internal/sim/table_end_test.go:tableWorld.readTable);
//   - I2: the offsets of each partition go on where the table was, commit after commit, and the ranges of a
//     commit have as many rows as the files that it adds; an older epoch never commits after a newer
//     (internal/sim/table_history_test.go:history.data);
//   - I3: a process that dies between data file, manifest, manifest list, metadata and swap
//     (internal/sim/table_life_test.go:actor.step) leaves nothing half in the table: a commit of ours is in
//     it whole and on the head that it was built on (internal/sim/table_history_test.go:history.own), and
//     all that it names is there (internal/sim/table_history_test.go:tableWorld.missing);
//   - I4: a commit of ours is in the table once, whatever was lost of its requests and answers
//     (internal/sim/table_life_test.go:tableCatalog.ask loses them, the commits that
//     internal/sim/table_history_test.go:history.data has seen tell), and no data file is added again
//     (internal/sim/table_history_test.go:history.own);
//   - I5: of two lives of a node, or two topics that want one table, one writes: what the other sent changes
//     nothing (internal/sim/table_history_test.go:history.step, internal/sim/table_end_test.go:tableLife.owns);
//   - I6: of a transaction that was aborted no record is a row, nor a dead letter
//     (internal/sim/table_end_test.go:tableLife.comparePartition), nor was one in a data file of any snapshot
//     (internal/sim/table_end_test.go:tableLife.abortedNowhere);
//   - I7: commits of others lose nothing, and ours lose nothing of theirs: no file, column, branch, tag or
//     property (internal/sim/table_history_test.go:keeps, internal/sim/table_history_test.go:history.own, and of
//     compactions internal/sim/table_history_test.go:history.compacted);
//   - I8: a field id is that of one column for ever, and a column has one, while new versions of the record's
//     schema, and other writers, add columns (internal/sim/table_history_test.go:history.schema);
//   - I9: a record that cannot be decoded neither stops those behind it
//     (internal/sim/table_end_test.go:tableLife.caughtUp) nor goes without a dead letter, one
//     (internal/sim/table_end_test.go:tableLife.comparePartition, by internal/sim/table_end_test.go:tableLife.readLetters);
//   - I10: every metadata file of the table's log, and every manifest list, manifest and data file of every
//     snapshot, is there (internal/sim/table_history_test.go:tableWorld.missing), and after the grace no file of
//     ours that the catalog never named (internal/sim/table_end_test.go:tableLife.swept), but for the first
//     metadata of a table that was not made. What had expired may stay, if who was to delete it died;
//   - I11: a record that is neither row nor letter is in a gap that a commit recorded, because retention, an
//     administrator or a user took it away first (internal/sim/table_end_test.go:history.leftOut); where
//     retention waits for the table without end and nobody else removes, there is no gap
//     (internal/sim/table_end_test.go:tableWorld.holdsAll);
//   - I12: each change that the catalog ever named was built on the one before, and none is named twice: two
//     writers never both win. The database notes all of them, and all files are kept to replay them
//     (internal/sim/table_test.go:tableWorld.pointers, internal/sim/table_history_test.go:tableWorld.replay,
//     internal/sim/table_history_test.go:history.step).
//
// And a catalog that fails is told of within two target lags
// (internal/sim/table_health_test.go:tableWorld.tells).
//
// Some guards show nothing here, and have a test of their own. A node leads its control log and its
// dead letters itself: a coordinator that was replaced can write neither, so that it cannot name the
// files of another attempt, and the dead letters of a life are in its one log before anything that
// could have them come again (TestZombieCoordinatorIsFenced of package worker, TestDeadLettersOnce of
// package partition). Files for a table that was replaced do not continue the new one, unless neither
// had a commit (TestTableReplacedWhileFilesWait). And a commit, or a worker, that holds files for too
// long is void by the other's clock as well, and nearly always by that of the files of its attempt
// (TestCommitIsVoidWhenItsFilesCannotBeNamed, TestWorkerGivesUpFilesThatCannotBeNamed).
//
// # Running
//
// The tests of the package are the simulation:
//
//	go test ./internal/sim                         200 seeds of logs and 500 of tables (40 and 10 with -race), and all in testdata
//	go test ./internal/sim -sim.seed 17 -v         one of them, with its trace
//	go test ./internal/sim -sim.seeds 1000-5000    others
//
// A failure prints the command that repeats its seed. Whatever is random comes from the seed,
// every wait of the simulation ends at a moment of its own, and one seed alone runs on one
// processor, so that goroutines take their turns in the same order again. What is left to
// chance is which of two channels a select takes when both are ready: two seeds of three repeat
// to the letter; repeat the others a few times.
package sim
