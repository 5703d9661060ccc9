// Command replaytraces judges the default cost on traces that it was not tuned on, under late news,
// several routers, failures and small caches, and prints the table of docs/replay.md.
//
// Each row is a situation, each column a router in it: ours fed the true state of every engine at
// once, ours with late news, alone and as three, round-robin, and Dynamo's cost function.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/stator-project/stator/internal/sim"
)

// situation is a trace and a fleet. In its flags TRACES is the folder of traces.
type situation struct{ name, flags string }

var situations = []situation{
	{"agent sessions¹", "--trace TRACES/agent/miniswe --agent-sessions 12 --workers 4 --blocks 4096 --block-size 16"},
	{"Azure, guessed sessions²", "--trace TRACES/azure2023/AzureLLMInferenceTrace_conv.csv --azure-sessions --workers 4"},
	{"bursts of 32 equal prompts", "--format generate --requests 4000 --arrivals bursts --burst 32 --identical --rate 4 --isl 4000 " +
		"--osl 150 --workers 8"},
	{"Mooncake³, as it is", mooncake},
	{"spread over its 3 s", mooncake + " --jitter 3s"},
	{"and one worker at half speed", mooncake + " --jitter 3s --slow 3=2"},
	{"one restarted, another later", mooncake + " --jitter 3s --restart 3@10m+30s --restart 5@20m+30s"},
	{"caches a quarter of the size", mooncake + " --jitter 3s --blocks 4096"},
}

const mooncake = "--trace TRACES/mooncake/conversation_trace.jsonl --rows 6000 --workers 8"

// router is a column; the second and the third are compared with the first.
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
	traces := flag.String("traces", "../shared/traces", "`folder` of traces")
	only := flag.String("only", "", "only situations whose names have this `text`")
	jobs := flag.Int("jobs", 2, "how many replays run at a time")
	flag.Parse()

	if err := run(os.Stdout, *stator, *traces, *only, *jobs); err != nil {
		fmt.Fprintln(os.Stderr, "replaytraces:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, stator, traces, only string, jobs int) error {
	head := "| TTFT mean / p50 / p99, ms |"
	rule := "|---|"
	for _, r := range routers {
		head, rule = head+" "+r.name+" |", rule+"---|"
	}
	fmt.Fprintf(w, "%s\n%s\n", head, rule)

	slots := make(chan struct{}, max(1, jobs))
	for _, s := range situations {
		if !strings.Contains(s.name, only) {
			continue
		}
		results := make([]sim.Result, len(routers))
		errs := make([]error, len(routers))
		var all sync.WaitGroup
		for i, r := range routers {
			all.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				results[i], errs[i] = replay(stator, strings.ReplaceAll(s.flags, "TRACES", filepath.ToSlash(traces))+" "+r.flags)
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		rows(w, s.name, results)
	}

	return nil
}

func replay(stator, flags string) (r sim.Result, err error) {
	cmd := exec.Command(stator, append([]string{"replay", "--json", "--seed", "1"}, strings.Fields(flags)...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("stator replay %s: %w", flags, err)
	}
	return r, json.Unmarshal(out, &r)
}

// rows prints a situation: reuse, times to first token with their distance from those of the truth,
// whole requests with the most loaded worker, and failures where there were any.
func rows(w io.Writer, name string, results []sim.Result) {
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
