package coordinator

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/crc32c"
)

// The parts that the texts of table_format.go, totals_format.go and heads_format.go have in common.

// withSum returns a property's text with its checksum.
func withSum(text string) string {
	return fmt.Sprintf("%s%08x", text, crc32c.Checksum([]byte(text)))
}

// fields checks version and checksum of a value and splits it in n fields.
func fields(value string, n int) ([]string, error) {
	body := strings.LastIndexByte(value, ';') + 1
	if body == 0 {
		return nil, fmt.Errorf("%w: no fields", ErrCorruptTable)
	}
	f := strings.Split(value[:body-1], ";")
	if v, err := strconv.Atoi(f[0]); err == nil && v > 1 {
		return nil, fmt.Errorf("version %d was written by a newer release; this one reads up to %s", v, tableVersion)
	}
	if want := withSum(value[:body]); value != want {
		return nil, fmt.Errorf("%w: checksum %q, want %q", ErrCorruptTable, value[body:], want[body:])
	}
	if f[0] != tableVersion || len(f) != n {
		return nil, fmt.Errorf("%w: version %q with %d fields, want %d", ErrCorruptTable, f[0], len(f), n)
	}
	return f, nil
}

// value is the text of a property: version, topic id and sequence, the fields, the checksum.
func (p Position) value(fields ...string) string {
	return withSum(fmt.Sprintf("%s;%s;%d;%s;", tableVersion, p.Topic, p.Sequence, strings.Join(fields, ";")))
}

// parse returns the sequence of such a text and its n fields; none if it is of an earlier topic
// of the name.
func (p Position) parse(value string, n int) (sequence string, rest []string, err error) {
	f, err := fields(value, 3+n)
	if err != nil {
		return "", nil, err
	}
	topic, err := uuid.Parse(f[1])
	if err != nil {
		return "", nil, fmt.Errorf("%w: topic id: %w", ErrCorruptTable, err)
	}
	if topic != p.Topic {
		return "", nil, nil
	}
	return f[2], f[3:], nil
}

// chunks sets the properties of a prefix that hold something of each partition, in a list for
// per partitions from first on: those of the moved partitions, or all if moved is nil.
func (p Position) chunks(props iceberg.Properties, prefix string, per int32, moved []int32, list func(first int32) string) {
	if moved == nil {
		moved = slices.Collect(maps.Keys(p.Next))
	}
	for _, i := range moved {
		key := prefix + strconv.Itoa(int(i/per))
		if _, ok := props[key]; !ok {
			props[key] = p.value(list(i / per * per))
		}
	}
}

// items joins the items of n partitions from first on, "-" where there is none.
func items(first, n int32, item func(partition int32) string) string {
	out := make([]string, n)
	for i := range n {
		if out[i] = item(first + i); out[i] == "" {
			out[i] = "-"
		}
	}
	return strings.Join(out, ",")
}

// eachItem calls fn with what the properties of a prefix hold of each partition.
func (p Position) eachItem(props iceberg.Properties, prefix string, per int32, fn func(partition int32, item string) error) error {
	for key, value := range props {
		suffix, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		chunk, err := strconv.ParseInt(suffix, 10, 32)
		if err != nil || chunk < 0 || chunk > (1<<31-1)/int64(per) {
			return fmt.Errorf("%w: key %q", ErrCorruptTable, key)
		}
		_, rest, err := p.parse(value, 1)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if rest == nil {
			continue
		}
		list := strings.Split(rest[0], ",")
		if len(list) > int(per) {
			return fmt.Errorf("%s: %w: %d items", key, ErrCorruptTable, len(list))
		}
		for i, item := range list {
			if item == "-" {
				continue
			}
			if err := fn(int32(chunk)*per+int32(i), item); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
	}
	return nil
}

// lists joins items by commas to as few lists as have at most limit bytes each.
func lists(items []string, limit int) (out []string) {
	for start := 0; start < len(items); {
		size, end := len(items[start]), start+1
		for end < len(items) && size+1+len(items[end]) <= limit {
			size += 1 + len(items[end])
			end++
		}
		out = append(out, strings.Join(items[start:end], ","))
		start = end
	}
	return out
}
