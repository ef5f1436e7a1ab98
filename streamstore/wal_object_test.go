package streamstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/tabletopic/tabletopic/internal/crc32c"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
)

// bulkSize is the size of a payload that makes a bulk of its own in the stores of newEnv.
const bulkSize = 5 << 10

// big is a payload that begins with name and makes a bulk of its own.
func big(name string) string { return name + strings.Repeat(".", bulkSize) }

// describe returns all that metadata holds, to compare it with what it holds later.
func (m *MemoryManager) describe() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(m.nodes)) {
		fmt.Fprintf(&b, "node %d: %+v\n", id, *m.nodes[id])
	}
	for _, id := range slices.Sorted(maps.Keys(m.streams)) {
		fmt.Fprintf(&b, "stream %d: %+v\n", id, *m.streams[id])
	}
	for _, id := range slices.Sorted(maps.Keys(m.objects)) {
		fmt.Fprintf(&b, "object %d: %+v\n", id, *m.objects[id])
	}
	return b.String()
}

// Everything that a life wrote is uploaded, trimmed, recovered and swept up, and later lives
// serve. A day later the process of that life wakes, with 50 PUTs in flight: it acknowledges
// none of them, though some succeed, and changes neither metadata nor what later lives hold.
func TestZombieWakesADayLater(t *testing.T) { synctest.Test(t, testZombieWakesADayLater) }

func testZombieWakesADayLater(t *testing.T) {
	const inflight = 50
	e := newEnv(t)
	f := e.faulty()
	cfg := e.config(WALObject)
	cfg.WALInflight, cfg.UploadInterval, cfg.CleanInterval, cfg.CompactionInterval = inflight, never, -1, -1
	cfg.MinorInterval, cfg.MajorInterval, cfg.CleanupInterval, cfg.LogCacheBytes = -1, -1, -1, 1<<20
	cfg.UploadBytes = 512 << 10
	zombie := e.open(cfg)
	streams := e.create(zombie, 2, 1)
	want := []string{"a", "b", "c"}
	appendAll(t, streams[0], want...)
	if err := zombie.upload.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if data, _ := e.walObjects(zombie.Node()); len(data) != 0 {
		t.Fatalf("the WAL holds %v after the upload", data)
	}
	// The process stops in the middle of 50 writes: half are not sent yet, the others have no answer.
	// The first is where the fence will be: what it finds ends the others, so it goes on after them.
	first := f.Hold(objectstore.Before, walPut(1))
	unsent := f.Hold(objectstore.Before, func(op objectstore.Op, key string) bool {
		_, _, seq, ok := parseWALKey(key)
		return ok && seq%2 == 1 && seq != 1
	})
	unanswered := f.Hold(objectstore.Before, func(op objectstore.Op, key string) bool {
		_, _, seq, ok := parseWALKey(key)
		return ok && seq%2 == 0
	})
	var late []<-chan error
	for i := range inflight {
		late = append(late, start(t, streams[i%2], big(fmt.Sprint("late-", i))))
	}
	synctest.Wait()

	e.bucket = e.memory
	sweeping := e.config(WALObject)
	sweeping.CleanInterval, sweeping.UploadInterval = time.Minute, time.Minute
	var life *Store
	for epoch := int64(2); epoch < 4; epoch++ { // the second recovers what the first left
		life = e.open(sweeping)
		st := e.reopen(life, OpenRequest{streams[0].ID(), epoch}, OpenRequest{streams[1].ID(), epoch})
		want = append(want, fmt.Sprint("life ", epoch))
		appendAll(t, st[0], want[len(want)-1])
		<-time.After(12 * time.Hour)
		if epoch == 2 {
			life.abandon()
		}
	}
	before := e.meta.describe()
	if data, fences := e.walObjects(zombie.Node()); len(data) != 0 || len(fences) != 1 {
		t.Fatalf("after a day the zombie's WAL holds data %v and fences %v, want a fence", data, fences)
	}

	unsent.Release(nil)
	synctest.Wait()
	first.Release(nil)
	unanswered.Release(errors.New("connection reset")) // tried again
	for i, c := range late {
		if err := <-c; !errors.Is(err, ErrNodeFenced) {
			t.Errorf("append %d of the zombie: %v, want it fenced", i, err)
		}
	}
	<-zombie.Fenced()
	if err := zombie.Err(); !errors.Is(err, ErrNodeFenced) {
		t.Errorf("the zombie says %v, want that it is fenced", err)
	}
	if err := e.meta.CommitUpload(t.Context(), zombie.Node(), Upload{WALEpoch: zombie.Node().Epoch}); !errors.Is(err, ErrNodeFenced) {
		t.Errorf("commit of the zombie: %v, want it fenced", err)
	}
	synctest.Wait()
	garbage, fences := e.walObjects(zombie.Node())
	if len(garbage) == 0 || len(fences) != 1 || garbage[0] < fences[0] {
		t.Errorf("the zombie left data %v around the fence %v, want some above it", garbage, fences)
	}
	if after := e.meta.describe(); after != before {
		t.Errorf("metadata before the zombie woke:\n%s\nand after:\n%s", before, after)
	}
	check := func(s *Store, epoch int64) {
		st := e.reopen(s, OpenRequest{streams[0].ID(), epoch}, OpenRequest{streams[1].ID(), epoch})
		want = append(want, fmt.Sprint("open ", epoch))
		appendAll(t, st[0], want[len(want)-1])
		if got := readAll(t, st[0]); !slices.Equal(got, want) {
			t.Errorf("stream 0 holds %q, want %q", got, want)
		}
		if got := readAll(t, st[1]); len(got) != 0 {
			t.Errorf("stream 1 holds %d records of the zombie, want none", len(got))
		}
	}
	check(life, 4)
	life.abandon()
	life = e.open(sweeping)
	check(life, 5)
	<-time.After(2 * time.Minute)
	if data, fences := e.walObjects(zombie.Node()); len(data) != 0 || len(fences) != 1 {
		t.Errorf("the next life's sweep left data %v and fences %v, want a fence", data, fences)
	}
	life.abandon()
}

