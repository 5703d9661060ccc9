package extproc

import (
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// TestWorkersArriveLater: Envoys have a worker before it gets requests, however often the list changes meanwhile.
func TestWorkersArriveLater(t *testing.T) {
	at := func(name string, weight uint32) fleet.Worker { return fleet.Worker{Name: name, Weight: weight} }
	present := func(workers []fleet.Worker) (all []fleet.Worker) {
		for i, w := range workers {
			w.Epoch = uint64(i) // as in a fleet
			all = append(all, w)
		}
		return all
	}
	start := time.Unix(1000, 0)
	a := arrivals{}
	now := []fleet.Worker{at("a", 1)}
	for _, step := range []struct {
		seconds int
		list    []fleet.Worker
		want    string
		wait    int
	}{
		{0, []fleet.Worker{at("a", 1), at("b", 1)}, "a1", 3},
		{1, []fleet.Worker{at("a", 2), at("b", 1), at("c", 1)}, "a1", 2}, // a has changed, c is new
		{3, []fleet.Worker{at("a", 2), at("b", 1), at("c", 1)}, "a1 b1", 1},
		{4, []fleet.Worker{at("a", 2), at("b", 1), at("c", 1)}, "a2 b1 c1", 0},
		{5, []fleet.Worker{at("c", 1)}, "c1", 0},
		{6, []fleet.Worker{at("b", 1), at("c", 1)}, "c1", 3},
	} {
		workers, wait := a.arrived(step.list, present(now), start.Add(time.Duration(step.seconds)*time.Second))
		var got []string
		for _, w := range workers {
			got = append(got, w.Name+string(rune('0'+w.Weight)))
		}
		if strings.Join(got, " ") != step.want || wait != time.Duration(step.wait)*time.Second {
			t.Errorf("after %d s: %v and %v, want %s and %d s", step.seconds, got, wait, step.want, step.wait)
		}
		now = workers
	}
}
