package testkit

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// Log collects the log of a program under test. It is safe for concurrent use, and its zero value is
// empty and ready.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write appends p.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.text.Write(p)
}

// String returns everything that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.text.String()
}

// Contains reports whether text was written.
func (l *Log) Contains(text string) bool { return strings.Contains(l.String(), text) }

// Logger returns a logger that writes every level to l as text.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// PrintOnFailure prints the log at the end of a test that failed.
func (l *Log) PrintOnFailure(t testing.TB) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", l)
		}
	})
}

// Count returns how many times text was written.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }
