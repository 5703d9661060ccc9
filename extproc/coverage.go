package extproc

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// coveragePause is the least time between two looks at the fleet. Workers often come and go together.
const coveragePause = 5 * time.Second

// Coverage returns the part of the fleet's caches for which the index has room.
func (r *Router) Coverage() kvindex.Coverage { return r.index.Coverage(r.fleet.Snapshot()) }

// followCoverage logs how much of the fleet's caches the index has room for, until ctx ends. It begins when synced is
// closed, because a fleet that is not complete looks small.
func (r *Router) followCoverage(ctx context.Context, synced <-chan struct{}) {
	select {
	case <-synced:
	case <-ctx.Done():
		return
	}

	lines := coverageLog{log: r.log}
	for ctx.Err() == nil {
		changed := r.fleet.Changed()
		if len(r.fleet.Snapshot().Workers) > 0 {
			lines.observe(r.Coverage())
		}

		select {
		case <-changed:
			_ = backoff.Sleep(ctx, coveragePause) // the loop sees that ctx has ended
		case <-ctx.Done():
		}
	}
}

// coverageLog logs how much of the fleet's caches the index has room for:
//
//	event                                                        line
//	first fleet with a worker                                    information, or a warning if the room does not suffice
//	the share changes by more than a tenth of that in the line   the same
//	any other change of the fleet                                none
type coverageLog struct {
	log    *slog.Logger
	logged bool
	share  float64 // in the last line
}

// observe logs the coverage if it is a new one.
func (l *coverageLog) observe(c kvindex.Coverage) {
	share := c.Share()
	if l.logged && math.Abs(share-l.share) <= l.share/10 {
		return
	}
	l.logged, l.share = true, share

	log := l.log.With("fleet_blocks", c.Pairs, "index_room", c.Room, "unknown_ranks", c.UnknownRanks)
	if share < 1 {
		log.Warn("index is too small for the caches of the fleet; the oldest blocks are evicted and not found",
			"percent", math.Round(100*share), "max_bytes", c.MaxBytes, "needed_bytes", c.NeededBytes)
		return
	}
	log.Info("index has room for the caches of the fleet")
}
