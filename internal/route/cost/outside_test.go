package cost

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
)

// TestLoadsFromOutside: blocks of caches outside engines count by the weight of their tier, and by the time of loads once that was measured.
// Where a load would last longer than computing, it and the blocks after it count for nothing. A token takes 1 ms to compute.
func TestLoadsFromOutside(t *testing.T) {
	const none = time.Duration(0)
	for _, c := range []struct {
		host, external time.Duration // measured, a token
		loaded         int32
		prefill        float64 // ms, twice
	}{
		{none, none, 96, 2 * (161 - 0.75*64 - 0.25*32)},
		{200 * time.Microsecond, none, 96, 2 * (161 - 0.8*64 - 0.25*32)},
		{200 * time.Microsecond, 500 * time.Microsecond, 96, 2 * (161 - 0.8*64 - 0.5*32)},
		{200 * time.Microsecond, 2 * time.Millisecond, 64, 2 * (161 - 0.8*64)},
		{2 * time.Millisecond, none, 0, 2 * 161},
	} {
		r := Request{BlockSize: 16, PromptTokens: 161, Line: perfmodel.Line{Token: 1e6}}
		r.Loads[fleet.Host].Token, r.Loads[fleet.External].Token = c.host, c.external
		var f Facts
		f.Outside[fleet.Host], f.Outside[fleet.External] = 4, 2
		var s Score
		Default().Score(&r, &f, &s)
		if diff := s.Prefill - c.prefill; s.Loaded != c.loaded || s.Uncached != 161-int(c.loaded) || diff > 1e-9 || diff < -1e-9 {
			t.Errorf("%v and %v: %d loaded, %d to compute, %v ms; want %d and %v ms", c.host, c.external, s.Loaded, s.Uncached, s.Prefill, c.loaded, c.prefill)
		}
	}

	// A cache never has the last token, and a rank that holds most of the prompt loads the rest alone.
	r := Request{BlockSize: 16, PromptTokens: 160, Line: perfmodel.Line{Token: 1e6}}
	f := Facts{Overlap: [fleet.Tiers]int{8}}
	f.Outside[fleet.External] = 2
	var s Score
	Default().Score(&r, &f, &s)
	if s.Loaded != 16 || s.Uncached != 16 {
		t.Errorf("%d loaded, %d to compute", s.Loaded, s.Uncached)
	}
}
