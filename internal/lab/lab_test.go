package lab

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A server answers while its test runs, and is gone after it.
func TestVersitygw(t *testing.T) {
	var endpoint string
	t.Run("running", func(t *testing.T) {
		endpoint, _, _ = Versitygw(t)
		res, err := http.Get(endpoint)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("unsigned request: %s, want 403", res.Status)
		}
	})
	if res, err := http.Get(endpoint); err == nil {
		res.Body.Close()
		t.Errorf("the server still answers after its test: %s", res.Status)
	}
}

func TestStartTellsWhyAProcessEnded(t *testing.T) {
	_, err := start(t, exec.Command("sh", "-c", "echo no disk; exit 3"), 10*time.Second, func() error { return dial(1) })
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("start: %v, want the exit status and what the process said", err)
	}
}
