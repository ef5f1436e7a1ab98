package partition

import (
	"fmt"
	"maps"
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

// Defaults returns the settings that a topic has from the cluster. Internal topics have none, nor
// have those of dead letters: they would become tables with their topics.
func (s *Set) Defaults(topic string) map[string]string {
	if len(s.cfg.Defaults) == 0 || strings.HasPrefix(topic, "__") {
		return nil
	}
	if source, is := strings.CutSuffix(topic, DeadLetterSuffix); is {
		if _, ok := s.Topic(source); ok {
			return nil
		}
	}
	return s.cfg.Defaults
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
