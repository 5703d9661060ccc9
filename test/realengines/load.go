package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/stator-project/stator/internal/decisionlog"
)

// policies are the settings that are measured in turns. The first is compared with the others.
var policies = []struct{ name, router string }{
	{"kv", "{policy: kv}"},
	{"kv, Dynamo's cost", "{policy: kv, cost: dynamo, weights: {prefillLoadScale: 16}}"},
	{"round robin", "{policy: round-robin}"},
}

// The load: prompts of 4,000 and 100 tokens, of which the first 4,000 are those of one of some prefixes.
const (
	loadPrefixes   = 40
	loadPrompts    = 160
	loadPrefix     = 4000
	loadSuffix     = 100
	loadOutput     = 16
	loadConcurrent = 4
)

// played is the result of one run of `vllm bench serve`.
type played struct {
	ttft, throughput float64 // mean in milliseconds; tokens a second
	hits, best       float64 // shares of the prompt tokens that were cached: by the engines, and of one infinite cache
	picks            [2]int
}

// runLoad plays the load with each policy in each round, in an order that changes.
func runLoad(ctx context.Context, b *bench, engines []*engine) ([][]played, error) {
	rng := rand.New(rand.NewPCG(b.seed, 2))
	results := make([][]played, len(policies))
	for round := range b.rounds {
		for _, i := range rng.Perm(len(policies)) {
			b.progressf("load: round %d of %d, %s", round+1, b.rounds, policies[i].name)
			r, err := playLoad(ctx, b, engines, policies[i].router, b.seed+uint64(round))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", policies[i].name, err)
			}
			results[i] = append(results[i], r)
		}
	}
	return results, nil
}

// playLoad plays the load once, on empty caches.
func playLoad(ctx context.Context, b *bench, engines []*engine, router string, seed uint64) (played, error) {
	g, err := b.startGateway(ctx, engines, router)
	if err != nil {
		return played{}, err
	}
	defer g.stop()
	before, err := cacheCounts(ctx, engines)
	if err != nil {
		return played{}, err
	}

	file := filepath.Join(b.folder, "load.json")
	cmd := exec.CommandContext(ctx, b.vllm, "bench", "serve", "--backend", "openai", "--base-url", g.url, "--model", modelName,
		"--tokenizer", b.model, "--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", strconv.Itoa(loadPrefixes),
		"--prefix-repetition-prefix-len", strconv.Itoa(loadPrefix), "--prefix-repetition-suffix-len", strconv.Itoa(loadSuffix),
		"--prefix-repetition-output-len", strconv.Itoa(loadOutput), "--num-prompts", strconv.Itoa(loadPrompts),
		"--max-concurrency", strconv.Itoa(loadConcurrent), "--seed", strconv.FormatUint(seed, 10), "--ignore-eos", "--disable-tqdm",
		"--save-result", "--result-dir", b.folder, "--result-filename", filepath.Base(file))
	cmd.Env = engineEnvironment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return played{}, fmt.Errorf("vllm bench serve: %w\n%s", err, lastPart(out))
	}
	after, err := cacheCounts(ctx, engines)
	if err != nil {
		return played{}, err
	}

	var result struct {
		Completed  int     `json:"completed"`
		TTFT       float64 `json:"mean_ttft_ms"`
		Throughput float64 `json:"total_token_throughput"`
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &result)
	}
	if err != nil {
		return played{}, fmt.Errorf("read the result of vllm bench serve: %w", err)
	}
	if result.Completed != loadPrompts {
		return played{}, fmt.Errorf("%d of %d requests completed", result.Completed, loadPrompts)
	}
	r := played{ttft: result.TTFT, throughput: result.Throughput, hits: (after.hits - before.hits) / (after.queries - before.queries)}
	return r, r.readDecisions(g.decisions, engines)
}

type cacheCount struct{ hits, queries float64 }

