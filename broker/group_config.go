package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/broker/share"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
)

// groupConfig is what holds for a group.
type groupConfig struct {
	consumer   timeouts // consumer.session.timeout.ms, consumer.heartbeat.interval.ms, consumer.assignment.interval.ms
	share      timeouts // share.session.timeout.ms, share.heartbeat.interval.ms, share.assignment.interval.ms
	lockMillis int64    // share.record.lock.duration.ms
	deliveries int64    // share.delivery.count.limit
	inFlight   int64    // share.partition.max.record.locks
	renew      bool     // share.renew.acknowledge.enable
	// isolation is up to where the group sees the log (share.isolation.level).
	isolation partition.Isolation
	// reset is where a group begins that has fetched nothing of a partition (share.auto.offset.reset).
	reset shareReset
	// stored is what is set of keys that have no effect.
	stored map[string]string

	bounds group.Config
	// lenient takes numbers beyond the bounds to be the bound: they were set when it was another.
	lenient bool
}

// timeouts are how long a member is in its group without a heartbeat, how often it sends one, and how long after an
// assignment the next one is made.
type timeouts struct{ sessionMillis, heartbeatMillis, assignmentMillis int64 }

func (t timeouts) durations() group.Timeouts {
	millis := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	return group.Timeouts{Session: millis(t.sessionMillis), Heartbeat: millis(t.heartbeatMillis), Assignment: millis(t.assignmentMillis)}
}

// check refuses timeouts of groups of a kind, consumer or share, that cannot work.
func (t timeouts) check(kind string) error {
	if t.heartbeatMillis >= t.sessionMillis {
		return refuse(kerr.InvalidConfig, "%s.heartbeat.interval.ms %d is not less than %s.session.timeout.ms %d: every member would be taken for dead", kind, t.heartbeatMillis, kind, t.sessionMillis)
	}
	return nil
}

func (c *groupConfig) limits() share.Limits {
	return share.Limits{Lock: time.Duration(c.lockMillis) * time.Millisecond, Deliveries: int(c.deliveries), InFlight: int(c.inFlight)}
}

// shareReset is a value of share.auto.offset.reset.
type shareReset struct {
	earliest bool
	since    time.Duration // before now; zero if it is not by_duration
	text     string
}

// parseShareReset reads earliest, latest, or by_duration: and a duration of ISO 8601.
func parseShareReset(s string) (shareReset, error) {
	switch s {
	case "latest":
		return shareReset{text: s}, nil
	case "earliest":
		return shareReset{earliest: true, text: s}, nil
	}
	if text, by := strings.CutPrefix(s, "by_duration:"); by {
		if d, ok := parseISODuration(text); ok && d > 0 {
			return shareReset{since: d, text: s}, nil
		}
	}
	return shareReset{}, fmt.Errorf("%q: want earliest, latest, or by_duration:PnDTnHnMn.nS", s)
}

var isoDuration = regexp.MustCompile(`^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?$`)

// parseISODuration reads days to seconds, as Java does.
func parseISODuration(s string) (d time.Duration, ok bool) {
	m := isoDuration.FindStringSubmatch(s)
	if m == nil {
		return 0, false
	}
	for i, unit := range []time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second} {
		if m[i+1] == "" {
			continue
		}
		n, err := strconv.ParseFloat(m[i+1], 64)
		if err != nil || n*float64(unit) > float64(1<<62) {
			return 0, false
		}
		d, ok = d+time.Duration(n*float64(unit)), true
		if d < 0 {
			return 0, false
		}
	}
	return d, ok
}

// begin returns the offset of a partition at which a group begins.
func (c *groupConfig) begin(ctx context.Context, p *partition.Partition) (int64, error) {
	o := p.Offsets()
	end := o.HighWatermark
	if c.isolation == partition.ReadCommitted {
		end = o.LastStable
	}
	switch {
	case c.reset.earliest:
		return o.LogStart, nil
	case c.reset.since > 0:
		at, _, err := p.OffsetForTimestamp(ctx, time.Now().Add(-c.reset.since).UnixMilli())
		if err != nil || at < 0 || at > end {
			return end, err
		}
		return at, nil
	}
	return end, nil
}