// Objects of a life are numbered from 0 without a gap, under its node and epoch, and each is a create:
// nothing in the WAL is ever overwritten.
func TestWALObjectsAreDenseCreates(t *testing.T) {
	e := newEnv(t)
	var count objectstore.Counter
	e.bucket = objectstore.Observe(e.memory, &count)
	s := e.open(e.config(WALObject))
	st := e.create(s, 1, 1)[0]
	for i := range 5 {
		appendAll(t, st, fmt.Sprint(i))
	}
	page, err := e.memory.List(t.Context(), walPrefix, "")
	if err != nil || len(page) != 5 {
		t.Fatalf("%d objects, %v, want 5", len(page), err)
	}
	for i, o := range page {
		if want := walKey(1, s.Node().Epoch, uint64(i)); o.Key != want {
			t.Errorf("object %d is %s, want %s", i, o.Key, want)
		}
	}
	if creates, puts := count.Count(objectstore.OpPutIfAbsent), count.Count(objectstore.OpPut); creates != 5 || puts != 0 {
		t.Errorf("%d creates and %d plain PUTs, want 5 and none", creates, puts)
	}
}

// A store that refuses a create because another is under way is asked again, and the append succeeds.
func TestConflictIsRetried(t *testing.T) {
	e := newEnv(t)
	b := newSlowPuts(e.memory, 0)
	e.bucket = b
	s := e.open(e.config(WALObject))
	st := e.create(s, 1, 1)[0]
	b.set(func(_ string, try int) (time.Duration, time.Duration, error) {
		if try < 3 {
			return 0, 0, errors.New("409 ConditionalRequestConflict")
		}
		return 0, 0, nil
	})
	appendAll(t, st, "a")
	if n := b.requests(); n != 4 {
		t.Errorf("%d requests, want 4", n)
	}
	s.abandon()
	if _, got := e.takeOver(st, 2); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("got %q, want a once", got)
	}
}

