package tables

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stator-project/stator/internal/sim"
)

// lists returns paired runs whose mean TTFT differs by a share, under a noise that both share.
func lists(n int, share float64) (a, b []sim.Result) {
	rng := rand.New(rand.NewPCG(2, 2))
	a, b = make([]sim.Result, n), make([]sim.Result, n)
	for i := range n {
		common := 100 + 30*rng.NormFloat64()
		b[i].TTFT.Mean = common
		a[i].TTFT.Mean = common + 100*share + rng.NormFloat64()
	}
	return a, b
}

// TestInterval finds a small difference under a large common noise, and none where there is none.
func TestInterval(t *testing.T) {
	a, b := lists(6, 0.05)
	if got := interval(a, b, "ttft"); got.low <= 0 || math.Abs(got.mean-0.05) > 0.02 || got.high < got.mean {
		t.Errorf("%s", got)
	}
}

// TestNoDifference has an interval with both signs.
func TestNoDifference(t *testing.T) {
	a, b := lists(6, 0)
	if got := interval(a, b, "ttft"); got.low > 0 || got.high < 0 {
		t.Errorf("%s", got)
	}
}

// TestChoose: the most reuse among the settings whose times are as good as equal.
func TestChoose(t *testing.T) {
	got := choose([]trial{{"slow", 110, 0.9}, {"fast", 100, 0.5}, {"nearly as fast", 100.4, 0.6}})
	if got != "nearly as fast" {
		t.Errorf("chose %q", got)
	}
}
