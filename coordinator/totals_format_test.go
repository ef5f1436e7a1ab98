package coordinator

import (
	"maps"
	"reflect"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/coordinator/control"
)

func exampleTotals() Position {
	p := examplePosition()
	p.Totals = map[int32]Total{0: {Begin: 10, Rows: 900, Dead: 3, Gaps: 20}, 2: {}, 130: {Begin: 5, Rows: 1 << 61}}
	p.Lost = []LostSpan{{0, 100, 120, LostRetention}, {130, 5, 1 << 40, LostRewind}}
	return p
}

// The totals of version 1 are read as they were written, and written the same.
func TestTotalsFormatV1(t *testing.T) {
	props := exampleTotals().properties(nil)
	maps.Copy(props, exampleTotals().totalsProperties(nil, nil))
	checkFixture(t, "v1/totals", props, exampleTotals())
}

// A flipped bit in the totals is a corruption error, and with 10,000 partitions no value is
// longer than a catalog keeps.
func TestTotalsAreCheckedAndBounded(t *testing.T) {
	small := exampleTotals()
	props := small.totalsProperties(nil, nil)
	for key, value := range props {
		for i := range value {
			bad := small.properties(nil)
			maps.Copy(bad, props)
			flipped := []byte(value)
			flipped[i] ^= 1
			bad[key] = string(flipped)
			if got, _, err := ReadPosition(bad); err == nil {
				t.Fatalf("%s with byte %d flipped is read as %+v", key, i, got)
			}
		}
	}
	large := Position{Topic: topicID, Epoch: 1, Sequence: 1 << 62, Commit: commitID, Next: map[int32]int64{}, Totals: map[int32]Total{}}
	for i := range int32(10_000) {
		large.Next[i] = 1 << 62
		large.Totals[i] = Total{1 << 62, 1 << 62, 1 << 62, 1 << 62}
		large.Lost = append(large.Lost, LostSpan{i, 1 << 61, 1 << 62, LostRewind})
	}
	all := large.properties(nil)
	maps.Copy(all, large.totalsProperties(nil, nil))
	for key, value := range all {
		if len(value) > maxValue {
			t.Errorf("%s has %d bytes, want at most %d", key, len(value), maxValue)
		}
	}
	if got, _, err := ReadPosition(all); err != nil || !reflect.DeepEqual(got, large) {
		t.Errorf("10,000 partitions are not read as they were written: %v", err)
	}
	if moved := large.totalsProperties([]int32{5}, large.Lost); len(moved) != 1 {
		t.Errorf("a commit that moves one partition sets %d values of totals, want 1", len(moved))
	}
}

// Totals go on from commit to commit, begin anew behind a rewind, and count nothing of an
// earlier topic; lost offsets stay told until they are read again.
func TestTotalsGoOn(t *testing.T) {
	commit := func(r control.Range) *Commit {
		return &Commit{ID: uuid.New(), Ranges: []control.Range{r}, Files: []control.File{{Ranges: []control.Range{r}}}}
	}
	read := func(p Position, v view, moved []int32, before iceberg.Properties) Position {
		t.Helper()
		props := maps.Clone(before)
		maps.Copy(props, p.properties(moved))
		maps.Copy(props, p.totalsProperties(moved, v.position.Lost))
		got, _, err := ReadPosition(props)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(before, props)
		return got
	}
	props := iceberg.Properties{}
	step := func(v view, r control.Range, moved []int32) Position {
		p := Position{Topic: topicID, Sequence: v.position.Sequence + 1, Commit: commitID, Next: maps.Clone(v.next)}
		p.Next[r.Partition] = r.End
		p.count(v, commit(r))
		return read(p, v, moved, props)
	}
	at := step(view{next: map[int32]int64{}, rewrite: true}, control.Range{Partition: 0, Start: 5, End: 15, Rows: 8, Dead: 1}, nil)
	at = step(view{position: at, own: true, next: at.Next}, control.Range{Partition: 0, Start: 25, End: 30, Gap: 10, Rows: 5}, []int32{0})
	if want := (Total{5, 13, 1, 10}); at.Totals[0] != want {
		t.Errorf("totals %+v, want %+v", at.Totals[0], want)
	}
	at = step(view{position: at, own: true, next: at.Next}, control.Range{Partition: 40, Start: 0, End: 1, Rows: 1}, []int32{40})
	// A rollback to before the gap, replayed: it will be met again.
	back := view{position: at, own: true, rewrite: true, next: map[int32]int64{0: 15, 40: 0}}
	at = step(back, control.Range{Partition: 0, Start: 15, End: 30, Rows: 15}, nil)
	if want := (Total{15, 15, 0, 0}); at.Totals[0] != want || len(at.Totals) != 1 || len(at.Lost) != 0 {
		t.Errorf("after a replay: %+v, lost %v, want %+v", at.Totals, at.Lost, want)
	}
	at = step(view{position: at, own: true, rewrite: true, next: at.Next, accepted: []LostSpan{{0, 20, 30, LostRewind}}}, control.Range{Partition: 0, Start: 30, End: 31, Rows: 1}, nil)
	if want := []LostSpan{{0, 20, 30, LostRewind}}; !reflect.DeepEqual(at.Lost, want) || at.Totals[0] != (Total{30, 1, 0, 0}) {
		t.Errorf("after an accepted rewind: %+v, lost %v, want %v", at.Totals, at.Lost, want)
	}
}
