// Command benchagents has NVIDIA's AIPerf play programs of agents against a whole gateway: `stator up` with Envoy and simulated engines. It
// compares policies in interleaved rounds. The programs are traces in the format of Weka's kv-cache-tester, with their sub-agents.
//
// AIPerf holds a number of programs at work. Each goes on when its requests are answered, after the client's think time of the trace, which
// is cut to a second. Every policy gets the same programs in a round, on empty caches. Engines divide the time of each pass by --speed, so
// that a small machine carries them. A request that fails makes the run fail.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/stats"
)

func main() { process.Main("benchagents", run) }

type options struct {
	stator, aiperf, tokenizer, traces, policies           string
	rounds, programs, concurrency, engines, blocks, slots int
	context                                               int
	speed                                                 float64
	seed                                                  uint64
}

func readOptions(args []string, usage io.Writer) (o options, err error) {
	f := flag.NewFlagSet("benchagents", flag.ContinueOnError)
	f.SetOutput(usage)

	f.StringVar(&o.stator, "stator", "bin/stator", "the `program`")
	f.StringVar(&o.aiperf, "aiperf", ".venv-aiperf/bin/aiperf", "`path` of AIPerf")
	f.StringVar(&o.tokenizer, "tokenizer", "internal/models/sim", "`folder` of the vocabulary of simulated engines")
	f.StringVar(&o.traces, "traces", "", "`folder` of traces in the format of Weka's kv-cache-tester; required")
	f.StringVar(&o.policies, "policies", "kv,kv/dynamo@1,kv/dynamo@16,least-loaded",
		"`policies`, of which the first is compared with the others; kv/dynamo@N is kv with Dynamo's cost and that prefill load scale")

	// The default load keeps the caches full, and a small machine carries it.
	f.IntVar(&o.rounds, "rounds", 3, "rounds, each with all policies in a random order")
	f.IntVar(&o.programs, "programs", 16, "programs of a run")
	f.IntVar(&o.concurrency, "concurrency", 8, "programs at work")
	f.IntVar(&o.context, "context", 60_000, "longest context of a program in tokens; longer ones are left out")
	f.IntVar(&o.engines, "engines", 4, "simulated engines")
	f.IntVar(&o.blocks, "blocks", 16_384, "blocks of 16 tokens in the cache of an engine")
	f.IntVar(&o.slots, "slots", 64, "requests that run on an engine at once")
	f.Float64Var(&o.speed, "speed", 4, "divides the times of engines")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the order and of AIPerf")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.traces == "" {
		return o, errors.New("name a folder of traces: --traces kv-cache-tester/traces")
	}
	return o, nil
}

// The figures of a run.
const (
	requests = iota
	ttft
	ttft99
	latency
	latency99
	duration
	cached
	repeated // the share of the trace's blocks that the trace has had before
	load     // the load average of the machine after the run, which is no figure of AIPerf
	columns
)

type result [columns]float64

// figures are AIPerf's names and statistics of them, and our titles.
var figures = [columns]struct{ name, statistic, title string }{
	{"request_count", "avg", "REQUESTS"}, {"time_to_first_token", "avg", "TTFT MEAN"}, {"time_to_first_token", "p99", "TTFT P99"},
	{"request_latency", "avg", "E2E MEAN"}, {"request_latency", "p99", "E2E P99"}, {"benchmark_duration", "avg", "RUN S"},
	{"overall_usage_prompt_cache_read_pct", "avg", "CACHED %"},
	{"theoretical_prefix_cache_hit", "avg", "IN TRACE %"}, {title: "LOAD AVERAGE"},
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	o, err := readOptions(args, progress)
	if err != nil {
		return err
	}
	// AIPerf runs in a folder of its own.
	for _, path := range []*string{&o.aiperf, &o.tokenizer, &o.traces} {
		*path, err = filepath.Abs(*path)
		if err != nil {
			return err
		}
	}

	policies := strings.Split(o.policies, ",")
	results := make([][]result, len(policies))
	rng := rand.New(rand.NewPCG(o.seed, 1))
	_, _ = fmt.Fprintf(out, "AIPerf plays %d programs, %d at work, on %d simulated engines behind Envoy, whose times are divided by %g; "+
		"%d rounds, seed %d. Times are in ms; load average at the start %s\n\n",
		o.programs, o.concurrency, o.engines, o.speed, o.rounds, o.seed, process.LoadAverage())
	for round := range o.rounds {
		for _, i := range rng.Perm(len(policies)) {
			r, err := o.play(ctx, policies[i], o.seed+uint64(round))
			if err != nil {
				return fmt.Errorf("%s: %w", policies[i], err)
			}
			results[i] = append(results[i], r)
			_, _ = fmt.Fprintf(progress, "round %d, %s: %.0f\n", round+1, policies[i], r)
		}
	}
	return printResults(out, policies, results)
}

