package group

import (
	"cmp"
	"maps"
	"math"
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
	subscribers := a.subscribers()
	topicOf := map[partitionID]string{}
	owner := map[partitionID]string{}
	for _, m := range a.members {
		wants := map[uuid.UUID]string{}
		for _, topic := range a.topics[m] {
			wants[a.present.byName[topic].ID] = topic
		}
		for p := range a.target[m] {
			topic, ok := wants[p.topic]
			if _, taken := owner[p]; ok && !taken && int(p.index) < a.present.byName[topic].Partitions {
				out[m][p], owner[p] = struct{}{}, m
			}
		}
	}
	least := func(members []string) string {
		best, load := "", math.MaxInt
		for _, m := range members {
			if n := len(out[m]); n < load {
				best, load = m, n
			}
		}
		return best
	}
	for _, topic := range slices.Sorted(maps.Keys(subscribers)) {
		for _, p := range a.partitions(topic) {
			topicOf[p] = topic
			if _, taken := owner[p]; !taken {
				m := least(subscribers[topic])
				out[m][p], owner[p] = struct{}{}, m
			}
		}
	}
	for moved := len(a.members) > 0; moved; {
		moved = false
		most := slices.SortedStableFunc(slices.Values(a.members), func(x, y string) int { return cmp.Compare(len(out[y]), len(out[x])) })
		fewest := len(out[most[len(most)-1]])
		for _, from := range most {
			if len(out[from]) < fewest+2 {
				break
			}
			for _, p := range sortedPartitions(out[from]) {
				if to := least(subscribers[topicOf[p]]); len(out[to])+1 < len(out[from]) {
					delete(out[from], p)
					out[to][p] = struct{}{}
					moved = true
				}
			}
		}
	}
}

func sortedPartitions(s partitionSet) []partitionID {
	return slices.SortedFunc(maps.Keys(s), func(a, b partitionID) int {
		return cmp.Or(strings.Compare(string(a.topic[:]), string(b.topic[:])), cmp.Compare(a.index, b.index))
	})
}
