package broker

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// docs/kafka.md lists what is served, in the versions that are.
func TestDocumentedAPIs(t *testing.T) {
	doc, err := os.ReadFile("../docs/kafka.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\w+) \| (\d+(?:–\d+)?) \|`).FindAllStringSubmatch(string(doc), -1) {
		documented[row[1]] = row[2]
	}
	served := map[string]string{}
	for _, a := range newAPITable().list {
		versions := fmt.Sprintf("%d–%d", a.min, a.max)
		if a.min == a.max {
			versions = fmt.Sprint(a.min)
		}
		served[a.name()] = versions
	}
	if diff := cmp.Diff(served, documented); diff != "" {
		t.Errorf("docs/kafka.md (-served +documented):\n%s", diff)
	}
}

// kafkaGroupConfigs are the settings of groups that Kafka 4.4 has (GroupConfig.configNames).
const kafkaGroupConfigs = "consumer.assignment.interval.ms consumer.assignor.offload.enable consumer.heartbeat.interval.ms consumer.session.timeout.ms " +
	"errors.deadletterqueue.copy.record.enable errors.deadletterqueue.topic.name share.assignment.interval.ms share.assignor.offload.enable " +
	"share.auto.offset.reset share.delivery.count.limit share.heartbeat.interval.ms share.isolation.level share.partition.max.record.locks " +
	"share.record.lock.duration.ms share.renew.acknowledge.enable share.session.timeout.ms streams.acceptable.recovery.lag " +
	"streams.assignment.interval.ms streams.assignor.name streams.assignor.offload.enable streams.heartbeat.interval.ms " +
	"streams.initial.rebalance.delay.ms streams.num.standby.replicas streams.num.warmup.replicas streams.rack.aware.assignment.tags " +
	"streams.session.timeout.ms streams.task.offset.interval.ms"

// Settings of groups are those of Kafka, but for those of streams groups; each is documented, with or without effect.
func TestEveryGroupConfigOfKafkaIsKnown(t *testing.T) {
	doc, err := os.ReadFile("../docs/kafka.md")
	if err != nil {
		t.Fatal(err)
	}
	var known, want []string
	for _, k := range groupConfigKeys {
		known = append(known, k.name)
		if row := regexp.MustCompile("(?m)^\\|[^|\n]*`" + regexp.QuoteMeta(k.name) + "`").FindString(string(doc)); row == "" {
			t.Errorf("docs/kafka.md has no row for %s", k.name)
		}
	}
	for _, name := range strings.Fields(kafkaGroupConfigs) {
		if !strings.HasPrefix(name, "streams.") {
			want = append(want, name)
		}
	}
	slices.Sort(known)
	if diff := cmp.Diff(want, known); diff != "" {
		t.Errorf("settings of groups (-Kafka +known):\n%s", diff)
	}
}
