package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/enginetls"
)

// Config names the fleet to look at.
type Config struct {
	// Fleet is the configuration that the router runs with.
	Fleet *config.Config
	// Engines makes the connections to engines; nil makes them without TLS.
	Engines *enginetls.Client
	// AdminAddress is the address of the router's admin port, for texts. Admin asks it.
	AdminAddress string
	// Agents are the admin ports of agents. An agent in the router's process need not be named.
	Agents []AgentPort
	Admin  *adminclient.Client
	// Wait is the time for which event sockets are read. The router's cache state is read at the
	// start and at the end of this time, to see whether it makes progress.
	Wait time.Duration
	// Envoy is the admin port of an Envoy to look at; nil for none.
	Envoy *EnvoyPort
	// EnvoyAlone leaves out everything but Envoy. Of Fleet the settings of the gateway are used.
	EnvoyAlone bool
	// Kubernetes names a cluster to look at in place of a router; nil for none. Fleet may name no models then.
	Kubernetes *Cluster
}

// Diagnosis is the result of all checks.
type Diagnosis struct {
	Checks   int       `json:"checks"`  // how many checks ran
	Workers  int       `json:"workers"` // how many workers were looked at
	Findings []Finding `json:"findings"`

	looked string // the objects that were looked at
}

// Finding is one problem. What, Why and Remedy are a line each: the problem, why it matters, and
// what to do.
type Finding struct {
	Check   string `json:"check"`   // name of the check
	Subject string `json:"subject"` // such as "worker a"
	What    string `json:"what"`
	Why     string `json:"why"`
	Remedy  string `json:"remedy"`
	// Note is set if nothing need be wrong. Notes do not count as faults.
	Note bool `json:"note,omitempty"`
}

// Examine asks the fleet and runs every check. It returns after about cfg.Wait.
func Examine(ctx context.Context, cfg Config) Diagnosis {
	want := wantedOf(cfg.Fleet)
	if cfg.EnvoyAlone {
		return diagnoseEnvoy(askEnvoy(ctx, cfg.Envoy, want))
	}

	var d Diagnosis
	if cfg.Kubernetes != nil {
		d = examineCluster(ctx, cfg)
	} else {
		o := observe(ctx, cfg)
		d = diagnose(o)
		want.compareFleet(o)
	}
	if cfg.Envoy == nil {
		return d
	}
	ofEnvoy := diagnoseEnvoy(askEnvoy(ctx, cfg.Envoy, want))
	d.Checks += ofEnvoy.Checks
	d.Findings = append(d.Findings, ofEnvoy.Findings...)
	d.looked += " and " + ofEnvoy.looked
	return d
}

// Faults returns how many findings are no notes.
func (d Diagnosis) Faults() (n int) {
	for _, f := range d.Findings {
		if !f.Note {
			n++
		}
	}
	return n
}

// diagnose runs every check on an observation.
func diagnose(o *observation) Diagnosis {
	d := runChecks(checks, o, func(_ string, found []Finding) []Finding { return found })
	d.Workers = len(o.workers)
	d.looked = "the router and " + count(d.Workers, "worker")
	return d
}

// check is a check of an observation. Its name is the name of its findings. finds is the text of a page of the documentation, if a test
// compares it with one.
type check[Seen any] struct {
	name, finds string
	run         func(Seen) []Finding
}

// runChecks runs checks in their order. edit changes the findings of a check.
func runChecks[Seen any](checks []check[Seen], seen Seen, edit func(name string, found []Finding) []Finding) Diagnosis {
	d := Diagnosis{Checks: len(checks), Findings: []Finding{}}
	for _, c := range checks {
		for _, f := range edit(c.name, c.run(seen)) {
			f.Check = c.name
			d.Findings = append(d.Findings, f)
		}
	}
	return d
}

// Print writes the diagnosis as text for people.
func (d Diagnosis) Print(w io.Writer) {
	for _, f := range d.Findings {
		kind := ""
		if f.Note {
			kind = "note: "
		}
		fmt.Fprintf(w, "%s%s: %s\n  why: %s\n  do:  %s\n", kind, f.Subject, f.What, f.Why, f.Remedy)
	}
	if d.Faults() == 0 {
		fmt.Fprintf(w, "%d checks of %s: nothing is wrong\n", d.Checks, d.looked)
	}
}

// PrintJSON writes the diagnosis as JSON for programs.
func (d Diagnosis) PrintJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(d)
}

// count writes a number with its noun, such as "1 worker" and "2 workers".
func count[N int | uint64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
