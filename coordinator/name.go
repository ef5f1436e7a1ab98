package coordinator

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/apache/iceberg-go/table"
)

// maxName is the longest table or namespace name that every catalog takes (Hive: 128).
const maxName = 128

// Identifier returns the table of a topic: name, or the topic's name made legal if it is
// empty, in namespace, whose levels are separated by dots. Names that are set by hand are
// refused unless every catalog takes them.
func Identifier(namespace, name, topic string) (table.Identifier, error) {
	if namespace == "" {
		namespace = "default"
	}
	ident := table.Identifier(strings.Split(namespace, "."))
	for _, level := range ident {
		if err := checkName(level); err != nil {
			return nil, fmt.Errorf("table.topic.namespace %q: %w", namespace, err)
		}
	}
	if name == "" {
		return append(ident, TableName(topic)), nil
	}
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("table.topic.name %q: %w", name, err)
	}
	return append(ident, name), nil
}

// TableName makes a topic's name a table's: lower case letters, digits and underscores, the
// first no digit, at most 128. Other characters become underscores. Where a long name must be
// cut, a hash of the whole keeps it apart from others. Two topics can still get one name:
// the table's property tabletopic.topic says whose it is, and the second is refused.
func TableName(topic string) string {
	b := []byte(strings.ToLower(topic))
	for i, c := range b {
		if !legal(c) {
			b[i] = '_'
		}
	}
	name := string(b)
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "t_" + name
	}
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(topic))
		hash := "_" + hex.EncodeToString(sum[:5])
		name = name[:maxName-len(hash)] + hash
	}
	return name
}

func legal(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' }

func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("must have 1 to %d characters", maxName)
	}
	for i := range len(name) {
		if !legal(name[i]) {
			return fmt.Errorf("character %q: Athena and Hive take lower case letters, digits and underscores only", name[i])
		}
	}
	return nil
}
