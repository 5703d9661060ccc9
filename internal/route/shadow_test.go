package route_test

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/serving"
)

// TestShadowLeavesNothing: a shadow's decision neither books nor predicts. So no worker becomes busy, no request waits, and the same prompt
// is not cached when it comes again.
func TestShadowLeavesNothing(t *testing.T) {
	x := kvindex.New(kvindex.Config{MaxBytes: 16 << 20})
	r := route.New(route.Config{Seed: 1, Shadow: true}, newFleet(t, x, 1), x)
	if err := r.SetModels(map[string]*serving.Config{"sim": {
		Prompt: runes{}, BlockSize: 4, Busy: serving.Busy{PrefillTokens: 1}, Queue: &queue.Config{}, MaxWait: time.Hour,
	}}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		req := completion("a prompt of some blocks")
		req.Ready = func(*decision.Decision) { t.Error("a request has waited") }
		d := r.Decide(req, start)
		if d.Outcome != decision.Picked || d.Cached != 0 || len(d.Candidates) != 1 || r.Bookings() != 0 {
			t.Errorf("%s, %d bookings", d, r.Bookings())
		}
	}
}
