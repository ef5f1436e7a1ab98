package schemaregistry

import "strings"

// A level says between which schemas of a subject readers and writers must agree.
type level string

const (
	levelNone               level = "NONE"
	levelBackward           level = "BACKWARD"
	levelForward            level = "FORWARD"
	levelFull               level = "FULL"
	levelBackwardTransitive level = "BACKWARD_TRANSITIVE"
	levelForwardTransitive  level = "FORWARD_TRANSITIVE"
	levelFullTransitive     level = "FULL_TRANSITIVE"
)

var levels = []level{levelNone, levelBackward, levelForward, levelFull, levelBackwardTransitive, levelForwardTransitive, levelFullTransitive}

func (l level) backward() bool { return strings.HasPrefix(string(l), "BACKWARD") || l.full() }
func (l level) forward() bool  { return strings.HasPrefix(string(l), "FORWARD") || l.full() }
func (l level) full() bool     { return strings.HasPrefix(string(l), "FULL") }

// transitive levels compare with all versions, the others with the last only.
func (l level) transitive() bool { return strings.HasSuffix(string(l), "_TRANSITIVE") }

// incompatibleAt compares a new schema with an older one as the level demands. Each reason
// says who reads.
func incompatibleAt(l level, lenient bool, next, older model) []incompatibility {
	var found []incompatibility
	if l.backward() {
		for _, why := range next.cannotRead(older, lenient) {
			why.reason = "reading old data with the new schema: " + why.reason
			found = append(found, why)
		}
	}
	if l.forward() {
		for _, why := range older.cannotRead(next, lenient) {
			why.reason = "reading new data with the old schema: " + why.reason
			found = append(found, why)
		}
	}
	return found
}
