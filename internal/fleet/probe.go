package fleet

import "time"

// Probe is the answer of an engine that was asked for its health.
type Probe struct {
	// Healthy and Refused are the kinds of answers; neither means that the engine was silent.
	Healthy, Refused bool
	// Detail describes the answer in a few words. It may be empty for a healthy engine.
	Detail string
	// Asked is the time at which the question was sent.
	Asked time.Time
}

// stay is the judgement whether a silent worker must stay in its pool.
type stay uint8

const (
	mayLeave   stay = iota
	staysAside      // fewer than half of the pool would be ready without it
	staysLast       // no other worker of the pool is ready
)

// observeProbe records the answer of a probe, of a worker that must stay or may leave.
func (h *Health) observeProbe(p Probe, must stay, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.settle()
	h.probed = now
	h.unanswered = !p.Healthy
	h.kept = false

	switch {
	case p.Healthy:
		h.answered(now)
	case !p.Refused && h.progress.Load() >= p.Asked.UnixNano():
		h.unanswered = false // it works, and answers late
	case h.state == HealthUnknown:
		h.why = p.Detail
	case h.state == HealthReady, h.state == HealthHalfOpen:
		h.setState(HealthSuspect, p.Detail, now)
	case h.state == HealthSuspect && !p.Refused && must == staysLast:
		h.unanswered = false
		h.kept = true
		h.why = p.Detail + "; it stays because no other worker of its pool is ready"
	case h.state == HealthSuspect && !p.Refused && must == staysAside:
		h.kept = true
		h.why = p.Detail + "; it stays because fewer than half of its pool would be ready"
	case h.state == HealthSuspect:
		why := p.Detail
		if h.why != p.Detail {
			why = h.why + ", and " + p.Detail
		}
		h.setState(HealthDown, why, now)
	}
}

// answered handles a healthy answer. mu is held.
func (h *Health) answered(now time.Time) {
	switch h.state {
	case HealthUnknown:
		h.setState(HealthReady, "", now)
	case HealthSuspect:
		h.recover("the engine answers", now)
	case HealthDown:
		h.share = 1
		h.notBefore = time.Time{}
		h.setState(HealthHalfOpen, "the engine answers again", now)
	case HealthHalfOpen:
		if now.Sub(h.since) >= rampTime {
			h.setState(HealthReady, "the engine has answered for long", now)
		}
	}
}

// recover ends a suspicion. mu is held.
func (h *Health) recover(why string, now time.Time) {
	if h.share > 0 {
		h.setState(HealthHalfOpen, why, now)
		return
	}
	h.setState(HealthReady, why, now)
}