// cacheCounts reads the engines' counters of prompt tokens and of those that were cached.
func cacheCounts(ctx context.Context, engines []*engine) (sum cacheCount, err error) {
	for _, e := range engines {
		m, err := e.metrics(ctx, "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
		if err != nil {
			return sum, err
		}
		sum.hits += m["vllm:prefix_cache_hits_total"]
		sum.queries += m["vllm:prefix_cache_queries_total"]
	}
	return sum, nil
}

// readDecisions counts the picks, and computes what one infinite cache would have had of the same arrivals.
func (r *played) readDecisions(path string, engines []*engine) error {
	known := map[decisionlog.Hash]bool{}
	cached, prompt := 0, 0
	err := eachLine(path, func(line decisionlog.Line) {
		if line.Decision == nil {
			return
		}
		prompt += line.Decision.PromptTokens
		reusable := (line.Decision.PromptTokens - 1) / blockSize
		for i, h := range line.Hashes {
			if i < reusable && known[h] {
				cached += blockSize
			}
			known[h] = true
		}
		if i := slices.IndexFunc(engines, func(e *engine) bool { return e.name == line.Decision.Worker }); i >= 0 && i < len(r.picks) {
			r.picks[i]++
		}
	})
	r.best = float64(cached) / float64(max(1, prompt))
	return err
}

// lastPart returns the end of what a program wrote.
func lastPart(out []byte) []byte {
	out = bytes.TrimSpace(out)
	return out[max(0, len(out)-2000):]
}

// interval is the middle 95 % of the means of resampled differences.
type interval struct{ mean, low, high float64 }

// paired returns the mean difference of pairs and its bootstrap interval, from 10,000 resamples (Efron 1979).
func paired(rng *rand.Rand, a, b []float64) interval {
	mean := func(pick func(int) int) float64 {
		sum := 0.0
		for i := range a {
			k := pick(i)
			sum += a[k] - b[k]
		}
		return sum / float64(len(a))
	}
	means := make([]float64, 10_000)
	for i := range means {
		means[i] = mean(func(int) int { return rng.IntN(len(a)) })
	}
	slices.Sort(means)
	return interval{mean(func(i int) int { return i }), means[len(means)*25/1000], means[len(means)*975/1000]}
}

func (i interval) String() string {
	return fmt.Sprintf("%+.0f (%+.0f to %+.0f)", i.mean, i.low, i.high)
}

// printLoad writes the section of the report.
func printLoad(p *page, b *bench, results [][]played) {
	p.section("Throughput and time to first token")
	p.text("`vllm bench serve`, prefix_repetition: %d prompts of %d and %d tokens with %d prefixes, %d tokens of answer, %d at a time, "+
		"%d rounds on empty caches, the policies in turns. Means over the rounds; behind them the differences to %s, round by round, "+
		"with a 95 %% bootstrap interval.",
		loadPrompts, loadPrefix, loadSuffix, loadPrefixes, loadOutput, loadConcurrent, b.rounds, policies[0].name)
	of := func(list []played, figure func(played) float64) (values []float64, mean float64) {
		for _, r := range list {
			values = append(values, figure(r))
			mean += figure(r) / float64(len(list))
		}
		return values, mean
	}
	ttft := func(r played) float64 { return r.ttft }
	throughput := func(r played) float64 { return r.throughput }
	rng := rand.New(rand.NewPCG(b.seed, 3))

	p.row("policy", "hit share", "of one infinite cache", "TTFT ms", "kv's difference", "tokens/s", "kv's difference", "picks a : b")
	kvTTFT, _ := of(results[0], ttft)
	kvRate, _ := of(results[0], throughput)
	var share float64
	var worse, better []interval
	for i, list := range results {
		times, meanTime := of(list, ttft)
		rates, meanRate := of(list, throughput)
		_, hits := of(list, func(r played) float64 { return r.hits })
		_, best := of(list, func(r played) float64 { return r.best })
		first, second := 0, 0
		for _, r := range list {
			first += r.picks[0]
			second += r.picks[1]
		}
		time, rate := paired(rng, kvTTFT, times), paired(rng, kvRate, rates)
		if i == 0 {
			share = hits / best
		}
		worse, better = append(worse, time), append(better, rate)
		p.row(policies[i].name, fmt.Sprintf("%.3f", hits), fmt.Sprintf("%.3f", best), fmt.Sprintf("%.0f", meanTime), time,
			fmt.Sprintf("%.0f", meanRate), rate, fmt.Sprintf("%d : %d", first, second))
	}
	p.end()
	p.bar("kv's mean time to first token is below round robin's", worse[2].mean < 0)
	p.bar("kv's tokens a second are above round robin's", better[2].mean > 0)
	p.bar("kv is not significantly slower than Dynamo's cost", worse[1].low <= 0 && better[1].high >= 0)
	p.bar("kv's hit share is at least 95 % of one infinite cache's", share >= 0.95)
}