// A taker raises the epoch in metadata before its first request: when the fence is put up, the
// earlier life can commit nothing any more.
func TestEpochIsRaisedBeforeTheFence(t *testing.T) {
	e := newEnv(t)
	old := e.open(e.config(WALObject))
	appendAll(t, e.create(old, 1, 1)[0], "a")
	f := e.faulty()
	hold := f.Hold(objectstore.Before, func(objectstore.Op, string) bool { return true })
	opened := make(chan error, 1)
	go func() {
		s, err := e.tryOpen(e.config(WALObject))
		if err == nil {
			s.abandon()
		}
		opened <- err
	}()
	<-hold.Reached()
	if err := old.upload.flush(t.Context()); !errors.Is(err, ErrNodeFenced) {
		t.Errorf("commit of the earlier life: %v, want it fenced", err)
	}
	hold.Release(nil)
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
}

// A taker that meets data where its fence should go, because the writer was faster, passes it and reads
// it: that record is acknowledged.
func TestFencePassesDataThatCameMeanwhile(t *testing.T) {
	e := newEnv(t)
	writer := e.open(e.config(WALObject))
	st := e.create(writer, 1, 1)[0]
	appendAll(t, st, "a", "b")
	data, _ := e.walObjects(writer.Node())
	f := e.faulty()
	fence := f.Hold(objectstore.Before, walPut(uint64(len(data))))
	opened := make(chan *Store, 1)
	go func() {
		s, err := e.tryOpen(e.config(WALObject))
		if err != nil {
			t.Error(err)
		}
		opened <- s
	}()
	<-fence.Reached() // it has listed the WAL
	appendAll(t, st, "meanwhile")
	fence.Release(nil)
	s := <-opened
	if s == nil {
		t.FailNow()
	}
	defer s.abandon()
	if _, fences := e.walObjects(writer.Node()); !slices.Equal(fences, []uint64{uint64(len(data)) + 1}) {
		t.Errorf("fences %v, want one behind %v and the object that came", fences, data)
	}
	if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, []string{"a", "b", "meanwhile"}) {
		t.Errorf("got %q, want the record that came meanwhile too", got)
	}
}

// A taker that meets what it does not understand where its fence should go ends with the reason: it
// can neither pass it nor fence.
func TestFenceMeetsWhatItDoesNotKnow(t *testing.T) {
	whole := bytes.Join(testBulk(0, []entry{{stream: &Stream{id: 1, epoch: 1}, batch: RecordBatch{Count: 1}}}).seal(Node{ID: 1, Epoch: 1}, nonce{9}), nil)
	for text, data := range map[string][]byte{
		"newer version":   ofVersion(whole, walVersion+1),
		"not a WAL":       bytes.Repeat([]byte("foreign "), 20),
		"header checksum": append([]byte("TWAL\x01\x01\x01"), whole[7:]...),
	} {
		e := newEnv(t)
		e.open(e.config(WALObject)).abandon()
		f := e.faulty()
		hold := f.Hold(objectstore.Before, walPut(0))
		opened := make(chan error, 1)
		go func() {
			s, err := e.tryOpen(e.config(WALObject))
			if err == nil {
				s.abandon()
			}
			opened <- err
		}()
		<-hold.Reached()
		key := walKey(1, 1, 0)
		if err := e.memory.Put(t.Context(), key, data); err != nil {
			t.Fatal(err)
		}
		hold.Release(nil)
		if err := <-opened; err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), key) {
			t.Errorf("%v, want an error that says %q and names %s", err, text, key)
		}
	}
}

