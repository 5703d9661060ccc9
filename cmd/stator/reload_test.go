package main

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/stator-project/stator/extproc"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/workeragent"
	"github.com/stator-project/stator/workeragent/engine"
)

func parsed(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, err := config.Parse([]byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestReloadReachesAllParts checks that a new configuration reaches every part of `stator up`, and that one that is
// refused reaches none.
func TestReloadReachesAllParts(t *testing.T) {
	log, reg := slog.New(slog.DiscardHandler), newRegistry()
	cfg := parsed(t, "models: [{name: sim, path: 'builtin:sim', launch: [{engine: sim, count: 2}]}]")
	u := &up{flags: &upFlags{set: map[string]bool{}}, cfg: cfg, log: log, reg: reg, dir: t.TempDir()}
	var err error
	if u.router, err = extproc.New(extproc.Config{Settings: cfg, Log: log, Metrics: reg}); err != nil {
		t.Fatal(err)
	}
	u.control, err = newControl(cfg, xdsSettings(cfg, []string{u.socket("extproc")}), nil, log, log, reg, nil)
	if err != nil {
		t.Fatal(err)
	}
	bus := testkit.Bus(t)
	u.planner, err = newPlanner(cfg, u.router.Fleet(), bus, nil, log, reg)
	if err != nil {
		t.Fatal(err)
	}
	launches, err := u.launches(cfg)
	if err != nil {
		t.Fatal(err)
	}
	site, err := engine.NewSite("127.0.0.1", engine.DefaultPorts, u.dir)
	if err != nil {
		t.Fatal(err)
	}
	u.agent, err = workeragent.New(workeragent.Config{Launches: launches, Scaled: true, Site: site, Bus: bus, Log: log, Metrics: reg})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = u.planner.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })

	broken := parsed(t, "models: [{name: other, path: 'builtin:sim', launch: [{engine: sim}]}]")
	broken.Models[0].Launch[0].Role = "none"
	if err := u.reload(broken); err == nil {
		t.Error("a launch with an unknown role is not refused")
	}
	if got := modelNames(u); !slices.Equal(got, []string{"sim"}) {
		t.Errorf("models after a refused reload: %v", got)
	}
	if err := u.reload(parsed(t, "models: [{name: sim, path: 'builtin:sim', aliases: [also], launch: [{engine: sim, count: 3}]}]")); err != nil {
		t.Fatal(err)
	}
	if got := modelNames(u); !slices.Equal(got, []string{"also", "sim"}) {
		t.Errorf("models: %v", got)
	}
	if n := u.agent.Wanted(); n != 3 {
		t.Errorf("the agent is to run %d engines, want 3", n)
	}
	testkit.Eventually(t, "the plan has three replicas", func() bool { return replicas(u.planner.Current()) == 3 })
}

func replicas(p plan.Plan) (n int) {
	for _, pool := range p.Pools {
		n += pool.Replicas
	}
	return n
}

func modelNames(u *up) []string {
	var names []string
	for _, m := range u.router.Routes().Models() {
		names = append(names, m.Name)
	}
	return names
}
