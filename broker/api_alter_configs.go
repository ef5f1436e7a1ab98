package broker

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
)

// handleAlterConfigs replaces the whole configuration of each topic.
func handleAlterConfigs(ctx context.Context, b *Broker, r *request, req *kmsg.AlterConfigsRequest) kmsg.Response {
	resp := kmsg.NewPtrAlterConfigsResponse()
	for _, res := range req.Resources {
		rr := kmsg.NewAlterConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = res.ResourceType, res.ResourceName
		err := b.alterConfig(ctx, r, res.ResourceType, res.ResourceName, req.ValidateOnly, func(t metadata.Topic) (*configChange, error) {
			change := newConfigChange(t)
			for name := range t.Config {
				change.delete(name)
			}
			for _, c := range res.Configs {
				if c.Value == nil {
					return nil, refuse(kerr.InvalidConfig, "config %q has no value", c.Name)
				}
				change.put(c.Name, *c.Value)
			}
			return change, nil
		})
		rr.ErrorCode, rr.ErrorMessage = codeAndText(err)
		resp.Resources = append(resp.Resources, rr)
	}
	return resp
}

// handleIncrementalAlterConfigs changes single keys (KIP-339).
func handleIncrementalAlterConfigs(ctx context.Context, b *Broker, r *request, req *kmsg.IncrementalAlterConfigsRequest) kmsg.Response {
	resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
	for _, res := range req.Resources {
		rr := kmsg.NewIncrementalAlterConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = res.ResourceType, res.ResourceName
		err := b.alterConfig(ctx, r, res.ResourceType, res.ResourceName, req.ValidateOnly, func(t metadata.Topic) (*configChange, error) {
			return incrementalChange(t, res.Configs)
		})
		rr.ErrorCode, rr.ErrorMessage = codeAndText(err)
		resp.Resources = append(resp.Resources, rr)
	}
	return resp
}

// alterConfig applies what change makes of the configuration of a topic or group, or only checks it.
func (b *Broker) alterConfig(ctx context.Context, r *request, typ kmsg.ConfigResourceType, name string, validateOnly bool, change func(metadata.Topic) (*configChange, error)) error {
	switch typ {
	case kmsg.ConfigResourceTypeTopic:
		if !r.may(opAlterConfig, onTopic, name) {
			return kerr.TopicAuthorizationFailed
		}
	case kmsg.ConfigResourceTypeBroker:
		if !r.may(opAlterConfig, onCluster, cluster) {
			return kerr.ClusterAuthorizationFailed
		}
		if c, err := change(metadata.Topic{}); err == nil && onlyThrottles(c.set) {
			return nil // also of none: tools remove what nobody has set
		}
		return refuse(kerr.InvalidRequest, "settings of a broker cannot be changed while it runs: set them where it is started")
	case kmsg.ConfigResourceTypeClientMetrics:
		if !r.may(opAlterConfig, onCluster, cluster) {
			return kerr.ClusterAuthorizationFailed
		}
		return refuse(kerr.InvalidRequest, "metrics of clients are not collected: what they push is counted and dropped")
	case kmsg.ConfigResourceTypeGroupConfig:
		if !r.may(opAlterConfig, onGroup, name) {
			return kerr.GroupAuthorizationFailed
		}
		return b.alterGroup(ctx, name, validateOnly, change)
	default:
		return refuse(kerr.InvalidRequest, "resources of type %s have no configuration here", typ)
	}
	t, err := b.writableTopic(name)
	if err != nil {
		return err
	}
	c, err := change(t)
	if err != nil {
		return err
	}
	if validateOnly {
		_, err = b.set.CheckConfig(name, c.config)
		return b.topicError(err)
	}
	_, err = b.set.AlterConfig(ctx, name, c.set, c.removed())
	if err == nil {
		b.log.Info("topic configuration changed", "topic", name, "set", c.set, "removed", c.removed())
	}
	return b.topicError(err)
}

// onlyThrottles reports whether all that is set slows down the bytes of reassignments: none move.
func onlyThrottles(set map[string]string) bool {
	for name := range set {
		switch name {
		case "leader.replication.throttled.rate", "follower.replication.throttled.rate", "replica.alter.log.dirs.io.max.bytes.per.second":
		default:
			return false
		}
	}
	return true
}

// configChange is a change of a topic's configuration and what it makes of it.
type configChange struct {
	config map[string]string // the whole result
	set    map[string]string
	remove map[string]bool
}

func newConfigChange(t metadata.Topic) *configChange {
	c := &configChange{config: make(map[string]string, len(t.Config)), set: map[string]string{}, remove: map[string]bool{}}
	for k, v := range t.Config {
		c.config[k] = v
	}
	return c
}

func (c *configChange) put(name, value string) {
	c.config[name], c.set[name] = value, value
	delete(c.remove, name)
}

func (c *configChange) delete(name string) {
	delete(c.config, name)
	delete(c.set, name)
	c.remove[name] = true
}

// removed are the keys that go back to their defaults, in order.
func (c *configChange) removed() []string { return slices.Sorted(maps.Keys(c.remove)) }

func incrementalChange(t metadata.Topic, ops []kmsg.IncrementalAlterConfigsRequestResourceConfig) (*configChange, error) {
	change := newConfigChange(t)
	seen := make(map[string]bool, len(ops))
	for _, op := range ops {
		if seen[op.Name] {
			return nil, refuse(kerr.InvalidRequest, "config %q is in the request twice", op.Name)
		}
		seen[op.Name] = true
		if op.Op == kmsg.IncrementalAlterConfigOpDelete {
			change.delete(op.Name)
			continue
		}
		if op.Value == nil {
			return nil, refuse(kerr.InvalidConfig, "config %q has no value", op.Name)
		}
		switch op.Op {
		case kmsg.IncrementalAlterConfigOpSet:
			change.put(op.Name, *op.Value)
		case kmsg.IncrementalAlterConfigOpAppend, kmsg.IncrementalAlterConfigOpSubtract:
			list, err := listValue(t, op.Name)
			if err != nil {
				return nil, err
			}
			for _, item := range splitList(*op.Value) {
				list = slices.DeleteFunc(list, func(s string) bool { return s == item })
				if op.Op == kmsg.IncrementalAlterConfigOpAppend {
					list = append(list, item)
				}
			}
			change.put(op.Name, strings.Join(list, ","))
		default:
			return nil, refuse(kerr.InvalidRequest, "config %q: unknown operation %d", op.Name, op.Op)
		}
	}
	return change, nil
}

// listValue returns the items of a key that is a list, by default or as set.
func listValue(t metadata.Topic, name string) ([]string, error) {
	for _, key := range partition.TopicConfigKeys() {
		if key.Name != name && !slices.Contains(key.Synonyms, name) {
			continue
		}
		if configType(key.Type) != kmsg.ConfigTypeList {
			return nil, refuse(kerr.InvalidConfig, "config %q is no list: APPEND and SUBTRACT do not apply, use SET", name)
		}
		if v, ok := topicValue(t, key); ok {
			return splitList(v), nil
		}
		return splitList(key.Default), nil
	}
	return nil, refuse(kerr.InvalidConfig, "unknown config %q", name)
}

func splitList(s string) []string {
	var out []string
	for _, item := range strings.Split(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}
