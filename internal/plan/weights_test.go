package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// busy returns a ready worker with requests, and an answer's time between tokens in milliseconds; 0 is unknown.
func busy(name string, requests int, itl int) Worker {
	return Worker{
		Name: name, Model: "m", State: fleet.Ready, Weight: 1,
		Load: &Load{Running: requests, ITL: time.Duration(itl) * time.Millisecond},
	}
}

func with(w Worker, change func(*Worker)) Worker {
	change(&w)
	return w
}

func TestWeights(t *testing.T) {
	unknown := func(w *Worker) { w.Load = nil }
	weigh := func(weight uint32) func(*Worker) { return func(w *Worker) { w.Weight = weight } }
	state := func(s fleet.State) func(*Worker) { return func(w *Worker) { w.State = s } }
	decode := func(w *Worker) { w.Role = fleet.Decode }

	for _, tt := range []struct {
		name    string
		workers []Worker
		last    string
		want    string
	}{
		{"an even pool", []Worker{busy("b", 9, 20), busy("a", 9, 20)}, "", "a=100 b=100"},
		{"nothing is known", []Worker{with(busy("a", 0, 0), unknown), with(busy("b", 0, 0), unknown)}, "", "a=100 b=100"},
		{"no worker", nil, "a=70", ""},
		{"one worker has three times the load of the other", []Worker{busy("a", 59, 20), busy("b", 19, 20)}, "", "a=82 b=141"},
		{"a worker that hangs has all the requests", []Worker{busy("a", 999, 0), busy("b", 0, 0), busy("c", 0, 0)}, "", "a=58 b=400 c=400"},
		{"one of many is overloaded", append(idle(40), busy("x", 5000, 0)), "", "w00=400 x=25"},
		{"the second has half the speed", []Worker{busy("a", 9, 20), busy("b", 9, 40)}, "", "a=115 b=82"},
		{"steps with two tokens are twice as fast", []Worker{
			with(busy("a", 9, 40), func(w *Worker) { w.Load.StepTokens = 2 }), busy("b", 9, 20),
		}, "", "a=100 b=100"},
		{"a speed alone is no comparison", []Worker{busy("a", 9, 20), busy("b", 9, 0)}, "", "a=100 b=100"},
		{"configured weights", []Worker{with(busy("a", 9, 20), weigh(3)), busy("b", 9, 20)}, "", "a=150 b=50"},
		{"far configured weights keep their ratio", []Worker{
			with(busy("a", 0, 0), weigh(1000)), with(busy("b", 0, 0), weigh(100)), with(busy("c", 0, 0), weigh(100)),
		}, "", "a=250 b=25 c=25"},
		{"no report: the configured share", []Worker{busy("a", 59, 20), busy("b", 19, 20), with(busy("c", 0, 0), unknown)}, "", "a=82 b=141 c=100"},
		{"pools are apart", []Worker{busy("a", 9, 20), with(busy("b", 99, 20), decode), with(busy("c", 99, 20), decode)}, "", "a=100 b=100 c=100"},
		{"draining and down workers have no weight", []Worker{
			busy("a", 9, 20), with(busy("b", 0, 20), state(fleet.Draining)), with(busy("c", 0, 20), state(fleet.Down)),
			with(busy("d", 9, 20), state(fleet.Starting)),
		}, "", "a=100 d=100"},
		{"20 % are no change", []Worker{busy("a", 9, 20), busy("b", 9, 20)}, "a=120 b=84", "a=120 b=84"},
		{"more are", []Worker{busy("a", 9, 20), busy("b", 9, 20)}, "a=126 b=82", "a=100 b=100"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Weights(tt.workers, planned(t, tt.last))
			if tt.name == "one of many is overloaded" {
				got = []Planned{got[0], got[len(got)-1]} // the others are as the first one
			}
			text := ""
			for _, p := range got {
				text += fmt.Sprintf(" %s=%d", p.Name, p.Weight)
			}
			if text != "" {
				text = text[1:]
			}
			if text != tt.want {
				t.Errorf("%s, want %s", text, tt.want)
			}
		})
	}
}

func idle(n int) (out []Worker) {
	for i := range n {
		out = append(out, busy(fmt.Sprintf("w%02d", i), 0, 0))
	}
	return out
}

