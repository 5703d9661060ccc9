package learned

import (
	"math"
	"testing"
)

// TestPasses follows prompts that share passes, and prompts that do not, within some tens of them.
func TestPasses(t *testing.T) {
	var p passes
	if got := p.Mean(); got != 1 {
		t.Errorf("the mean of no prompts is %g, want 1", got)
	}

	observe := func(prompts, each int) {
		for i := range prompts {
			part := 0.0
			if i%each == 0 {
				part = 1
			}
			p.Observe(part)
		}
	}
	for _, each := range []int{8, 1, 2} {
		observe(4*passesKeep, each)
		if got, want := p.Mean(), 1/float64(each); math.Abs(got-want) > 0.1 {
			t.Errorf("the mean of passes of %d prompts is %.2f, want %.2f", each, got, want)
		}
	}
}
