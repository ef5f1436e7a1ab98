package security

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Each denial is a line that says who was refused what, from where; what was only looked at for a list is none. Names
// of clients cannot make lines of their own.
func TestDenialsAreLogged(t *testing.T) {
	var log bytes.Buffer
	a := openAccess(t, Config{Authorize: true})
	a.audit = newAudit(slog.New(slog.NewTextHandler(&log, nil)))
	c := Client{"User:eve\nlevel=ERROR", "10.0.0.7"}
	if a.Authorize(c, kmsg.ACLOperationWrite, kmsg.ACLResourceTypeTopic, "orders") || a.Allows(c, kmsg.ACLOperationDescribe, kmsg.ACLResourceTypeTopic, "seen") ||
		a.AuthorizeAny(c, kmsg.ACLOperationRead, ResourceSubject) {
		t.Fatal("eve may do something")
	}
	if got, want := log.String(), `msg=denied principal="User:eve\nlevel=ERROR" host=10.0.0.7 operation=WRITE resource_type=TOPIC resource=orders`+"\n"; !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("log %q, want one line that ends in %q", got, want)
	}
}

// A client that is refused again and again writes at most auditBurst lines, and auditPerSec a second from then on. How
// many were left out is in the next line, so that none is lost.
func TestDenialsDoNotFloodTheLog(t *testing.T) {
	var log bytes.Buffer
	now := time.Unix(1000, 0)
	a := newAudit(slog.New(slog.NewTextHandler(&log, nil)))
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
			a.warn("denied", "resource", warned)
			warned++
		}
	}
	warn(10_000)
	if n, _ := lines(); n != auditBurst {
		t.Fatalf("%d lines of 10,000 at once, want %d", n, auditBurst)
	}
	for range 10 {
		now = now.Add(time.Second)
		warn(1000)
	}
	n, _ := lines()
	if want := auditBurst + 10*auditPerSec; n != want {
		t.Fatalf("%d lines, want %d after 10 s", n, want)
	}
	now = now.Add(time.Hour) // what is not used is saved up to the burst alone
	warn(1000)
	if n, _ = lines(); n != 2*auditBurst+10*auditPerSec {
		t.Fatalf("%d lines after an hour, want %d", n, 2*auditBurst+10*auditPerSec)
	}
	now = now.Add(time.Second)
	warn(1)
	if n, leftOut := lines(); n+leftOut != warned {
		t.Errorf("%d lines and %d left out, want %d", n, leftOut, warned)
	}
}
