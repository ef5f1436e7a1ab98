package streamstore_test

import (
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/streamstore"
	"github.com/tabletopic/tabletopic/streamstore/streamstoretest"
)

// The manager in memory behaves as the database does.
func TestMemoryManager(t *testing.T) {
	streamstoretest.RunManagers(t, func(t *testing.T) streamstoretest.Managers {
		now := time.Unix(1_700_000_000, 0)
		m := streamstore.NewMemoryManager()
		m.SetClock(func() time.Time { return now })
		return streamstoretest.Managers{Streams: m, Objects: m, Advance: func(d time.Duration) { now = now.Add(d) }}
	})
}
