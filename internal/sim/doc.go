// Package sim proves the promises of package streamstore by simulation: several nodes over one
// bucket and one metadata database, in virtual time, with faults, crashes and zombies, all drawn
// from a seed.
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
// The tests of the package are the simulation:
//
//	go test ./internal/sim                         200 seeds, and all in testdata/seeds.txt
//	go test ./internal/sim -sim.seed 17 -v         one of them, with its trace
//	go test ./internal/sim -sim.seeds 1000-5000    others
//
// A failure prints the command that repeats its seed. Whatever is random comes from the seed,
// every wait of the simulation ends at a moment of its own, and one seed alone runs on one
// processor, so that goroutines take their turns in the same order again. What is left to
// chance is which of two channels a select takes when both are ready: two seeds of three repeat
// to the letter; repeat the others a few times.
package sim
