// Command replaynoise compares routing policies on simulated engines whose times vary. It prints the tables of
// docs/results/replay.md.
//
// Every policy plays the same traces, noise and seeds. Differences are taken between runs of equal seed, and
// their interval is from a bootstrap over seeds. kv has its default weights, as users have it. Dynamo's cost has the best
// of six weights on each trace, by a search on seeds that the tables do not have. A trace that is not on this machine is
// left out.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/test/tracefiles"
)

// situation is a trace and a fleet. The trace is a path in the folder of traces, or empty for generated
// arrivals. Times is how many times as many seeds it has: traces of 400 requests have too few for one seed's p99.
type situation struct {
	name, trace, flags string
	times              int
}

var situations = []situation{
	{"Mooncake's conversations", tracefiles.Mooncake.Path, "--rows 3000 --workers 8 --jitter 3s", 1},
	{"agents that write code", tracefiles.Sessions, agents, 4},
	{"agents that use tools", tracefiles.Dialogues, agents + " --agent-join", 4},
	{"Azure, guessed sessions", tracefiles.Azure.Path, "--rows 6000 --workers 4 --azure-sessions", 1},
}

const agents = "--agent-sessions 12 --workers 4 --blocks 4096 --block-size 16"

// smoke is what a short run plays.
var smoke = []situation{{
	"generated", "", "--format generate --requests 200 --rate 10 --isl 2000 --osl 50 --prefix-share 0.5 --prefixes 10", 1,
}}

// levels are the noise that each situation is played with.
var levels = []struct{ name, flags string }{
	{"σ = 0.1", "--noise 0.1"},
	{"σ = 0.3", "--noise 0.3"},
	{"σ = 0.6", "--noise 0.6"},
	{"σ = 0.3, all kinds", "--noise 0.3 --stalls --neighbours --slow-spell 1=1.5@2m+5m"},
}

// slowLevel is the level of noise that a slow start comes with.
const slowLevel = 1

// policy is a row. The search chooses one of its settings, if it has some.
type policy struct {
	name, flags string
	settings    []string
}

// The rows. Differences are those of the first from the second.
const (
	rowKV, rowDynamo = 0, 1
)

var policies = []policy{
	{"kv", "", nil},
	{"Dynamo's cost", "--cost dynamo", values("--prefill-load-scale", 1, 2, 4, 8, 16, 32)},
	{"round-robin", "--policy round-robin", nil},
	{"random", "--policy random", nil},
	{"least-loaded", "--policy least-loaded", nil},
	{"shared cache (bound)", "--shared-cache", nil},
}

const (
	// searchSeed is the first seed of the search, and searchSeeds how many it has; the tables have the seeds from 1.
	searchSeed, searchSeeds = 1001, 3
	// equalTTFT is by which part a mean TTFT may be longer and count as equal. Means of three seeds differ by as much.
	equalTTFT = 0.005
)

// values returns settings of one flag.
func values(flag string, list ...int) (settings []string) {
	for _, v := range list {
		settings = append(settings, fmt.Sprint(flag, " ", v))
	}
	return settings
}

// searched are the conditions in which a setting is tried: the most noise, all kinds of it, and a slow start.
var searched = []string{levels[2].flags, levels[3].flags, levels[slowLevel].flags + slowStart}

// slowStart makes the first prompts of one engine slow. Nothing can be known of them before they are slow, so requests that
// arrive in the first seconds of a run may wait for them. A warm-up leaves these requests out.
const slowStart, warmup = " --slow-start 1=3", "--warmup 10s"

// bench is one run of the command.
type bench struct {
	stator, traces string
	seeds          int
	slots          chan struct{} // as many as replays at a time
	out            io.Writer
}

func main() {
	b := bench{out: os.Stdout}
	flag.StringVar(&b.stator, "stator", "bin/stator", "the program")
	flag.StringVar(&b.traces, "traces", "", "`folder` of traces (default: traces, then ../shared/traces)")
	flag.IntVar(&b.seeds, "seeds", 6, "number of runs of each kind")
	jobs := flag.Int("jobs", 2, "number of replays at a time")
	only := flag.String("only", "", "play only situations whose names contain this `text`")
	quick := flag.Bool("quick", false, "play little, to see that everything runs")
	requests := flag.Int("headline", 0, "play the workload of Dynamo's headline instead, with this `number` of requests")
	flag.Parse()

	b.slots = make(chan struct{}, max(1, *jobs))
	list := situations
	if *quick {
		list = smoke
		b.seeds = 2
	}
	began := time.Now()
	var err error
	if *requests > 0 {
		err = b.headline(*requests)
	} else {
		err = b.run(list, *only)
	}
	b.printConditions(began)
	if err != nil {
		fmt.Fprintln(os.Stderr, "replaynoise:", err)
		os.Exit(1)
	}
}

// printConditions prints what figures may depend on.
func (b *bench) printConditions(began time.Time) {
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Fprintf(b.out, "%.0f min, load average %s", time.Since(began).Minutes(), load)
}

