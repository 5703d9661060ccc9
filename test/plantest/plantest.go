// Package plantest runs scenarios of plans for tests: observations in words, and the plans that follow.
package plantest

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// World is a planner's world in a scenario. Create it with [New].
type World struct {
	// Profile is the times of its engines.
	Profile *perfmodel.Profile
	// At is the time now.
	At time.Time

	rules    map[string]plan.Rule
	settings plan.Settings
	workers  []plan.Worker
	demand   []plan.Demand
	held     []plan.Held
	state    plan.State
}

// New returns a world without models. Its engines have a measured profile, in a folder of the tree. Rules are algorithms by name,
// besides the algorithms of package plan.
func New(t testing.TB, profile fs.FS, rules map[string]plan.Rule) *World {
	t.Helper()
	p, err := perfmodel.LoadProfile(profile)
	if err != nil {
		t.Fatal(err)
	}
	return &World{At: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), Profile: p, rules: rules}
}

// Run runs the files of a folder in worlds of their own: observations, and the plans that follow. Verbs:
//
//	model NAME [ALGORITHM] [ttft=D] [itl=D] [e2e=D] [quantile=Q] [mode=M] [down=D] [idle=D]
//	pool MODEL REPLICAS [role=R] [min=N] [max=N] [gpus=N] [watts=N] [startup=D]
//	budget [gpus=N] [least=N] [watts=N]
//	worker NAME [model=M] [role=R] [state=S] [running=N] [waiting=N] [queued=N] [kv=SHARE] [itl=D] [found=N] [order=N] [trouble=T]
//	            [zone=Z] [rack=R] [nvlink=D]
//	  [booked=N]: silent without figures
//	gone NAME
//	held MODEL [replicas=N] [why=TEXT] [role=R] [always=yes] [rises=yes]: who has set the number beside the planner, or why it
//	  may only rise; none without replicas
//	up-only MODEL
//	timing MODEL: the pools' engines have the polynomial timing instead of the profile
//	demand MODEL [rate=N] [isl=N] [osl=N] [cached=SHARE] [waiting=N] [late=SHARE]: for all steps from now on; none without figures
//	steps N: so many plans, 5 s apart; prints the last
//	between [MODEL waiting=N]: a plan because something changed, while so many requests wait; prints it
func Run(t *testing.T, folder string, world func(t testing.TB) *World) {
	datadriven.Walk(t, folder, func(t *testing.T, file string) {
		o := world(t)
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string { return o.act(t, d) })
	})
}

// figures are the values of a command by name.
type figures struct {
	t      *testing.T
	values map[string]string
}

func (f figures) has(name string) bool { return f.values[name] != "" }

func (f figures) number(name string) float64 {
	if !f.has(name) {
		return 0
	}
	v, err := strconv.ParseFloat(f.values[name], 64)
	if err != nil {
		f.t.Fatal(err)
	}
	return v
}

func (f figures) duration(name string) time.Duration {
	if !f.has(name) {
		return 0
	}
	v, err := time.ParseDuration(f.values[name])
	if err != nil {
		f.t.Fatal(err)
	}
	return v
}