// groupConfigKey is a setting of groups (KIP-848, KIP-932), under Kafka's name.
type groupConfigKey struct {
	name string
	typ  kmsg.ConfigType
	doc  string
	set  func(c *groupConfig, value string) error // takes a value, or says why not
	get  func(c *groupConfig) string
}

// number is a setting that is a whole number between two, both included.
func number(name string, typ kmsg.ConfigType, least, most int64, field func(*groupConfig) *int64, doc string) groupConfigKey {
	return bounded(name, typ, func(*groupConfig) (int64, int64) { return least, most }, field, doc)
}

// bounded is a number whose bounds are settings of the server.
func bounded(name string, typ kmsg.ConfigType, bounds func(*groupConfig) (least, most int64), field func(*groupConfig) *int64, doc string) groupConfigKey {
	return groupConfigKey{name, typ, doc,
		func(c *groupConfig, value string) error {
			least, most := bounds(c)
			n, err := strconv.ParseInt(value, 10, 64)
			if err == nil && c.lenient {
				n = min(max(n, least), most)
			}
			if err != nil || n < least || n > most {
				return fmt.Errorf("%q: want a whole number between %d and %d", value, least, most)
			}
			*field(c) = n
			return nil
		},
		func(c *groupConfig) string { return strconv.FormatInt(*field(c), 10) },
	}
}

// inert is a setting that is checked, stored and shown, and has no effect.
func inert(name string, typ kmsg.ConfigType, def, why string, check func(string) error) groupConfigKey {
	return groupConfigKey{name, typ, "stored without effect: " + why,
		func(c *groupConfig, value string) error {
			if c.stored == nil {
				c.stored = map[string]string{}
			}
			c.stored[name] = value
			return check(value)
		},
		func(c *groupConfig) string { return cmp.Or(c.stored[name], def) },
	}
}

func checkBoolean(value string) error {
	if value != "true" && value != "false" {
		return fmt.Errorf("%q: want true or false", value)
	}
	return nil
}

// checkLetterTopic takes the name of a topic, or none.
func checkLetterTopic(value string) error {
	if value == "" {
		return nil
	}
	return partition.CheckTopicName(value)
}

