// Command replaytraces plays the default cost function on traces that it was not tuned on: with late events,
// with several routers, with failures and with small caches. It prints the table of docs/results/replay.md.
//
// Each row is a situation and each column a router. The columns are our router with the true state of every
// engine, our router with late events as one and as three replicas, round-robin, and Dynamo's cost function.
// A trace that is not on this machine is replaced by a generated one, and the table has other figures then.
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

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/test/tracefiles"
)

// situation is a trace and a fleet. The trace is a path in the folder of traces, or empty for generated
// arrivals.
type situation struct{ name, trace, flags string }

var situations = []situation{
	{"agent sessions¹", tracefiles.Sessions, "--agent-sessions 12 --workers 4 --blocks 4096 --block-size 16"},
	{"Azure, guessed sessions²", tracefiles.Azure.Path, "--azure-sessions --workers 4"},
	{
		"bursts of 32 equal prompts", "",
		"--format generate --requests 4000 --arrivals bursts --burst 32 --identical --rate 4 --isl 4000 --osl 150 --workers 8",
	},
	{"Mooncake³, as it is", tracefiles.Mooncake.Path, mooncake},
	{"spread over its 3 s", tracefiles.Mooncake.Path, mooncake + " --jitter 3s"},
	{"and one worker at half speed", tracefiles.Mooncake.Path, mooncake + " --jitter 3s --slow 3=2"},
	{"one restarted, another later", tracefiles.Mooncake.Path, mooncake + " --jitter 3s --restart 3@10m+30s --restart 5@20m+30s"},
	{"caches a quarter of the size", tracefiles.Mooncake.Path, mooncake + " --jitter 3s --blocks 4096"},
}

const mooncake = "--rows 6000 --workers 8"

// router is a column. The second and the third are compared with the first.
type router struct{ name, flags string }

var routers = []router{
	{"true", "--first-tokens"},
	{"late, 1 router", "--event-lag 1s --signal-lag 20ms"},
	{"late, 3 routers", "--event-lag 1s --signal-lag 20ms --replicas 3"},
	{"round-robin", "--policy round-robin"},
	{"Dynamo's, 16", "--cost dynamo --prefill-load-scale 16 --first-tokens"},
}

func main() {
	stator := flag.String("stator", "bin/stator", "the program")
	traces := flag.String("traces", "", "`folder` of traces (default: traces, then ../shared/traces)")
	only := flag.String("only", "", "play only situations whose names contain this `text`")
	jobs := flag.Int("jobs", 2, "number of replays at a time")
	flag.Parse()

	if err := run(os.Stdout, *stator, *traces, *only, *jobs); err != nil {
		fmt.Fprintln(os.Stderr, "replaytraces:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, stator, traces, only string, jobs int) error {
	files, err := newTraceSet(traces, w)
	if err != nil {
		return err
	}
	defer files.close()

	head := "| TTFT mean / p50 / p99, ms |"
	rule := "|---|"
	for _, r := range routers {
		head += " " + r.name + " |"
		rule += "---|"
	}
	begun := false
	for _, s := range situations {
		if !strings.Contains(s.name, only) {
			continue
		}
		flags, err := files.flags(s)
		if err != nil {
			return err
		}
		if !begun {
			fmt.Fprintf(w, "%s\n%s\n", head, rule)
			begun = true
		}
		results, err := playAll(stator, flags, jobs)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		printRows(w, s.name, results)
	}
	return nil
}

// playAll plays a situation with every router.
func playAll(stator, flags string, jobs int) ([]sim.Result, error) {
	results := make([]sim.Result, len(routers))
	errs := make([]error, len(routers))
	slots := make(chan struct{}, max(1, jobs))
	var running sync.WaitGroup
	for i, r := range routers {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i], errs[i] = play(stator, flags+" "+r.flags)
		})
	}
	running.Wait()
	return results, errors.Join(errs...)
}

func play(stator, flags string) (r sim.Result, err error) {
	cmd := exec.Command(stator, append([]string{"replay", "--json", "--seed", "1"}, strings.Fields(flags)...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("stator replay %s: %w", flags, err)
	}
	return r, json.Unmarshal(out, &r)
}

// printRows prints a situation: reuse, times to first token with their difference from the first router,
// times of whole requests with the most loaded worker, and failures where there were any.
func printRows(w io.Writer, name string, results []sim.Result) {
	line := func(title string, cell func(i int, r *sim.Result) string) {
		fmt.Fprintf(w, "| %s |", title)
		for i := range results {
			fmt.Fprintf(w, " %s |", cell(i, &results[i]))
		}
		fmt.Fprintln(w)
	}

	line(name+": reuse", func(_ int, r *sim.Result) string { return fmt.Sprintf("%.3f", r.PrefixReuse) })
	line("TTFT", func(i int, r *sim.Result) string {
		text := fmt.Sprintf("%.0f / %.0f / %.0f", r.TTFT.Mean, r.TTFT.P50, r.TTFT.P99)
		if i == 1 || i == 2 {
			text += fmt.Sprintf(" (%+.1f %%)", 100*(r.TTFT.Mean/results[0].TTFT.Mean-1))
		}
		return text
	})
	line("e2e, most loaded", func(_ int, r *sim.Result) string { return fmt.Sprintf("%.0f, %.2f", r.E2E.Mean, r.Imbalance()) })

	failed := 0
	for i := range results {
		failed += results[i].Errors
	}
	if failed > 0 {
		line("failed", func(_ int, r *sim.Result) string { return fmt.Sprint(r.Errors) })
	}
}
