// Package tables has the comparisons that are tables of runs of `stator replay`. Each is described by a YAML file: traces and fleets,
// contenders, and the figures that are shown.
package tables

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/stator-project/stator/internal/replay"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/tracefile"
)

// player plays runs, a few at a time.
type player struct {
	ctx   context.Context
	slots chan struct{} // as many as runs at a time
}

// newPlayer returns a player of so many runs at a time.
func newPlayer(ctx context.Context, jobs int) *player {
	return &player{ctx, make(chan struct{}, max(1, jobs))}
}

// start starts n runs of equal flags, with seeds from the first on. The function that it returns waits for the results.
func (p *player) start(seed, n int, flags ...string) func() ([]sim.Result, error) {
	results := make([]sim.Result, n)
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			p.slots <- struct{}{}
			defer func() { <-p.slots }()
			line := fmt.Sprintf("--seed %d %s", seed+i, strings.Join(flags, " "))
			r, err := p.play(line)
			if err != nil {
				errs[i] = fmt.Errorf("stator replay %s: %w", line, err)
				return
			}
			results[i] = *r
		})
	}
	return func() ([]sim.Result, error) {
		running.Wait()
		return results, errors.Join(errs...)
	}
}

// playAll starts runs as start does, and waits for them.
func (p *player) playAll(seed, n int, flags ...string) ([]sim.Result, error) {
	return p.start(seed, n, flags...)()
}

// play plays one run, which has the flags of `stator replay`.
func (p *player) play(line string) (*sim.Result, error) {
	f := flag.NewFlagSet("replay", flag.ContinueOnError)
	options, traces := replay.NewOptions(f), tracefile.Options{}
	traces.AddFlags(f)
	traces.AddGenerateFlags(f)
	options.AddArrivalFlags()
	options.AddFleetFlags(func(_ string, define func()) { define() })
	if err := f.Parse(strings.Fields(line)); err != nil {
		return nil, err
	}

	cfg, err := options.Simulation(os.DirFS)
	if err != nil {
		return nil, err
	}
	if err := traces.Validate(); err != nil {
		return nil, err
	}
	traces.Generated.Seed = options.Seed
	opened, err := tracefile.Open(p.ctx, traces)
	if err != nil {
		return nil, err
	}
	defer opened.Close()

	cfg.Stopped = func() bool { return p.ctx.Err() != nil }
	r, err := sim.Run(cfg, opened.Source(options.Change))
	if err == nil && r.Interrupted {
		err = p.ctx.Err()
	}
	return r, err
}
