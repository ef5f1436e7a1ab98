package partition

import (
	"fmt"
	"strings"
)

// maxProperties bounds table.topic.write.properties.
const maxProperties = 1000

// ParseProperties reads name=value pairs, separated by commas, also in brackets.
func ParseProperties(v string) (map[string]string, error) {
	items, err := splitList(v)
	if err != nil {
		return nil, err
	}
	if len(items) > maxProperties {
		return nil, fmt.Errorf("%d properties are too many, %d are allowed", len(items), maxProperties)
	}
	out := map[string]string{}
	for _, item := range items {
		name, value, pair := strings.Cut(item, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !pair || name == "" || value == "" {
			return nil, fmt.Errorf("%q: NAME=VALUE is wanted", item)
		}
		if other, twice := out[name]; twice && other != value {
			return nil, fmt.Errorf("%s is there twice", name)
		}
		out[name] = value
	}
	return out, nil
}

func setProperties(c *TopicConfig, v string) error {
	_, err := ParseProperties(v)
	c.Table.Properties = v
	return err
}
