package replay

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/trace"
)

// TestPlannerChangesTheNumberOfEngines plays more requests than one engine serves, with each algorithm.
func TestPlannerChangesTheNumberOfEngines(t *testing.T) {
	const line = "--timing fixed:100ms,10ms --workers 1 --max-workers 4 --startup 10s --sla-ttft 1s --sla-itl 50ms --planner "
	for _, algorithm := range []string{"sla", "reactive"} {
		o, err := parseOptions(line + algorithm)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := o.Simulation(noFolder)
		if err != nil {
			t.Fatal(err)
		}
		arrivals, err := trace.Generated{Requests: 2000, Rate: 30, Input: 4000, Output: 50}.Source()
		if err != nil {
			t.Fatal(err)
		}
		r, err := sim.Run(cfg, arrivals)
		if err != nil {
			t.Fatal(err)
		}
		most := 0
		for _, x := range r.Replicas {
			most = max(most, x.Ready)
		}
		if r.GPUHours == 0 || r.SLAMisses == nil {
			t.Errorf("%s: %v GPU hours, %v misses", algorithm, r.GPUHours, r.SLAMisses)
		}
		if algorithm == "sla" && (most < 2 || most > 4) {
			t.Errorf("sla: at most %d engines, want 2 to 4", most)
		}
	}
}

// TestPlannerFlagsAreChecked: without a planner the number of engines stays, and errors name the flags.
func TestPlannerFlagsAreChecked(t *testing.T) {
	o, err := parseOptions("--startup 5s")
	if err != nil {
		t.Fatal(err)
	}
	if cfg, err := o.Simulation(noFolder); err != nil || cfg.Planning != nil {
		t.Errorf("%v, %v without --planner", cfg.Planning, err)
	}
	for flags, want := range map[string]string{
		"--planner magic":                       `--planner is "magic": it must be one of configured, sla`,
		"--planner sla --planner-forecast luck": "--planner-forecast is",
		"--planner sla --planner-headroom 1":    "both must lie between 0 and 1",
		"--planner sla --planner-down-after 0s": "--planner-down-after is 0s",
	} {
		o, err := parseOptions(flags)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Simulation(noFolder); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flags, err, want)
		}
	}
}
