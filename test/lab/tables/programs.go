package tables

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/test/stats"
)

// Programs plays folders of agents' traces as programs, by policy kv and by the same with a queue that holds programs back. It prints the
// tables of docs/results/benchmarks.md.
//
// A load is a share of the saturation rate: the highest rate at which kv ends programs, over rates at which they begin. At low rates as
// many end as begin, and at high ones fewer than could, because contexts are evicted.
func Programs(ctx context.Context, args []string, out, _ io.Writer) error {
	f := flag.NewFlagSet("programs", flag.ContinueOnError)
	weka := f.String("weka", "", "`folder` of programs in Weka's format")
	agent := f.String("agent", "", "`folder` of sessions of agents")
	dialogues := f.String("dialogues", "", "`folder` of dialogues of agents, of which each row is one message")
	seed := f.Int("seed", 1, "first seed")
	seeds := f.Int("seeds", 3, "number of runs of each kind")
	jobs := f.Int("jobs", 1, "number of replays at a time")
	loads := f.String("loads", "85 100 115 130", "loads in percent")
	if err := f.Parse(args); err != nil {
		return err
	}

	p := programs{player: newPlayer(ctx, *jobs), seed: *seed, seeds: *seeds, loads: strings.Fields(*loads), out: out}
	played := false
	for _, t := range []struct{ folder, flags, wait string }{
		{*weka, "--workers 8 --max-model-len 1000000 --tile 2", "20m"},
		{*agent, "--workers 4 --blocks 1024 --tile 10", "6m"},
		{*dialogues, "--agent-join --workers 4 --blocks 512 --tile 50", "6m"},
	} {
		if t.folder == "" {
			continue
		}
		played = true
		if err := p.printTrace(t.folder, t.flags, t.wait); err != nil {
			return err
		}
	}
	if !played {
		return errors.New("name a folder of traces with --weka, --agent or --dialogues")
	}
	return nil
}

// programs is one run of the command.
type programs struct {
	*player
	seed, seeds int
	loads       []string
	out         io.Writer
}

// atOnce is a rate at which all programs begin within seconds. The search for the saturation rate begins with the rate at which they end
// then, and goes on in steps until much fewer end than begin.
const (
	atOnce   = 100_000
	step     = 1.25
	steps    = 12
	muchLess = 0.85
)

// saturation returns the saturation rate of kv, and the number of programs.
func (p *programs) saturation(flags string) (rate float64, count int, err error) {
	begin := float64(atOnce)
	for range steps {
		list, err := p.playAll(p.seed, 1, flags, fmt.Sprint("--program-rate ", begin))
		if err != nil {
			return 0, 0, err
		}
		ended := list[0].Programs.Rate
		rate = max(rate, ended)
		count = list[0].Programs.Completed
		switch {
		case begin == atOnce:
			begin = ended
		case ended < muchLess*begin:
			return rate, count, nil
		default:
			begin *= step
		}
	}
	return rate, count, nil
}

// printTrace prints the table of one trace. wait is the longest wait in the queue.
func (p *programs) printTrace(folder, flags, wait string) error {
	flags = "--trace " + folder + " " + flags
	saturation, count, err := p.saturation(flags)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.out, "\n%s: %d programs, of which kv ends at most %.2f a minute; %d seeds, longest wait %s\n\n",
		filepath.Base(folder), count, saturation, p.seeds, wait)
	fmt.Fprint(p.out, "| load, programs a minute | mean time, s | change | without pauses, s | change | p50 | p99, s | change "+
		"| prefill and queue, s | TTFT p50, ms | reuse | fairness | lost |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")

	for _, load := range p.loads {
		var percent float64
		if _, err := fmt.Sscan(load, &percent); err != nil {
			return fmt.Errorf("load %q: %w", load, err)
		}
		rate := fmt.Sprintf("%.2f", saturation*percent/100)
		kv := p.start(p.seed, p.seeds, flags, "--program-rate", rate)
		held := p.start(p.seed, p.seeds, flags, "--program-rate", rate, "--queue 100000 --hold-programs --max-wait", wait)
		a, err := kv()
		if err != nil {
			return err
		}
		b, err := held()
		if err != nil {
			return err
		}
		p.printRow(load+" %, "+rate, a, b)
	}
	return nil
}

// printRow prints the figures of runs by kv and of runs that hold programs back, and the changes.
func (p *programs) printRow(name string, kv, held []sim.Result) {
	both := func(format string, of func(*sim.Programs) float64) string {
		return fmt.Sprintf(format+": "+format, meanOf(kv, of), meanOf(held, of))
	}
	ofResult := func(format string, of func(*sim.Result) float64) string {
		return fmt.Sprintf(format+": "+format, stats.MeanOf(kv, of), stats.MeanOf(held, of))
	}
	mean := func(r *sim.Programs) float64 { return r.Time.Mean }
	working := func(r *sim.Programs) float64 { return r.Working.Mean }
	p50 := func(r *sim.Programs) float64 { return r.Time.P50 }
	p99 := func(r *sim.Programs) float64 { return r.Time.P99 }
	cells := []string{
		name, both("%.1f", mean), change(kv, held, mean), both("%.1f", working), change(kv, held, working), change(kv, held, p50),
		both("%.0f", p99), change(kv, held, p99), both("%.1f", func(r *sim.Programs) float64 { return r.Queued + r.Prefill }),
		ofResult("%.0f", func(r *sim.Result) float64 { return r.TTFT.P50 }),
		ofResult("%.2f", func(r *sim.Result) float64 { return r.PrefixReuse }),
		both("%.2f", func(r *sim.Programs) float64 { return r.Fairness }),
		both("%.0f", func(r *sim.Programs) float64 { return float64(r.Lost) }),
	}
	fmt.Fprintf(p.out, "| %s |\n", strings.Join(cells, " | "))
}

// meanOf returns the mean of a figure of programs.
func meanOf(list []sim.Result, of func(*sim.Programs) float64) float64 {
	return stats.MeanOf(list, func(r *sim.Result) float64 { return of(r.Programs) })
}

// change returns the mean change of a figure in percent, and the standard deviation of the changes of single seeds.
func change(kv, held []sim.Result, of func(*sim.Programs) float64) string {
	changes := make([]float64, len(kv))
	for i := range kv {
		changes[i] = 100 * (of(held[i].Programs)/of(kv[i].Programs) - 1)
	}
	return fmt.Sprintf("%+.1f ± %.1f %%", stats.Mean(changes), stats.Deviation(changes))
}
