// Command replaynoise compares routing policies on simulated engines whose times vary. It prints the tables of
// docs/replay.md.
//
// Every policy plays the same traces, noise and seeds. Differences are taken between runs of equal seed, and
// their interval is from a bootstrap over seeds. The cost functions of both kv policies have weights that the
// same search chose: the same number of settings, on seeds that the tables do not have. A trace that is not on
// this machine is left out.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/test/tracefiles"
)

// situation is a trace and a fleet. The trace is a path in the folder of traces, or empty for generated
// arrivals.
type situation struct{ name, trace, flags string }

var situations = []situation{
	{"Mooncake's conversations", tracefiles.Mooncake.Path, "--rows 3000 --workers 8 --jitter 3s"},
	{"agents that write code", tracefiles.Sessions, agents},
	{"agents that use tools", tracefiles.Dialogues, agents + " --agent-join"},
	{"Azure, guessed sessions", tracefiles.Azure.Path, "--rows 6000 --workers 4 --azure-sessions"},
}

const agents = "--agent-sessions 12 --workers 4 --blocks 4096 --block-size 16"

// smoke is what a short run plays.
var smoke = []situation{{
	"generated", "", "--format generate --requests 200 --rate 10 --isl 2000 --osl 50 --prefix-share 0.5 --prefixes 10",
}}

// levels are the noise that each situation is played with.
var levels = []struct{ name, flags string }{
	{"σ = 0.1", "--noise 0.1"},
	{"σ = 0.3", "--noise 0.3"},
	{"σ = 0.6", "--noise 0.6"},
	{"σ = 0.3, all kinds", "--noise 0.3 --stalls --neighbours --slow-spell 1=1.5@2m+5m"},
}

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
	{"kv", "", []string{"--delay-prefill-weight 1", "--delay-prefill-weight 2", "--delay-prefill-weight 4", "--delay-prefill-weight 8"}},
	{"Dynamo's cost", "--cost dynamo", []string{
		"--prefill-load-scale 1", "--prefill-load-scale 4", "--prefill-load-scale 16", "--prefill-load-scale 32",
	}},
	{"round-robin", "--policy round-robin", nil},
	{"random", "--policy random", nil},
	{"least-loaded", "--policy least-loaded", nil},
	{"shared cache (bound)", "--shared-cache", nil},
}

// searchSeed is the first seed of the search; the tables have the seeds from 1.
const searchSeed = 1001

// bench is one run of the command.
type bench struct {
	stator, traces string
	seeds, jobs    int
	out            io.Writer
}

func main() {
	b := bench{out: os.Stdout}
	flag.StringVar(&b.stator, "stator", "bin/stator", "the program")
	flag.StringVar(&b.traces, "traces", "", "`folder` of traces (default: traces, then ../shared/traces)")
	flag.IntVar(&b.seeds, "seeds", 6, "number of runs of each kind")
	flag.IntVar(&b.jobs, "jobs", 2, "number of replays at a time")
	only := flag.String("only", "", "play only situations whose names contain this `text`")
	quick := flag.Bool("quick", false, "play little, to see that everything runs")
	requests := flag.Int("headline", 0, "play the workload of Dynamo's headline instead, with this `number` of requests")
	flag.Parse()

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
	fmt.Fprintf(b.out, "Seeds 1 to %d, %.0f min, load average %s", b.seeds, time.Since(began).Minutes(), load)
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

	fmt.Fprint(b.out, "\n| noise | policy | reuse | TTFT mean, ms | TTFT p99, ms | e2e mean, ms |\n|---|---|---|---|---|---|\n")
	var differences []string
	for _, level := range levels {
		results := make([][]sim.Result, len(policies))
		for i := range policies {
			list, err := b.play(1, b.seeds, s.flags, level.flags, chosen[i])
			if err != nil {
				return err
			}
			results[i] = list
			printRow(b.out, level.name, policies[i].name, list)
		}
		differences = append(differences, differenceRow(level.name, results[rowKV], results[rowDynamo]))
	}

	fmt.Fprint(b.out, "\n| kv against Dynamo's cost | reuse | TTFT mean | TTFT p99 | met |\n|---|---|---|---|---|\n")
	fmt.Fprint(b.out, strings.Join(differences, ""), "\n")
	return b.slowStart(s, chosen[rowKV])
}

// slowStart prints what the slow first prompts of one engine cost.
func (b *bench) slowStart(s situation, kv string) error {
	without, err := b.play(1, b.seeds, s.flags, levels[1].flags, kv)
	if err != nil {
		return err
	}
	with, err := b.play(1, b.seeds, s.flags, levels[1].flags, kv+" --slow-start 1=3")
	if err != nil {
		return err
	}
	const frozen = 3 * 1500 // milliseconds
	least := frozen / float64(with[0].Completed) / meanOf(without, ttftMean)
	fmt.Fprintf(b.out, "A slow start of engine 1 (three prompts take 1.5 s longer, %s) changes the mean TTFT of kv by %s. "+
		"The three prompts alone are %+.1f %%.\n\n", levels[1].name, relative(with, without, ttftMean), 100*least)
	return nil
}

// search returns the setting of a policy with the least mean TTFT under the second level of noise.
func (b *bench) search(s situation, p policy) (best string, err error) {
	least := 0.0
	for i, setting := range p.settings {
		results, err := b.play(searchSeed, min(b.seeds, 3), s.flags, levels[1].flags, p.flags+" "+setting)
		if err != nil {
			return "", err
		}
		if ttft := meanOf(results, ttftMean); i == 0 || ttft < least {
			least, best = ttft, setting
		}
	}
	return best, nil
}

// play plays runs of equal flags and n seeds.
func (b *bench) play(from, n int, flags ...string) ([]sim.Result, error) {
	results := make([]sim.Result, n)
	errs := make([]error, n)
	slots := make(chan struct{}, max(1, b.jobs))
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
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
	running.Wait()
	return results, errors.Join(errs...)
}
