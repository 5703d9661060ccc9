package main

import (
	"context"
	"fmt"
	"os"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/replay"
	"github.com/stator-project/stator/internal/shadow"
	"github.com/stator-project/stator/internal/sim"
)

const shadowReportAbout = `Reports what the router would have changed, from the decision log of ` + "`stator extproc --shadow`" + `. By
model: how many tokens of prompts the workers that served had in their caches, and how many the router's
picks had. Then the logged arrivals are played in virtual time, with the placements that really
happened and with the router's own. Workers, blocks and their size are the log's, unless given.
See docs/replay.md.`

func runShadow(ctx context.Context, env environment, args []string) error {
	if len(args) > 0 && args[0] == "report" {
		args = args[1:]
	} else if len(args) == 0 || args[0] != "-h" && args[0] != "--help" {
		return fmt.Errorf("write `stator shadow report --decision-log FILE`: %w", cli.ErrUsage)
	}

	f := cli.New(env.out, env.err, "shadow report", shadowReportAbout)
	o := replay.NewOptions(f.FlagSet)
	log := f.String("decision-log", "", "decision log `file` of the shadow")
	model := f.String("model", "", "report on this `model` alone; needed with --html if the log has several")
	page := f.String("html", "", "write a page with plots to this `file`")
	f.Uint64Var(&o.Seed, "seed", 0, "determines how the router breaks ties")
	o.AddFleetFlags(f.Group)
	if err := f.Read(args); err != nil {
		return err
	}
	if *log == "" {
		return f.UsageError("name the log with --decision-log FILE")
	}

	file, err := os.Open(*log)
	if err != nil {
		return fmt.Errorf("open decision log: %w", err)
	}
	models, err := shadow.Read(file, *model)
	_ = file.Close()
	if err != nil {
		return fmt.Errorf("%s: %w", *log, err)
	}
	if *page != "" && len(models) > 1 {
		return f.UsageError("a page has one model, and the log has %d: name one with --model", len(models))
	}
	for _, m := range models {
		if err := reportModel(ctx, env, o, m, *page); err != nil {
			return err
		}
	}
	fmt.Fprintln(env.out, shadow.Wrap(shadow.CannotKnow, 120))
	return nil
}

// shadowSeeds is the number of replays with the router. Ties decide where conversations begin, and so how full each cache is later.
const shadowSeeds = 8

// reportModel prints the report on a model, and writes its page if it has a path.
func reportModel(ctx context.Context, env environment, o *replay.Options, m *shadow.Model, page string) error {
	for _, line := range m.Findings() {
		fmt.Fprintln(env.out, shadow.Wrap(line, 120))
	}

	cfg, err := o.Simulation(os.DirFS)
	if err != nil {
		return err
	}
	settings := o.TakeFleet(&cfg, m.Workers, m.Blocks, m.BlockSize)
	cfg.Stopped = func() bool { return ctx.Err() != nil }
	logged, routed, err := m.Replay(cfg)
	if err != nil {
		return err
	}
	runs := []replay.Run{
		{Name: "as it was", Result: replay.Result{Result: *logged, Settings: settings}},
		{Name: "with the router", Result: replay.Result{Result: *routed, Settings: settings}},
	}
	found := func(r *sim.Result) float64 { return r.PrefixReuse * float64(m.Tokens) }
	mean := found(routed)
	least := mean
	most := mean
	for i := range shadowSeeds - 1 {
		cfg.Seed = o.Seed + uint64(i) + 1
		again, err := sim.Run(cfg, m.Arrivals())
		if err != nil {
			return err
		}
		mean += found(again)
		least = min(least, found(again))
		most = max(most, found(again))
	}
	predicted := fmt.Sprintf("Predicted tokens found in caches: %.0f with the router, %.0f as it was. The first is the mean of "+
		"%d replays, which differ by how the router breaks ties: %.0f to %.0f.", mean/shadowSeeds, found(logged), shadowSeeds, least, most)
	fmt.Fprintf(env.out, "\n%s\n\n%s\n", predicted, replay.Table(runs))

	if page == "" {
		return nil
	}
	return writePage(page, runs, append(m.Findings(), predicted, shadow.CannotKnow)...)
}
