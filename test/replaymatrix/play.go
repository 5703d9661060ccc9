package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/replay"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/internal/tracefile"
)

// figures are the results of one run, or of several runs of equal settings. Times are in milliseconds.
type figures struct {
	Throughput float64 `json:"output_tokens_per_s"`
	TTFT       float64 `json:"ttft_mean_ms"`
	TTFTP99    float64 `json:"ttft_p99_ms"`
	E2E        float64 `json:"e2e_mean_ms"`
	ITL        float64 `json:"itl_mean_ms"`
	Reuse      float64 `json:"reuse"`
	Busiest    float64 `json:"busiest_by_mean_requests"`
	Errors     float64 `json:"errors"`
}

// figuresOf returns the figures of a result.
func figuresOf(r *sim.Result) figures {
	return figures{
		Throughput: r.OutputRate, TTFT: r.TTFT.Mean, TTFTP99: r.TTFT.P99, E2E: r.E2E.Mean, ITL: r.ITL.Mean, Reuse: r.PrefixReuse,
		Busiest: busiest(r.PerWorker), Errors: float64(r.Errors),
	}
}

// busiest is the requests of the busiest worker, divided by the mean of the workers of its role.
func busiest(list []sim.WorkerShare) float64 {
	sum, number := map[string]int{}, map[string]int{}
	for _, w := range list {
		sum[w.Role] += w.Requests
		number[w.Role]++
	}
	most := 0.0
	for _, w := range list {
		if sum[w.Role] > 0 {
			most = max(most, float64(w.Requests*number[w.Role])/float64(sum[w.Role]))
		}
	}
	return most
}

// over returns the figures over runs of different seeds: means, and of the 99th percentile the median.
func over(runs []figures) figures {
	mean := func(of func(*figures) float64) float64 {
		sum := 0.0
		for i := range runs {
			sum += of(&runs[i])
		}
		return sum / float64(len(runs))
	}
	tails := make([]float64, len(runs))
	for i := range runs {
		tails[i] = runs[i].TTFTP99
	}
	slices.Sort(tails)

	return figures{
		Throughput: mean(func(f *figures) float64 { return f.Throughput }),
		TTFT:       mean(func(f *figures) float64 { return f.TTFT }),
		TTFTP99:    (tails[(len(tails)-1)/2] + tails[len(tails)/2]) / 2,
		E2E:        mean(func(f *figures) float64 { return f.E2E }),
		ITL:        mean(func(f *figures) float64 { return f.ITL }),
		Reuse:      mean(func(f *figures) float64 { return f.Reuse }),
		Busiest:    mean(func(f *figures) float64 { return f.Busiest }),
		Errors:     mean(func(f *figures) float64 { return f.Errors }),
	}
}

// replayed is a run as the flags of `stator replay` describe it.
type replayed struct {
	cfg       sim.Config
	generated trace.Generated
	options   *replay.Options
}

// parse reads flags of `stator replay`.
func parse(flags string) (*replayed, error) {
	set := flag.NewFlagSet("replay", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	options, traces := replay.NewOptions(set), tracefile.Options{}
	traces.AddFlags(set)
	traces.AddGenerateFlags(set)
	options.AddArrivalFlags()
	options.AddFleetFlags(func(_ string, define func()) { define() })
	if err := set.Parse(strings.Fields(flags)); err != nil {
		return nil, err
	}

	cfg, err := options.Simulation(os.DirFS)
	traces.Generated.Seed = options.Seed
	return &replayed{cfg, traces.Generated, options}, err
}

// play plays a run of these flags of `stator replay`. Prompts belong to sessions if inSessions is set.
func play(flags string, inSessions bool, change func(*sim.Config)) (*sim.Result, error) {
	r, err := parse(flags)
	if err != nil {
		return nil, err
	}
	if change != nil {
		change(&r.cfg)
	}
	next, err := r.generated.Source()
	if err != nil {
		return nil, err
	}
	if inSessions {
		users := r.cfg.Concurrency
		if users == 0 {
			users = max(1, r.generated.Requests/turns)
		}
		next = sessions(next, &r.generated, users)
	}
	return sim.Run(r.cfg, r.options.Change(next))
}

// capacities has how many requests a second one engine can serve, by the flags of that run. It is safe for concurrent use.
type capacities struct {
	mu    sync.Mutex
	known map[string]func() (float64, error)
}

func newCapacities() *capacities {
	return &capacities{known: map[string]func() (float64, error){}}
}

// capacityOf returns how many requests a second the fleet of a cell can serve if nothing is shared: the rate of one engine, or of one
// that prefills and one that decodes, in a closed loop that fills its slots, times the number of engines. A slow engine
// counts for less.
func (c *capacities) capacityOf(x *cell) (float64, error) {
	alike := 1.0
	if x.apart {
		alike = 2
	}
	sum := 0.0
	for i := range x.engines {
		sum += 1 / x.slowness(i) / alike
	}

	one := cell{
		shape: x.shape, condition: conditions[0], tight: x.tight, sharing: x.sharing, engines: int(alike), seqs: x.seqs, routers: 1,
		apart: x.apart,
	}
	slots := one.slots()
	flags := fmt.Sprintf("--format generate --requests %d --isl %d --osl %d --arrivals constant --rate 100000 --concurrency %d %s",
		4*slots, one.shape.input, one.shape.output, slots, one.fleetFlags())

	c.mu.Lock()
	rate := c.known[flags]
	if rate == nil {
		rate = sync.OnceValues(func() (float64, error) { return capacity(flags, slots) })
		c.known[flags] = rate
	}
	c.mu.Unlock()
	perSecond, err := rate()
	return sum * perSecond, err
}

// capacity is the rate at which requests end between the first quarter of 4·slots requests and the last one.
func capacity(flags string, slots int) (float64, error) {
	var ends []time.Duration
	_, err := play(flags, false, func(cfg *sim.Config) {
		cfg.Ended = func(o sim.Outcome) { ends = append(ends, o.End) }
	})
	if err != nil {
		return 0, err
	}
	if len(ends) < 4*slots || ends[3*slots-1] <= ends[slots-1] {
		return 0, errors.New("the capacity cannot be measured: requests failed")
	}
	return float64(2*slots) / (ends[3*slots-1] - ends[slots-1]).Seconds(), nil
}
