package answers

import (
	"log/slog"
	"sync"
	"time"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/route/pick"
)

// linesPerSecond bounds the lines about requests: more cannot be read, and each costs time.
const linesPerSecond = 20

// Lines logs one line for each answered request, for people who watch a terminal. Requests beyond linesPerSecond are counted in
// the first line of the next second. Its method is safe for concurrent use.
type Lines struct {
	Log *slog.Logger

	mu      sync.Mutex
	second  int64 // guarded by mu; of the last line
	lines   int   // guarded by mu; in that second
	skipped int   // guarded by mu; since the last line
}

// Answered logs the end of a request. k is its booking, and e its access-log entry.
func (l *Lines) Answered(k *pick.Booking, e *messages.Entry, now time.Time) {
	// The arguments of a line that is not written would cost more than all counters of the request.
	skipped, ok := l.take(now)
	if !ok {
		return
	}
	args := []any{"worker", k.Rank.Worker.Name, "status", e.Status, "prompt_tokens", k.Prompt, "cached_tokens", k.Cached}

	// Times of less than a millisecond say nothing to people.
	if e.FirstToken > 0 && k.Caller.Value().Stream {
		args = append(args, "first_token", e.FirstToken.Round(time.Millisecond))
	}
	args = append(args, "took", e.LastByte.Round(time.Millisecond), "decision", e.Decision)
	if skipped > 0 {
		args = append(args, "not_shown", skipped)
	}
	l.Log.Info("answered", args...)
}

// take reports whether there is room for a line in this second, and how many had none since the last one.
func (l *Lines) take(now time.Time) (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A burst at the turn of a second has twice as many lines at most.
	if second := now.Unix(); second != l.second {
		l.second = second
		l.lines = 0
	}
	if l.lines == linesPerSecond {
		l.skipped++
		return 0, false
	}
	l.lines++
	skipped, l.skipped = l.skipped, 0
	return skipped, true
}
