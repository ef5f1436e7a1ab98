package streamstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tabletopic/tabletopic/objectstore"
)

const (
	// surveyObjects is how many objects of metadata are compared with the bucket at a time.
	surveyObjects = 16 << 10
	// checkInflight is how many objects a check reads at the same time …
	checkInflight = 4
	// … and checkBytes how much of one, unless one block is larger.
	checkBytes = 4 << 20
)

// FoundObject is a data object that metadata or the bucket knows, or both.
type FoundObject struct {
	KnownObject // of an ObjectOrphaned one only the id
	Stored      bool
	Length      int64     // bytes in the bucket, if it is stored
	Modified    time.Time // when it was written, by the clock of the object store
}

// Survey calls fn with every data object that metadata or the bucket knows, by id. An object
// that changes meanwhile is given in one of its states; one that is deleted may be left out.
// Memory is bounded, whatever their number.
func (s *Store) Survey(ctx context.Context, fn func(FoundObject) error) error {
	ctx = objectstore.For(ctx, objectstore.ForCheck)
	const none = ObjectID(-1) // metadata begins with 1, and strays may not
	next, err := s.objects.Objects(ctx, none, surveyObjects)
	if err != nil {
		return err
	}
	for after, more := none, true; more; {
		known, last := next, ObjectID(math.MaxInt64)
		if more = len(known) > 0; more {
			if next, err = s.objects.Objects(ctx, known[len(known)-1].ID, surveyObjects); err != nil {
				return err
			}
		}
		if more = len(next) > 0; more {
			last = known[len(known)-1].ID
		}
		found, err := s.survey(ctx, known, after, last)
		if err != nil {
			return err
		}
		for _, o := range found {
			if err := fn(o); err != nil {
				return err
			}
		}
		after = last
	}
	return nil
}

// survey returns the objects with ids in (after, last], of which metadata knows known.
func (s *Store) survey(ctx context.Context, known []KnownObject, after, last ObjectID) ([]FoundObject, error) {
	stored, err := s.storedObjects(ctx, after, last)
	if err != nil {
		return nil, err
	}
	var found []FoundObject
	var odd []ObjectID // what metadata and bucket disagree on; it may have changed meanwhile
	for _, k := range known {
		o, ok := stored[k.ID]
		delete(stored, k.ID)
		found = append(found, FoundObject{KnownObject: k, Stored: ok, Length: o.Size, Modified: o.Modified})
		if !ok && k.State == ObjectReferenced {
			odd = append(odd, k.ID)
		}
	}
	for id, o := range stored {
		found = append(found, FoundObject{KnownObject: KnownObject{ObjectRef: ObjectRef{ID: id}, State: ObjectOrphaned}, Stored: true, Length: o.Size, Modified: o.Modified})
		odd = append(odd, id)
	}
	slices.SortFunc(found, func(a, b FoundObject) int { return cmp.Compare(a.ID, b.ID) })
	slices.Sort(odd)
	now := make(map[ObjectID]KnownObject)
	for part := range slices.Chunk(odd, objectstore.PageKeys) {
		again, err := s.objects.FindObjects(ctx, part)
		if err != nil {
			return nil, err
		}
		for _, k := range again {
			now[k.ID] = k
		}
	}
	for i := range found {
		if k, ok := now[found[i].ID]; ok && found[i].State == ObjectOrphaned {
			found[i].KnownObject = k // it came after metadata was asked
		}
	}
	return slices.DeleteFunc(found, func(o FoundObject) bool {
		return !o.Stored && o.State == ObjectReferenced && now[o.ID].State != ObjectReferenced // it went
	}), nil
}

// storedObjects lists the data objects with ids in (after, last].
func (s *Store) storedObjects(ctx context.Context, after, last ObjectID) (map[ObjectID]objectstore.Object, error) {
	stored := make(map[ObjectID]objectstore.Object)
	for from := ""; ; {
		page, err := retry(ctx, s.patience, "list objects", func() ([]objectstore.Object, error) {
			return s.bucket.List(ctx, dataPrefix, from)
		})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", dataPrefix, err)
		}
		if len(page) == 0 {
			return stored, nil
		}
		for _, o := range page {
			if id, ok := parseObjectKey(o.Key); ok && id > after && id <= last {
				stored[id] = o // a listing may name it twice: the latest counts
			}
		}
		from = skipTo(page[len(page)-1].Key, after, last)
	}
}

