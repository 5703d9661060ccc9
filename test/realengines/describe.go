package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/test/loopback"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/stats"
)

// The engines of the section describe: a has two ranks, and b other blocks. vLLM refuses blocks of 16 tokens on processors: "No common
// block size for 16 (CPU_ATTN: [MultipleOf(32)])".
const (
	describeRanks   = 2
	otherBlock      = 64
	describeTrials  = 10
	describeWithin  = 2 * time.Second // the bar
	describePatient = time.Minute     // a change that is not seen within this time is a failure
)

// publishing returns flags with which an engine binds ports for its events and replays, as docs/engines/vllm.md asks for. An engine with
// several ranks takes the ports behind them, too.
func publishing() ([]string, error) {
	events, err := loopback.Port()
	if err != nil {
		return nil, err
	}
	replay, err := loopback.Port()
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","topic":"kv-events","endpoint":"tcp://*:%d",`+
		`"replay_endpoint":"tcp://*:%d"}`, events, replay)
	return []string{"--kv-events-config", config}, nil
}

// newEngine returns an engine that publishes at ports, with further flags. The last of equal flags counts.
func (b *bench) newEngine(name string, flags ...string) (*engine, error) {
	published, err := publishing()
	if err != nil {
		return nil, err
	}
	cfg := engineConfig{
		vllm: b.vllm, model: b.model, folder: b.folder, blocks: largeCache, maxSeqs: largeBatch, extra: append(published, flags...),
	}
	return newEngine(name, cfg)
}

// startDescribed is newEngine, started.
func (b *bench) startDescribed(name string, flags ...string) (*engine, error) {
	e, err := b.newEngine(name, flags...)
	if err != nil {
		return nil, err
	}
	return e, e.start()
}

// describedRank is a rank as the router has it.
type describedRank struct {
	Worker, State string

	Rank    int
	Asleep  bool
	Cache   string `json:"cache_state"`
	Figures map[string]struct {
		Value, Configured int
		Source            string
	}

	blocks int // of its cache in the index
}

// describedRanks reads the router's pages.
func (g *gateway) describedRanks(ctx context.Context) ([]describedRank, error) {
	var fleet struct{ Ranks []describedRank }
	if err := g.page(ctx, "/debug/fleet", &fleet); err != nil {
		return nil, err
	}
	var caches []struct {
		Worker       string
		Rank, Blocks int
	}
	if err := g.page(ctx, "/debug/feed", &caches); err != nil {
		return nil, err
	}
	for i := range fleet.Ranks {
		r := &fleet.Ranks[i]
		for _, c := range caches {
			if c.Worker == r.Worker && c.Rank == r.Rank {
				r.blocks = c.Blocks
			}
		}
	}
	return fleet.Ranks, nil
}