// Of writes in flight some may be there and some not: what lies behind the first hole was never
// acknowledged, and is not recovered, by this takeover or by a later one that finds the fence.
func TestNothingBehindAHoleIsRecovered(t *testing.T) {
	e := newEnv(t)
	f := e.faulty()
	old := e.open(e.config(WALObject))
	st := e.create(old, 1, 1)[0]
	hole := f.Hold(objectstore.Before, walPut(2))
	above := f.Hold(objectstore.After, walPut(3))
	for i := range 2 {
		appendAll(t, st, big(fmt.Sprint(i)))
	}
	start(t, st, big("hole"))
	start(t, st, big("above"))
	<-hole.Reached()
	<-above.Reached()
	old.abandon()
	if data, _ := e.walObjects(old.Node()); !slices.Equal(data, []uint64{0, 1, 3}) {
		t.Fatalf("the WAL holds %v, want 0, 1 and 3", data)
	}
	died := errors.New("died")
	h := &hooked{MemoryManager: e.meta, streams: func() error { return died }}
	for range 2 {
		if _, err := Open(t.Context(), e.config(WALObject), 1, e.memory, h, h, old.log); !errors.Is(err, died) {
			t.Fatalf("opened: %v", err)
		}
	}
	if data, fences := e.walObjects(old.Node()); !slices.Equal(data, []uint64{0, 1, 3}) || !slices.Equal(fences, []uint64{2}) {
		t.Fatalf("two takeovers left data %v and fences %v, want 0, 1, 3 and 2", data, fences)
	}
	if _, got := e.takeOver(st, 2); !slices.Equal(got, []string{big("0"), big("1")}) {
		t.Fatalf("%d records recovered, want the two in front of the hole", len(got))
	}
}

// With everything trimmed a restart finds no data, and goes on with the offsets where they were.
func TestTrimmedWALGoesOn(t *testing.T) {
	bothWALs(t, func(t *testing.T, kind WALKind) {
		e := newEnv(t)
		s := e.open(e.config(kind))
		st := e.create(s, 1, 1)[0]
		var want []string
		for epoch := int64(1); epoch < 5; epoch++ {
			want = append(want, fmt.Sprint(epoch))
			appendAll(t, st, want[len(want)-1])
			if err := s.upload.flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			poll(t, "WAL trimmed", func() bool { data, _ := e.walObjects(s.Node()); return len(data) == 0 })
			s.abandon()
			s = e.open(e.config(kind))
			st = e.reopen(s, OpenRequest{st.ID(), epoch + 1})[0]
			if got := readAll(t, st); !slices.Equal(got, want) || st.NextOffset() != epoch {
				t.Fatalf("got %q and next offset %d, want %q and %d", got, st.NextOffset(), want, epoch)
			}
		}
	})
}

// A WAL of more objects than a listing shows at once is recovered, in memory and on S3.
func TestManyWALObjects(t *testing.T) {
	t.Run("memory", func(t *testing.T) { testManyWALObjects(t, newEnv(t), 2500) })
	t.Run("s3", func(t *testing.T) {
		endpoint, access, secret := lab.Versitygw(t)
		bucket, err := objectstore.NewS3(t.Context(), objectstore.S3Config{
			Bucket: "bucket", Region: lab.Region, Endpoint: endpoint, PathStyle: true,
			Credentials: credentials.NewStaticCredentialsProvider(access, secret, ""),
		})
		if err != nil {
			t.Fatal(err)
		}
		e := newEnv(t)
		e.bucket = bucket
		testManyWALObjects(t, e, 1200)
	})
}

func testManyWALObjects(t *testing.T, e *env, n int) {
	var count objectstore.Counter
	e.bucket = objectstore.Observe(e.bucket, &count)
	cfg := e.config(WALObject)
	cfg.WALBytes, cfg.UploadBytes, cfg.LogCacheBytes, cfg.WALInflight = 1<<10, 64<<20, 256<<20, 32
	s := e.open(cfg)
	st := e.create(s, 1, 1)[0]
	want := numbered("r", n, 1<<10) // a bulk each
	if err := appendTo(st, want); err != nil {
		t.Fatal(err)
	}
	s.abandon()
	if got := count.Count(objectstore.OpPutIfAbsent); got < int64(n) {
		t.Fatalf("%d WAL objects, want %d", got, n)
	}
	lists := count.Count(objectstore.OpList)
	s = e.open(cfg)
	if got := count.Count(objectstore.OpList) - lists; got < int64(n/objectstore.PageKeys+1) {
		t.Errorf("%d listings for %d objects: not more than one page was there", got, n)
	}
	if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, want) {
		t.Fatalf("%d records recovered, want %d", len(got), n)
	}
}