func planned(t *testing.T, text string) (out []Planned) {
	for text != "" {
		var p Planned
		n, err := fmt.Sscanf(text, "%1s=%d", &p.Name, &p.Weight)
		if err != nil || n != 2 {
			t.Fatal(text, err)
		}
		out = append(out, p)
		text = text[min(len(text), len(fmt.Sprintf("%s=%d ", p.Name, p.Weight))):]
	}
	return out
}

// TestWeightsHoldTheirBounds: whatever the load is, each weight lies between a quarter and four times the configured share, the
// order of workers and of last weights does not matter, and noise of 10 % in all figures changes no weight.
func TestWeightsHoldTheirBounds(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for round := range 3000 {
		workers := randomPool(rng)
		got := Weights(workers, nil)
		share := map[string]float64{}
		for _, p := range Weights(without(workers), nil) {
			share[p.Name] = float64(p.Weight)
		}
		for _, p := range got {
			least, most := max(1, (share[p.Name]-1)/mostShift-1), min(fleet.MaxWeight, (share[p.Name]+1)*mostShift)
			if w := float64(p.Weight); w < least || w > most {
				t.Fatalf("seed %d, round %d: %s has weight %d, its share is %g", seed, round, p.Name, p.Weight, share[p.Name])
			}
		}

		shuffled := slices.Clone(workers)
		rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if again := Weights(shuffled, nil); !reflect.DeepEqual(got, again) {
			t.Fatalf("seed %d, round %d: another order of workers gives %v, want %v", seed, round, again, got)
		}
		last := slices.Clone(got)
		slices.Reverse(last)
		if again := Weights(noisy(rng, workers), last); !reflect.DeepEqual(got, again) {
			t.Fatalf("seed %d, round %d: noise gives %v, want %v", seed, round, again, got)
		}
	}
}

// TestWeightsSettle: in a pool whose load follows the weights at once, the weights come to rest.
func TestWeightsSettle(t *testing.T) {
	workers := []Worker{busy("a", 0, 20), busy("b", 0, 40), busy("c", 0, 60)}
	speeds := []float64{3, 1.5, 1}
	var last []Planned
	changes := 0
	for range 50 {
		next := Weights(workers, last)
		if last != nil && !reflect.DeepEqual(next, last) {
			changes++
		}
		last = next
		sum := 0.0
		for _, p := range last {
			sum += float64(p.Weight)
		}
		for i, p := range last {
			workers[i].Load.Running = int(200 * float64(p.Weight) / sum / speeds[i])
		}
	}
	if changes > 6 {
		t.Errorf("%d changes in 50 plans: %v", changes, last)
	}
	if last[0].Weight < last[1].Weight || last[1].Weight < last[2].Weight {
		t.Errorf("faster workers have less: %v", last)
	}
}

// randomPool returns workers with any load.
func randomPool(rng *rand.Rand) (out []Worker) {
	for i := range 2 + rng.IntN(20) {
		w := busy(fmt.Sprintf("w%d", i), rng.IntN(300), 5+rng.IntN(200))
		w.Weight = 1 + rng.Uint32N(3)
		w.Load.Waiting = rng.IntN(100)
		if rng.IntN(5) == 0 {
			w.Load = nil
		}
		out = append(out, w)
	}
	return out
}

// without returns the workers without their load.
func without(workers []Worker) []Worker {
	out := slices.Clone(workers)
	for i := range out {
		out[i].Load = nil
	}
	return out
}

// noisy changes all figures by up to 10 %.
func noisy(rng *rand.Rand, workers []Worker) []Worker {
	out := slices.Clone(workers)
	noise := func(v float64) float64 { return v * (0.9 + 0.2*rng.Float64()) }
	count := func(n int) int { return int(math.Round(noise(float64(n)))) } // a change of less than half a request is none
	for i := range out {
		if out[i].Load == nil {
			continue
		}
		l := *out[i].Load
		l.Running, l.Waiting = count(l.Running), count(l.Waiting)
		l.ITL = time.Duration(noise(float64(l.ITL)))
		out[i].Load = &l
	}
	return out
}