// page reads a page of the admin port as JSON.
func (g *gateway) page(ctx context.Context, path string, to any) error {
	text, err := g.Get(ctx, g.Admin+path+"?format=json")
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

// awaitState returns the time until all ranks of a worker are in a state, which is read every 20 ms.
func (g *gateway) awaitState(ctx context.Context, worker, what string, is func(r *describedRank) bool) (time.Duration, error) {
	begun := time.Now()
	for {
		ranks, err := g.describedRanks(ctx)
		if err != nil {
			return 0, err
		}
		took := time.Since(begun)
		ranks = slices.DeleteFunc(ranks, func(r describedRank) bool { return r.Worker != worker })
		wrong := slices.IndexFunc(ranks, func(r describedRank) bool { return !is(&r) })
		if wrong < 0 && len(ranks) > 0 {
			return took, nil
		}
		if took > describePatient {
			return 0, fmt.Errorf("%s is not %s after %s: %+v", worker, what, took, ranks)
		}
		if err := backoff.Sleep(ctx, closely); err != nil {
			return 0, err
		}
	}
}

// change is a kind of change of an engine, and the times until the router's state of it was true.
type change struct {
	engine, what, found string
	took                []time.Duration
}

// quantile returns the time within which a part of the changes was known.
func (c *change) quantile(part float64) time.Duration {
	return stats.Percentile(c.took, part).Round(time.Millisecond)
}

// warm has each rank of a worker's engine compute a prompt, and returns when all have blocks in the index. Routed requests may all go to
// another engine, if that is faster.
func (g *gateway) warm(ctx context.Context, w *writer, e *engine, worker string) error {
	ranks, err := g.describedRanks(ctx)
	if err != nil {
		return err
	}
	for _, r := range ranks {
		if r.Worker != worker {
			continue
		}
		if err := e.compute(ctx, w.ids(300), r.Rank); err != nil {
			return err
		}
	}
	_, err = g.awaitState(ctx, worker, "warm", func(r *describedRank) bool { return r.blocks > 0 })
	return err
}

// compute has a rank of an engine compute a prompt.
func (e *engine) compute(ctx context.Context, prompt []uint32, rank int) error {
	body, err := json.Marshal(map[string]any{"model": modelName, "prompt": prompt, "max_tokens": 1})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.address+completions, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-data-parallel-rank", strconv.Itoa(rank))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("engine %s answers with status %d", e.name, resp.StatusCode)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// control posts to a path of an engine by which it is changed.
func (e *engine) control(ctx context.Context, path string) error {
	_, err := doRequest(ctx, http.MethodPost, "http://"+e.address+path, nil)
	return err
}

// sleepAndWake puts an engine to sleep and wakes it, a number of times.
func (g *gateway) sleepAndWake(ctx context.Context, w *writer, e *engine, worker string) (slept, woken change, err error) {
	slept = change{engine: e.name, what: "put to sleep", found: "asleep, with no block"}
	woken = change{engine: e.name, what: "woken", found: "awake and ready"}
	for range describeTrials {
		if err := g.warm(ctx, w, e, worker); err != nil {
			return slept, woken, err
		}
		if err := e.control(ctx, "/sleep?level=1"); err != nil {
			return slept, woken, err
		}
		took, err := g.awaitState(ctx, worker, "asleep", func(r *describedRank) bool { return r.Asleep && r.blocks == 0 })
		if err != nil {
			return slept, woken, err
		}
		slept.took = append(slept.took, took)

		if err := e.control(ctx, "/wake_up"); err != nil {
			return slept, woken, err
		}
		took, err = g.awaitState(ctx, worker, "awake", func(r *describedRank) bool { return !r.Asleep && r.State == "ready" })
		if err != nil {
			return slept, woken, err
		}
		woken.took = append(woken.took, took)
	}
	return slept, woken, nil
}

// resetIdle resets the cache of an idle engine, a number of times.
func (g *gateway) resetIdle(ctx context.Context, w *writer, e *engine, worker string) (change, error) {
	c := change{engine: e.name, what: "reset while idle", found: "no block"}
	for range describeTrials {
		if err := g.warm(ctx, w, e, worker); err != nil {
			return c, err
		}
		if err := e.forget(ctx); err != nil {
			return c, err
		}
		took, err := g.awaitState(ctx, worker, "empty", func(r *describedRank) bool { return r.blocks == 0 })
		if err != nil {
			return c, err
		}
		c.took = append(c.took, took)
	}
	return c, nil
}

// anyRank is the row of the requests whose rank the engine chooses. It may find more than was promised.
const anyRank = "rank chosen by the engine"

// described counts the requests of one engine, or those of anyRank.
type described struct {
	worker           string
	requests, equal  int
	promised, served int
	less             int // requests of which the engine found less than was promised
}

// perWorker compares promises with reports for each worker, and for the requests whose rank the engine chooses.
func perWorker(answers []answer, records map[string]record, list []request) (all []*described) {
	for i := range answers {
		d := records[answers[i].decision].decision
		if d == nil || answers[i].status != http.StatusOK || oddities[list[i].kind] != "" {
			continue
		}

		name := d.Worker
		if d.AnyRank {
			name = anyRank
		}
		at := slices.IndexFunc(all, func(o *described) bool { return o.worker == name })
		if at < 0 {
			at = len(all)
			all = append(all, &described{worker: name})
		}
		o := all[at]
		o.requests++
		o.promised += d.CachedTokens
		o.served += answers[i].usage.Details.Cached
		switch {
		case d.CachedTokens == answers[i].usage.Details.Cached:
			o.equal++
		case d.CachedTokens > answers[i].usage.Details.Cached:
			o.less++
		}
	}
	slices.SortFunc(all, func(a, b *described) int { return bytes.Compare([]byte(a.worker), []byte(b.worker)) })
	return all
}

func describeSection(ctx context.Context, b *bench, _ []*engine, p *page) error {
	a, err := b.startDescribed("a", "--data-parallel-size", strconv.Itoa(describeRanks), "--api-server-count", "1")
	if err != nil {
		return err
	}
	defer a.stop()
	// Engine a starts alone, and again after a failure: vLLM's coordinator of ranks gives up after two minutes, in which it imports torch.
	const tries = 3
	for try := 1; ; try++ {
		err := b.awaitEngines(ctx, []*engine{a})
		if err == nil {
			break
		}
		if try == tries {
			return err
		}
		b.progressf("describe: engine %s did not start, and is started again", a.name)
		a.stop()
		if err := a.start(); err != nil {
			return err
		}
	}
	small, err := b.startDescribed("b", "--block-size", strconv.Itoa(otherBlock))
	if err != nil {
		return err
	}
	defer small.stop()
	if err := b.awaitEngines(ctx, []*engine{small}); err != nil {
		return err
	}

	p.section("Engines that describe themselves")
	p.text("Engine a has %d data-parallel ranks and blocks of %d tokens, and engine b blocks of %d. vLLM for processors "+
		"refuses 16. `stator up --to` has no configuration file: it asks them.", describeRanks, blockSize, otherBlock)
	changes, err := b.withoutFile(ctx, a, small, p)
	if err != nil {
		return err
	}
	more, err := b.withCanary(ctx, small)
	if err != nil {
		return err
	}
	off, err := b.withoutCaching(ctx, a, small, p)
	if err != nil {
		return err
	}
	printChanges(p, append(changes, append(more, off)...))
	return nil
}

// withoutFile compares promises with reports behind a gateway that has no configuration, and puts its engines to sleep.
func (b *bench) withoutFile(ctx context.Context, a, small *engine, p *page) (changes []change, err error) {
	cfg := b.gatewayConfig("")
	g, err := startBeside(ctx, cfg, everyRank(describeRanks+1), "http://"+a.address, "http://"+small.address)
	if err != nil {
		return nil, err
	}
	defer g.Stop()

	t, workers, err := b.compareWorkers(ctx, g, func(w *writer) []request { return w.requests() })
	if err != nil {
		return nil, err
	}
	ranks, err := g.describedRanks(ctx)
	if err != nil {
		return nil, err
	}
	p.writeRow("worker", "rank", "cache", "tokens of a block, and who has named them", "context length", "room for tokens")
	numbers := 0
	for _, r := range ranks {
		cell := func(name string) string { return fmt.Sprintf("%d, %s", r.Figures[name].Value, r.Figures[name].Source) }
		p.writeRow(r.Worker, r.Rank, r.Cache, cell("block_size"), cell("context_length"), cell("capacity_tokens"))
		if want := map[string]int{"engine-0": blockSize, "engine-1": otherBlock}[r.Worker]; r.Figures["block_size"].Value == want {
			numbers++
		}
	}
	p.endTable()

	printDescribed(p, t, workers)
	p.bar("the block size of each rank is its engine's", numbers == describeRanks+1)

	w, err := newWriter(b.seed+1, b.pages)
	if err != nil {
		return nil, err
	}
	for i, e := range []*engine{a, small} {
		b.progressf("describe: engine %s sleeps", e.name)
		slept, woken, err := g.sleepAndWake(ctx, w, e, fmt.Sprintf("engine-%d", i))
		if err != nil {
			return nil, err
		}
		changes = append(changes, slept, woken)
	}
	return changes, nil
}

// compareWorkers sends requests, and compares them as the section truth does, and for each worker.
func (b *bench) compareWorkers(ctx context.Context, g *gateway, of func(*writer) []request) (*truth, []*described, error) {
	w, err := newWriter(b.seed, b.pages)
	if err != nil {
		return nil, nil, err
	}
	list := of(w)
	t, answers, records, err := sendList(ctx, b, g, list)
	if err != nil {
		return nil, nil, err
	}
	return t, perWorker(answers, records, list), nil
}

// printDescribed writes what was promised and served.
func printDescribed(p *page, t *truth, workers []*described) {
	p.text("%d requests, as in the section above. Requests whose cached tokens vLLM does not report rightly are left out of the table.",
		t.sent)
	p.text("vLLM ignores the rank that a response names, and chooses one of engine a by itself. The router promises what all ranks have.")
	p.writeRow("worker", "requests", "cached tokens equal", "share", "promised", "served", "less served than promised")
	requests, equal := 0, 0
	busy := 0 // workers
	chosen := &described{}
	for _, d := range workers {
		p.writeRow(d.worker, d.requests, d.equal, share(d.equal, d.requests), d.promised, d.served, d.less)
		if d.worker == anyRank {
			chosen = d
			continue
		}
		requests += d.requests
		equal += d.equal
		if d.served > 0 {
			busy++
		}
	}
	p.endTable()

	for _, d := range t.differences {
		p.item("%s.", d)
	}
	p.bar("without a number in a configuration, promised and served tokens are equal in at least 99 % of requests",
		100*equal >= 99*requests)
	p.bar("engines that choose the rank serve at least what was promised", chosen.requests > 0 && chosen.less == 0)
	p.bar("prompt tokens are equal with engines that describe themselves", t.prompts == t.compared)
	p.bar("both engines serve tokens of their caches", busy == 2)
}

// everyRank returns nil once so many ranks are ready with exact caches.
func everyRank(n int) func(context.Context, *process.Gateway) error {
	return func(ctx context.Context, g *process.Gateway) error {
		list, err := g.Ranks(ctx)
		if err == nil && len(list) != n {
			err = fmt.Errorf("%d of %d ranks are there", len(list), n)
		}
		if err != nil {
			return err
		}
		return g.Exact(ctx)
	}
}

// withCanary resets an idle engine behind a gateway with the setting that finds out.
func (b *bench) withCanary(ctx context.Context, e *engine) ([]change, error) {
	configuration := fmt.Sprintf("apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels:\n- name: %s\n  path: %q\n  canary: 1s\n"+
		"  workers: [{name: %s, address: %q, kvEvents: auto}]\n", modelName, b.model, e.name, e.address)
	g := &gateway{}
	var err error
	g.Gateway, err = process.StartGateway(ctx, process.GatewayConfig{
		Stator: b.stator, Envoy: b.envoy, Folder: b.folder, Configuration: configuration, Ready: everyRank(1),
	})
	if err != nil {
		return nil, err
	}
	defer g.Stop()
	w, err := newWriter(b.seed+2, b.pages)
	if err != nil {
		return nil, err
	}
	b.progressf("describe: engine %s is reset", e.name)
	reset, err := g.resetIdle(ctx, w, e, e.name)
	return []change{reset}, err
}

// withoutCaching restarts an engine without prefix caching behind a gateway that keeps running.
func (b *bench) withoutCaching(ctx context.Context, a, e *engine, p *page) (change, error) {
	c := change{engine: e.name, what: "started again without prefix caching", found: "ready, with no block"}
	cfg := b.gatewayConfig("")
	g, err := startBeside(ctx, cfg, everyRank(describeRanks+1), "http://"+a.address, "http://"+e.address)
	if err != nil {
		return c, err
	}
	defer g.Stop()
	w, err := newWriter(b.seed+3, b.pages)
	if err != nil {
		return c, err
	}
	if err := g.warm(ctx, w, e, "engine-1"); err != nil {
		return c, err
	}

	b.progressf("describe: engine %s starts without prefix caching", e.name)
	e.stop()
	e.args = append(e.args, "--no-enable-prefix-caching")
	if err := e.start(); err != nil {
		return c, err
	}
	if err := e.awaitEvery(ctx, closely); err != nil {
		return c, err
	}
	isEmpty := func(r *describedRank) bool { return r.State == "ready" && r.blocks == 0 }
	took, err := g.awaitState(ctx, "engine-1", "ready and empty", isEmpty)
	if err != nil {
		return c, err
	}
	c.took = append(c.took, took)

	_, workers, err := b.compareWorkers(ctx, g, func(w *writer) []request {
		w.agents(8, 12)
		return w.list
	})
	if err != nil {
		return c, err
	}
	p.text("Then engine b is started again without prefix caching, and agents' growing prompts follow.")
	p.writeRow("worker", "requests", "cached tokens equal", "promised", "served")
	requests, equal := 0, 0
	promised := 0 // of the engine without
	for _, d := range workers {
		p.writeRow(d.worker, d.requests, d.equal, d.promised, d.served)
		requests += d.requests
		equal += d.equal
		if d.worker == "engine-1" {
			promised += d.promised
		}
	}
	p.endTable()
	p.bar("an engine without prefix caching is promised nothing", promised == 0)
	p.bar("promised and served tokens are equal in at least 99 % of requests beside it", 100*equal >= 99*requests)
	return c, nil
}

// printChanges writes how long the router took to have the state of an engine.
func printChanges(p *page, changes []change) {
	p.text("Engines change, and `/debug/fleet` and `/debug/feed` are read every 20 ms from the engine's answer on until they have the " +
		"new state. Resets of an idle engine are found with `canary: 1s`, which no other change needs. vLLM for processors refuses " +
		"`--enable-sleep-mode`; `POST /sleep` stops its scheduler and empties its prefix cache all the same, and frees no memory.")
	p.writeRow("engine", "change", "state", "trials", "p50", "p95", "longest")
	late := 0
	for _, c := range changes {
		longest := slices.Max(c.took)
		p.writeRow(c.engine, c.what, c.found, len(c.took), c.quantile(0.5), c.quantile(0.95), longest.Round(time.Millisecond))
		for _, took := range c.took {
			if took > describeWithin {
				late++
			}
		}
	}
	p.endTable()
	p.bar(fmt.Sprintf("the router's state of an engine is true within %s of each change", describeWithin), late == 0)
}
