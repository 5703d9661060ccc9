package learned

import (
	"sync"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// loadTime is the mean time in which a token comes from a cache outside engines. All methods are safe for concurrent use.
type loadTime struct {
	mu    sync.Mutex
	token float64   // nanoseconds; guarded by mu
	seen  int       // guarded by mu
	last  time.Time // guarded by mu
}

const (
	// loadKeep is the number of loads in the mean.
	loadKeep = 16
	// loadLasts is the time after the last load for which its mean counts. Loads that take too long are not chosen any more, so nothing
	// else would show that they have become faster.
	loadLasts = 5 * time.Minute
)

// observe adds a load of some tokens. A negative time, by an error of the learned passes, counts as none.
func (l *loadTime) observe(tokens int, took time.Duration, now time.Time) {
	each := max(1, float64(took)/float64(tokens)) // 0 would mean that it is not known
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.last) > loadLasts {
		l.seen = 0
	}
	l.seen = min(l.seen+1, loadKeep)
	l.token += (each - l.token) / float64(l.seen)
	l.last = now
}

func (l *loadTime) load(now time.Time) fleet.TierLoad {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == 0 || now.Sub(l.last) > loadLasts {
		return fleet.TierLoad{}
	}
	return fleet.TierLoad{Token: max(1, min(time.Duration(l.token), fleet.MaxTierLoad))}
}

// Loads returns the times of loads from caches outside engines, by tier.
func (c *Class) Loads(now time.Time) (times [fleet.Tiers]fleet.TierLoad) {
	for t := range times {
		times[t] = c.outside[t].load(now)
	}
	return times
}
