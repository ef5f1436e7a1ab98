package txn

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/partition"
)

// Whatever transactional ids strangers ask for, what they take in memory stays within its bound, and they are told so. Those
// that were there before go on: they begin anew, and have transactions. Ids that expire make room.
func TestMemoryOfTransactionalIDsIsBounded(t *testing.T) {
	const bound = 1 << 20
	s := NewState(Config{MemoryBytes: bound, Partitions: 1})
	now := time.Unix(1000, 0)
	apply := func(step shard.Step) Result {
		t.Helper()
		for _, r := range step.Records {
			if err := s.Replay(r); err != nil {
				t.Fatal(err)
			}
		}
		recount := int64(0)
		for _, t := range s.txns {
			recount += t.bytes()
		}
		if s.bytes != recount {
			t.Fatalf("%d bytes are counted, of %d", s.bytes, recount)
		}
		for _, a := range step.Answers {
			return a.Value.(Result)
		}
		return Result{}
	}
	begin := func(id string) Result { return apply(s.Init(now, 1, id, time.Minute, nobody, int64(len(s.txns)))) }
	own := begin("own")
	n := 0
	for ; ; n++ {
		if n > bound/idBytes {
			t.Fatalf("%d ids in %d bytes", n, bound)
		}
		if r := begin(fmt.Sprint("stranger-", n)); r.Err != nil {
			if r.Err != kerr.PolicyViolation {
				t.Errorf("a stranger too much: %v", r.Err)
			}
			break
		}
	}
	if again := begin("own"); again.Err != nil {
		t.Errorf("an id that was there: %v", again.Err)
	} else {
		own = again
	}
	add := func(p Identity, topic string, partitions int) *kerr.Error {
		var ids []partition.ID
		for i := range partitions {
			ids = append(ids, partition.ID{Topic: topic, Index: int32(i)})
		}
		return apply(s.Add(now, 2, "own", p, ids, 1)).Err
	}
	if err := add(own.Identity, "t", 100); err != nil {
		t.Errorf("a transaction of an id that was there: %v", err)
	}
	if err := add(own.Identity, "u", 9000); err != kerr.PolicyViolation {
		t.Errorf("a transaction of too many partitions: %v", err)
	}
	if s.bytes > bound || s.refusals != 2 {
		t.Errorf("ids take %d bytes of %d, %d refusals", s.bytes, bound, s.refusals)
	}
	if r := apply(s.End(now, 3, "own", own.Identity, true, 1, 0)); r.Err != nil {
		t.Errorf("the end of the transaction: %v", r.Err)
	}
	apply(s.Complete(now, 4, s.txns["own"].decision()))
	now = now.Add(8 * 24 * time.Hour)
	apply(s.Tick(now))
	if len(s.txns) != 0 || s.bytes != 0 {
		t.Errorf("%d ids of %d bytes after all have expired", len(s.txns), s.bytes)
	}
	if r := begin("stranger"); r.Err != nil {
		t.Errorf("after all have expired: %v", r.Err)
	}
}

// What is counted is about what the heap has: half of it at least, twice as much at most.
func TestMemoryOfTransactionalIDsIsCountedAsItIs(t *testing.T) {
	for name, partitions := range map[string]int{"ids": 0, "transactions": 100} {
		t.Run(name, func(t *testing.T) {
			s := NewState(Config{MemoryBytes: 1 << 40})
			before := lab.Heap()
			for i := range 20_000 / (1 + partitions/5) {
				x := transaction{id: fmt.Sprint("id-", i), phase: ongoing, partitions: map[partition.ID]bool{}}
				for p := range partitions {
					x.partitions[partition.ID{Topic: "topic", Index: int32(p)}] = true
				}
				if err := s.Replay(x.record(time.Unix(1000, 0))); err != nil {
					t.Fatal(err)
				}
			}
			got := lab.Heap() - before
			if s.bytes < got/2 || s.bytes > 2*got {
				t.Errorf("%d bytes are counted, the heap has %d more", s.bytes, got)
			} else {
				t.Logf("%d bytes are counted, the heap has %d more", s.bytes, got)
			}
			runtime.KeepAlive(s)
		})
	}
}
