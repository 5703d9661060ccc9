package child

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/backoff"
)

// Supervisor starts a process again whenever it ends, until its context ends.
//
//	event                            effect
//	run returns, was ready ≥ stable  the pauses begin at the first again, then: next pause, run again
//	run returns, was ready < stable  next pause, twice the last one, run again
//	run returns, was never ready     the same, and one failure more
//	MaxFailures failures in a row    Run returns an error
//	ctx ends                         Run returns nil, when run has returned
type Supervisor struct {
	// Restarting is called with the reason before each pause. Nil is not called.
	Restarting func(err error, pause time.Duration)
	// MaxFailures bounds how often in a row the process may end without having been ready; 0 is no
	// bound.
	MaxFailures int
	// Stable is the time that a process must have been ready to count as stable; default one minute.
	Stable time.Duration
}

// The pauses between two starts. A process that was ready for the time of stable has proved that it
// can run, so its next restart does not wait longer than the first one did.
const (
	firstPause   = 250 * time.Millisecond
	longestPause = 30 * time.Second
	stable       = time.Minute
)

// Run calls run until ctx ends. Each call starts one process, waits for its end, and returns for how
// long the process was ready (0 if it never was) with the reason why it ended. Time that a process
// spends on starting does not count: an engine that needs two minutes to load its model and then dies
// has not been stable.
func (s *Supervisor) Run(ctx context.Context, run func(ctx context.Context) (ready time.Duration, err error)) error {
	pauses := backoff.Backoff{Min: firstPause, Max: longestPause}
	enough := cmp.Or(s.Stable, stable)

	for failures := 0; ctx.Err() == nil; {
		ready, err := run(ctx)
		select {
		case <-ctx.Done():
			return nil // run ended because of the context
		default:
		}

		if ready > 0 {
			failures = 0
		} else {
			failures++
		}
		if s.MaxFailures > 0 && failures >= s.MaxFailures {
			return fmt.Errorf("the process ended %d times in a row before it was ready: %w", failures, err)
		}

		if ready >= enough {
			pauses.Reset()
		}
		pause := pauses.Next()
		if s.Restarting != nil {
			s.Restarting(err, pause)
		}
		_ = backoff.Sleep(ctx, pause) // the loop sees that ctx has ended
	}
	return nil
}
