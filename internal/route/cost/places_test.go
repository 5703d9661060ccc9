package cost

import (
	"math"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
)

// TestPartners: a decode worker is judged with the prefill worker for which its cost and twice the time of the transfer are least together. A
// transfer takes 100 ms between zones, 20 ms within one, and 1 ms by NVLink.
func TestPartners(t *testing.T) {
	none := math.Inf(1)
	r := Request{BlockSize: 16, PromptTokens: 1000, Computed: true}
	r.Transfers = [fleet.Levels]perfmodel.Line{
		{Base: 100 * time.Millisecond}, {Base: 20 * time.Millisecond}, {Base: 20 * time.Millisecond}, {Base: time.Millisecond},
	}
	for name, c := range map[string]struct {
		partners          *Partners
		transfer, partner float64
	}{
		"no place is known":                      {nil, 200, 0},
		"the cheapest one is near":               {&Partners{50, 0, none, none}, 40, 0},
		"the cheapest one is far":                {&Partners{0, 50, none, none}, 40, 50},
		"the near one is too busy":               {&Partners{0, 500, none, 500}, 200, 0},
		"by NVLink, a little busier":             {&Partners{none, 0, none, 30}, 2, 30},
		"there is none, as for another revision": {&Partners{none, none, none, none}, 200, 0},
	} {
		var s Score
		Default().Score(&r, &Facts{Partners: c.partners}, &s)
		if s.Transfer != c.transfer || s.Partner != c.partner || s.Total != s.Transfer+s.Partner+s.Decode {
			t.Errorf("%s: transfer %v, partner %v; want %v and %v", name, s.Transfer, s.Partner, c.transfer, c.partner)
		}
	}
}

// TestOnward: a prefill worker is judged by its transfer to the decode worker, too.
func TestOnward(t *testing.T) {
	r := Request{BlockSize: 16, PromptTokens: 1000, Onward: 500}
	r.Transfers[fleet.Apart].Token, r.Transfers[fleet.InRack].Token = 1e5, 1e3 // nanoseconds
	for level, want := range map[fleet.Level]float64{fleet.Apart: 100, fleet.InRack: 1} {
		var s Score
		Default().Score(&r, &Facts{Toward: level}, &s)
		if s.Transfer != want {
			t.Errorf("%s: %v ms, want %v", level, s.Transfer, want)
		}
	}
}
