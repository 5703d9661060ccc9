package planlog_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/planlog"
)

// someSettings has a model with engines of the committed profile, and one with engines of an estimate.
func someSettings(t testing.TB) *plan.Settings {
	t.Helper()
	p, err := perfmodel.LoadProfile(os.DirFS("../../../test/lab/profile"))
	if err != nil {
		t.Fatal(err)
	}
	gpu, _ := perfmodel.FindGPU("H100")
	weights := perfmodel.Weights{Parameters: 8e9, Active: 8e9, Bytes: 1, KVBytes: 131072, Layers: 32, Hidden: 4096, Attention: 4096}
	engines := []capacity.Engine{
		{Timing: p, KVTokens: p.KVTokens(), MaxSeqs: 512}, {Timing: perfmodel.Roofline{Model: weights, GPU: gpu}, KVTokens: 500_000},
		{Timing: perfmodel.Scaled{Timing: perfmodel.Polynomial{Speedup: 2}, Tokens: 8}}, {Timing: perfmodel.Linear{PrefillBase: 5}}, {},
	}
	s := &plan.Settings{Budget: plan.Budget{MaxGPUs: 20}}
	for i, e := range engines {
		s.Models = append(s.Models, plan.Model{
			Name: fmt.Sprint("m", i), Algorithm: plan.AlgorithmSLA, Targets: capacity.Targets{TTFT: time.Second, ITL: 20 * time.Millisecond},
			Pools: []plan.Configured{{Min: 1, Engine: e, Doubt: 0.3, StartUp: 30 * time.Second}},
		})
	}
	return s
}

// someLog returns the log of a planner in a day of ups and downs, with a change of the settings.
func someLog(t testing.TB, plans int) []byte {
	settings := someSettings(t)
	rates := map[string][]float64{"m0": {5, 6, 7, 8}}
	var log []byte
	write := func(l planlog.Line) {
		var err error
		log, err = l.Append(log)
		if err != nil {
			t.Fatal(err)
		}
	}
	write(planlog.Line{Begin: &planlog.Begin{Settings: settings, Rates: rates}})
	state := plan.State{}.Warm(&settings.Models[0], rates["m0"])
	at := time.Date(2026, 1, 1, 0, 0, 0, 123456789, time.UTC)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range plans {
		if i == plans/2 {
			settings = someSettings(t)
			settings.Budget.MaxGPUs = 3
			write(planlog.Line{Settings: settings})
		}
		at = at.Add(5 * time.Second)
		n := rng.IntN(300)
		o := &plan.Observation{At: at, Settings: settings, Demand: []plan.Demand{{
			Model: "m0", Over: 5 * time.Second, Requests: n, Prompt: plan.Lengths{Count: n, Sum: float64(n) * 1000 / 3, Squares: float64(n) * 2e6},
		}}, Workers: []plan.Worker{{
			Name: "a", Model: "m0", State: fleet.State(rng.IntN(fleet.States)), Load: &plan.Load{Running: n, KVUsage: rng.Float64()},
		}}}
		var p plan.Plan
		p, state = plan.Next(state, *o)
		p.Term = 7
		write(planlog.Line{Observation: o, Plan: &p})
	}
	return log
}

// Every plan of a log can be made again, to the byte. Another algorithm makes others from the same observations.
func TestPlansAreMadeAgain(t *testing.T) {
	log := someLog(t, 200)
	again := func(a *planlog.Again) {
		for _, text := range bytes.Split(bytes.TrimSpace(log), []byte("\n")) {
			l, err := planlog.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			made, equal, err := a.Next(&l)
			if err != nil {
				t.Fatal(err)
			}
			if !equal && a.Change == nil {
				t.Fatalf("plan %d is\n%v and was\n%v", a.Plans, planlog.Text(made), planlog.Text(l.Plan))
			}
		}
	}
	same := &planlog.Again{}
	again(same)
	if same.Plans != 200 || same.Different != 0 || same.Continued {
		t.Errorf("%+v", same)
	}

	other := &planlog.Again{Change: func(s *plan.Settings) {
		for i := range s.Models {
			s.Models[i].Algorithm = plan.AlgorithmReactive
		}
	}}
	again(other)
	if other.Different == 0 {
		t.Error("another algorithm makes the same plans")
	}
}

// A line that is read and written again is the same line.
func TestLines(t *testing.T) {
	for _, text := range strings.Split(strings.TrimSpace(string(someLog(t, 4))), "\n") {
		l, err := planlog.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		again, err := l.Append(nil)
		if err != nil || string(again) != text+"\n" {
			t.Errorf("%s became\n%s, %v", text, again, err)
		}
	}
}

// A text that is no line of a log is refused with a reason, and a log without its first line too.
func TestWrongLines(t *testing.T) {
	for text, want := range map[string]string{
		`{`: "unexpected EOF", `{"stator_plan_log":9}`: "its version is 9", `{"at":"2026-01-01T00:00:00Z"}`: "is it the file of planner.log?",
		`{"at":"2026-01-01T00:00:00Z","pools":[{"Role":"boss"}]}`:                                            "role \"boss\" is unknown",
		`{"at":"2026-01-01T00:00:00Z","pools":[],"workers":[{"Name":"a","State":"tired"}]}`:                  "state \"tired\" is unknown",
		`{"settings":{"Models":[{"Name":"m","Pools":[{"Engine":{"Profile":{"prefill":[],"decode":[]}}}]}]}}`: "make profile",
	} {
		if _, err := planlog.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	l, err := planlog.Parse([]byte(`{"at":"2026-01-01T00:00:00Z","pools":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := (&planlog.Again{}).Next(&l); err == nil {
		t.Error("a plan without settings before it must be refused")
	}
	if _, err := (&planlog.Line{}).Append(nil); err == nil {
		t.Error("an empty line must be refused")
	}
}

// FuzzParse: no line makes reading fail otherwise than by an error, and one that is read makes plans or an error.
func FuzzParse(f *testing.F) {
	for _, text := range bytes.Split(bytes.TrimSpace(someLog(f, 3)), []byte("\n")) {
		f.Add(text)
	}
	begin := someLog(f, 1)
	begin = begin[:bytes.IndexByte(begin, '\n')]
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := planlog.Parse(data)
		if err != nil {
			return
		}
		again, err := l.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		second, err := planlog.Parse(again)
		if err != nil || l.Plan != nil && !reflect.DeepEqual(l.Plan, second.Plan) {
			t.Fatalf("%s became %s, %v", data, again, err)
		}
		a := &planlog.Again{}
		first, _ := planlog.Parse(begin)
		_, _, _ = a.Next(&first)
		_, _, _ = a.Next(&l)
	})
}
