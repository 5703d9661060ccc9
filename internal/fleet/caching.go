package fleet

import "time"

// reportedOff is the value of uncached for an engine that has reported to have no prefix cache.
const reportedOff = -1

// ObserveCaching records whether the engine has a prefix cache, by its answer to a question of that time. An answer from before a doubt may
// be of the process before.
func (h *Health) ObserveCaching(off bool, asked time.Time) {
	was, now := h.uncached.Load(), int64(0)
	if off {
		now = reportedOff
	}
	if was != now && was <= asked.UnixNano() {
		h.uncached.CompareAndSwap(was, now) // a doubt meanwhile stays
	}
}

// EndCachingDoubt records that the engine has answered a question of that time, and does not report whether it has a prefix cache: after a
// doubt it counts as an engine with one.
func (h *Health) EndCachingDoubt(asked time.Time) {
	if was := h.uncached.Load(); was > 0 && was <= asked.UnixNano() {
		h.uncached.CompareAndSwap(was, 0)
	}
}

// DoubtCaching records that the engine may be another process, whose settings are not known yet. Until it answers, it counts as an engine
// without a prefix cache.
func (h *Health) DoubtCaching(now time.Time) { h.uncached.Store(now.UnixNano()) }

// Caches reports whether the engine is known to have a prefix cache. An engine that has never been in doubt counts as one.
func (h *Health) Caches() bool { return h.uncached.Load() == 0 }
