package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/parquetio"
)

// foreignActs are what other writers do to a table, by name.
var foreignActs = []string{"append", "rewrite", "expire", "add column", "branch", "tag", "property", "partition", "roll back", "drop", "replace"}

// actForeign has other writers act now and then.
func (w *tableWorld) actForeign(ctx context.Context) {
	r := rand.New(rand.NewPCG(w.seed, 5))
	for wait(ctx, time.Duration(r.Int64N(int64(w.plan.foreignEvery)))) == nil {
		w.foreign(r, "world")
	}
}

// foreign has another writer do one thing to one table, by iceberg-go and the catalog as they are.
func (w *tableWorld) foreign(r *rand.Rand, when string) {
	if len(w.plan.foreign) == 0 || w.failing.Err() != nil {
		return
	}
	w.others <- struct{}{}
	defer func() { <-w.others }()
	topic := pick(r, w.topics...)
	id, act := topic.table, pick(r, w.plan.foreign...)
	if n := len(topic.types); n > 0 {
		if i := r.IntN(n + 1); i < n {
			id = topic.types[i].table
		}
	}
	w.act(r, id, act, when)
}

// act does one thing. The caller holds others.
func (w *tableWorld) act(r *rand.Rand, id table.Identifier, act, when string) {
	name := id[1]
	t, err := w.catalog.Load(w.failing, id)
	if err != nil {
		return
	}
	f := &foreigner{w, r, id, t}
	next := t
	switch act {
	case "append":
		next, err = f.append()
	case "rewrite":
		next, err = f.rewrite()
	case "expire":
		next, err = f.expire()
	case "add column":
		next, err = f.addColumn()
	case "branch":
		next, err = f.refer(table.BranchRef)
	case "tag":
		next, err = f.refer(table.TagRef)
	case "property":
		next, err = f.commit(table.NewSetPropertiesUpdate(iceberg.Properties{"owner": fmt.Sprint("user ", r.IntN(100))}))
	case "partition":
		next, err = f.partition(t.Spec().IsUnpartitioned())
	case "roll back":
		next, err = f.rollBack()
	case "drop":
		next, err = nil, w.catalog.Drop(w.failing, id)
	case "replace":
		next, err = f.replace()
	}
	w.trace.add("other", "%s of %s, when %s: %v", act, name, when, err)
	if err == nil && next != nil && next != t {
		w.byOthers[next.MetadataLocation()] = act
	} else if err != nil && !errors.Is(err, catalog.ErrCommitConflict) {
		w.fail("%s of %s by another writer: %v", act, name, err)
	}
}

// A foreigner changes one table as it was loaded.
type foreigner struct {
	w  *tableWorld
	r  *rand.Rand
	id table.Identifier
	t  *table.Table
}

// commit applies updates if the table is as it was loaded.
func (f *foreigner) commit(updates ...table.Update) (*table.Table, error) {
	var head *int64
	if s := f.t.CurrentSnapshot(); s != nil {
		head = &s.SnapshotID
	}
	return f.w.catalog.CommitTable(f.w.failing, f.id, []table.Requirement{
		table.AssertTableUUID(f.t.Metadata().TableUUID()), table.AssertRefSnapshotID(table.MainBranch, head),
	}, updates)
}

// append adds rows that know nothing of the log.
func (f *foreigner) append() (*table.Table, error) {
	id, ok := f.t.Schema().FindFieldByName("id")
	if !ok || !f.t.Spec().IsUnpartitioned() || id.Type != iceberg.PrimitiveTypes.Int64 {
		return f.t, nil
	}
	df, err := f.file(strangers(id.ID), 2, "stranger")
	if err != nil {
		return nil, err
	}
	tx := f.t.NewTransaction()
	if err := tx.AddDataFiles(f.w.failing, []iceberg.DataFile{df}, nil); err != nil {
		return nil, err
	}
	return tx.Commit(f.w.failing)
}

// strangers is a data file with two rows that have an id alone, -1.
func strangers(field int) []byte {
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true,
		Metadata: arrow.NewMetadata([]string{"PARQUET:field_id"}, []string{strconv.Itoa(field)})}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	b.Field(0).(*array.Int64Builder).AppendValues([]int64{-1, -1}, nil)
	batch := b.NewRecordBatch()
	defer batch.Release()
	var body bytes.Buffer
	w, err := pqarrow.NewFileWriter(schema, &body, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	if err == nil {
		err = errors.Join(w.Write(batch), w.Close())
	}
	if err != nil {
		panic(err)
	}
	return body.Bytes()
}

// file writes a data file of another writer.
func (f *foreigner) file(body []byte, rows int64, dir string) (iceberg.DataFile, error) {
	location := catalog.DataLocation(f.t, dir+"/"+uuid.NewString()+".parquet")
	bucket, key, err := f.w.locator.Resolve(f.w.failing, location)
	if err != nil {
		return nil, err
	}
	if err := bucket.Put(f.w.failing, key, body); err != nil {
		return nil, err
	}
	b, err := iceberg.NewDataFileBuilder(f.t.Spec(), iceberg.EntryContentData, location, iceberg.ParquetFile, nil, nil, nil, rows, int64(len(body)))
	if err != nil {
		return nil, err
	}
	return b.Build(), nil
}

