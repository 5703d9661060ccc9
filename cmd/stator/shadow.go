package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/replay"
	"github.com/stator-project/stator/internal/shadow"
	"github.com/stator-project/stator/internal/trace"
)

const shadowReportAbout = `Reports what the router would have changed, from the decision log of ` + "`stator extproc --shadow`" + `. By
model: how many tokens of prompts the workers that served had in their caches, and how many the router's
picks had. Then the logged requests are played in virtual time, with the placements that really
happened and with the router's own. Workers, blocks and their size are the log's, unless given.
See docs/mesh.md.`

// shadowReplays is the number of replays with the router. Ties decide where conversations begin, and so how full each cache is later.
const shadowReplays = 8

func runShadow(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "shadow report", shadowReportAbout)
	o := replay.NewOptions(f.FlagSet)
	log := f.String("decision-log", "", "decision log `file` of the shadow")
	model := f.String("model", "", "report on this `model` alone; needed with --html if the log has several")
	page := f.String("html", "", "write a page with plots to this `file`")
	f.Uint64Var(&o.Seed, "seed", 0, "determines how the router breaks ties")
	o.AddCoreFlags(f.Group)
	if len(args) > 0 && args[0] == "report" {
		args = args[1:]
	}
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
	_, err = fmt.Fprintln(env.out, wrap(shadow.CannotKnow))
	return err
}

// reportModel prints the report on a model, and writes its page if it has a path.
func reportModel(ctx context.Context, env environment, o *replay.Options, m *shadow.Model, page string) error {
	cfg, err := o.Simulation(os.DirFS)
	if err != nil {
		return err
	}
	settings := o.TakeFleet(&cfg, trace.Fleet{Workers: m.Workers, Blocks: m.Blocks, BlockSize: m.BlockSize})
	cfg.Stopped = func() bool { return ctx.Err() != nil }
	predicted, err := m.Predict(cfg, shadowReplays)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("play the requests of model %s: %w", m.Name, err)
	}

	notes := append(m.Findings(), predicted.Lines()...)
	for _, line := range notes {
		fmt.Fprintln(env.out, wrap(line))
	}
	runs := []replay.Run{
		{Name: "as it was", Result: replay.Result{Result: *predicted.Logged, Settings: settings}},
		{Name: "with the router", Result: replay.Result{Result: *predicted.Middle(), Settings: settings}},
	}
	fmt.Fprintf(env.out, "\nAs it was, and the middle one of the replays with the router:\n\n%s\n", replay.Table(runs))
	if page == "" {
		return nil
	}
	return writePage(page, runs, append(notes, shadow.CannotKnow)...)
}

// wrap breaks a text into lines of at most 100 bytes, at spaces, if its words are shorter.
func wrap(text string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		if column > 0 && column+len(word) >= 100 {
			b.WriteByte('\n')
			column = 0
		} else if column > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(word)
		column += 1 + len(word)
	}
	return b.String()
}
