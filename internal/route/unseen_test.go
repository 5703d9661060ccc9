package route_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/serving"
)

// TestRoutersThatDecideAtOnce has three routers decide six requests each at one moment. One of eight ranks is idle, and the others have prompts
// booked that take 150 ms, as long as eight or nine of these requests. All routers find the idle rank best, and none knows what the others book there.
func TestRoutersThatDecideAtOnce(t *testing.T) {
	const routers, requests = 3, 6
	taken := func(others int) (n int64) {
		for router := range routers {
			x := kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
			f := newFleet(t, x, 8)
			r := route.New(route.Config{Seed: uint64(router + 1), Others: func() int { return others }}, f, x)
			if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: runes{}, BlockSize: 4}}); err != nil {
				t.Fatal(err)
			}
			ranks := f.Snapshot().Ranks
			for _, rank := range ranks[1:] {
				other := fleet.Amount{Requests: 1, PrefillTokens: 8000, PrefillTime: 150 * time.Millisecond}
				rank.Load.SetPeer(fleet.Amount{}, other, start)
			}
			for i := range requests {
				text := strings.Repeat(string(rune('a'+i))+string(rune('a'+router)), 500)
				r.Decide(completion(text), start)
			}
			n += ranks[0].Load.Own().Requests
			if lost := r.Stats().Bookings.LostRaces; lost != 0 {
				t.Errorf("%d choices were made again, and no other booking came first", lost)
			}
		}
		return n
	}
	if n := taken(0); n != routers*requests {
		t.Errorf("the idle rank gets %d of %d requests from routers that take themselves to be alone: nothing is tested", n, routers*requests)
	}
	if n := taken(routers - 1); n < 6 || n > 12 {
		t.Errorf("the idle rank gets %d of %d requests", n, routers*requests)
	}
}
