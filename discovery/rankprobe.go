package discovery

import (
	"context"
	"time"

	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
)

// The health path of an engine with several data-parallel ranks shows nothing of one of them: each has a scheduler, and they share
// the HTTP server. So each rank has its own canaries, whose failure takes that rank alone out. While the worker is not ready, its
// ranks are not asked. Without canaries nothing is known of a rank but its requests: a doubt of it ends with the next question, and
// a rank that was down gets few requests at first.

// askRankAgain asks one rank of an engine for completions until ctx ends.
func (p *prober) askRankAgain(ctx context.Context, t target) {
	var asked time.Time // when a completion was sent last
	for ctx.Err() == nil {
		var next time.Time
		if state := t.health.View().State; state != fleet.HealthReady {
			next = time.Now().Add(pauses[state])
		}
		p.rest(ctx, t, next, &asked)

		if w := p.Fleet.Snapshot().Worker(t.worker); w == nil || w.State != fleet.Ready {
			asked = time.Now() // the time of its canary passes
			continue
		}
		if !p.askRank(ctx, t, &asked) {
			return
		}
	}
}

// askRank asks a rank once, if it is in doubt or has done nothing for the canary's interval. ok is false when ctx ends or the worker
// has left.
func (p *prober) askRank(ctx context.Context, t target, asked *time.Time) (ok bool) {
	now := time.Now()
	state, every := t.health.View().State, p.canary(t.model)
	inDoubt := state == fleet.HealthSuspect || state == fleet.HealthDown
	isRecent := now.Sub(t.health.Progress()) < every || now.Sub(*asked) < every
	if !inDoubt && (every == 0 || isRecent) {
		return true
	}

	found := fleet.Probe{Healthy: true, Asked: now}
	if every > 0 {
		*asked = now
		found, ok = p.sendCanary(ctx, t, now)
		if !ok {
			return false
		}
	}
	before, after, ok := p.Fleet.ObserveRankProbe(t.worker, t.address, t.rank, found, time.Now())
	switch {
	case !ok || before.State == after.State:
	case after.State == fleet.HealthDown:
		p.Log.Warn("rank of a worker is down; the other ranks go on", "worker", t.worker, "rank", t.rank, "why", after.Why)
	case before.State == fleet.HealthDown:
		p.Log.Info("rank of a worker answers again; it gets few requests at first", "worker", t.worker, "rank", t.rank)
	}
	return ok
}

// sendCanary asks a rank for a completion of one token. ok is false when ctx ends.
func (p *prober) sendCanary(ctx context.Context, t target, now time.Time) (found fleet.Probe, ok bool) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return found, false
	}

	answer, detail := engineprobe.AskRank(ctx, p.canaries, t.address, t.model, t.rank)
	if ctx.Err() != nil {
		return found, false
	}
	if p.probes != nil {
		p.probes.WithLabelValues(answer.String()).Inc()
	}
	found.Healthy = answer == engineprobe.Healthy
	found.Refused = answer == engineprobe.Refusing
	found.Detail = detail
	found.Asked = now
	return found, true
}
