package streamstore

import "time"

// SetClock replaces the clock of m.
func (m *MemoryManager) SetClock(now func() time.Time) { m.now = now }
