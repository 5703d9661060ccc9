package fleet

import "time"

// Lag returns the average delay of the rank's latest events, compared with the fastest events of the last minute. It
// is 0 before the first event.
func (l *Load) Lag() time.Duration { return time.Duration(l.lag.Load()) }

// ObserveLag adds the age that a batch of events had when it was received, by the rank's clock and ours. The clocks
// may differ by any amount: the least age of the last minute is the difference, and only the excess of an age over it
// is lag. When a clock steps, the ages are all larger or all smaller from then on. A smaller one is the least at once.
// A larger one looks like lag until the older ages are a minute old, or is a step if it exceeds maxLag. ObserveLag is
// for one goroutine at a time.
func (l *Load) ObserveLag(age time.Duration, now time.Time) {
	lag := int64(age - l.ages.observe(age, now))
	mean := l.lag.Load()
	l.lag.Store(mean + (lag-mean)/lagShare)
}

const (
	maxLag   = 30 * time.Second
	lagShare = 8 // a new lag counts for an eighth of the mean
)

// leastAge is the least age of the last minute. It holds the least of two periods, so that it forgets an age
// after one period at the earliest and two at the latest.
type leastAge struct {
	begun    time.Time // of the present period; zero before the first age
	least    time.Duration
	previous time.Duration // of the period before
}

// agePeriod is the length of a period.
const agePeriod = 30 * time.Second

// observe adds an age and returns the least one.
func (a *leastAge) observe(age time.Duration, now time.Time) time.Duration {
	elapsed := now.Sub(a.begun)
	switch {
	case a.begun.IsZero(), elapsed >= 2*agePeriod, age-min(a.least, a.previous) > maxLag:
		*a = leastAge{begun: now, least: age, previous: age}
	case elapsed >= agePeriod:
		*a = leastAge{begun: now, least: age, previous: a.least}
	}
	a.least = min(a.least, age)
	return min(a.least, a.previous)
}
