package sim

import (
	"math/rand/v2"
	"testing"

	"github.com/stator-project/stator/internal/route/pick"
)

// lastOf always takes the last candidate, and counts the blocks of the prompts that it chose for.
type lastOf struct{ chosen, blocks int }

func (l *lastOf) Choose(cs []pick.Candidate, asked *pick.Request, _ *rand.Rand) int {
	l.chosen++
	l.blocks += len(asked.Blocks)
	return len(cs) - 1
}

// TestChooserReplacesThePolicy gives each of two replicas a chooser. A chooser decides every request of its replica, once, and
// sees the complete blocks of each prompt.
func TestChooserReplacesThePolicy(t *testing.T) {
	list := sessions(10, 2, rand.New(rand.NewPCG(1, 1)))
	want := 0
	for _, a := range list {
		want += len(a.Prompt.Append(nil)) / 16
	}

	for _, prefill := range []int{0, 2} {
		made := map[int]*lastOf{}
		r := mustRun(t, Config{Workers: 3, Prefill: prefill, Replicas: 2, Chooser: func(replica int) pick.Policy {
			made[replica] = &lastOf{}
			return made[replica]
		}}, list)

		roles := 1
		if prefill > 0 {
			roles = 2 // every prompt is decided for a worker of each role
		}
		if r.Completed != len(list) || r.PerWorker[2].Requests != len(list) || prefill > 0 && r.PerWorker[4].Requests != len(list) {
			t.Errorf("with %d prefill workers not all requests went to the last workers: %+v", prefill, r.PerWorker)
		}
		if made[0].chosen != roles*len(list)/2 || made[1].chosen != roles*len(list)/2 || made[0].blocks+made[1].blocks != roles*want {
			t.Errorf("with %d prefill workers the choosers had %+v and %+v: want %d requests each, and %d blocks",
				prefill, made[0], made[1], roles*len(list)/2, roles*want)
		}
	}
}
