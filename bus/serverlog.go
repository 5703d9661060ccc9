package bus

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// serverLog is the log of the embedded NATS server: refused logins and the like are warnings of this process, and its daily work is
// debug lines. A client can cause a warning at will, so they are bounded.
type serverLog struct {
	log *slog.Logger

	mu      sync.Mutex
	since   time.Time // guarded by mu; the beginning of the present second of warnings
	written int       // guarded by mu; in it
	dropped int       // guarded by mu; since the last warning
}

// warningsPerSecond bounds the warnings.
const warningsPerSecond = 5

// maxServerLine bounds a line in bytes: it can have the name that a client gave.
const maxServerLine = 500

// warn writes a warning, or counts it.
func (l *serverLog) warn(format string, v []any) {
	l.mu.Lock()
	now := time.Now()
	if now.Sub(l.since) >= time.Second {
		l.since = now
		l.written = 0
	}
	if l.written >= warningsPerSecond { // the next line that is written has their number
		l.dropped++
		l.mu.Unlock()
		return
	}
	l.written++
	dropped := l.dropped
	l.dropped = 0
	l.mu.Unlock()

	// A line can quote what a client has sent.
	text := fmt.Sprintf(format, v...)
	if len(text) > maxServerLine {
		text = text[:maxServerLine] + "…"
	}
	l.log.Warn("NATS server", "line", text, "not_shown", dropped)
}

// Warnf, Errorf and Fatalf implement NATS' Logger. The server ends by its own errors, so Fatalf does not end the process.
func (l *serverLog) Warnf(format string, v ...any)  { l.warn(format, v) }
func (l *serverLog) Errorf(format string, v ...any) { l.warn(format, v) }
func (l *serverLog) Fatalf(format string, v ...any) { l.warn(format, v) }

// Noticef, Debugf and Tracef implement NATS' Logger.
func (l *serverLog) Noticef(format string, v ...any) {
	l.log.Debug("NATS server", "line", fmt.Sprintf(format, v...))
}
func (l *serverLog) Debugf(string, ...any) {}
func (l *serverLog) Tracef(string, ...any) {}
