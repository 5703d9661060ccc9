package object

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/backoff"
)

// State decides whether the tier sends calls.
type State string

// The states, see the package's description.
const (
	Starting State = "starting"
	Healthy  State = "healthy"
	Failing  State = "failing"
)

// mostFaults is the number of passing faults in a row after which the tier fails.
const mostFaults = 3

// The pauses between probes.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 5 * time.Second
)

// health is the state of the tier. Results of requests and of probes change it.
type health struct {
	slowAfter time.Duration

	mu     sync.Mutex
	state  State
	reason string // why the tier is not healthy
	faults int    // passing ones in a row

	failed chan struct{} // wakes the prober
}

func newHealth(slowAfter time.Duration) *health {
	return &health{slowAfter: slowAfter, state: Starting, reason: "the first probe has not ended",
		failed: make(chan struct{}, 1)}
}

// check returns an error that wraps ErrUnavailable unless the tier is healthy.
func (h *health) check() error {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.state == Healthy {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrUnavailable, h.reason)
}

// record takes the result of a request that began at a time.
func (h *health) record(began time.Time, err error) {
	reason, lasting := h.judge(time.Since(began), err)
	h.mu.Lock()
	defer h.mu.Unlock()

	if reason == "" {
		// A late answer is no fault, because the object may be large. It does not show that the store is well either.
		if time.Since(began) < h.slowAfter && (err == nil || errors.Is(err, ErrMissing)) {
			h.faults = 0
		}
		return
	}

	h.faults++
	if h.state == Healthy && (lasting || h.faults >= mostFaults) {
		h.setState(Failing, reason)
		select {
		case h.failed <- struct{}{}:
		default:
		}
	}
}

// judge returns why an error is the store's fault, or nothing if it is not.
func (h *health) judge(took time.Duration, err error) (reason string, lasting bool) {
	var fault *Fault
	switch {
	case errors.As(err, &fault):
		return fault.Error(), fault.Lasting
	case errors.Is(err, context.DeadlineExceeded) && took >= h.slowAfter:
		return fmt.Sprintf("the store is slow: a request got no answer in %v. Look at its load and at the network",
			took.Round(time.Millisecond)), false
	}
	return "", false
}

func (h *health) setState(s State, reason string) {
	if s != h.state {
		h.faults = 0
	}
	h.state = s
	h.reason = reason
}

// probed takes the result of a probe, which decides at once.
func (h *health) probed(began time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if err == nil {
		h.setState(Healthy, "")
		return
	}
	reason, _ := h.judge(time.Since(began), err)
	if reason == "" {
		reason = err.Error()
	}
	h.setState(Failing, reason)
}

// keepProbing probes until ctx ends, while the tier is not healthy. Pauses go on growing if the tier fails soon after it has recovered.
func (h *health) keepProbing(ctx context.Context, probe func(context.Context) error) {
	pauses := backoff.Backoff{Min: firstPause, Max: lastPause}
	for {
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, h.slowAfter)
		err := probe(limited)
		cancel()
		if ctx.Err() != nil {
			return
		}
		h.probed(began, err)

		if err == nil {
			select {
			case <-h.failed:
			case <-ctx.Done():
				return
			}
			if time.Since(began) > 2*lastPause {
				pauses.Reset()
			}
		}
		if pauses.Wait(ctx) != nil {
			return
		}
	}
}
