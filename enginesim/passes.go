package enginesim

import (
	"context"
	"time"

	"github.com/stator-project/stator/internal/sim/engine"
)

// passes runs the core: one pass after another while there is work. A pass takes the time of its timing, and its
// tokens are emitted at its end.
func (s *Sim) passes(ctx context.Context) {
	timer := time.NewTimer(time.Hour) // reset before every use; one timer serves all passes
	defer timer.Stop()

	now := time.Now()
	for {
		var end time.Time
		busy := false
		if !s.sleeping.Load() {
			s.mu.Lock()
			end, busy = s.engine.Begin(now) // end may be in the past after a late timer
			s.mu.Unlock()
		}

		if !busy {
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
			}
			now = time.Now()
			continue
		}

		if wait := time.Until(end); wait > 0 {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		} else if ctx.Err() != nil {
			return
		}

		s.endPass(end)
		now = nextStart(end)
	}
}

// maxLag is the time by which simulated time may be behind the clock. Within it, late timers do not make the
// engine slower, because the next pass starts at the planned end of the last one. After a longer pause of the
// process the engine does not hurry to catch up.
const maxLag = 20 * time.Millisecond

// nextStart returns the start of the pass that follows a pass with that end.
func nextStart(end time.Time) time.Time {
	if now := time.Now(); now.Sub(end) > maxLag {
		return now
	}
	return end
}

// endPass publishes the events of a pass, and then emits its tokens. The order matters: a client that has an
// answer finds its blocks.
func (s *Sim) endPass(end time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	// The result is valid until the next pass begins, which needs the lock.
	result := s.engine.End()
	if !s.cfg.NoCaching {
		s.publish(result.Events)
	}
	if s.kv != nil {
		s.kv.computed(result.Events)
	}

	// The owner of a sequence is its choice; see completion.addChoice.
	for i := range result.Outputs {
		o := &result.Outputs[i]
		o.Request.Owner.(*choice).emit(o, end, s.metrics)
	}
}

// submit adds all sequences of a request to the queue, or none if one of them is refused.
func (s *Sim) submit(requests []*engine.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	for i, r := range requests {
		if err := s.engine.Submit(r); err != nil {
			for _, other := range requests[:i] {
				s.engine.Cancel(other)
			}
			return err
		}
	}

	s.wakePasses()
	return nil
}

// wakePasses has the goroutine of passes look for work. A token that is there already wakes it for this work, too.
func (s *Sim) wakePasses() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// cancel removes the sequences of a request that have not ended.
func (s *Sim) cancel(requests []*engine.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Cancel ignores sequences that are done.
	for _, r := range requests {
		s.engine.Cancel(r)
	}
}

// release frees the blocks that sequences have kept since their last tokens.
func (s *Sim) release(requests []*engine.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range requests {
		s.engine.Release(r)
	}
}
