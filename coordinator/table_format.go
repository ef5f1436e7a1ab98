package coordinator

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
)

// What a table says of its topic. This is the contract of the table: it is what recovery,
// `tabletopic table verify` and readers of table and tail rely on.
//
// Properties of the table, set in the same change as the snapshot that they describe:
//
//	tabletopic.topic       name of the topic, for the way back from table to topic
//	tabletopic.state       the last data commit
//	tabletopic.offsets.N   next offsets of the partitions 128 N to 128 N + 127
//	tabletopic.totals.N    what all commits have done, see totals_format.go
//	tabletopic.lost.N      offsets of which no commit tells, see there
//	tabletopic.heads       snapshots that hold the last data commit, see heads_format.go
//	tabletopic.mapping     version and choices of the type mapping, see parquetio.Rules
//	tabletopic.probe       "ok" after the catalog proved that it keeps properties
//	tabletopic.fan.out     which records of a topic with several tables it has: those of a type, by its
//	                       name, or "*,type,…" for those of other types than these, which have or had
//	                       tables of their own; it stays when there is one table again
//
// Their values are text of at most 3,500 bytes (a Hive metastore keeps 4,000), fields between
// semicolons, the CRC-32C of the text up to and with the last semicolon at the end:
//
//	state    ┌───┬──────────┬───────┬──────────┬───────────┬─────┐
//	         │ 1 │ topic id │ epoch │ sequence │ commit id │ crc │
//	         └───┴──────────┴───────┴──────────┴───────────┴─────┘
//	offsets  ┌───┬──────────┬──────────┬─────────────────────────┬─────┐
//	         │ 1 │ topic id │ sequence │ next,next,…  "-": none  │ crc │
//	         └───┴──────────┴──────────┴─────────────────────────┴─────┘
//
// The sequence is the sequence number of the snapshot that the change made. An offsets
// property of another topic id than the state's is what an earlier topic of the same name
// left, and counts for nothing.
//
// Summary of a data snapshot, the lists in as many properties of 3,500 bytes as they need:
//
//	tabletopic.topic.id    the topic's id
//	tabletopic.epoch       the coordinator's epoch
//	tabletopic.commit.id   the commit's id
//	tabletopic.ranges.N    partition:start-end:rows:dead, …  what the commit covers
//	tabletopic.gaps.N      partition:start-end, …  offsets that the log had lost before they were read
//	tabletopic.before.N    partition:start-end, …  offsets before the start of the table, by table.topic.start
//	tabletopic.accepted.N  partition:start-end, …  offsets whose rows a user removed by a rollback, and table.topic.on.rewind=accept
//
// The summary of a snapshot that made large files of small ones has tabletopic.compaction, the
// coordinator's epoch. Its change sets tabletopic.heads and no other property: nothing was added.
//
// Of a table for a type of records the topic is the [partition.Route], TOPIC:RECORD with an id of its own. What
// a commit counts as dead are all records that became no rows: dead letters, those that settings leave
// out, and those of other tables of the topic.
//
// Versions: 1, the first.
const (
	keyTopic    = "tabletopic.topic"
	keyState    = "tabletopic.state"
	keyOffsets  = "tabletopic.offsets."
	keyProbe    = "tabletopic.probe"
	keyMapping  = parquetio.MappingProperty
	keyFanOut   = "tabletopic.fan.out"
	keyTopicID  = "tabletopic.topic.id"
	keyEpoch    = "tabletopic.epoch"
	keyCommitID = "tabletopic.commit.id"
	keyRanges   = "tabletopic.ranges."
	keyGaps     = "tabletopic.gaps."
	keyAccepted = "tabletopic.accepted."
	keyBefore   = "tabletopic.before."

	keyCompaction = "tabletopic.compaction"

	tableVersion       = "1"
	partitionsPerValue = 128
	maxValue           = 3500
)

// ErrCorruptTable says that the properties of a table cannot be what was written.
var ErrCorruptTable = errors.New("corrupt table properties")

// Position is how far a table is, as its properties say.
type Position struct {
	Topic    uuid.UUID // the incarnation of the topic
	Epoch    int32     // of the coordinator that made the last data commit
	Sequence int64     // sequence number of its snapshot
	Commit   uuid.UUID
	Next     map[int32]int64 // by partition; absent if none was begun
	Totals   map[int32]Total // by partition; absent if not counted yet
	Lost     []LostSpan
	Heads    []int64 // ids of snapshots that hold that commit; none of a table that an earlier release committed
}

