package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// notOurs are the tests of franz-go's suite that are skipped here, and why.
var notOurs = map[string]string{
	"TestOAuthAuth": "wants a broker that takes tokens without a signature, which ours never does",
	"TestIssueProduceBrokerTooOldFailsRecords": "wants a broker that lacks versions of Produce which ours has",
}

// franz-go's own suite, 154 tests of producing, consuming, groups of each protocol, share groups,
// transactions and administration, passes on our server: each test by name, and none is skipped but those
// that say why.
func TestFranzGoSuite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	suite := filepath.Join(dir, "suite")
	const module = "github.com/twmb/franz-go"
	run(t, nil, "go", "test", "-c", "-o", suite, module+"/pkg/kgo")
	source := strings.TrimSpace(run(t, nil, "go", "list", "-m", "-f", "{{.Dir}}", module))
	open := startServer(t)
	asking := startServer(t, "--kafka-protocol", "SASL_PLAINTEXT", "--users", "admin:"+secretFile(t, "horse"), "--super-users", "User:admin")

	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, suite, "-test.v", "-test.timeout", "15m")
	cmd.Dir = filepath.Join(source, "pkg", "kgo")
	cmd.Env = append(os.Environ(), "KGO_SEEDS="+open.kafka, "KGO_TEST_SCRAM_SEEDS="+asking.kafka, "KGO_TEST_SCRAM=admin:horse",
		"KGO_TEST_RF=1", "KGO_TEST_RECORDS=50000", "KGO_TEST_UNSAFE=1", "KGO_TEST_STABLE_FETCH=1")
	out, err := cmd.CombinedOutput()
	result := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\S+)`).FindAllSubmatch(out, -1) {
		result[string(m[2])] = string(m[1])
		if string(m[1]) == "FAIL" {
			t.Errorf("%s", said(out, string(m[2])))
		}
	}
	if err != nil {
		t.Errorf("the suite: %v\n%s", err, out[max(0, len(out)-500):])
	}
	passed := 0
	for name := range strings.FieldsSeq(run(t, nil, suite, "-test.list", "^(Test|Fuzz|Example)")) {
		_, skipped := notOurs[name]
		switch got := result[name]; {
		case strings.HasPrefix(name, "Example"), got == "FAIL": // without output to compare; named above
		case skipped && got == "SKIP":
		case !skipped && got == "PASS":
			passed++
		default:
			t.Errorf("%s: %q, and it is skipped with a reason: %t", name, got, skipped)
		}
	}
	if passed < 154 {
		t.Errorf("%d tests passed, want 154", passed)
	}
}

// said is what a test of a verbose run printed.
func said(out []byte, name string) string {
	var lines []string
	current := ""
	for line := range bytes.Lines(out) {
		text := string(line)
		if f := strings.Fields(text); len(f) >= 3 && slices.Contains([]string{"RUN", "CONT", "NAME", "PAUSE"}, f[1]) && f[0] == "===" {
			current = f[2]
			continue
		}
		if current == name || strings.HasPrefix(current, name+"/") {
			lines = append(lines, text)
		}
	}
	return name + " failed:\n" + strings.Join(lines[max(0, len(lines)-40):], "")
}
