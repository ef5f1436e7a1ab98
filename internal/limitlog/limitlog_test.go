package limitlog

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// What comes again and again writes at most Burst lines, and PerSecond a second from then on. How
// many were left out is in the next line, so that none is lost.
func TestWarningsDoNotFloodTheLog(t *testing.T) {
	var log bytes.Buffer
	now := time.Unix(1000, 0)
	a := New(slog.New(slog.NewTextHandler(&log, nil)))
	a.now = func() time.Time { return now }
	lines := func() (n int, leftOut int) {
		for line := range strings.Lines(log.String()) {
			n++
			if _, rest, ok := strings.Cut(line, "left_out="); ok {
				var m int
				fmt.Sscan(rest, &m)
				leftOut += m
			}
		}
		return n, leftOut
	}
	warned := 0
	warn := func(n int) {
		for range n {
			a.Warn("denied", "resource", warned)
			warned++
		}
	}
	warn(10_000)
	if n, _ := lines(); n != Burst {
		t.Fatalf("%d lines of 10,000 at once, want %d", n, Burst)
	}
	for range 10 {
		now = now.Add(time.Second)
		warn(1000)
	}
	n, _ := lines()
	if want := Burst + 10*PerSecond; n != want {
		t.Fatalf("%d lines, want %d after 10 s", n, want)
	}
	now = now.Add(time.Hour) // what is not used is saved up to the burst alone
	warn(1000)
	if n, _ = lines(); n != 2*Burst+10*PerSecond {
		t.Fatalf("%d lines after an hour, want %d", n, 2*Burst+10*PerSecond)
	}
	now = now.Add(time.Second)
	warn(1)
	if n, leftOut := lines(); n+leftOut != warned {
		t.Errorf("%d lines and %d left out, want %d", n, leftOut, warned)
	}
}
