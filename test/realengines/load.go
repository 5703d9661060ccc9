package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/test/stats"
)

// policies are the settings that are measured in turns. The first is compared with the others.
var policies = []struct {
	name, router string
	unaware      bool // of caches
}{
	{"kv", "{policy: kv}", false},
	{"round robin", "{policy: round-robin}", true},
	{"least loaded", "{policy: least-loaded}", true},
	{"kv, Dynamo's cost", "{policy: kv, cost: dynamo, weights: {prefillLoadScale: 16}}", false},
}

// Two engines of loadSlots slots, which their workers' settings name, get loadPrompts requests in a closed loop. warmUp other prompts come
// before, more at a time than slots: a router learns how long the passes of the engines take.
const (
	loadSlots   = 8
	loadPrompts = 96
	warmUp      = 72
)

// loadConcurrent are the numbers of concurrent requests: below, at and above the slots of both engines.
var loadConcurrent = []int{4, 16, 24}

// dataset is one of `vllm bench serve`.
type dataset struct {
	name, about string
	args        []string
	shared      bool // prompts have prefixes in common
}

var datasets = []dataset{
	{"random", "prompts of 1,000 tokens that share nothing, 32 tokens of answer", []string{
		"--dataset-name", "random", "--random-input-len", "1000", "--random-output-len", "32"}, false},
	{"prefix_repetition", "prompts of 3,800 tokens, the first 3,600 one of 24 prefixes, 32 tokens of answer", []string{
		"--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", "24", "--prefix-repetition-prefix-len", "3600",
		"--prefix-repetition-suffix-len", "200", "--prefix-repetition-output-len", "32"}, true},
}

// load is a dataset in a closed loop, with the results by policy and round.
type load struct {
	dataset    dataset
	concurrent int
	results    [][]played
}

// played is the result of one run.
type played struct {
	figures
	hits, best float64 // shares of the prompt tokens that were cached: by the engines, and of one infinite cache
	picks      [2]int
}

// loadSection plays all loads in rounds, with engines of few slots.
func loadSection(ctx context.Context, b *bench, _ []*engine, p *page) error {
	serve, err := startBenchServe(b)
	if err != nil {
		return err
	}
	defer serve.stop()

	var loads []load
	for _, d := range datasets {
		for _, n := range loadConcurrent {
			loads = append(loads, load{d, n, make([][]played, len(policies))})
		}
	}
	rng := rand.New(rand.NewPCG(b.seed, 2))
	for round := range b.rounds {
		if err := playRound(ctx, b, serve, loads, round, rng); err != nil {
			return err
		}
	}
	printLoads(p, b, loads)
	return nil
}

// playRound plays all loads with all policies, on engines that it starts: a gateway learns their caches from their first event on, and vLLM
// can replay 10,000.
func playRound(ctx context.Context, b *bench, serve *benchServe, loads []load, round int, rng *rand.Rand) error {
	engines, err := b.startEngines(ctx, largeCache, loadSlots)
	if err != nil {
		return err
	}
	defer stopAll(engines)
	for _, e := range engines {
		e.worker = fmt.Sprintf(", maxRequests: %d", loadSlots)
	}
	for _, l := range loads {
		for _, i := range rng.Perm(len(policies)) {
			b.progressf("load: round %d of %d, %s, %d at a time, %s", round+1, b.rounds, l.dataset.name, l.concurrent, policies[i].name)
			r, err := playLoad(ctx, b, engines, serve, l, policies[i].router, b.seed+uint64(round))
			if err != nil {
				return fmt.Errorf("%s: %w", policies[i].name, err)
			}
			l.results[i] = append(l.results[i], r)
		}
	}
	return nil
}