// rewrite replaces some data files by copies, as a compaction does. A copy stays in a
// directory of the name of the source's, which says whose rows they are.
func (f *foreigner) rewrite() (*table.Table, error) {
	if f.t.CurrentSnapshot() == nil || !f.t.Spec().IsUnpartitioned() {
		return f.t, nil
	}
	live, err := f.w.files.live(f.t.CurrentSnapshot())
	if err != nil {
		return nil, err
	}
	var old, fresh []iceberg.DataFile
	for _, location := range sortedKeys(live) {
		if f.r.IntN(2) == 0 || len(old) == 5 {
			continue
		}
		bucket, key, err := f.w.locator.Resolve(f.w.failing, location)
		if err != nil {
			return nil, err
		}
		body, err := bucket.Get(f.w.failing, key, 0, -1)
		if err != nil {
			return nil, err
		}
		df, err := f.file(body, live[location].Count(), path.Base(path.Dir(location)))
		if err != nil {
			return nil, err
		}
		old, fresh = append(old, live[location]), append(fresh, df)
	}
	if len(old) == 0 {
		return f.t, nil
	}
	tx := f.t.NewTransaction()
	if err := tx.ReplaceDataFilesWithDataFiles(f.w.failing, old, fresh, nil); err != nil {
		return nil, err
	}
	return tx.Commit(f.w.failing)
}

// expire leaves the heads of branches and tags, and deletes what only the others named.
func (f *foreigner) expire() (*table.Table, error) {
	if len(f.t.Metadata().Snapshots()) < 2 {
		return f.t, nil
	}
	tx := f.t.NewTransaction()
	if err := tx.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0)); err != nil {
		return nil, err
	}
	next, err := tx.Commit(f.w.failing)
	if err == nil && next.MetadataLocation() == f.t.MetadataLocation() {
		return f.t, nil
	}
	return next, err
}

func (f *foreigner) addColumn() (*table.Table, error) {
	tx := f.t.NewTransaction()
	name := fmt.Sprint("other_", f.t.Metadata().LastColumnID()+1)
	if err := tx.UpdateSchema(true, false).AddColumn([]string{name}, iceberg.PrimitiveTypes.String, "", false, nil).Commit(); err != nil {
		return nil, err
	}
	return tx.Commit(f.w.failing)
}

func (f *foreigner) refer(kind table.RefType) (*table.Table, error) {
	all := f.t.Metadata().Snapshots()
	if len(all) == 0 {
		return f.t, nil
	}
	name := fmt.Sprint("ref_", kind, f.r.IntN(3))
	for other := range f.t.Metadata().Refs() {
		if other == name {
			return f.commit(table.NewRemoveSnapshotRefUpdate(name))
		}
	}
	return f.commit(table.NewSetSnapshotRefUpdate(name, pick(f.r, all...).SnapshotID, kind, 0, 0, 0))
}

// partition partitions the table by a column, or no more.
func (f *foreigner) partition(on bool) (*table.Table, error) {
	if !on {
		return f.commit(table.NewSetDefaultSpecUpdate(0))
	}
	for _, spec := range f.t.Metadata().PartitionSpecs() {
		if !spec.IsUnpartitioned() {
			return f.commit(table.NewSetDefaultSpecUpdate(spec.ID()))
		}
	}
	tx := f.t.NewTransaction()
	if err := tx.UpdateSpec(true).AddField("id", iceberg.BucketTransform{NumBuckets: 3}, "by_id").Commit(); err != nil {
		return f.t, nil // no such column
	}
	return tx.Commit(f.w.failing)
}

// rollBack takes main back by a snapshot or two.
func (f *foreigner) rollBack() (*table.Table, error) {
	s := f.t.CurrentSnapshot()
	for range 1 + f.r.IntN(2) {
		if s == nil || s.ParentSnapshotID == nil {
			return f.t, nil
		}
		s = f.t.Metadata().SnapshotByID(*s.ParentSnapshotID)
	}
	if s == nil {
		return f.t, nil
	}
	return f.commit(table.NewSetSnapshotRefUpdate(table.MainBranch, s.SnapshotID, table.BranchRef, 0, 0, 0))
}

// tableSchema has the columns of a writer schema, and those of the log.
func tableSchema(id int32) (*iceberg.Schema, error) {
	v, err := parquetio.ParseAvro(parquetio.NewRules(), writerSchemas[id])
	if err != nil {
		return nil, err
	}
	return parquetio.Mapping{KafkaColumn: "_kafka"}.TableSchema(v)
}

// replace drops the table and makes one of the name with columns of its own.
func (f *foreigner) replace() (*table.Table, error) {
	schema, err := tableSchema(wideSchema)
	if err != nil {
		return nil, err
	}
	if err := f.w.catalog.Drop(f.w.failing, f.id); err != nil {
		return nil, err
	}
	next, err := f.w.catalog.Create(f.w.failing, f.id, schema, nil)
	if errors.Is(err, catalog.ErrTableExists) { // its owner was faster
		return f.t, nil
	}
	return next, err
}
