package enginesim_test

import (
	"sync"
	"testing"

	"github.com/stator-project/stator/enginesim"
)

// outside is a cache outside engines that has so many tokens of each prompt, and counts the tokens that are stored.
type outside struct {
	held int

	mu     sync.Mutex
	stored int // guarded by mu
}

func (o *outside) Held([]uint32) int { return o.held }

func (o *outside) Store(prompt []uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stored += len(prompt)
}

// TestLoadsFromACacheOutside: the whole blocks that such a cache has count as cached, but the last token is always computed, and prompts
// with a salt find nothing there.
func TestLoadsFromACacheOutside(t *testing.T) {
	for _, c := range []struct {
		held, cached int
		salt         string
	}{{held: 0, cached: 0}, {held: 10, cached: 8}, {held: 16, cached: 12}, {held: 16, cached: 0, salt: `, "cache_salt": "a"`}} {
		o := &outside{held: c.held}
		e := start(t, func(cfg *enginesim.Config) { cfg.Outside = o })
		r := e.ask("/v1/completions", `{"model": "tiny", "prompt": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16], "max_tokens": 1`+c.salt+`}`)
		if got := r.Usage.Details.Cached; got != c.cached {
			t.Errorf("%+v: %d tokens cached", c, got)
		}
		want := 16
		if c.salt != "" {
			want = 0
		}
		e.until("stored", func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.stored == want
		})
	}
}
