package streamstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
)

// onlyWAL are the settings of a store whose background work makes no request.
func onlyWAL() Config {
	return Config{CleanInterval: -1, CompactionInterval: -1, MinorInterval: -1, MajorInterval: -1, CleanupInterval: -1}
}

// An idle node answers within 10 ms and the time of the request.
func TestIdleNodeAnswersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.bucket = newSlowPuts(e.memory, usualPut)
		s := e.open(onlyWAL())
		st := e.create(s, 1, 1)[0]
		for range 3 {
			<-time.After(time.Second)
			began := time.Now()
			appendAll(t, st, "idle")
			if took := time.Since(began); took != 10*time.Millisecond+usualPut {
				t.Errorf("an idle node took %v, want 10 ms and %v", took, usualPut)
			}
		}
		s.abandon()
	})
}

// A producer that awaits each answer before it sends on waits for the request and half the
// linger, the longest of it for the request alone when that takes long.
func TestLatencyOfSynchronousProducer(t *testing.T) {
	for _, put := range []time.Duration{5 * time.Millisecond, 30 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			e := newEnv(t)
			e.bucket = newSlowPuts(e.memory, put)
			s := e.open(onlyWAL())
			st := e.create(s, 1, 1)[0]
			appendAll(t, st, "first")
			const n = 20
			began := time.Now()
			for range n {
				appendAll(t, st, "next")
			}
			took := time.Since(began) / n
			if limit := put + s.cfg.WALLinger/2; took > limit || took < put {
				t.Errorf("PUT of %v: %v for an append, want at most %v", put, took, limit)
			}
			s.abandon()
		})
	}
}

// What a trickle costs in requests: bulks are the linger apart by default. A longer linger of the idle
// node makes them rarer while it takes less than 1 MiB/s, and changes nothing when it takes more.
func TestRequestsPerMinute(t *testing.T) {
	for _, c := range []struct {
		name       string
		idleLinger time.Duration
		size       int           // of an append
		every      time.Duration // comes one
		min, max   int64
	}{
		{"trickle", 0, 100, time.Millisecond, 235, 245},
		{"trickle, idle linger 1 s", time.Second, 100, time.Millisecond, 58, 61},
		{"one in 2 s", 0, 100, 2 * time.Second, 29, 31},
		{"one in 2 s, idle linger 5 s", 5 * time.Second, 100, 2 * time.Second, 9, 11},
		{"2 MiB/s", 0, 20 << 10, 10 * time.Millisecond, 235, 245},
		{"2 MiB/s, idle linger 5 s", 5 * time.Second, 20 << 10, 10 * time.Millisecond, 230, 245},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := newEnv(t)
			var count objectstore.Counter
			e.bucket = objectstore.Observe(newSlowPuts(e.memory, usualPut), &count)
			cfg := onlyWAL()
			cfg.WALIdleLinger = c.idleLinger
			s := e.open(cfg)
			st := e.create(s, 1, 1)[0]
			send := func(d time.Duration) {
				for end := time.Now().Add(d); time.Now().Before(end); {
					if _, err := st.Append(context.Background(), RecordBatch{Count: 1, MaxTimestamp: -1, Payload: make([]byte, c.size)}, func(error) {}); err != nil {
						t.Fatal(err)
					}
					<-time.After(c.every)
				}
			}
			send(10 * time.Second)
			before := count.Count(objectstore.OpPutIfAbsent)
			send(time.Minute)
			n := count.Count(objectstore.OpPutIfAbsent) - before
			t.Logf("%s: %d WAL objects a minute", c.name, n)
			if n < c.min || n > c.max {
				t.Errorf("%s: %d WAL objects a minute, want %d to %d", c.name, n, c.min, c.max)
			}
			s.abandon()
		})
	}
}

// Settings of the WAL that cannot work are refused, with the name of the setting.
func TestWALConfigRefuses(t *testing.T) {
	for name, cfg := range map[string]Config{
		"WALIdleLinger":    {WALIdleLinger: time.Minute},
		"WALInflight":      {WALInflight: -1},
		"WALHedgeInflight": {WALHedgeInflight: -1},
		"WALHedgePercent":  {WALHedgePercent: -1},
	} {
		if _, err := newEnv(t).tryOpen(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want an error that names %s", err, name)
		}
	}
}

// The latency of an append does not depend on uploads or compactions that are under way: all other
// requests of the store hang, and it is what it was.
func TestUploadsDoNotStallAppends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		f := objectstore.NewFaulty(newSlowPuts(e.memory, usualPut), objectstore.Faults{})
		e.bucket = f
		cfg := Config{UploadBytes: 64 << 10, UploadInterval: time.Second, CompactionInterval: time.Second, CleanInterval: time.Second}
		s := e.open(cfg)
		streams := e.create(s, 2, 1)
		latency := func() time.Duration {
			<-time.After(time.Second)
			began := time.Now()
			appendAll(t, streams[0], strings.Repeat("x", 10<<10))
			return time.Since(began)
		}
		want := latency()
		for range 20 { // something to compact
			appendAll(t, streams[1], "y")
			if got := latency(); got != want {
				t.Fatalf("an append took %v, want %v", got, want)
			}
		}
		hold := f.Hold(objectstore.Before, func(op objectstore.Op, key string) bool { return op != objectstore.OpPutIfAbsent })
		for range 100 {
			if got := latency(); got != want {
				t.Fatalf("an append took %v while uploads and compaction hang, want %v", got, want)
			}
		}
		<-hold.Reached()
		hold.Release(nil)
		s.abandon()
	})
}

// A burst with every place for an upload taken waits, for as long as it takes, and nothing
// of it fails or is lost.
func TestBurstWaitsForUploads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		f := e.faulty()
		cfg := e.config(WALObject)
		cfg.UploadInflight = 2
		s := e.open(cfg)
		streams := e.create(s, 4, 1)
		hold := f.Hold(objectstore.Before, isDataPut)
		var want [4][]string
		finished := make(chan error, len(streams))
		for i, st := range streams {
			want[i] = numbered("burst", 500, 1000) // 2 MB, 16 times the log cache
			go func() { finished <- appendTo(st, want[i]) }()
		}
		<-hold.Reached()
		<-time.After(time.Hour)
		select {
		case err := <-finished:
			t.Fatalf("a burst beyond the log cache ended while no upload does: %v", err)
		default:
		}
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		hold.Release(nil)
		for range streams {
			if err := <-finished; err != nil {
				t.Fatal(err)
			}
		}
		for i, st := range streams {
			if got := readAll(t, st); !slices.Equal(got, want[i]) {
				t.Errorf("stream %d: %d records, want %d", i, len(got), len(want[i]))
			}
		}
		s.abandon()
	})
}

// appendTo appends payloads and returns when all are durable, or with the first error.
func appendTo(st *Stream, payloads []string) error {
	errs := make(chan error, len(payloads))
	for _, p := range payloads {
		if _, err := st.Append(context.Background(), RecordBatch{Count: 1, MaxTimestamp: -1, Payload: []byte(p)}, func(err error) { errs <- err }); err != nil {
			return err
		}
	}
	var failed error
	for range payloads {
		failed = errors.Join(failed, <-errs)
	}
	return failed
}
