package discovery

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// TestCanaryIsNotLate: an engine makes progress at some time and then nothing, while it is asked for its health every second or not at all.
// Its canary is due after the interval, and not with the first question after that.
func TestCanaryIsNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every = time.Second
		f := fleet.New(fleet.Hooks{})
		if _, err := f.Put(fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:1", Ranks: 1, State: fleet.Ready}); err != nil {
			t.Fatal(err)
		}
		health := f.Snapshot().Ranks[0].Load.Health()
		p := &prober{ProbeConfig: ProbeConfig{Fleet: f, Canary: func(string) time.Duration { return every }}}
		of := target{worker: "a", model: "m", health: health}

		for _, asked := range []bool{true, false} {
			for offset := time.Duration(0); offset < every; offset += 50 * time.Millisecond {
				canary, progress := time.Now(), time.Now().Add(offset)
				time.AfterFunc(offset, func() { health.ObserveProgress(time.Now()) })
				questions := 0
				for time.Since(progress) < every || time.Since(canary) < every {
					var next time.Time
					if asked {
						next = time.Now().Add(pauses[fleet.HealthReady] + jitter(fleet.HealthReady))
					}
					p.rest(t.Context(), of, next, &canary)
					questions++
				}
				if late := time.Since(progress) - every; late > pauses[fleet.HealthReady]/5 || questions > 2 {
					t.Errorf("progress at %s: the canary is %s late, after %d questions", offset, late, questions)
				}
			}
		}
	})
}
