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
// anew and lose the control topic. Other writers, by iceberg-go, append, rewrite, expire, roll
// back, add columns, branches and tags, partition, drop and replace.
//
// At the end everything heals, and each table must catch up. Then:
//
//   - each record that the log has or had is a row with its values, or a dead letter, once, or in
//     a gap that a commit recorded;
//   - the history of the catalog, which the database notes and of which all files are kept, is
//     replayed: each change was built on the one before; each commit of ours is there once, goes on
//     where the table was, adds its files and loses no one's file, column, branch, tag or property;
//     field ids keep their meaning;
//   - every file that a snapshot names is there, and no data file that none ever named.
//
// Transactions of producers are not part of it.
//
// # Running
//
// The tests of the package are the simulation:
//
//	go test ./internal/sim                         200 seeds of logs and 150 of tables (10 with -race), and all in testdata
//	go test ./internal/sim -sim.seed 17 -v         one of them, with its trace
//	go test ./internal/sim -sim.seeds 1000-5000    others
//
// A failure prints the command that repeats its seed. Whatever is random comes from the seed,
// every wait of the simulation ends at a moment of its own, and one seed alone runs on one
// processor, so that goroutines take their turns in the same order again. What is left to
// chance is which of two channels a select takes when both are ready: two seeds of three repeat
// to the letter; repeat the others a few times.
package sim
