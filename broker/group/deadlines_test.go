package group

import (
	"fmt"
	"testing"
	"time"
)

// Of many groups only those are looked at that have something due, in the order of their names.
func TestTickLooksAtWhatIsDue(t *testing.T) {
	c := newCrowd(t, Config{})
	for i := range 100 {
		if got := c.beat(fmt.Sprint("long-", i), "m", 0, "topic-1"); got.ErrorCode != 0 {
			t.Fatal(*got.ErrorMessage)
		}
	}
	c.apply(c.s.Tick(c.now)) // the first look at new members
	for _, group := range []string{"z", "b"} {
		if err := c.join(group); err != nil {
			t.Fatal(err)
		}
	}
	c.apply(c.s.Tick(c.now))
	c.now = c.now.Add(500 * time.Millisecond) // the initial delay of a rebalance
	if wake := c.s.Wake(); !wake.Equal(c.now) {
		t.Fatalf("looks again at %v, want %v", wake, c.now)
	}
	due := c.s.due(c.now)
	if len(due) != 2 || due[0].id != "b" || due[1].id != "z" {
		t.Fatalf("%d groups are due", len(due))
	}
	if more := c.s.due(c.now); len(more) > 0 {
		t.Errorf("%d groups are due again", len(more))
	}
}
