// Package maintenance finds the small data files of a table, and writes their rows into larger ones.
//
// It promises that what it writes has exactly the rows that it read, by the field ids of the table's
// current schema, and it changes nothing by itself: [catalog.Commit] puts its files into the place of
// the others, if those are still in the table and no rows of them have been deleted meanwhile.
//
//	[Look]     which small files there are, and what is left alone, and why
//	[Plan]     which of them become one: pure
//	[Rewrite]  read them, write them as the table's files are written
//
// # What belongs together
//
// Files of one group are of the table's default partition spec and of one partition of it, and lie in one
// directory if a topic's id is its name, so that rows of several topics of a name stay apart. Within a partition files follow each
// other in the order in which they came into the table, and a group is a stretch of it; so offsets
// stay in order where they were, and a row is written again about log(target size / size of a commit)
// times to the base of the number of files that make a group.
//
// # What is left alone
//
// Files that delete files may apply to: those of a partition, of the same sequence number or older. With
// one of another partition spec, all are. A table with columns of types that this version cannot write.
// Files whose rows cannot be read, or are of another partition than the table says.
//
// # Bounds
//
// A round has [Policy.MaxGroups] groups and [Policy.MaxBytes]. One file is written at a time, in
// memory, with about twice the target size; what is read passes through in batches of 4,096 rows of one row group.
package maintenance