func (o *World) act(t *testing.T, d *datadriven.TestData) string {
	f := figures{t, map[string]string{}}
	for _, a := range d.CmdArgs {
		f.values[a.Key] = strings.Join(a.Vals, "")
	}
	role, err := fleet.ParseRole(f.values["role"])
	if err != nil {
		t.Fatal(err)
	}

	switch d.Cmd {
	case "model":
		o.model(d.CmdArgs[0].Key, d, f)
	case "pool":
		m := o.settingsOf(d.CmdArgs[0].Key)
		n, err := strconv.Atoi(d.CmdArgs[1].Key)
		if err != nil {
			t.Fatal(err)
		}
		m.Pools = append(m.Pools, plan.Configured{
			Role: role, Replicas: n, Min: int(f.number("min")), Max: int(f.number("max")), GPUs: int(f.number("gpus")),
			Watts: f.number("watts"), StartUp: f.duration("startup"), Doubt: perfmodel.ProfileDoubt,
			Engine: capacity.Engine{Timing: o.Profile, KVTokens: o.Profile.KVTokens(), MaxSeqs: 512},
		})
	case "budget":
		o.settings.Budget = plan.Budget{MaxGPUs: int(f.number("gpus")), MinGPUs: int(f.number("least")), MaxWatts: f.number("watts")}
	case "worker":
		o.worker(d.CmdArgs[0].Key, role, f)
	case "timing":
		m := o.settingsOf(d.CmdArgs[0].Key)
		for i := range m.Pools {
			m.Pools[i].Engine.Timing = perfmodel.Polynomial{}
		}
	case "up-only":
		o.settingsOf(d.CmdArgs[0].Key).UpOnly = true
	case "held":
		model := d.CmdArgs[0].Key
		o.held = slices.DeleteFunc(o.held, func(h plan.Held) bool { return h.Model == model && h.Role == role })
		if f.has("replicas") {
			o.held = append(o.held, plan.Held{
				Model: model, Role: role, Replicas: int(f.number("replicas")), Why: f.values["why"], Always: f.has("always"),
				MayRise: f.has("rises"),
			})
		}
	case "gone":
		o.remove(d.CmdArgs[0].Key)
	case "demand":
		o.setDemand(d.CmdArgs[0].Key, f)
	case "steps":
		n, err := strconv.Atoi(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		return describe(o.steps(n))
	case "between":
		now := plan.Observation{At: o.At, Settings: &o.settings, Workers: o.workers, Held: o.held, Between: true}
		if f.has("waiting") {
			now.Demand = []plan.Demand{{Model: d.CmdArgs[0].Key, Waiting: int(f.number("waiting"))}}
		}
		var p plan.Plan
		p, o.state = plan.Next(o.state, now)
		return describe(p)
	default:
		d.Fatalf(t, "unknown verb %s", d.Cmd)
	}
	return ""
}

func (o *World) model(name string, d *datadriven.TestData, f figures) {
	m := plan.Model{Name: name, Targets: capacity.Targets{
		TTFT: f.duration("ttft"), ITL: f.duration("itl"), E2E: f.duration("e2e"), Quantile: f.number("quantile"),
	}, Tuning: plan.Tuning{Mode: f.values["mode"], DownAfter: f.duration("down")}, IdleAfter: f.duration("idle")}
	for _, a := range d.CmdArgs {
		if rule := o.rules[a.Key]; rule != nil || slices.Contains(plan.Algorithms(), a.Key) {
			m.Algorithm, m.Rule = a.Key, rule
		}
	}
	o.settings.Models = append(o.settings.Models, m)
}

// settingsOf returns the settings of a model, which are added if there are none.
func (o *World) settingsOf(name string) *plan.Model {
	for i := range o.settings.Models {
		if o.settings.Models[i].Name == name {
			return &o.settings.Models[i]
		}
	}
	o.settings.Models = append(o.settings.Models, plan.Model{Name: name})
	return &o.settings.Models[len(o.settings.Models)-1]
}

func (o *World) remove(name string) {
	var rest []plan.Worker
	for _, w := range o.workers {
		if w.Name != name {
			rest = append(rest, w)
		}
	}
	o.workers = rest
}

func (o *World) worker(name string, role fleet.Role, f figures) {
	w := plan.Worker{Name: name, Model: "sim", Role: role, Since: o.At, State: fleet.Ready, Order: int(f.number("order")),
		Trouble: f.values["trouble"], Booked: int(f.number("booked"))}

	var place []string
	for level := fleet.InZone; level < fleet.Levels; level++ {
		if name := level.String(); f.has(name) {
			place = append(place, level.Taint(f.values[name]))
		}
	}
	if err := w.Place.UnmarshalText([]byte(strings.Join(place, " "))); err != nil {
		f.t.Fatal(err)
	}

	if f.has("model") {
		w.Model = f.values["model"]
	}
	if f.has("state") {
		for w.State = fleet.Starting; w.State.String() != f.values["state"]; w.State++ {
		}
	}
	if f.has("running") || f.has("kv") || f.has("queued") {
		w.Load = &plan.Load{
			Running: int(f.number("running")), Waiting: int(f.number("waiting")), QueuedTokens: int(f.number("queued")),
			KVUsage: f.number("kv"), ITL: f.duration("itl"), Found: f.number("found"),
		}
	}
	o.remove(name)
	o.workers = append(o.workers, w)
}

// setDemand sets the demand in each step of 5 s.
func (o *World) setDemand(model string, f figures) {
	var rest []plan.Demand
	for _, d := range o.demand {
		if d.Model != model {
			rest = append(rest, d)
		}
	}
	o.demand = rest
	if !f.has("rate") {
		return
	}
	n := int(f.number("rate") * 5)
	lengths := func(mean float64) plan.Lengths {
		return plan.Lengths{Count: n, Sum: float64(n) * mean, Squares: float64(n) * mean * mean}
	}
	o.demand = append(o.demand, plan.Demand{
		Model: model, Over: 5 * time.Second, Requests: n, Prompt: lengths(f.number("isl")), Answer: lengths(f.number("osl")),
		CachedTokens: f.number("cached") * f.number("isl") * float64(n), Waiting: int(f.number("waiting")),
		WaitingTokens: int(f.number("waiting") * f.number("isl")), Streams: n, Late: int(f.number("late") * float64(n)),
	})
}

func (o *World) steps(n int) (p plan.Plan) {
	for range n {
		o.At = o.At.Add(5 * time.Second)
		p, o.state = plan.Next(o.state, plan.Observation{
			At: o.At, Settings: &o.settings, Demand: o.demand, Workers: o.workers, Held: o.held,
		})
	}
	return p
}

// describe prints a plan with the workers that it drains, and the values that were unknown.
func describe(p plan.Plan) string {
	var b strings.Builder
	for _, pool := range p.Pools {
		fmt.Fprintf(&b, "%s %s: %d (%d ready): %s\n", pool.Model, pool.Role, pool.Replicas, pool.Ready, pool.Reason)
		if pool.StartUp > 0 {
			fmt.Fprintf(&b, "  starts one in %v if requests wait\n", pool.StartUp)
		}
		for _, w := range pool.Workers {
			if w.Drain {
				fmt.Fprintf(&b, "  drains %s\n", w.Name)
			}
		}
		for _, u := range pool.Unknown {
			fmt.Fprintf(&b, "  unknown: %s\n", u)
		}
	}
	return b.String()
}