// ReadPosition returns the position of a table, and false if it never had a data commit.
func ReadPosition(props iceberg.Properties) (Position, bool, error) {
	state, ok := props[keyState]
	if !ok {
		return Position{}, false, nil
	}
	p, err := parseState(state)
	if err != nil {
		return Position{}, false, fmt.Errorf("%s: %w", keyState, err)
	}
	p.Next = map[int32]int64{}
	if err := p.eachItem(props, keyOffsets, partitionsPerValue, func(i int32, item string) error {
		next, err := strconv.ParseInt(item, 10, 64)
		if err != nil || next < 0 {
			return fmt.Errorf("%w: offset %q", ErrCorruptTable, item)
		}
		p.Next[i] = next
		return nil
	}); err != nil {
		return Position{}, false, err
	}
	if err := p.readTotals(props); err != nil {
		return Position{}, false, err
	}
	if err := p.readHeads(props); err != nil {
		return Position{}, false, err
	}
	return p, true, nil
}

// takesProperty returns the value of tabletopic.fan.out of a table that takes what the settings say and had
// the value before. Of types that had tables those that do not fit are forgotten, the first to come first.
func takesProperty(had, takes string) string {
	types, others := strings.CutPrefix(takes, partition.TakesOthers+",")
	if !others {
		return takes
	}
	now := strings.Split(types, ",")
	all := append(slices.DeleteFunc(elsewhere(had), func(t string) bool { return slices.Contains(now, t) }), now...)
	for len(all) > 0 && len(partition.TakesOthers)+1+len(strings.Join(all, ",")) > maxValue {
		all = all[1:]
	}
	return strings.Join(append([]string{partition.TakesOthers}, all...), ",")
}

// elsewhere returns the types of records in a value of tabletopic.fan.out that have or had other tables.
func elsewhere(value string) []string {
	types, others := strings.CutPrefix(value, partition.TakesOthers+",")
	if !others {
		return nil
	}
	return strings.Split(types, ",")
}

// Elsewhere returns the types of records of the topic that have, or had, tables of their own beside t.
func Elsewhere(t *table.Table) []string { return elsewhere(t.Properties()[keyFanOut]) }

// state is the value of tabletopic.state.
func (p Position) state() string {
	return withSum(fmt.Sprintf("%s;%s;%d;%d;%s;", tableVersion, p.Topic, p.Epoch, p.Sequence, p.Commit))
}

func parseState(value string) (p Position, err error) {
	f, err := fields(value, 5)
	if err != nil {
		return Position{}, err
	}
	epoch, err1 := strconv.ParseInt(f[2], 10, 32)
	seq, err2 := strconv.ParseInt(f[3], 10, 64)
	topic, err3 := uuid.Parse(f[1])
	commit, err4 := uuid.Parse(f[4])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return Position{}, fmt.Errorf("%w: %w", ErrCorruptTable, err)
	}
	return Position{Topic: topic, Epoch: int32(epoch), Sequence: seq, Commit: commit}, nil
}

// properties returns what a commit sets so that the table says p: the state, and the
// offsets of the chunks that hold one of the moved partitions, or all if moved is nil.
func (p Position) properties(moved []int32) iceberg.Properties {
	props := iceberg.Properties{keyState: p.state()}
	if len(p.Heads) > 0 {
		props[keyHeads] = p.headsProperty()
	}
	p.chunks(props, keyOffsets, partitionsPerValue, moved, func(first int32) string {
		all := items(first, partitionsPerValue, func(i int32) string {
			if next, ok := p.Next[i]; ok {
				return strconv.FormatInt(next, 10)
			}
			return ""
		})
		return strings.TrimRight(all, ",-") // up to the last that was begun
	})
	return props
}

// Summary is what the summary of a data snapshot says.
type Summary struct {
	Topic  uuid.UUID
	Epoch  int32
	Commit uuid.UUID
	Ranges []control.Range // without Gap
	Lost   []LostSpan      // those of retention first
}

func (s Summary) properties() iceberg.Properties {
	props := iceberg.Properties{
		keyTopicID:  s.Topic.String(),
		keyEpoch:    strconv.Itoa(int(s.Epoch)),
		keyCommitID: s.Commit.String(),
	}
	ranges := make([]string, len(s.Ranges))
	for i, r := range s.Ranges {
		ranges[i] = fmt.Sprintf("%d:%d-%d:%d:%d", r.Partition, r.Start, r.End, r.Rows, r.Dead)
	}
	pack(props, keyRanges, ranges)
	for _, k := range lostKeys {
		var spans []string
		for _, l := range s.Lost {
			if l.Reason == k.reason {
				spans = append(spans, fmt.Sprintf("%d:%d-%d", l.Partition, l.Start, l.End))
			}
		}
		pack(props, k.prefix, spans)
	}
	return props
}

