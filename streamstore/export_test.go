package streamstore

import (
	"time"

	"github.com/tabletopic/tabletopic/internal/crc32c"
)

// SetClock replaces the clock of m.
func (m *MemoryManager) SetClock(now func() time.Time) { m.now = now }

func crcUpdate(crc uint32, p []byte) uint32 { return crc32c.Update(crc, p) }
