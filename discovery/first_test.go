package discovery_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/fleet"
)

// TestAwaitFirstAnswers: the wait ends with the first answer of each engine, whatever it is, and after three seconds if one
// does not answer. Workers that are not asked, and names that do not resolve, are not waited for.
func TestAwaitFirstAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		silent bool // engine b does not answer
		want   time.Duration
	}{
		"all answer": {want: 500 * time.Millisecond},
		"one silent": {silent: true, want: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := worker("a"), worker("b")
				a.HealthPath, b.HealthPath = "/health", "/health"
				p, stop := resolve(t, newNames(), 0, a, b, worker("not-asked"), named("missing"))
				defer stop()
				began := time.Now()
				answer := func(name string, after time.Duration, healthy bool) {
					time.AfterFunc(after, func() {
						p.fleet.ObserveProbe(name, "10.0.0.1:8000", fleet.Probe{Healthy: healthy, Refused: !healthy, Asked: began}, time.Now())
					})
				}
				answer("a", 100*time.Millisecond, true)
				if !c.silent {
					answer("b", 500*time.Millisecond, false)
				}

				discovery.AwaitFirstAnswers(t.Context(), p.fleet)
				if took := time.Since(began); took < c.want || took > c.want+20*time.Millisecond {
					t.Errorf("it took %s, want %s", took, c.want)
				}
			})
		})
	}

	ctx, stop := context.WithCancel(t.Context())
	stop()
	w := worker("a")
	w.HealthPath = "/health"
	f := fleet.New(fleet.Hooks{})
	if _, err := discovery.NewListed(f, []fleet.Worker{w}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	discovery.AwaitFirstAnswers(ctx, f)
	if took := time.Since(began); took > time.Second {
		t.Errorf("it took %s although its context had ended", took)
	}
}
