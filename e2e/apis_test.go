package e2e

import (
	"archive/zip"
	"encoding/json"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// What a broker of Kafka 4.4 serves to clients and a server of ours does not; docs/kafka.md says why.
var notServed = []string{
	"CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken", "DescribeDelegationToken",
	"AddRaftVoter", "RemoveRaftVoter", "UnregisterController",
	"InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState", "DeleteShareGroupState", "ReadShareGroupStateSummary",
	"StreamsGroupHeartbeat", "StreamsGroupDescribe", "StreamsGroupTopologyDescriptionUpdate",
}

// Every request that Kafka's own client library knows of a broker, in its newest stable version, is
// served, or is in the list of those that are not.
func TestServesWhatKafkaServes(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	resp, err := s.client().Request(t.Context(), kmsg.NewPtrApiVersionsRequest())
	if err != nil {
		t.Fatal(err)
	}
	served := map[int16]int16{}
	for _, k := range resp.(*kmsg.ApiVersionsResponse).ApiKeys {
		served[k.ApiKey] = k.MaxVersion
	}
	known := 0
	for _, m := range kafkaRequests(t) {
		if !slices.Contains(m.Listeners, "broker") {
			continue
		}
		known++
		_, last, _ := strings.Cut(m.ValidVersions, "-")
		if last == "" {
			last = m.ValidVersions
		}
		newest, err := strconv.Atoi(last)
		if err != nil {
			t.Fatalf("%s has the versions %q", m.Name, m.ValidVersions)
		}
		if m.LatestVersionUnstable {
			newest--
		}
		version, is := served[m.APIKey]
		switch name := strings.TrimSuffix(m.Name, "Request"); {
		case slices.Contains(notServed, name):
			if is {
				t.Errorf("%s is served, and in the list of what is not", name)
			}
		case !is:
			t.Errorf("%s (%d) is not served", name, m.APIKey)
		case int(version) != newest:
			t.Errorf("%s is served up to version %d, Kafka's newest is %d", name, version, newest)
		}
	}
	if known < 70 {
		t.Errorf("only %d requests are known", known)
	}
}

type kafkaRequest struct {
	APIKey                int16 `json:"apiKey"`
	Name                  string
	Type                  string
	Listeners             []string
	ValidVersions         string
	LatestVersionUnstable bool
}

// kafkaRequests reads the definitions of messages that Kafka's client library has with it: JSON with
// comments.
func kafkaRequests(t *testing.T) (all []kafkaRequest) {
	t.Helper()
	jars := strings.Split(classpath(t, "kafka-clients"), ":")
	i := slices.IndexFunc(jars, func(jar string) bool { return strings.HasPrefix(path.Base(jar), "kafka-clients-4") })
	if i < 0 {
		t.Fatalf("no kafka-clients among %v", jars)
	}
	jar, err := zip.OpenReader(jars[i])
	if err != nil {
		t.Fatal(err)
	}
	defer jar.Close()
	comment := regexp.MustCompile(`(?m)^\s*//.*$|(?m)([\]}",0-9])\s*//.*$`)
	for _, f := range jar.File {
		if !strings.HasPrefix(f.Name, "common/message/") || !strings.HasSuffix(f.Name, "Request.json") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			t.Fatal(err)
		}
		var m kafkaRequest
		if err := json.Unmarshal(comment.ReplaceAll(text, []byte("$1")), &m); err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		all = append(all, m)
	}
	return all
}