// groupConfigKeys are the settings of groups, by name.
var groupConfigKeys = []groupConfigKey{
	bounded("consumer.assignment.interval.ms", kmsg.ConfigTypeInt, func(c *groupConfig) (int64, int64) {
		return c.bounds.ConsumerMinAssignment.Milliseconds(), c.bounds.ConsumerMaxAssignment.Milliseconds()
	}, func(c *groupConfig) *int64 { return &c.consumer.assignmentMillis }, "how long after an assignment a group of the consumer protocol has its next one, which then takes in all that has changed; at once if 0"),
	inert("consumer.assignor.offload.enable", kmsg.ConfigTypeBoolean, "true", "a group of the consumer protocol is assigned partitions where its state is", checkBoolean),
	bounded("consumer.heartbeat.interval.ms", kmsg.ConfigTypeInt, func(c *groupConfig) (int64, int64) {
		return c.bounds.ConsumerMinHeartbeat.Milliseconds(), c.bounds.ConsumerMaxHeartbeat.Milliseconds()
	}, func(c *groupConfig) *int64 { return &c.consumer.heartbeatMillis }, "how often members of the consumer protocol send heartbeats, less than consumer.session.timeout.ms"),
	bounded("consumer.session.timeout.ms", kmsg.ConfigTypeInt, func(c *groupConfig) (int64, int64) {
		return c.bounds.ConsumerMinSession.Milliseconds(), c.bounds.ConsumerMaxSession.Milliseconds()
	}, func(c *groupConfig) *int64 { return &c.consumer.sessionMillis }, "how long a member of the consumer protocol is in the group after its last heartbeat"),
	inert("errors.deadletterqueue.copy.record.enable", kmsg.ConfigTypeBoolean, "false", "share groups have no dead letter queues", checkBoolean),
	inert("errors.deadletterqueue.topic.name", kmsg.ConfigTypeString, "", "share groups have no dead letter queues, what is given up stays in the topic", checkLetterTopic),
	number("share.assignment.interval.ms", kmsg.ConfigTypeInt, 0, 15_000, func(c *groupConfig) *int64 { return &c.share.assignmentMillis }, "how long after an assignment a share group has its next one, which then takes in all that has changed; at once if 0"),
	inert("share.assignor.offload.enable", kmsg.ConfigTypeBoolean, "true", "a share group is assigned partitions where its state is", checkBoolean),
	{"share.auto.offset.reset", kmsg.ConfigTypeString, "where a share group begins in a partition of which it has fetched nothing: earliest, latest, or by_duration:PnDTnHnMn.nS before now",
		func(c *groupConfig, value string) (err error) {
			c.reset, err = parseShareReset(value)
			return err
		},
		func(c *groupConfig) string { return c.reset.text }},
	number("share.delivery.count.limit", kmsg.ConfigTypeInt, 2, 100, func(c *groupConfig) *int64 { return &c.deliveries }, "how often a record is given to a member before it is given up"),
	number("share.heartbeat.interval.ms", kmsg.ConfigTypeInt, 100, 600_000, func(c *groupConfig) *int64 { return &c.share.heartbeatMillis }, "how often members send heartbeats, less than share.session.timeout.ms"),
	{"share.isolation.level", kmsg.ConfigTypeString, "read_committed or read_uncommitted: whether records of transactions are given out before they are committed, and if they are aborted",
		func(c *groupConfig, value string) error {
			switch value {
			case "read_committed":
				c.isolation = partition.ReadCommitted
			case "read_uncommitted":
				c.isolation = partition.ReadUncommitted
			default:
				return fmt.Errorf("%q: want read_committed or read_uncommitted", value)
			}
			return nil
		},
		func(c *groupConfig) string {
			if c.isolation == partition.ReadCommitted {
				return "read_committed"
			}
			return "read_uncommitted"
		}},
	number("share.partition.max.record.locks", kmsg.ConfigTypeInt, 100, 10_000, func(c *groupConfig) *int64 { return &c.inFlight }, "most records of a partition that are given out and not done"),
	number("share.record.lock.duration.ms", kmsg.ConfigTypeInt, 1000, 3_600_000, func(c *groupConfig) *int64 { return &c.lockMillis }, "how long a member has a record that it was given, before another may have it"),
	{"share.renew.acknowledge.enable", kmsg.ConfigTypeBoolean, "whether members may ask for more time (KIP-1222)",
		func(c *groupConfig, value string) (err error) {
			c.renew = value == "true"
			return checkBoolean(value)
		},
		func(c *groupConfig) string { return strconv.FormatBool(c.renew) }},
	number("share.session.timeout.ms", kmsg.ConfigTypeInt, 1000, 1_800_000, func(c *groupConfig) *int64 { return &c.share.sessionMillis }, "how long a member is in the group after its last heartbeat"),
}

// defaultGroupConfig is what holds for groups of which nothing is set.
func (b *Broker) defaultGroupConfig() groupConfig {
	bounds := b.groups.Config()
	return groupConfig{
		consumer:   timeouts{bounds.ConsumerSession.Milliseconds(), bounds.ConsumerHeartbeat.Milliseconds(), bounds.ConsumerAssignment.Milliseconds()},
		share:      timeouts{bounds.ShareSession.Milliseconds(), bounds.ShareHeartbeat.Milliseconds(), bounds.ShareAssignment.Milliseconds()},
		lockMillis: b.cfg.ShareRecordLock.Milliseconds(), deliveries: int64(b.cfg.ShareDeliveries), inFlight: int64(b.cfg.ShareRecordLocks),
		reset: shareReset{text: "latest"}, renew: true, bounds: bounds,
	}
}

// parseGroupConfig returns what holds for a group of which raw is set, be it beyond the bounds if lenient.
func (b *Broker) parseGroupConfig(raw map[string]string, lenient bool) (groupConfig, error) {
	c := b.defaultGroupConfig()
	c.lenient = lenient
	for name, value := range raw {
		i := slices.IndexFunc(groupConfigKeys, func(k groupConfigKey) bool { return k.name == name })
		if i < 0 {
			var known []string
			for _, k := range groupConfigKeys {
				known = append(known, k.name)
			}
			return c, refuse(kerr.InvalidConfig, "unknown config %q of a group: there are %s", name, strings.Join(known, ", "))
		}
		if err := groupConfigKeys[i].set(&c, value); err != nil {
			return c, refuse(kerr.InvalidConfig, "config %s: %v", name, err)
		}
	}
	return c, errors.Join(c.consumer.check("consumer"), c.share.check("share"))
}

