package streamstore

import (
	"hash/crc32"
	"time"
)

// SetClock replaces the clock of m.
func (m *MemoryManager) SetClock(now func() time.Time) { m.now = now }

func crcUpdate(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }
