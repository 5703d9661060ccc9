// Package backoff spaces the attempts at something that fails: the pauses between them double. It also repeats work at intervals.
package backoff

import (
	"context"
	"time"
)

// Backoff computes pauses that double from Min to Max. The zero value of its other fields is ready
// for use. It belongs to one goroutine.
type Backoff struct {
	// Min is the first pause, and Max the longest.
	Min, Max time.Duration

	next time.Duration // the pause before the last one; 0 before the first
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	b.next = min(max(b.Min, 2*b.next), b.Max)
	return b.next
}

// Reset makes the next pause the first again. Call it after a success.
func (b *Backoff) Reset() { b.next = 0 }

// Wait sleeps for the next pause. It returns early, with the context's error, when ctx ends.
func (b *Backoff) Wait(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Sleep waits for d. It returns early, with the context's error, when ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Every calls f at intervals until ctx ends, at first after one interval. A call that takes longer delays the next one.
func Every(ctx context.Context, interval time.Duration, f func(now time.Time)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()

	for {
		select {
		case now := <-tick.C:
			f(now)
		case <-ctx.Done():
			return
		}
	}
}