// play plays the programs with a policy.
func (o *options) play(ctx context.Context, policy string, seed uint64) (r result, err error) {
	g, err := process.StartGateway(ctx, process.GatewayConfig{Stator: o.stator, Configuration: o.configuration(policy)})
	if err != nil {
		return r, err
	}
	defer g.Stop()
	if err := g.AwaitRanks(ctx, o.engines); err != nil {
		return r, err
	}

	folder, err := os.MkdirTemp("", "stator-aiperf-")
	if err != nil {
		return r, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	cmd := exec.CommandContext(ctx, o.aiperf, "profile", "--model", "sim", "--url", g.URL, "--endpoint-type", "chat", "--streaming",
		"--tokenizer", o.tokenizer, "--custom-dataset-type", "weka_trace", "--input-file", o.traces, "--use-think-time-only",
		"--trace-idle-gap-cap-seconds", "1", "--max-context-length", strconv.Itoa(o.context),
		"--num-dataset-entries", strconv.Itoa(o.programs), "--conversation-num", strconv.Itoa(o.programs),
		"--dataset-sampling-strategy", "sequential", "--concurrency", strconv.Itoa(o.concurrency),
		"--random-seed", strconv.FormatUint(seed, 10), "--output-artifact-dir", folder, "--ui", "none",
		"--no-server-metrics", "--no-gpu-telemetry") // AIPerf reports a run as incomplete if one of these is late on a busy machine
	cmd.Dir = folder
	if text, err := cmd.CombinedOutput(); err != nil {
		return r, fmt.Errorf("AIPerf: %w: %s", err, text[max(0, len(text)-3000):])
	}
	r, err = readResult(filepath.Join(folder, "profile_export_aiperf.json"))
	if err != nil {
		return r, err
	}
	_, _ = fmt.Sscan(process.LoadAverage(), &r[load]) // 0 where it is unknown
	return r, nil
}

// configuration returns the configuration of a gateway with a policy: see process.Router.
func (o *options) configuration(policy string) string {
	return fmt.Sprintf(`apiVersion: stator.dev/v1alpha1
kind: Stator
models:
- name: sim
  path: "builtin:sim"
  router: %s
  launch: [{engine: sim, count: %d, args: {engineSpeedup: %g, maxNumSeqs: %d, blocks: %d}}]
`, process.Router(policy), o.engines, o.speed, o.slots, o.blocks)
}

// readResult reads AIPerf's report. A request that has failed is an error.
func readResult(file string) (r result, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	report := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &report); err != nil {
		return r, fmt.Errorf("%s: %w", file, err)
	}
	for i, f := range figures[:load] {
		values := map[string]any{}
		if err := json.Unmarshal(report[f.name], &values); err != nil {
			return r, fmt.Errorf("%s has no %s: %w", file, f.name, err)
		}
		n, ok := values[f.statistic].(float64)
		if !ok {
			return r, fmt.Errorf("%s: %s has no %s", file, f.name, f.statistic)
		}
		r[i] = n
	}
	if failed := string(report["error_summary"]); failed != "[]" {
		return r, fmt.Errorf("requests failed: %s", failed)
	}
	return r, nil
}

// printResults prints the mean of each figure with the least and the most of all rounds, and the paired differences of the first policy
// from the others.
func printResults(out io.Writer, policies []string, results [][]result) error {
	values := func(list []result, c int) (v []float64) {
		for i := range list {
			v = append(v, list[i][c])
		}
		return v
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(first string, cell func(c int) string) {
		_, _ = fmt.Fprint(w, first, "\t")
		for c := range columns {
			_, _ = fmt.Fprint(w, cell(c), "\t")
		}
		_, _ = fmt.Fprintln(w)
	}

	line("POLICY", func(c int) string { return figures[c].title })
	for i, list := range results {
		line(policies[i], func(c int) string {
			v := values(list, c)
			return fmt.Sprintf("%.0f [%.0f, %.0f]", stats.Mean(v), slices.Min(v), slices.Max(v))
		})
	}
	_, _ = fmt.Fprintln(w)
	line(policies[0]+" AGAINST", func(c int) string { return figures[c].title })
	for i := 1; i < len(results); i++ {
		line(policies[i], func(c int) string { return fmt.Sprint(stats.Difference(values(results[0], c), values(results[i], c))) })
	}
	return w.Flush()
}
