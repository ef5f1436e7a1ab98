// Package limitlog writes warnings about what others do, which may be as much as they like: a burst,
// and then a few lines a second. How many were left out is in the next line, so that none is lost.
package limitlog

import (
	"log/slog"
	"sync"
	"time"
)

const (
	// Burst is how many lines come at once.
	Burst = 100
	// PerSecond is how many come in a second from then on. What is not used is saved up to Burst.
	PerSecond = 10
)

// A Logger writes warnings to a log. Those of one Logger share its bound.
type Logger struct {
	log *slog.Logger
	now func() time.Time

	mu      sync.Mutex
	tokens  float64   // guarded by mu
	at      time.Time // guarded by mu; when tokens was counted
	dropped int       // guarded by mu; lines since the last that was written
}

// New returns a Logger that may write a burst.
func New(log *slog.Logger) *Logger { return &Logger{log: log, now: time.Now, tokens: Burst} }

// Warn writes a line, or counts it for the next one.
func (l *Logger) Warn(what string, args ...any) {
	dropped, ok := l.take()
	if !ok {
		return
	}
	if dropped > 0 {
		args = append(args, "left_out", dropped)
	}
	l.log.Warn(what, args...)
}

// take reports whether a line may be written, and how many were not since the last.
func (l *Logger) take() (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if !l.at.IsZero() {
		l.tokens = min(Burst, l.tokens+now.Sub(l.at).Seconds()*PerSecond)
	}
	l.at = now
	if l.tokens < 1 {
		l.dropped++
		return 0, false
	}
	l.tokens--
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}
