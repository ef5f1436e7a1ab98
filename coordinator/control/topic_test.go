package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

func openTopic(t *testing.T, partitions int) *Topic {
	t.Helper()
	ctx, log := context.Background(), slog.New(slog.DiscardHandler)
	meta, err := metadata.Open(ctx, "sqlite::memory:", log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meta.Close() })
	store, err := streamstore.Open(ctx, streamstore.Config{WALLinger: time.Millisecond}, 1, objectstore.NewMemory(), meta, meta, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close(ctx) })
	set, err := partition.OpenSet(ctx, partition.Config{}, store, meta, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close(ctx) })
	topic, err := OpenTopic(ctx, set, partitions)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// Each tail gets every event of its topic, once and in order, however the events of several
// topics alternate in one partition and however far behind a tail is.
func TestTailsGetTheirOwnEvents(t *testing.T) {
	log := openTopic(t, 1)
	const events = 200
	var all sync.WaitGroup
	for range 4 {
		topic := uuid.New()
		for range 2 {
			tail, err := log.Tail(topic)
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				defer tail.Close()
				for i := range events {
					e, err := tail.Next(t.Context())
					if err != nil {
						t.Errorf("event %d: %v", i, err)
						return
					}
					if n, ok := e.(Needed); !ok || n.Writer.Schema != int32(i) {
						t.Errorf("event %d is %#v", i, e)
						return
					}
				}
			})
		}
		all.Go(func() {
			for i := 0; i < events; i += 2 { // two at a time: the second is not where the tail was told to look
				if err := log.Append(t.Context(), topic, Needed{Writer{Schema: int32(i)}}, Needed{Writer{Schema: int32(i + 1)}}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if n := len(log.hubs.open); n != 0 {
		t.Errorf("%d hubs outlive their tails", n)
	}
}

// A tail that was told of an event takes all that came since, not only the last.
func TestTailRemembersTheFirstEvent(t *testing.T) {
	log := openTopic(t, 1)
	topic := uuid.New()
	tail, err := log.Tail(topic)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Close()
	for i := range 3 {
		if err := log.Append(t.Context(), topic, Needed{Writer{Schema: int32(i)}}); err != nil {
			t.Fatal(err)
		}
		for !seen(tail.(*topicTail)) { // before the next is appended
			<-tail.(*topicTail).moved
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 3 {
		if e, err := tail.Next(ctx); err != nil || e.(Needed).Writer.Schema != int32(i) {
			t.Fatalf("event %d: %#v %v", i, e, err)
		}
	}
}

func seen(r *topicTail) bool {
	r.member.hub.mu.Lock()
	defer r.member.hub.mu.Unlock()
	return r.member.hub.seen == r.p.Offsets().HighWatermark
}

// A tail that has not read what the log lost is told so, and begins behind it when it is opened again.
func TestTailThatFellBehindIsTold(t *testing.T) {
	log := openTopic(t, 1)
	topic := uuid.New()
	tail, err := log.Tail(topic)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Close()
	for i := range 3 {
		if err := log.Append(t.Context(), topic, Needed{Writer{Schema: int32(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if e, err := tail.Next(t.Context()); err != nil || e.(Needed).Writer.Schema != 0 {
		t.Fatalf("event 0: %#v %v", e, err)
	}
	p := tail.(*topicTail).p
	if _, err := p.DeleteRecords(t.Context(), p.Offsets().HighWatermark); err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		e, err := tail.Next(t.Context())
		if errors.Is(err, ErrLost) {
			break
		}
		if n == 10 {
			t.Fatalf("after %d events that the log let go the tail was not told", n)
		}
		if err != nil || e.(Needed).Writer.Schema > 2 {
			t.Fatalf("%#v %v, want %v", e, err, ErrLost)
		}
		if err := log.Append(t.Context(), topic, Needed{Writer{Schema: 2}}); err != nil { // what was read already is given first
			t.Fatal(err)
		}
		if _, err := p.DeleteRecords(t.Context(), p.Offsets().HighWatermark); err != nil {
			t.Fatal(err)
		}
	}
	again, err := log.Tail(topic)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := log.Append(t.Context(), topic, Needed{Writer{Schema: 7}}); err != nil {
		t.Fatal(err)
	}
	if e, err := again.Next(t.Context()); err != nil || e.(Needed).Writer.Schema != 7 {
		t.Fatalf("behind what was lost: %#v %v", e, err)
	}
}

// Events of other topics do not wake a tail: they cost it nothing.
func TestTailSleepsWhileOthersTalk(t *testing.T) {
	log := openTopic(t, 1)
	quiet, loud := uuid.New(), uuid.New()
	tail, err := log.Tail(quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Close()
	heard, err := log.Tail(loud)
	if err != nil {
		t.Fatal(err)
	}
	defer heard.Close()
	for i := range 50 {
		if err := log.Append(t.Context(), loud, Needed{Writer{Schema: int32(i)}}); err != nil {
			t.Fatal(err)
		}
		if _, err := heard.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if from, until, err := tail.(*topicTail).member.take(); from != until || err != nil {
		t.Errorf("the tail of another topic is to read %d to %d, %v", from, until, err)
	}
	if len(tail.(*topicTail).moved) != 0 {
		t.Error("the tail of another topic was woken")
	}
}

// A scan of a control partition sees each entry, of however many topics long ones are on their way at a time. The sweep
// would take the files of one that it misses for dead.
func TestScanSeesLongEventsOfManyTopics(t *testing.T) {
	log := openTopic(t, 1)
	const topics = maxOpen + 1
	var first, second []record.Record
	for i := range topics {
		topic := uuid.New()
		names := make([]string, 8000)
		for j := range names {
			names[j] = fmt.Sprintf("s3://bucket/warehouse/namespace/table/data/%s/%d-%d.parquet", topic, i, j)
		}
		parts, err := split(uuid.New(), Journal{At: time.Now(), Names: names})
		if err != nil || len(parts) != 2 {
			t.Fatal(len(parts), err)
		}
		first = append(first, record.Record{Key: topic[:], Value: appendPart(nil, parts[0])})
		second = append(second, record.Record{Key: topic[:], Value: appendPart(nil, parts[1])})
	}
	for _, r := range append(first, second...) {
		if err := log.append(t.Context(), 0, []record.Record{r}); err != nil {
			t.Fatal(err)
		}
	}
	seen := 0
	if _, err := log.Scan(t.Context(), 0, 0, func(uuid.UUID, int64, Event) error { seen++; return nil }); err != nil {
		t.Fatal(err)
	}
	if seen != topics {
		t.Errorf("%d of %d entries are seen", seen, topics)
	}
}
