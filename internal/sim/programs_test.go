package sim_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// steps plays the arrivals as programs, and returns the result and the outcome of each request, in order of arrival.
func steps(t *testing.T, next trace.Source, change func(*sim.Config)) (*sim.Result, []sim.Outcome) {
	t.Helper()
	var outcomes []sim.Outcome
	cfg := sim.Config{
		Workers: 2, Engine: engine.Config{Timing: perfmodel.Fixed{PrefillTime: time.Second, DecodeTime: 100 * time.Millisecond}},
		ProgramRate: 60, Ended: func(o sim.Outcome) { outcomes = append(outcomes, o) },
	}
	if change != nil {
		change(&cfg)
	}
	r, err := sim.Run(cfg, next)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(outcomes, func(a, b sim.Outcome) int { return a.Number - b.Number })
	return r, outcomes
}

// TestProgramsWaitForAnswers: each step of a program with two sub-agents arrives when the answers that it waits for have ended and its
// pause is over, whatever its time in the trace.
func TestProgramsWaitForAnswers(t *testing.T) {
	file, err := os.Open("../trace/testdata/weka/relative.json")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	next, n, err := trace.Weka(file)
	if err != nil {
		t.Fatal(err)
	}
	r, got := steps(t, next, func(cfg *sim.Config) { cfg.MaxPause = 10 * time.Second })
	if len(got) != n || r.Programs.Completed != 1 || r.Programs.Lost != 0 {
		t.Fatalf("%d outcomes, %+v", len(got), r.Programs)
	}

	// By order of arrival: steps 0 and 1, both sub-agents, the second step of the first one, the two main requests, the last one.
	ends := func(i int) time.Duration { return got[i].End }
	for i, want := range []time.Duration{
		0, ends(0) + 2*time.Second, ends(1), ends(1), ends(2) + time.Second, ends(4) + time.Second, ends(1) + 10*time.Second,
		max(ends(3), ends(5)) + 10*time.Second,
	} {
		if got[i].At != want {
			t.Errorf("request %d arrived at %v, want %v", i, got[i].At, want)
		}
	}
	if mean := r.Programs.Time.Mean; mean != got[7].End.Seconds() || r.Programs.Fairness != 1 {
		t.Errorf("the program took %v s, want %v; fairness %v", mean, got[7].End.Seconds(), r.Programs.Fairness)
	}
}

// TestProgramsThatFail: a program ends with its first error, and the others go on.
func TestProgramsThatFail(t *testing.T) {
	var list []trace.Arrival
	for _, session := range []string{"a", "b"} {
		for i := range 3 {
			a := trace.Arrival{Session: session, Step: i, Output: 2, Prompt: trace.Segments{{ID: uint64(len(list)), Length: 100}}}
			if i > 0 {
				a.After = []int{i - 1}
			}
			if session == "a" && i == 1 {
				a.Prompt = trace.Segments{{ID: 1, Length: 1000}}
			}
			list = append(list, a)
		}
	}
	list = append(list, trace.Arrival{Output: 1, Prompt: trace.Segments{{ID: 99, Length: 10}}})
	r, got := steps(t, trace.List(list), func(cfg *sim.Config) { cfg.Engine.MaxModelLen = 500 })
	if r.Programs.Completed != 2 || r.Programs.Lost != 1 || len(got) != 6 || r.Errors != 1 {
		t.Errorf("%+v, %d requests, %d errors", r.Programs, len(got), r.Errors)
	}
}

// TestStepsArriveDuringAnswers: a step that arrives while an engine answers another one joins the next pass. So a queue that is never used
// changes no time.
func TestStepsArriveDuringAnswers(t *testing.T) {
	var list []trace.Arrival
	for i, session := range []string{"a", "b", "c", "d"} {
		list = append(list, trace.Arrival{Session: session, Output: 200, Prompt: trace.Segments{{ID: uint64(i), Length: 100}}})
	}
	play := func(q *queue.Config) []sim.Outcome {
		_, got := steps(t, trace.List(list), func(cfg *sim.Config) {
			cfg.Workers = 1
			cfg.Queue = q
			cfg.Busy = serving.Busy{PrefillTokens: 1 << 30}
		})
		return got
	}
	without, with := play(nil), play(&queue.Config{})
	if !slices.Equal(without, with) {
		t.Errorf("without a queue: %+v\nwith one: %+v", without, with)
	}
}
