package answers

import (
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/pick"
)

// LinesPerSecond bounds the lines about answered requests: more cannot be read, and each costs time.
const LinesPerSecond = 20

// Lines logs one line for each answered request, for people who watch a terminal, or for each decision. Requests beyond PerSecond are
// counted in the first line of the next second. Its methods are safe for concurrent use.
type Lines struct {
	Log       *slog.Logger
	PerSecond int

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

// Picked logs a decision that has picked a worker: the best other one, by how much it would have cost more, in the unit of the cost
// function, how many others would have cost the same, the cached tokens of the prompt, and the state of the cache's index there.
func (l *Lines) Picked(d *decision.Decision, state string, now time.Time) {
	skipped, ok := l.take(now)
	if !ok {
		return
	}
	var won, over *decision.Candidate
	for i := range d.Candidates {
		c := &d.Candidates[i]
		switch {
		case c.Picked:
			won = c
		case over == nil:
			over = c
		}
	}

	args := []any{"pick", d.Worker, "rank", d.Rank}
	if over != nil && won != nil {
		ties := 0
		for i := range d.Candidates {
			if c := &d.Candidates[i]; !c.Picked && c.Score.Total == won.Score.Total {
				ties++
			}
		}
		margin := over.Score.Total - won.Score.Total
		args = append(args, "over", over.Worker, "margin", math.Round(10*margin)/10, "ties", ties)
	}
	args = append(args, "cached", fmt.Sprintf("%d/%d", d.Cached, d.PromptTokens), "state", state, "id", d.ID)
	if skipped > 0 {
		args = append(args, "not_shown", skipped)
	}
	l.Log.Info("picked", args...)
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
	if l.lines >= l.PerSecond {
		l.skipped++
		return 0, false
	}
	l.lines++
	skipped, l.skipped = l.skipped, 0
	return skipped, true
}