// A WAL object that is damaged, cut off, of a newer version or no WAL object at all is refused at the
// start, by name and with the reason; nothing is lost: with the right bytes put back the node starts.
func TestDamagedWALObjectIsRefused(t *testing.T) {
	e := newEnv(t)
	s := e.open(e.config(WALObject))
	st := e.create(s, 1, 1)[0]
	want := []string{"first", strings.Repeat("second", 50), "third"}
	for _, p := range want {
		appendAll(t, st, p)
	}
	s.abandon()
	key := walKey(1, s.Node().Epoch, 1)
	good, err := e.memory.Get(t.Context(), key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, damaged []byte, texts ...string) {
		t.Helper()
		if err := e.memory.Put(t.Context(), key, damaged); err != nil {
			t.Fatal(err)
		}
		s, err := e.tryOpen(e.config(WALObject))
		if err == nil {
			s.abandon()
			t.Fatalf("%s: opened", what)
		}
		for _, text := range append(texts, key) {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: error %q does not say %q", what, err, text)
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		at := r.IntN(len(good))
		flipped := slices.Clone(good)
		flipped[at] ^= 1 << r.IntN(8)
		refused(fmt.Sprint("bit flipped in byte ", at), flipped)
	}
	for range 50 {
		n := r.IntN(len(good))
		if n == walFenceSize {
			continue // would be taken for a fence by its size, which no bulk of data has
		}
		refused(fmt.Sprint("cut off at ", n), good[:n], ErrCorrupt.Error())
	}
	refused("bytes too many", append(slices.Clone(good), "more"...), ErrCorrupt.Error(), "4 bytes too many")
	refused("foreign object", bytes.Repeat([]byte("foreign "), 40), ErrCorrupt.Error(), `magic "fore"`, "not a WAL of this program")
	refused("newer version", ofVersion(good, walVersion+1), "newer", "start the program that wrote it")
	refused("record damaged before it was written", withRecord(good, func(rec []byte) { rec[4], rec[5], rec[6], rec[7] = 0, 0, 0, 0 }),
		ErrCorrupt.Error(), fmt.Sprintf("record at byte %d", walHeaderSize))
	refused("record of a later kind", withRecord(good, func(rec []byte) { rec[0] = 9 }), "newer", fmt.Sprintf("record at byte %d", walHeaderSize))
	if err := e.memory.Put(t.Context(), key, good); err != nil {
		t.Fatal(err)
	}
	if _, got := e.takeOver(st, 2); !slices.Equal(got, want) {
		t.Fatalf("with the object put back %d records, want %d", len(got), len(want))
	}
}

// ofVersion returns the bulk as a program of another version would have written it.
func ofVersion(bulk []byte, version byte) []byte {
	b := slices.Clone(bulk)
	b[4] = version
	return withChecksums(b)
}

// withRecord returns the bulk with its first record changed, and the checksums of the change.
func withRecord(bulk []byte, change func(rec []byte)) []byte {
	b := slices.Clone(bulk)
	change(b[walHeaderSize:])
	return withChecksums(b)
}

func withChecksums(b []byte) []byte {
	sum := func(n int) []byte {
		c := crc32c.Checksum(b[:n])
		return []byte{byte(c >> 24), byte(c >> 16), byte(c >> 8), byte(c)}
	}
	copy(b[walHeaderSize-4:], sum(walHeaderSize-4))
	copy(b[len(b)-8:], sum(len(b)-8))
	return b
}

// logged collects what is logged.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(io.Writer(l), nil)) }

// A takeover outlasts an object store that is busy for an hour, whichever of its requests is refused, or
// that is slow, and the log says what it waits for.
func TestTakeoverOutlastsBusyStore(t *testing.T) {
	for name, c := range map[string]struct {
		op   objectstore.Op
		what string
	}{
		"list":  {objectstore.OpList, "list WAL"},
		"fence": {objectstore.OpPutIfAbsent, "WAL not fenced"},
		"read":  {objectstore.OpGet, "read WAL"},
		"put":   {objectstore.OpPut, "put object"},
	} {
		for _, slow := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/slow=%v", name, slow), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := newEnv(t)
					s := e.open(e.config(WALObject))
					st := e.create(s, 1, 1)[0]
					appendAll(t, st, "a", "b")
					s.abandon()
					busy := &busyBucket{Bucket: e.memory, until: time.Now().Add(time.Hour), op: c.op, err: errors.New("503 SlowDown")}
					if slow {
						busy.err = nil
					}
					var log logged
					s, err := Open(t.Context(), e.config(WALObject), 1, busy, e.meta, e.meta, log.logger())
					if err != nil {
						t.Fatal(err)
					}
					if time.Now().Before(busy.until) {
						t.Error("opened while the store was busy")
					}
					want := c.what
					if slow {
						want = "still waiting: " + strings.ReplaceAll(c.what, "WAL not fenced", "fence WAL")
					}
					if !strings.Contains(log.String(), want) {
						t.Errorf("the log does not say %q:\n%.2000s", want, log.String())
					}
					if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, []string{"a", "b"}) {
						t.Errorf("got %q, want a and b", got)
					}
					s.abandon()
				})
			})
		}
	}
}

