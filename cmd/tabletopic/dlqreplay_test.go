package main

import (
	"encoding/json"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Of two replays at a time, the one whose marker comes second sees that of the first, and its own
// counts for nothing; so does a batch with a letter that is done.
func TestSecondReplayAtATimeIsVoid(t *testing.T) {
	s := &replays{done: map[int64]bool{}}
	tell := func(what string, b replay) {
		t.Helper()
		value, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.read(&kgo.Record{Value: value, Headers: []kgo.RecordHeader{{Key: headerReplay, Value: []byte(what)}}}); err != nil {
			t.Fatal(err)
		}
	}
	first, second := replay{Producer: 1, Letters: []int64{1, 2}}, replay{Producer: 2, Letters: []int64{3, 4}}
	tell(replayBegun, first)
	tell(replayBegun, second)
	if s.begun == nil || !s.begun.is(&first) {
		t.Fatalf("begun is %+v, want the first", s.begun)
	}
	tell(replayDone, first)
	if s.begun != nil || !s.any([]int64{2}) || s.any(second.Letters) {
		t.Fatalf("after the first: begun %+v, done %v", s.begun, s.done)
	}
	tell(replayBegun, replay{Producer: 3, Letters: []int64{2, 5}})
	if s.begun != nil {
		t.Fatalf("a batch with a letter that is done has begun: %+v", s.begun)
	}
	tell(replayBegun, second)
	if s.begun == nil || !s.begun.is(&second) {
		t.Fatalf("begun is %+v, want the second, in its turn", s.begun)
	}
}
