package discovery

import (
	"time"

	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
)

// lastCanary returns the time at which the engine was last asked for a completion; nil for one whose ranks are asked.
func (e *engineLog) lastCanary() *time.Time {
	if w := e.Fleet.Snapshot().Worker(e.worker); w != nil && w.Ranks > 1 {
		return nil
	}
	return &e.canary
}

// wantsCanary reports whether the engine should be asked for a completion now.
func (e *engineLog) wantsCanary(now time.Time) bool {
	every := e.prober.canary(e.model)
	if e.lastCanary() == nil {
		return false
	}
	if every == 0 {
		e.sick = false // the setting may have changed
		return false
	}
	idle := now.Sub(e.health.Progress()) >= every && now.Sub(e.canary) >= every
	return e.sick || idle || e.health.View().State == fleet.HealthSuspect
}

// engineLog logs the changes of a worker's health, and removes one without a lease that is down.
type engineLog struct {
	*prober
	target
	kept bool // the log has a line that the worker serves without a lease
	died bool // Died was called since the engine answered last

	canary time.Time // when the engine was last asked for a completion
	sick   bool      // it did not answer that
}

// observe handles an answer.
func (e *engineLog) observe(before, after fleet.HealthView, answer engineprobe.Answer) {
	w := e.Fleet.Snapshot().Worker(e.worker)
	if w == nil {
		return
	}
	unleased := !w.Unleased.IsZero()

	switch {
	case after.State == before.State:
		e.unchanged(before, after)
	case after.State == fleet.HealthDown:
		e.down(unleased, after, answer)
	case after.State == fleet.HealthReady && before.State == fleet.HealthUnknown:
		e.Log.Info("worker answers and is ready", "worker", e.worker, "model", w.Model, "address", e.address, "detail", after.Why)
	case after.State == fleet.HealthHalfOpen && before.State == fleet.HealthDown:
		e.Log.Info("worker answers again; it gets few requests at first", "worker", e.worker, "address", e.address)
	default:
		e.Log.Debug("health of a worker changed", "worker", e.worker, "from", before.State, "to", after)
	}

	switch {
	case answer == engineprobe.Healthy:
		e.died = false
		if unleased && !e.kept {
			e.kept = true
			e.Log.Warn("worker without a lease serves; it stays while its engine answers, and its cache is predicted", "worker", e.worker)
		}
	case after.State == fleet.HealthDown && answer == engineprobe.Refusing && !e.died:
		e.died = true
		if e.Died != nil {
			e.Died(w)
		}
	}
}

// unchanged logs why a worker does not answer yet, and why one that is silent stays: once each.
func (e *engineLog) unchanged(before, after fleet.HealthView) {
	switch {
	case after.State == fleet.HealthUnknown && after.Why != before.Why:
		e.Log.Info("worker does not answer yet", "worker", e.worker, "address", e.address, "detail", after.Why)
	case after.Kept && !before.Kept:
		e.Log.Warn("worker is silent and stays, because too few others of its pool are ready", "worker", e.worker, "address", e.address)
	}
}

// down logs that a worker is down. One without a lease leaves.
func (e *engineLog) down(unleased bool, after fleet.HealthView, answer engineprobe.Answer) {
	if e.downs != nil {
		e.downs.WithLabelValues(answer.String()).Inc()
	}
	if unleased && e.Fleet.RemoveUnleased(e.worker) {
		e.Log.Warn("worker gone", "worker", e.worker, "reason", "its lease expired and its engine is "+answer.String(), "detail", after.Why)
		return
	}
	e.Log.Warn("worker down", "worker", e.worker, "address", e.address, "why", after.Why)
}