// A takeover that the object store refuses, as with wrong credentials, ends with the reason.
func TestTakeoverEndsWhenRefused(t *testing.T) {
	for _, op := range []objectstore.Op{objectstore.OpList, objectstore.OpPutIfAbsent, objectstore.OpGet} {
		e := newEnv(t)
		s := e.open(e.config(WALObject))
		appendAll(t, e.create(s, 1, 1)[0], "a")
		s.abandon()
		refusal := fmt.Errorf("%w: access to bucket b refused: check the credentials", objectstore.ErrRefused)
		e.bucket = &busyBucket{Bucket: e.memory, until: time.Now().Add(time.Hour), op: op, err: refusal}
		if s, err := e.tryOpen(e.config(WALObject)); !errors.Is(err, objectstore.ErrRefused) || !strings.Contains(err.Error(), "check the credentials") {
			t.Errorf("%s: %v, %v, want it refused", op, s, err)
		}
	}
}

// busyBucket fails one kind of request until a time, or lets it wait so long if err is nil.
type busyBucket struct {
	objectstore.Bucket
	until time.Time
	op    objectstore.Op
	err   error
}

func (b *busyBucket) busy(ctx context.Context, op objectstore.Op) error {
	if op != b.op || !time.Now().Before(b.until) {
		return nil
	}
	if b.err != nil {
		return b.err
	}
	return sleepFor(ctx, time.Until(b.until))
}

func (b *busyBucket) Put(ctx context.Context, key string, body ...[]byte) error {
	if err := b.busy(ctx, objectstore.OpPut); err != nil {
		return err
	}
	return b.Bucket.Put(ctx, key, body...)
}

func (b *busyBucket) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	if err := b.busy(ctx, objectstore.OpPutIfAbsent); err != nil {
		return err
	}
	return b.Bucket.PutIfAbsent(ctx, key, body...)
}

func (b *busyBucket) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := b.busy(ctx, objectstore.OpGet); err != nil {
		return nil, err
	}
	return b.Bucket.Get(ctx, key, off, n)
}

func (b *busyBucket) List(ctx context.Context, prefix, after string) ([]objectstore.Object, error) {
	if err := b.busy(ctx, objectstore.OpList); err != nil {
		return nil, err
	}
	return b.Bucket.List(ctx, prefix, after)
}