func (b *bench) run(list []situation, only string) error {
	for _, s := range list {
		if !strings.Contains(s.name, only) {
			continue
		}
		if s.trace != "" {
			path, ok := tracefiles.Find(b.traces, s.trace)
			if !ok {
				fmt.Fprintf(b.out, "%s is left out, because its trace is not at hand. %s\n\n", s.name, tracefiles.Hint)
				continue
			}
			s.flags = "--trace " + path + " " + s.flags
		}
		if err := b.situation(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// situation prints the tables of one situation.
func (b *bench) situation(s situation) error {
	seeds := b.seeds * s.times
	fmt.Fprintf(b.out, "### %s\n\n", s.name)
	chosen := make([]string, len(policies))
	for i, p := range policies {
		setting, err := b.search(s, p)
		if err != nil {
			return err
		}
		chosen[i] = p.flags + " " + setting
		if setting != "" {
			fmt.Fprintf(b.out, "The search chose `%s` for %s.\n", setting, p.name)
		}
	}

	fmt.Fprintf(b.out, "\nThe seeds of the tables are 1 to %d.\n", seeds)
	fmt.Fprint(b.out, "\n| noise | policy | reuse | TTFT mean, ms | TTFT p99, ms | e2e mean, ms |\n|---|---|---|---|---|---|\n")
	var differences []string
	var plain [][]sim.Result // of each policy, at the level of the slow start
	for at, level := range levels {
		results := make([][]sim.Result, len(policies))
		for i := range policies {
			list, err := b.play(1, seeds, s.flags, level.flags, chosen[i])
			if err != nil {
				return err
			}
			results[i] = list
			printRow(b.out, level.name, policies[i].name, list)
		}
		differences = append(differences, differenceRow(level.name, results[rowKV], results[rowDynamo]))
		if at == slowLevel {
			plain = results
		}
	}

	fmt.Fprint(b.out, "\n| kv against Dynamo's cost | reuse | TTFT mean | TTFT p99 | met |\n|---|---|---|---|---|\n")
	fmt.Fprint(b.out, strings.Join(differences, ""), "\n")
	return b.slowStart(s, seeds, chosen, plain)
}

// slowStart prints what the slow first prompts of one engine cost. plain is the runs of each policy without them.
func (b *bench) slowStart(s situation, seeds int, chosen []string, plain [][]sim.Result) error {
	level := levels[slowLevel]
	fmt.Fprintf(b.out, "Three prompts of engine 1 take 1.5 s longer (%s):\n\n", level.name)
	fmt.Fprint(b.out, "| policy | TTFT mean | of it the three prompts | TTFT mean after 10 s |\n|---|---|---|---|\n")
	for _, i := range []int{rowKV, rowDynamo} {
		with, err := b.play(1, seeds, s.flags, level.flags, chosen[i], slowStart)
		if err != nil {
			return err
		}
		later, err := b.play(1, seeds, s.flags, level.flags, chosen[i], warmup)
		if err != nil {
			return err
		}
		laterWith, err := b.play(1, seeds, s.flags, level.flags, chosen[i], slowStart, warmup)
		if err != nil {
			return err
		}

		const frozen = 3 * 1500 // milliseconds
		three := frozen / float64(with[0].Completed) / meanOf(plain[i], ttftMean)
		fmt.Fprintf(b.out, "| %s | %s | %+.1f %% | %s |\n", policies[i].name, relative(with, plain[i], ttftMean), 100*three,
			relative(laterWith, later, ttftMean))
	}
	fmt.Fprintln(b.out)
	return nil
}

// search returns the best setting of a policy over the searched conditions.
func (b *bench) search(s situation, p policy) (best string, err error) {
	if len(p.settings) == 0 {
		return "", nil
	}
	var tried []trial
	for _, setting := range p.settings {
		t := trial{setting: setting}
		for _, noise := range searched {
			results, err := b.play(searchSeed, min(b.seeds, searchSeeds)*s.times, s.flags, noise, p.flags+" "+setting)
			if err != nil {
				return "", err
			}
			t.ttft += meanOf(results, ttftMean)
			t.reuse += meanOf(results, reuse)
		}
		tried = append(tried, t)
	}
	return choose(tried), nil
}

// trial is what a setting reached, summed over the conditions.
type trial struct {
	setting     string
	ttft, reuse float64
}

// choose returns the setting with the least mean TTFT. Settings within equalTTFT of it count as equal, and of these it is the
// one with the most reuse.
func choose(tried []trial) string {
	least := slices.MinFunc(tried, func(a, b trial) int { return cmp.Compare(a.ttft, b.ttft) }).ttft
	equal := slices.DeleteFunc(slices.Clone(tried), func(t trial) bool { return t.ttft > least*(1+equalTTFT) })
	return slices.MaxFunc(equal, func(a, b trial) int { return cmp.Compare(a.reuse, b.reuse) }).setting
}

// play plays runs of equal flags and n seeds.
func (b *bench) play(from, n int, flags ...string) ([]sim.Result, error) {
	return b.start(from, n, flags...)()
}

// start is play for runs beside others. The function that it returns waits for the results.
func (b *bench) start(from, n int, flags ...string) func() ([]sim.Result, error) {
	results := make([]sim.Result, n)
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			b.slots <- struct{}{}
			defer func() { <-b.slots }()
			line := fmt.Sprintf("replay --json --seed %d %s", from+i, strings.Join(flags, " "))
			cmd := exec.Command(b.stator, strings.Fields(line)...)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err == nil {
				err = json.Unmarshal(out, &results[i])
			}
			if err != nil {
				errs[i] = fmt.Errorf("stator %s: %w", line, err)
			}
		})
	}
	return func() ([]sim.Result, error) {
		running.Wait()
		return results, errors.Join(errs...)
	}
}