// playLoad plays a load once, on empty caches, after the warm-up.
func playLoad(ctx context.Context, b *bench, engines []*engine, serve *benchServe, l load, router string, seed uint64) (r played,
	err error) {
	g, err := b.startGateway(ctx, engines, router)
	if err != nil {
		return r, err
	}
	defer g.Stop()
	if _, err := serve.play(g, load{dataset: l.dataset, concurrent: 3 * loadSlots}, b.model, seed+1000, warmUp); err != nil {
		return r, err
	}
	if err := forgetAll(ctx, engines); err != nil {
		return r, err
	}

	before, err := cacheCounts(ctx, engines)
	if err != nil {
		return r, err
	}
	r.figures, err = serve.play(g, l, b.model, seed, loadPrompts)
	if err != nil {
		return r, err
	}
	after, err := cacheCounts(ctx, engines)
	if err != nil {
		return r, err
	}
	r.hits = (after.hits - before.hits) / (after.queries - before.queries)
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

// readDecisions counts the picks after the warm-up, and computes what one infinite cache would have had of the same arrivals.
func (r *played) readDecisions(path string, engines []*engine) error {
	known := map[decisionlog.Hash]bool{}
	before := warmUp
	cached, prompt := 0, 0

	err := eachLine(path, func(line decisionlog.Line) {
		if line.Decision == nil || line.Decision.PromptTokens == 0 {
			return // vllm bench serve also asks for a page of the engine
		}
		if before > 0 {
			before--
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

// compared are the figures in which the first policy is compared with the others.
var compared = []struct {
	name string
	of   func(played) float64
	more bool // more is better
	wins bool // the first policy must be better than those without caches, where prompts share prefixes
}{
	{"mean TTFT", func(r played) float64 { return r.TTFT }, false, true},
	{"p99 TTFT", func(r played) float64 { return r.TTFT99 }, false, false},
	{"mean latency", func(r played) float64 { return r.Latency }, false, true},
	{"requests/s", func(r played) float64 { return r.Requests }, true, true},
}

// printLoads writes the section of the report.
func printLoads(p *page, b *bench, loads []load) {
	p.section("Throughput and time to first token")
	p.text("`vllm bench serve` in closed loops of %s requests at a time, against two engines of %d slots each. %d requests in a run, "+
		"after %d others that warm the router up, %d rounds. In a round, each load is played with all policies in a random order, with "+
		"the same prompts and on empty caches. "+
		"Cells are means over the rounds, times in ms. Behind them is the difference of %s, in pairs of a round, with its 95 %% interval.",
		numbers(loadConcurrent), loadSlots, loadPrompts, warmUp, b.rounds, policies[0].name)

	for _, d := range datasets {
		p.text("%s: %s.", d.name, d.about)
		p.writeRow("at a time", "policy", "hit share", "of one infinite cache", "mean TTFT", "p99 TTFT", "mean latency",
			"requests/s", "picks a : b")
		for _, l := range loads {
			if l.dataset.name == d.name {
				l.print(p)
			}
		}
		p.endTable()
	}
	p.text("There are %d comparisons. If all policies were equal, %s would lose about one in 40 of them by chance.",
		len(loads)*len(compared)*(len(policies)-1), policies[0].name)
	for _, l := range loads {
		l.bars(p)
	}
}

// print writes the rows of a load.
func (l *load) print(p *page) {
	for i, list := range l.results {
		cells := []any{l.concurrent, policies[i].name}
		for _, of := range []func(played) float64{hitShare, bestShare} {
			cells = append(cells, fmt.Sprintf("%.3f", stats.Mean(values(list, of))))
		}
		for _, c := range compared {
			cell := fmt.Sprintf("%.*f", map[bool]int{true: 1}[c.more], stats.Mean(values(list, c.of)))
			if i > 0 {
				cell += ": " + l.difference(i, c.of).String()
			}
			cells = append(cells, cell)
		}
		var picks [2]int
		for _, r := range list {
			picks[0] += r.picks[0]
			picks[1] += r.picks[1]
		}
		p.writeRow(append(cells, fmt.Sprintf("%d : %d", picks[0], picks[1]))...)
	}
}

// bars writes whether the first policy loses in no figure, and wins where prompts share prefixes.
func (l *load) bars(p *page) {
	where := fmt.Sprintf("%s, %d at a time", l.dataset.name, l.concurrent)
	var lost []string
	better := true
	for i := 1; i < len(policies); i++ {
		for _, c := range compared {
			d := l.difference(i, c.of)
			if c.more && d.High < 0 || !c.more && d.Low > 0 {
				lost = append(lost, c.name+" to "+policies[i].name)
			}
			better = better && (!policies[i].unaware || !c.wins || c.more == (d.Mean > 0))
		}
	}
	if len(lost) > 0 {
		p.item("%s: %s loses %s.", where, policies[0].name, strings.Join(lost, ", "))
	}
	p.bar(where+": kv loses nothing beyond an interval", len(lost) == 0)
	if l.dataset.shared {
		p.bar(where+": kv is better than policies without caches in mean TTFT, mean latency and requests/s", better)
	}
}

// difference compares the first policy with another one.
func (l *load) difference(i int, of func(played) float64) stats.Interval {
	return stats.Difference(values(l.results[0], of), values(l.results[i], of))
}

func hitShare(r played) float64  { return r.hits }
func bestShare(r played) float64 { return r.best }

func values(list []played, of func(played) float64) (v []float64) {
	for _, r := range list {
		v = append(v, of(r))
	}
	return v
}

// numbers lists numbers: 1, 2, 3.
func numbers(list []int) string {
	var words []string
	for _, n := range list {
		words = append(words, strconv.Itoa(n))
	}
	return strings.Join(words, ", ")
}
