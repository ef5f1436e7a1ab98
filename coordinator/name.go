package coordinator

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/partition"
)

// maxName is the longest table or namespace name that every catalog takes (Hive: 128).
const maxName = 128

// Identifier returns the table of a topic: name, or the topic's name made legal if it is
// empty, in namespace, whose levels are separated by dots. A name with dots has its own
// namespace. Both may be patterns: {topic} is the topic's name, {topic:REGEX} what the first group
// of an expression, or all of it, matches there, both made legal; {ns} is the namespace. Names
// that are set by hand are refused unless every catalog takes them. The name of a [partition.Route] stands
// for that of its topic.
func Identifier(namespace, name, topic string) (table.Identifier, error) {
	topic, record := partition.SplitRoute(topic)
	setting := "table.topic.name"
	if record != "" {
		setting = "table.topic.fan.out"
	}
	if namespace == "" {
		namespace = "default"
	}
	levels, err := expand(namespace, "", topic)
	if err != nil {
		return nil, fmt.Errorf("table.topic.namespace %q: %w", namespace, err)
	}
	ident := table.Identifier(strings.Split(levels, "."))
	for _, level := range ident {
		if err := checkName(level); err != nil {
			return nil, fmt.Errorf("table.topic.namespace %q: %w", namespace, err)
		}
	}
	if name == "" {
		return append(ident, TableName(topic)), nil
	}
	full, err := expand(name, levels, topic)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", setting, name, err)
	}
	own := table.Identifier(strings.Split(full, "."))
	for _, level := range own {
		if err := checkName(level); err != nil {
			return nil, fmt.Errorf("%s %q: %w", setting, name, err)
		}
	}
	if len(own) > 1 {
		return own, nil
	}
	return append(ident, own...), nil
}

// LetterTable returns the name, with its namespace, of the table of a topic's dead letters: that of the
// topic's table and "__dlq".
func LetterTable(topic string, t partition.TableConfig) (string, error) {
	id, err := Identifier(t.Namespace, t.Name, topic)
	if err != nil {
		return "", err
	}
	last := len(id) - 1
	id[last] = cut(id[last]+"__dlq", id[last]+"__dlq")
	return strings.Join(id, "."), nil
}

// expand fills in the placeholders of a pattern.
func expand(pattern, namespace, topic string) (string, error) {
	var out strings.Builder
	for {
		text, rest, found := strings.Cut(pattern, "{")
		out.WriteString(text)
		if !found {
			return out.String(), nil
		}
		end, depth := 0, 1
		for ; end < len(rest) && depth > 0; end++ { // an expression may have braces of its own
			switch rest[end] {
			case '{':
				depth++
			case '}':
				depth--
			}
		}
		if depth > 0 {
			return "", fmt.Errorf("a brace is not closed")
		}
		placeholder, expression, is := strings.Cut(rest[:end-1], ":")
		pattern = rest[end:]
		switch {
		case placeholder == "ns" && !is && namespace != "":
			out.WriteString(namespace)
		case placeholder == "topic" && !is:
			out.WriteString(TableName(topic))
		case placeholder == "topic":
			re, err := regexp.Compile(expression)
			if err != nil {
				return "", err
			}
			match := re.FindStringSubmatch(topic)
			if match == nil {
				return "", fmt.Errorf("topic %q does not match %q", topic, expression)
			}
			out.WriteString(legalise(match[min(1, len(match)-1)]))
		default:
			return "", fmt.Errorf("{%s}: placeholders are {topic}, {topic:REGEX} and, in a name, {ns}", rest[:end-1])
		}
	}
}

// TableName makes a topic's name a table's: lower case letters, digits and underscores, the
// first no digit, at most 128. Other characters become underscores. Where a long name must be
// cut, a hash of the whole keeps it apart from others. Two topics can still get one name:
// the table's property tabletopic.topic says whose it is, and the second is refused.
func TableName(topic string) string {
	name := legalise(topic)
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "t_" + name
	}
	return cut(name, topic)
}

// cut shortens a name that is too long, with a hash of the whole at its end.
func cut(name, whole string) string {
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(whole))
	hash := "_" + hex.EncodeToString(sum[:5])
	return name[:maxName-len(hash)] + hash
}

func legalise(text string) string {
	b := []byte(strings.ToLower(text))
	for i, c := range b {
		if !legal(c) {
			b[i] = '_'
		}
	}
	return string(b)
}

func legal(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' }

func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("must have 1 to %d characters", maxName)
	}
	for _, r := range name {
		if r >= utf8.RuneSelf || !legal(byte(r)) {
			return fmt.Errorf("character %q: Athena and Hive take lower case letters, digits and underscores only", r)
		}
	}
	return nil
}
