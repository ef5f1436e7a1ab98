package group

import (
	"cmp"
	"container/heap"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// Assignors of the server side (KIP-848), the default first.
const (
	uniform     = "uniform" // as even as it can be over all topics, and what can stay stays
	rangeByName = "range"   // topic by topic: neighbouring partitions to each member
)

var assignors = []string{uniform, rangeByName}

// Topics is what there is to consume, at one moment.
type Topics struct {
	// Version is another one whenever the topics are.
	Version uint64
	byName  map[string]TopicInfo
	names   map[uuid.UUID]string
}

// TopicInfo is a topic that may be subscribed to.
type TopicInfo struct {
	ID         uuid.UUID
	Partitions int
}

// NewTopics returns the topics by name.
func NewTopics(version uint64, topics map[string]TopicInfo) *Topics {
	t := &Topics{Version: version, byName: topics, names: make(map[uuid.UUID]string, len(topics))}
	for name, info := range topics {
		t.names[info.ID] = name
	}
	return t
}

// maxRegex bounds a subscription's regular expression, in bytes.
const maxRegex = 4 << 10

// compileRegex reads a subscription's regular expression, which must match a whole name. RE2, as Kafka's.
func compileRegex(expr string) (*regexp.Regexp, error) {
	return regexp.Compile(`\A(?:` + expr + `)\z`)
}

// existing returns those of the names that are topics, sorted.
func (t *Topics) existing(names ...string) []string {
	set := map[string]bool{}
	for _, name := range names {
		if _, ok := t.byName[name]; ok {
			set[name] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// existingOf returns those of sorted names that are topics; the names themselves, not to be changed, if all are.
func (t *Topics) existingOf(names []string) []string {
	for _, name := range names {
		if _, ok := t.byName[name]; !ok {
			return t.existing(names...)
		}
	}
	return names
}

// matching returns the topics that a regular expression matches and a client may know of, sorted.
func (t *Topics) matching(regex string, client *Client) []string {
	re, err := compileRegex(regex)
	if err != nil {
		return nil
	}
	var out []string
	for name := range t.byName {
		if re.MatchString(name) && (client.Sees == nil || client.Sees(name)) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// An assignment problem: who may have what, and who has what now.
type assignable struct {
	members []string // sorted
	topics  map[string][]string
	present *Topics
	target  map[string]partitionSet // before
}

// partitions returns the partitions of a topic.
func (a *assignable) partitions(topic string) []partitionID {
	info := a.present.byName[topic]
	out := make([]partitionID, info.Partitions)
	for i := range out {
		out[i] = partitionID{info.ID, int32(i)}
	}
	return out
}

// subscribers returns the members that want each topic, sorted.
func (a *assignable) subscribers() map[string][]string {
	out := map[string][]string{}
	for _, m := range a.members {
		for _, topic := range a.topics[m] {
			out[topic] = append(out[topic], m)
		}
	}
	return out
}

func (a *assignable) solve(assignor string) map[string]partitionSet {
	out := make(map[string]partitionSet, len(a.members))
	for _, m := range a.members {
		out[m] = partitionSet{}
	}
	if assignor == rangeByName {
		a.byRange(out)
	} else {
		a.uniformly(out)
	}
	return out
}

func (a *assignable) byRange(out map[string]partitionSet) {
	for topic, members := range a.subscribers() {
		partitions := a.partitions(topic)
		n, rest := len(partitions)/len(members), len(partitions)%len(members)
		for i, m := range members {
			size := n
			if i < rest {
				size++
			}
			for _, p := range partitions[:size] {
				out[m][p] = struct{}{}
			}
			partitions = partitions[size:]
		}
	}
}

// uniformly keeps who has what, gives the rest to whoever has least, and then moves
// partitions from who has more to who may have them and has less by two at least. Each such
// move makes the sum of squares of the loads smaller, so it ends.
func (a *assignable) uniformly(out map[string]partitionSet) {
	members := make([]int, len(a.members)) // by their places
	has, loads := make([]partitionSet, len(a.members)), make([]int, len(a.members))
	subscribers, taken := map[string][]int{}, partitionSet{}
	for i, m := range a.members {
		members[i], has[i] = i, out[m]
		wants := map[uuid.UUID]int{} // how many partitions there are
		for _, topic := range a.topics[m] {
			info := a.present.byName[topic]
			wants[info.ID] = info.Partitions
			subscribers[topic] = append(subscribers[topic], i)
		}
		for p := range a.target[m] {
			if _, other := taken[p]; !other && int(p.index) < wants[p.topic] {
				has[i][p], taken[p] = struct{}{}, struct{}{}
				loads[i]++
			}
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(subscribers)) {
		var queue *leastLoaded
		for _, p := range a.partitions(topic) {
			if _, ok := taken[p]; ok {
				continue
			}
			if queue == nil {
				queue = &leastLoaded{slices.Clone(subscribers[topic]), loads}
				heap.Init(queue)
			}
			to := queue.members[0]
			has[to][p] = struct{}{}
			loads[to]++
			heap.Fix(queue, 0)
		}
	}
	least := map[string]int{} // of the subscribers of a topic, with the loads as they are
	for moved := len(members) > 0; moved; {
		moved = false
		slices.SortFunc(members, func(x, y int) int { return cmp.Or(cmp.Compare(loads[y], loads[x]), cmp.Compare(x, y)) })
		fewest := loads[members[len(members)-1]]
		for _, from := range members {
			if loads[from] < fewest+2 {
				break
			}
			for _, p := range sortedPartitions(has[from]) {
				topic := a.present.names[p.topic]
				to, known := least[topic]
				if !known {
					to = slices.MinFunc(subscribers[topic], func(x, y int) int { return cmp.Compare(loads[x], loads[y]) })
					least[topic] = to
				}
				if loads[to]+1 < loads[from] {
					delete(has[from], p)
					has[to][p] = struct{}{}
					loads[from]--
					loads[to]++
					clear(least)
					moved = true
				}
			}
		}
	}
}

// leastLoaded is a heap of members, by how many partitions each has, and then by their places.
type leastLoaded struct{ members, loads []int }

func (q *leastLoaded) Len() int { return len(q.members) }

func (q *leastLoaded) Less(i, j int) bool {
	x, y := q.members[i], q.members[j]
	return cmp.Or(cmp.Compare(q.loads[x], q.loads[y]), cmp.Compare(x, y)) < 0
}

func (q *leastLoaded) Swap(i, j int) { q.members[i], q.members[j] = q.members[j], q.members[i] }

// Push implements [heap.Interface]; members only move.
func (q *leastLoaded) Push(m any) { q.members = append(q.members, m.(int)) }

// Pop implements [heap.Interface].
func (q *leastLoaded) Pop() any {
	last := len(q.members) - 1
	m := q.members[last]
	q.members = q.members[:last]
	return m
}

func sortedPartitions(s partitionSet) []partitionID {
	return slices.SortedFunc(maps.Keys(s), func(a, b partitionID) int {
		return cmp.Or(strings.Compare(string(a.topic[:]), string(b.topic[:])), cmp.Compare(a.index, b.index))
	})
}