// lostKeys are the properties of a summary that tell of lost offsets.
var lostKeys = []struct{ prefix, reason string }{{keyGaps, LostRetention}, {keyAccepted, LostRewind}, {keyBefore, LostStart}}

// pack spreads items over properties of at most maxValue bytes.
func pack(props iceberg.Properties, prefix string, items []string) {
	for n, list := range lists(items, maxValue) {
		props[prefix+strconv.Itoa(n)] = list
	}
}

func unpack(props iceberg.Properties, prefix string) (items []string) {
	for n := 0; ; n++ {
		v, ok := props[prefix+strconv.Itoa(n)]
		if !ok {
			return items
		}
		items = append(items, strings.Split(v, ",")...)
	}
}

// ReadSummary returns what the summary of a snapshot says of the topic, and false if it is
// not one of ours.
func ReadSummary(props iceberg.Properties) (s Summary, ok bool, err error) {
	if props[keyCommitID] == "" {
		return Summary{}, false, nil
	}
	epoch, err1 := strconv.ParseInt(props[keyEpoch], 10, 32)
	topic, err2 := uuid.Parse(props[keyTopicID])
	commit, err3 := uuid.Parse(props[keyCommitID])
	if err := errors.Join(err1, err2, err3); err != nil {
		return Summary{}, false, fmt.Errorf("%w: snapshot summary: %w", ErrCorruptTable, err)
	}
	s = Summary{Topic: topic, Epoch: int32(epoch), Commit: commit}
	for _, item := range unpack(props, keyRanges) {
		var r control.Range
		if err := scan(item, "%d:%d-%d:%d:%d", &r.Partition, &r.Start, &r.End, &r.Rows, &r.Dead); err != nil {
			return Summary{}, false, err
		}
		s.Ranges = append(s.Ranges, r)
	}
	for _, k := range lostKeys {
		for _, item := range unpack(props, k.prefix) {
			l := LostSpan{Reason: k.reason}
			if err := scan(item, "%d:%d-%d", &l.Partition, &l.Start, &l.End); err != nil {
				return Summary{}, false, err
			}
			s.Lost = append(s.Lost, l)
		}
	}
	return s, true, nil
}

func scan(item, format string, args ...any) error {
	var rest string
	if n, _ := fmt.Sscanf(item, format+"%s", append(args, &rest)...); n != len(args) {
		return fmt.Errorf("%w: snapshot summary: %q", ErrCorruptTable, item)
	}
	return nil
}

// DumpProperties writes what a table's properties, or a snapshot's summary, say of the
// topic as annotated text.
func DumpProperties(w io.Writer, props iceberg.Properties) error {
	p, ok, err := ReadPosition(props)
	if err != nil {
		return err
	}
	if ok {
		fmt.Fprintf(w, "table of topic %q, id %s\n", props[keyTopic], p.Topic)
		fmt.Fprintf(w, "last commit %s, epoch %d, snapshot sequence %d\n", p.Commit, p.Epoch, p.Sequence)
		if takes, shared := props[keyFanOut]; shared {
			fmt.Fprintf(w, "it has the records of type %s of its topic\n", takes)
		}
		if len(p.Heads) > 0 {
			fmt.Fprintf(w, "snapshots that hold it: %d\n", p.Heads)
		}
		for _, i := range slices.Sorted(maps.Keys(p.Next)) {
			fmt.Fprintf(w, "partition %d: next offset %d\n", i, p.Next[i])
		}
		for _, i := range slices.Sorted(maps.Keys(p.Totals)) {
			t := p.Totals[i]
			fmt.Fprintf(w, "partition %d: from offset %d on %d rows, %d dead letters, %d offsets lost\n", i, t.Begin, t.Rows, t.Dead, t.Gaps)
		}
		for _, l := range p.Lost {
			fmt.Fprintf(w, "partition %d: offsets %d to %d are not in the table: %s\n", l.Partition, l.Start, l.End, l.Reason)
		}
	}
	s, ok, err := ReadSummary(props)
	if err != nil || !ok {
		return err
	}
	fmt.Fprintf(w, "commit %s of topic id %s, epoch %d\n", s.Commit, s.Topic, s.Epoch)
	for _, r := range s.Ranges {
		fmt.Fprintf(w, "partition %d: offsets %d to %d, %d rows, %d dead letters\n", r.Partition, r.Start, r.End, r.Rows, r.Dead)
	}
	for _, l := range s.Lost {
		what := "were lost from the log before they were read"
		switch l.Reason {
		case LostRewind:
			what = "were removed from the table by a rollback that was accepted"
		case LostStart:
			what = "are before the start of the table"
		}
		fmt.Fprintf(w, "partition %d: offsets %d to %d %s\n", l.Partition, l.Start, l.End, what)
	}
	return nil
}