// skipTo returns where a listing that has come to key goes on, without what lies between the
// ranges of ids (after, last] in each directory.
func skipTo(key string, after, last ObjectID) string {
	id, ok := parseObjectKey(key)
	dir := key[:strings.LastIndexByte(key, '/')+1]
	switch {
	case ok && id < after: // so after is no less than 1
		return fmt.Sprintf("%s%016x", dir, uint64(after))
	case ok && id >= last:
		return dir + "g" // behind all ids
	}
	return key
}

// ObjectProblem says what is wrong with an object.
type ObjectProblem struct {
	ObjectRef
	Problem string
	Lost    []StreamRange // what cannot be read because of it
}

// CheckSummary is how far a check has come.
type CheckSummary struct {
	Total     int64 // objects that are referenced, as counted at its begin
	Objects   int64 // … checked
	Bytes     int64 // … read
	Problems  int64 // objects with a problem
	Prepared  int64 // objects in the other states
	Destroyed int64
	Orphaned  int64
}

// Check checks that every object that streams or composites name is in the bucket with the
// size that metadata knows, and what composites say of their parts. If deep, everything is
// read: indexes, blocks with their checksums, and whether they hold what metadata says.
// Each problem is reported once, in no order; progress is called after each object.
func (s *Store) Check(ctx context.Context, deep bool, problem func(ObjectProblem), progress func(CheckSummary)) (CheckSummary, error) {
	ctx = objectstore.For(ctx, objectstore.ForCheck)
	counts, err := s.objects.CountObjects(ctx)
	if err != nil {
		return CheckSummary{}, err
	}
	c := &checker{s: s, deep: deep, sum: CheckSummary{Total: counts[ObjectReferenced].Objects}}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(checkInflight)
	err = s.Survey(gctx, func(o FoundObject) error {
		g.Go(func() error {
			p, err := c.check(gctx, o)
			if err != nil {
				return err
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.count(o.State)
			if p != nil {
				c.sum.Problems++
				problem(*p)
			}
			progress(c.sum)
			return nil
		})
		return gctx.Err()
	})
	if failed := g.Wait(); failed != nil {
		err = failed
	}
	return c.sum, err
}

type checker struct {
	s    *Store
	deep bool

	mu  sync.Mutex
	sum CheckSummary // guarded by mu
}

func (c *checker) count(state ObjectState) {
	switch state {
	case ObjectReferenced:
		c.sum.Objects++
	case ObjectPrepared:
		c.sum.Prepared++
	case ObjectDestroyed:
		c.sum.Destroyed++
	case ObjectOrphaned:
		c.sum.Orphaned++
	}
}

// check returns what is wrong with an object, nil if nothing is. An object that compaction
// or a trim replaced meanwhile has no problem.
func (c *checker) check(ctx context.Context, o FoundObject) (*ObjectProblem, error) {
	if o.State != ObjectReferenced {
		return nil, nil
	}
	var err error
	switch {
	case !o.Stored:
		err = fmt.Errorf("%s does not exist: %w", ObjectKey(o.ID), objectstore.ErrNotFound)
	case o.Length != o.Size:
		err = corrupt("%s has %d bytes, metadata says %d", ObjectKey(o.ID), o.Length, o.Size)
	case o.Kind == KindComposite:
		err = c.composite(ctx, o)
	case c.deep:
		err = c.read(ctx, o)
	}
	if err == nil {
		return nil, nil
	}
	if !unreadable(err) {
		return nil, err
	}
	now, again := c.s.objects.FindObjects(ctx, []ObjectID{o.ID})
	if again != nil {
		return nil, again
	}
	if len(now) == 0 || now[0].State != ObjectReferenced {
		return nil, nil
	}
	lost := o.Ranges
	if len(lost) == 0 {
		lost, again = c.lostParts(ctx, o.ID)
	}
	return &ObjectProblem{ObjectRef: o.ObjectRef, Problem: err.Error(), Lost: lost}, again
}

// unreadable reports that an error is an object's own, and no passing trouble.
func unreadable(err error) bool {
	return errors.Is(err, objectstore.ErrNotFound) || errors.Is(err, ErrCorrupt) || errors.Is(err, errNewer)
}

// lostParts returns what composites find in a part.
func (c *checker) lostParts(ctx context.Context, part ObjectID) (lost []StreamRange, err error) {
	composites, err := c.s.objects.Composites(ctx, part)
	if err != nil {
		return nil, err
	}
	known, err := c.s.objects.FindObjects(ctx, composites)
	if err != nil {
		return nil, err
	}
	for _, k := range known {
		linked, err := readComposite(ctx, c.s.bucket, k.ObjectRef)
		if err != nil {
			continue // it is a problem of its own
		}
		for _, p := range linked.parts {
			if p.id == part {
				lost = append(lost, StreamRange{Stream: linked.stream, Start: p.start(), End: p.end()})
			}
		}
	}
	return lost, nil
}

// composite checks that a composite links what metadata says, and that it covers its range.
func (c *checker) composite(ctx context.Context, o FoundObject) error {
	linked, err := retry(ctx, c.s.patience, "read composite", func() (composite, error) {
		return readComposite(ctx, c.s.bucket, o.ObjectRef)
	})
	if err != nil {
		return err
	}
	c.add(o.Size)
	ids := make([]ObjectID, len(linked.parts))
	for i, p := range linked.parts {
		ids[i] = p.id
	}
	slices.Sort(ids)
	if !slices.Equal(ids, o.Parts) {
		return corrupt("composite %s links objects %v, metadata says %v", ObjectKey(o.ID), ids, o.Parts)
	}
	if err := holds(linked.entries(), o); err != nil {
		return err
	}
	known, err := c.s.objects.FindObjects(ctx, ids)
	if err != nil {
		return err
	}
	size := make(map[ObjectID]int64)
	for _, k := range known {
		size[k.ID] = k.Size
	}
	for _, p := range linked.parts {
		if size[p.id] != p.size {
			return corrupt("composite %s links object %d of %d bytes, metadata says %d", ObjectKey(o.ID), p.id, p.size, size[p.id])
		}
		if !c.deep {
			continue
		}
		entries, err := c.index(ctx, ObjectRef{ID: p.id, Kind: KindStream, Size: p.size})
		if unreadable(err) {
			continue // that is the part's problem
		}
		if err != nil {
			return err
		}
		if !slices.EqualFunc(entriesOf(entries, linked.stream), p.entries, sameEntry) {
			return corrupt("composite %s has another index of object %d than the object itself", ObjectKey(o.ID), p.id)
		}
	}
	return nil
}

// sameEntry compares entries as they are stored.
func sameEntry(a, b indexEntry) bool {
	a.object, b.object = 0, 0
	return a == b
}

func (c *checker) index(ctx context.Context, object ObjectRef) ([]indexEntry, error) {
	return retry(ctx, c.s.patience, "read index", func() ([]indexEntry, error) { return readIndex(ctx, c.s.bucket, object) })
}

// holds checks that an index covers what metadata finds in an object.
func holds(entries []indexEntry, o FoundObject) error {
	for _, r := range o.Ranges {
		of := entriesOf(entries, r.Stream)
		if len(of) == 0 || of[0].Start > r.Start || of[len(of)-1].End < r.End {
			return corrupt("object %s does not hold stream %d from %d to %d, as metadata says", ObjectKey(o.ID), r.Stream, r.Start, r.End)
		}
		for i := 1; i < len(of); i++ {
			if of[i].Start != of[i-1].End {
				return corrupt("object %s has a gap in stream %d from %d to %d", ObjectKey(o.ID), r.Stream, of[i-1].End, of[i].Start)
			}
		}
	}
	return nil
}

// read reads an object whole and checks everything in it.
func (c *checker) read(ctx context.Context, o FoundObject) error {
	entries, err := c.index(ctx, o.ObjectRef)
	if err != nil {
		return err
	}
	if err := holds(entries, o); err != nil {
		return err
	}
	for len(entries) > 0 {
		n, size := 1, int64(entries[0].Size)
		for n < len(entries) && entries[n].Position == entries[0].Position+size && size+int64(entries[n].Size) <= checkBytes {
			size += int64(entries[n].Size)
			n++
		}
		key := ObjectKey(o.ID)
		data, err := retry(ctx, c.s.patience, "read object", func() ([]byte, error) {
			return c.s.bucket.Get(ctx, key, entries[0].Position, size)
		})
		if err == nil && int64(len(data)) != size {
			err = corrupt("%d bytes, want %d", len(data), size)
		}
		if err != nil {
			return fmt.Errorf("read %s at %d: %w", key, entries[0].Position, err)
		}
		c.add(size)
		for _, e := range entries[:n] {
			if _, err := checkBlock(data[:e.Size:e.Size], e); err != nil {
				return fmt.Errorf("%s at %d: %w", key, e.Position, err)
			}
			data = data[e.Size:]
		}
		entries = entries[n:]
	}
	return nil
}

func (c *checker) add(bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum.Bytes += bytes
}
