package disagg

import (
	"slices"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/test/lab/profile"
	"github.com/stator-project/stator/test/race"
	"github.com/stator-project/stator/test/stats"
)

// TestCandidates: every candidate has all GPUs, there are none twice, and a larger fleet resembles its model.
func TestCandidates(t *testing.T) {
	for _, gpus := range []int{8, 16} {
		for _, m := range modes {
			list := m.fleets(gpus)
			for i, f := range list {
				if f.gpus() != gpus || slices.Contains(list[:i], f) {
					t.Errorf("%s on %d GPUs: %v", m.name, gpus, f)
				}
			}
		}
	}

	split := fleet{prefill: 5, prefillTP: 1, decode: 3, decodeTP: 1, tokens: maxTokens}
	var prefill []int
	for _, f := range split.near(2) {
		prefill = append(prefill, f.prefill)
		if f.gpus() != 16 {
			t.Errorf("%v has %d GPUs", f, f.gpus())
		}
	}
	if !slices.Equal(prefill, []int{9, 10, 11}) {
		t.Errorf("5 prefill workers of 8 GPUs become %v of 16", prefill)
	}
	both := fleet{decode: 4, decodeTP: 2, tokens: 2048}
	if list := both.near(2); len(list) != 1 || list[0].decode != 8 || list[0].gpus() != 16 {
		t.Errorf("4 engines become %v", list)
	}
}

// TestSLA: a request meets its SLA by its first token and by the mean of the times between the others.
func TestSLA(t *testing.T) {
	s := sla{100 * time.Millisecond, 10 * time.Millisecond}
	of := func(first, end time.Duration, output int, failed bool) sim.Outcome {
		return sim.Outcome{At: time.Second, First: time.Second + first, End: time.Second + end, Output: output, Failed: failed}
	}
	for _, c := range []struct {
		name string
		o    sim.Outcome
		want bool
	}{
		{"at both limits", of(100*time.Millisecond, 200*time.Millisecond, 11, false), true},
		{"a late first token", of(101*time.Millisecond, 200*time.Millisecond, 11, false), false},
		{"late tokens", of(100*time.Millisecond, 201*time.Millisecond, 11, false), false},
		{"one token", of(100*time.Millisecond, 100*time.Millisecond, 1, false), true},
		{"a failure", of(0, 0, 0, true), false},
	} {
		if s.isMet(&c.o) != c.want {
			t.Errorf("%s: %v", c.name, !c.want)
		}
	}
}

// TestCapacity searches the capacity of one engine from guesses that are too low and too high. The prompt takes 62 ms, so
// the engine serves fewer than 16 requests/s. No engine meets an SLA that is shorter than the prompt.
func TestCapacity(t *testing.T) {
	race.Skip(t)
	one, err := profile.Load()
	if err != nil {
		t.Fatal(err)
	}
	p := player{one: one}
	x := setting{
		workload: workloads[1], mode: modes[0], fleet: fleet{decode: 1, decodeTP: 1, tokens: maxTokens}, physics: measured, requests: 300, seed: 1,
	}
	low, err := p.capacity(&x, 0.2)
	if err != nil {
		t.Fatal(err)
	}
	high, err := p.capacity(&x, 200)
	if err != nil {
		t.Fatal(err)
	}
	if low != high || low < 6 || low > 16 {
		t.Errorf("%v and %v requests/s", low, high)
	}
	for rate, want := range map[float64]bool{low: true, low * precise * 1.0001: false} {
		if ok, err := p.meets(&x, rate); ok != want || err != nil {
			t.Errorf("%v requests/s: %v, %v", rate, ok, err)
		}
	}

	x.sla.ttft = 50 * time.Millisecond
	if rate, err := p.capacity(&x, 5); rate != 0 || err != nil {
		t.Errorf("an SLA that nothing meets: %v requests/s, %v", rate, err)
	}
}

// TestComparison plays a small comparison: prompts are transferred where roles are separate, and nowhere else.
func TestComparison(t *testing.T) {
	one, err := profile.Load()
	if err != nil {
		t.Fatal(err)
	}
	b := bench{player: player{one: one}, seeds: race.Fewer(1, 2), slots: make(chan struct{}, 2), less: 4}
	c, err := b.compare(plan{workloads[0], 2, measured, oneGPU(2)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range c.rows {
		w := &c.rows[i]
		if w.gpus() != 2 || c.ratio(i) <= 0 || stats.MeanOf(w.equal, ttftMean) <= 0 || stats.MeanOf(w.light, itlP99) <= 0 {
			t.Errorf("%s: %+v", w.mode.name, w.rates)
		}
	}
	if stats.MeanOf(c.rows[0].equal, transferred) != 0 || stats.MeanOf(c.rows[1].equal, transferred) != 1 || c.ratio(0) != 1 {
		t.Errorf("transferred: %v and %v", stats.MeanOf(c.rows[0].equal, transferred), stats.MeanOf(c.rows[1].equal, transferred))
	}
}
