package exchange

import "time"

// Clock is the time by which an exchange waits. [SystemClock] is the computer's.
type Clock interface {
	Now() time.Time
	// At returns a channel that receives when the time has come, and a function that frees the channel.
	At(t time.Time) (reached <-chan time.Time, stop func())
}

// SystemClock is the computer's clock.
type SystemClock struct{}

// Now returns the time.
func (SystemClock) Now() time.Time { return time.Now() }

// At starts a timer.
func (SystemClock) At(t time.Time) (reached <-chan time.Time, stop func()) {
	timer := time.NewTimer(time.Until(t))
	return timer.C, func() { timer.Stop() }
}
