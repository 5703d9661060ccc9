package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/stator-project/stator/internal/sim"
)

const replayAbout = `Plays a trace against a simulated fleet, in virtual time, with the real router and the real
index of caches before it, and says what came of it: time to first token, time between tokens,
how much of the prompts was found in caches, how evenly the load lay. The same input and seed
give the same bytes. Ctrl-C ends it with what there is.

A trace is Mooncake's JSON lines, Azure's CSV, or a file or folder of agents' sessions in JSON
lines; --decisions plays what a router's decision log has; or arrivals are made by rule with
--format generate. docs/replay.md tells more.

` + "`stator replay compare`" + ` puts runs side by side.`

func runReplay(ctx context.Context, env environment, args []string) error {
	if len(args) > 0 && args[0] == "compare" {
		return runReplayCompare(ctx, env, args[1:])
	}
	f := flags(env, "replay", replayAbout)
	spec := addReplayFlags(f)
	asJSON := f.Bool("json", false, "print JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	bar := noBar
	if !*asJSON {
		bar = newBar(env.err)
	}
	result, err := spec.play(ctx, bar)
	if err != nil {
		return err
	}
	if *asJSON {
		return printResult(env.out, result)
	}
	if result.Interrupted {
		fmt.Fprintln(env.err, "stator: interrupted: these are the figures so far")
	}
	_, err = io.WriteString(env.out, result.String())
	return err
}

// replayed is a result and what it is of.
type replayed struct {
	sim.Result
	// Settings are the flags that were given, as one would give them again.
	Settings string `json:"settings"`
}

func printResult(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// play runs one simulation from its flags.
func (s *replaySpec) play(ctx context.Context, bar *bar) (*replayed, error) {
	cfg, err := s.config()
	if err != nil {
		return nil, err
	}
	src, err := s.open()
	if err != nil {
		return nil, err
	}
	defer src.close()
	next := src.next
	if s.rows > 0 {
		next = sim.Take(s.rows, next)
		if src.total == 0 || s.rows < src.total {
			src.total = s.rows
		}
	}
	if s.jitter > 0 {
		next = sim.Jitter(s.jitter, s.seed, next)
	}
	cfg.Stopped = func() bool {
		bar.show(src.done())
		return ctx.Err() != nil
	}
	result, err := sim.Run(cfg, src.count(next))
	bar.clear()
	if err != nil {
		return nil, err
	}
	return &replayed{*result, s.settings()}, nil
}

// isTerminal says whether someone looks at w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && f.Name() != os.DevNull
}
