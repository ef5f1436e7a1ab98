package coordinator

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// Each script tells a Health what its coordinator meets and shows the states; its first line
// says what it proves. A call may take 10 s, and a commit 60 s.
func TestHealthScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/health", func(t *testing.T, path string) {
		h, now := &Health{}, time.Unix(0, 0).UTC()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				out.WriteString(healthLine(t, h, &now, strings.TrimSpace(line)))
			}
			return out.String()
		})
	})
}

// healthLine runs one verb:
//
//	begun | filled | calls | answered [ERROR] | refused ERROR | paused ERROR | broken ERROR | committed
//	waits AGE [PARTITION:AGE …]   the ages are of the oldest record, and of silent partitions
//	pass DURATION
//	state [oldest=AGE] [trouble=TEXT:AGE]   what the workers know
func healthLine(t *testing.T, h *Health, now *time.Time, line string) string {
	t.Helper()
	verb, rest, _ := strings.Cut(line, " ")
	ago := func(age string) time.Time {
		if age == "-" {
			return time.Time{}
		}
		return now.Add(-parseDuration(t, age))
	}
	switch verb {
	case "begun":
		h.Begun(*now)
	case "filled":
		h.Filled(true)
	case "calls":
		h.Calls(*now)
	case "answered":
		var err error
		if rest != "" {
			err = errors.New(rest)
		}
		h.Answered(err, *now)
	case "refused":
		h.Refused(errors.New(rest), *now)
	case "paused":
		h.Paused(errors.New(rest), *now)
	case "broken":
		h.Broken(errors.New(rest), *now)
	case "committed":
		h.Committed(*now)
	case "waits":
		f := strings.Fields(rest)
		silent := map[int32]time.Time{}
		for _, item := range f[1:] {
			var p int32
			var age string
			if _, err := fmt.Sscanf(strings.Replace(item, ":", " ", 1), "%d %s", &p, &age); err != nil {
				t.Fatal(err)
			}
			silent[p] = ago(age)
		}
		h.Waits(ago(f[0]), silent)
	case "pass":
		*now = now.Add(parseDuration(t, rest))
	case "state":
		var w Work
		for _, f := range strings.Fields(rest) {
			k, v, _ := strings.Cut(f, "=")
			if k == "oldest" {
				w.Oldest = ago(v)
				continue
			}
			text, age, _ := strings.Cut(v, ":")
			w.Trouble = Ailment{text, ago(age)}
		}
		s, a := h.State(*now, w, Patience{Call: 10 * time.Second, Stuck: time.Minute})
		if a.Message == "" {
			return fmt.Sprintf("%s\n", s)
		}
		return fmt.Sprintf("%s for %s: %s\n", s, now.Sub(a.Since), a.Message)
	default:
		t.Fatalf("unknown verb %q", line)
	}
	return ""
}
