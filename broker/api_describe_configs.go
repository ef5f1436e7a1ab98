package broker

import (
	"context"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
)

func handleDescribeConfigs(ctx context.Context, b *Broker, r *request, req *kmsg.DescribeConfigsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeConfigsResponse()
	type resource struct {
		typ  kmsg.ConfigResourceType
		name string
	}
	for _, res := range once(req.Resources, func(r kmsg.DescribeConfigsRequestResource) resource { return resource{r.ResourceType, r.ResourceName} }) {
		rr := kmsg.NewDescribeConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = res.ResourceType, res.ResourceName
		configs, err := b.describe(ctx, r, res)
		rr.ErrorCode, rr.ErrorMessage = codeAndText(err)
		for i := range configs {
			if !req.IncludeSynonyms {
				configs[i].ConfigSynonyms = nil
			}
			if !req.IncludeDocumentation {
				configs[i].Documentation = nil
			}
		}
		rr.Configs = configs
		resp.Resources = append(resp.Resources, rr)
	}
	return resp
}

func (b *Broker) describe(ctx context.Context, r *request, res kmsg.DescribeConfigsRequestResource) ([]kmsg.DescribeConfigsResponseResourceConfig, error) {
	switch res.ResourceType {
	case kmsg.ConfigResourceTypeTopic:
		if !r.may(opDescribeConfig, onTopic, res.ResourceName) {
			return nil, kerr.TopicAuthorizationFailed
		}
		t, ok := b.set.Topic(res.ResourceName)
		if !ok {
			return nil, refuse(kerr.UnknownTopicOrPartition, "topic %q does not exist", res.ResourceName)
		}
		return describeTopic(t, b.set.Defaults(t.Name), res.ConfigNames), nil
	case kmsg.ConfigResourceTypeBroker:
		if !r.may(opDescribeConfig, onCluster, cluster) {
			return nil, kerr.ClusterAuthorizationFailed
		}
		if res.ResourceName != "" && res.ResourceName != strconv.Itoa(int(b.node.ID)) {
			return nil, refuse(kerr.InvalidRequest, "there is no broker %q", res.ResourceName)
		}
		return b.describeBroker(res.ConfigNames), nil
	case kmsg.ConfigResourceTypeGroupConfig:
		if !r.may(opDescribeConfig, onGroup, res.ResourceName) {
			return nil, kerr.GroupAuthorizationFailed
		}
		return b.describeGroup(ctx, res.ResourceName, res.ConfigNames), nil
	case kmsg.ConfigResourceTypeBrokerLogger, kmsg.ConfigResourceTypeClientMetrics:
		if !r.may(opDescribeConfig, onCluster, cluster) {
			return nil, kerr.ClusterAuthorizationFailed
		}
		return []kmsg.DescribeConfigsResponseResourceConfig{}, nil // nothing can be set of them
	}
	return nil, refuse(kerr.InvalidRequest, "resources of type %s have no configuration here", res.ResourceType)
}

// describeTopic returns the named keys of a topic's configuration, all if names is nil. Defaults are
// those of the cluster.
func describeTopic(t metadata.Topic, defaults map[string]string, names []string) []kmsg.DescribeConfigsResponseResourceConfig {
	out := []kmsg.DescribeConfigsResponseResourceConfig{}
	for _, key := range partition.TopicConfigKeys() {
		if names != nil && !slices.Contains(names, key.Name) {
			continue
		}
		c := kmsg.NewDescribeConfigsResponseResourceConfig()
		c.Name, c.ConfigType = key.Name, configType(key.Type)
		c.Value, c.Source, c.IsDefault = kmsg.StringPtr(key.Default), kmsg.ConfigSourceDefaultConfig, true
		def := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
		def.Name, def.Value, def.Source = key.Name, c.Value, c.Source
		set := func(v string, source kmsg.ConfigSource) {
			c.Value, c.Source, c.IsDefault = &v, source, false
			own := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
			own.Name, own.Value, own.Source = key.Name, c.Value, c.Source
			c.ConfigSynonyms = append([]kmsg.DescribeConfigsResponseResourceConfigConfigSynonym{own}, c.ConfigSynonyms...)
		}
		c.ConfigSynonyms = append(c.ConfigSynonyms, def)
		if v, ok := defaults[key.Name]; ok {
			set(v, kmsg.ConfigSourceStaticBrokerConfig)
		}
		if v, ok := topicValue(t, key); ok {
			set(v, kmsg.ConfigSourceDynamicTopicConfig)
		}
		if key.Doc != "" {
			c.Documentation = kmsg.StringPtr(key.Doc)
		}
		out = append(out, c)
	}
	return out
}

// topicValue returns what is set for a key, be it under an alias.
func topicValue(t metadata.Topic, key partition.ConfigKey) (string, bool) {
	if v, ok := t.Config[key.Name]; ok {
		return v, true
	}
	for _, alias := range key.Synonyms {
		if v, ok := t.Config[alias]; ok {
			return v, true
		}
	}
	return "", false
}

// configType returns the protocol's number for the name of a type.
func configType(name string) kmsg.ConfigType {
	t, err := kmsg.ParseConfigType(name)
	if err != nil {
		return kmsg.ConfigTypeString
	}
	return t
}

// describeBroker returns the few settings of a Kafka broker that tools ask for and that
// mean something here. They are set when the process starts.
func (b *Broker) describeBroker(names []string) []kmsg.DescribeConfigsResponseResourceConfig {
	var out []kmsg.DescribeConfigsResponseResourceConfig
	for _, kv := range []struct {
		name, value string
		typ         kmsg.ConfigType
	}{
		{"auto.create.topics.enable", strconv.FormatBool(!b.cfg.NoAutoCreate), kmsg.ConfigTypeBoolean},
		{"broker.rack", b.cfg.Rack, kmsg.ConfigTypeString},
		{"connections.max.idle.ms", strconv.FormatInt(b.cfg.IdleTimeout.Milliseconds(), 10), kmsg.ConfigTypeLong},
		{"default.replication.factor", "1", kmsg.ConfigTypeInt},
		{"fetch.max.bytes", strconv.Itoa(b.cfg.MaxFetchBytes), kmsg.ConfigTypeInt},
		{"max.connections", strconv.Itoa(b.cfg.MaxConnections), kmsg.ConfigTypeInt},
		{"node.id", strconv.Itoa(int(b.node.ID)), kmsg.ConfigTypeInt},
		{"num.partitions", strconv.Itoa(b.cfg.DefaultPartitions), kmsg.ConfigTypeInt},
		{"socket.request.max.bytes", strconv.Itoa(b.cfg.MaxRequestBytes), kmsg.ConfigTypeInt},
	} {
		if names != nil && !slices.Contains(names, kv.name) {
			continue
		}
		c := kmsg.NewDescribeConfigsResponseResourceConfig()
		c.Name, c.Value, c.ConfigType = kv.name, &kv.value, kv.typ
		if kv.name == "broker.rack" {
			c.Value = rackOf(b.cfg.Rack)
		}
		c.ReadOnly, c.Source = true, kmsg.ConfigSourceStaticBrokerConfig
		out = append(out, c)
	}
	return out
}