// groupConfigRefresh is how late a node learns what another has set.
const groupConfigRefresh = time.Second

// groupConfigs is what is set of groups, as metadata had it a moment ago.
type groupConfigs struct {
	mu     sync.Mutex
	all    map[string]map[string]string // guarded by mu
	looked time.Time                    // guarded by mu; zero: to be read
}

// rawGroupConfigs returns what is set of groups. While the metadata does not answer, what was set
// before stays in force.
func (b *Broker) rawGroupConfigs(ctx context.Context) map[string]map[string]string {
	g := &b.groupConfigs
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.looked.IsZero() && (!b.meta.Shared() || time.Since(g.looked) < groupConfigRefresh) {
		return g.all
	}
	ctx, cancel := context.WithTimeout(ctx, groupConfigRefresh)
	defer cancel()
	all, err := b.meta.GroupConfigs(ctx)
	if err == nil {
		g.all = all
	} else {
		b.log.Warn("settings of groups are as they were before", "err", err)
	}
	if err == nil || g.all != nil {
		g.looked = time.Now()
	}
	return g.all
}

// groupConfig returns what holds for a group now.
func (b *Broker) groupConfig(group string) groupConfig {
	c, err := b.parseGroupConfig(b.rawGroupConfigs(b.ctx)[group], true)
	if err != nil { // it was checked when it was set, by a release that allowed it
		b.log.Error("settings of a group are not used", "group", group, "err", err)
		c = b.defaultGroupConfig()
	}
	return c
}

// describeGroup returns the named settings of a group, all if names is nil.
func (b *Broker) describeGroup(ctx context.Context, group string, names []string) []kmsg.DescribeConfigsResponseResourceConfig {
	raw, def, own := b.rawGroupConfigs(ctx)[group], b.defaultGroupConfig(), b.groupConfig(group)
	out := []kmsg.DescribeConfigsResponseResourceConfig{}
	for _, key := range groupConfigKeys {
		if names != nil && !slices.Contains(names, key.name) {
			continue
		}
		synonym := func(v string, source kmsg.ConfigSource) kmsg.DescribeConfigsResponseResourceConfigConfigSynonym {
			s := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
			s.Name, s.Value, s.Source = key.name, &v, source
			return s
		}
		c := kmsg.NewDescribeConfigsResponseResourceConfig()
		value := key.get(&own)
		c.Name, c.Value, c.ConfigType, c.Documentation = key.name, &value, key.typ, kmsg.StringPtr(key.doc)
		c.Source, c.IsDefault = kmsg.ConfigSourceDefaultConfig, true
		if _, set := raw[key.name]; set {
			c.Source, c.IsDefault = kmsg.ConfigSourceGroupConfig, false
			c.ConfigSynonyms = append(c.ConfigSynonyms, synonym(value, kmsg.ConfigSourceGroupConfig))
		}
		c.ConfigSynonyms = append(c.ConfigSynonyms, synonym(key.get(&def), kmsg.ConfigSourceDefaultConfig))
		out = append(out, c)
	}
	return out
}

// alterGroup applies what change makes of a group's settings, or only checks it.
func (b *Broker) alterGroup(ctx context.Context, group string, validateOnly bool, change func(metadata.Topic) (*configChange, error)) error {
	if group == "" {
		return refuse(kerr.InvalidRequest, "the group has no name")
	}
	c, err := change(metadata.Topic{Config: b.rawGroupConfigs(ctx)[group]})
	if err != nil {
		return err
	}
	if _, err := b.parseGroupConfig(c.config, false); err != nil || validateOnly {
		return err
	}
	if err := b.meta.AlterGroupConfig(ctx, group, c.set, c.removed()); err != nil {
		return err
	}
	b.groupConfigs.mu.Lock()
	b.groupConfigs.looked = time.Time{}
	b.groupConfigs.mu.Unlock()
	b.log.Info("group configuration changed", "group", group, "set", c.set, "removed", c.removed())
	return nil
}
