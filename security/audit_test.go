package security

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/limitlog"
)

// Each denial is a line that says who was refused what, from where; what was only looked at for a list is none. Names
// of clients cannot make lines of their own.
func TestDenialsAreLogged(t *testing.T) {
	var log bytes.Buffer
	a := openAccess(t, Config{Authorize: true})
	a.audit = limitlog.New(slog.New(slog.NewTextHandler(&log, nil)))
	c := Client{"User:eve\nlevel=ERROR", "10.0.0.7"}
	if a.Authorize(c, kmsg.ACLOperationWrite, kmsg.ACLResourceTypeTopic, "orders") || a.Allows(c, kmsg.ACLOperationDescribe, kmsg.ACLResourceTypeTopic, "seen") ||
		a.AuthorizeAny(c, kmsg.ACLOperationRead, ResourceSubject) {
		t.Fatal("eve may do something")
	}
	if got, want := log.String(), `msg=denied principal="User:eve\nlevel=ERROR" host=10.0.0.7 operation=WRITE resource_type=TOPIC resource=orders`+"\n"; !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("log %q, want one line that ends in %q", got, want)
	}
}
