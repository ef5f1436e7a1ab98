package partition

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/tabletopic/tabletopic/metadata"
)

// tablePrefix begins the names of the settings that may have defaults of a cluster.
const tablePrefix = "table.topic."

// ParseTopicDefaults reads KEY=VALUE, separated by semicolons: settings of tables that topics have
// unless they set them themselves.
func ParseTopicDefaults(text string) (map[string]string, error) {
	raw := map[string]string{}
	for item := range strings.SplitSeq(text, ";") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		name, v, ok := strings.Cut(item, "=")
		name = strings.TrimSpace(name)
		if !ok {
			return nil, fmt.Errorf("%w: %q: want KEY=VALUE", ErrInvalidConfig, item)
		}
		if _, twice := raw[name]; twice {
			return nil, fmt.Errorf("%w: %s is there twice", ErrInvalidConfig, name)
		}
		raw[name] = strings.TrimSpace(v)
	}
	defaults, err := canonicalConfig(raw)
	if err != nil {
		return nil, err
	}
	for name := range defaults {
		if !strings.HasPrefix(name, tablePrefix) {
			return nil, fmt.Errorf("%w: %s: only settings of tables (%s…) have defaults of a cluster", ErrInvalidConfig, name, tablePrefix)
		}
	}
	_, err = ParseTopicConfig(defaults)
	return defaults, err
}

// Defaults returns the settings that a topic has from the cluster. Internal topics have none. Those of
// dead letters have none either, or they would become tables with their topics, but what follows
// from table.topic.dlq.table of the topic that they are of.
func (s *Set) Defaults(topic string) map[string]string {
	if strings.HasPrefix(topic, "__") {
		return nil
	}
	if name, is := strings.CutSuffix(topic, DeadLetterSuffix); is {
		if source, ok := s.Topic(name); ok {
			return s.letterTable(source)
		}
	}
	if len(s.cfg.Defaults) == 0 {
		return nil
	}
	return s.cfg.Defaults
}

// letterTable returns the settings with which the dead letters of a topic are a table, nil if they
// are to be none.
func (s *Set) letterTable(source metadata.Topic) map[string]string {
	cfg, err := s.TopicConfig(source)
	if err != nil || !cfg.Table.Enable || !cfg.Table.LetterTable || s.cfg.LetterTable == nil {
		return nil
	}
	name, err := s.cfg.LetterTable(source.Name, cfg.Table)
	if err != nil {
		return nil
	}
	return map[string]string{
		"table.topic.enable": "true", "table.topic.catalog": cfg.Table.Catalog, "table.topic.name": name, "table.topic.value.format": FormatLetter,
		"table.topic.target.lag.ms":    strconv.FormatInt(cfg.Table.TargetLag.Milliseconds(), 10),
		"table.topic.errors.tolerance": ToleratePause, // letters of letters help nobody
	}
}

// TopicConfig returns the configuration of a topic, with the defaults of the cluster.
func (s *Set) TopicConfig(t metadata.Topic) (TopicConfig, error) {
	return ParseTopicConfig(s.effective(t.Name, t.Config))
}

// effective adds the defaults of the cluster to what a topic sets.
func (s *Set) effective(topic string, raw map[string]string) map[string]string {
	defaults := s.Defaults(topic)
	if len(defaults) == 0 {
		return raw
	}
	out := maps.Clone(defaults)
	for name, v := range raw {
		if canonical, err := canonicalKey(name); err == nil {
			delete(out, canonical) // the topic may have it by an alias
		}
		out[name] = v
	}
	return out
}
