package partition

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Start says from where on a table has the records of its topic, once it begins.
type Start struct {
	Latest  bool            // only what comes after the setting
	Time    int64           // the first record of this time or later, in ms since 1970; negative if none is set
	Offsets map[int32]int64 // by partition; others begin at the start of their log
}

const startLatest = "latest"

// ParseStart reads table.topic.start: earliest, latest, a time in ISO 8601 or ms since 1970, or
// partition:offset, separated by commas.
func ParseStart(v string) (Start, error) {
	s := Start{Time: -1}
	switch v = strings.TrimSpace(v); v {
	case "earliest":
		return s, nil
	case startLatest:
		s.Latest = true
		return s, nil
	}
	if ms, err := strconv.ParseInt(v, 10, 64); err == nil && ms >= 0 {
		s.Time = ms
		return s, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02"} {
		if t, err := time.Parse(layout, v); err == nil && t.UnixMilli() >= 0 {
			s.Time = t.UnixMilli()
			return s, nil
		}
	}
	s.Offsets = map[int32]int64{}
	for item := range strings.SplitSeq(v, ",") {
		p, o, _ := strings.Cut(strings.TrimSpace(item), ":")
		index, err1 := strconv.ParseInt(p, 10, 32)
		offset, err2 := strconv.ParseInt(o, 10, 64)
		if err1 != nil || err2 != nil || index < 0 || offset < 0 {
			return s, fmt.Errorf("want earliest, latest, a time such as 2026-01-31T12:00:00Z or in milliseconds since 1970, or partition:offset, separated by commas")
		}
		if _, twice := s.Offsets[int32(index)]; twice {
			return s, fmt.Errorf("partition %d is there twice", index)
		}
		s.Offsets[int32(index)] = offset
	}
	return s, nil
}

func setStart(c *TopicConfig, v string) error {
	if len(v) > 1<<20 {
		return fmt.Errorf("%d characters are too many", len(v))
	}
	if _, err := ParseStart(v); err != nil {
		return err
	}
	c.Table.Start = v
	return nil
}

// Offset returns where a partition of a table begins that this node leads.
func (s Start) Offset(ctx context.Context, p *Partition) (int64, error) {
	if offset, ok := s.Offsets[p.index]; ok {
		return offset, nil
	}
	o := p.Offsets()
	if s.Time < 0 {
		return o.LogStart, nil
	}
	offset, _, err := p.OffsetForTimestamp(ctx, s.Time)
	if err != nil {
		return 0, fmt.Errorf("offset of table.topic.start in %s: %w", p, err)
	}
	if offset < 0 {
		return o.LastStable, nil
	}
	return offset, nil
}

// settleStart writes what "latest" means now into the settings of a topic whose table is on, so
// that a table that begins later, on whatever node, begins there. A topic that is being made has
// no partitions yet, and no records.
func (s *Set) settleStart(ctx context.Context, name string, partitions int, whole, set map[string]string) error {
	cfg, err := ParseTopicConfig(s.effective(name, whole))
	if err != nil || !cfg.Table.Enable || cfg.Table.Start != startLatest {
		return err
	}
	var offsets []string
	for i := range int32(partitions) {
		l, err := s.Log(ctx, ID{Topic: name, Index: i})
		if err != nil {
			return fmt.Errorf("%w: table.topic.start=latest: where partition %d ends is not known now: %w", ErrInvalidConfig, i, err)
		}
		if end := l.Offsets().HighWatermark; end > 0 {
			offsets = append(offsets, fmt.Sprintf("%d:%d", i, end))
		}
	}
	v := strings.Join(offsets, ",")
	if v == "" {
		v = "earliest"
	}
	whole["table.topic.start"], set["table.topic.start"] = v, v
	return nil
}
