package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stator-project/stator/test/stats"
)

// The sizes of the run with faults.
const (
	faultPrompts = 10
	faultLoads   = 200 // failed, slow and cut loads at least
	faultRounds  = 60  // at most
	faultCache   = 1024
	freezes      = 20
	pausedFor    = 5500 * time.Millisecond // after a failed load the connector does not ask the store for 5 s
	stepBar      = 100 * time.Millisecond  // by which 95 % of the longest steps may exceed their median with the store, while it is stopped
)

// faultRun is an engine behind a faulty proxy, one that shares its store, and one without it.
type faultRun struct {
	b                     *bench
	g                     *gateway
	proxy                 *storeProxy
	faulty, second, plain *engine
	requests, unknown     []*legRequest
	rng                   *rand.Rand

	rounds, left          int
	during, after, loaded equalCount
	failed, hits          int             // loads that failed, and tokens that the second engine has loaded
	usual, stopped        []time.Duration // the longest step of each time
	failedStopped         atomic.Int64    // requests that could not be computed while the store was stopped
	swap                  weightSwap
}

// equalCount counts answers with the tokens of the engine without store, and all.
type equalCount struct{ equal, all int }

func (c *equalCount) countAnswer(q *legRequest, got *completion) {
	c.all++
	if got.status == http.StatusOK && slices.Equal(got.ids, q.want.ids) {
		c.equal++
	}
}

func (c equalCount) String() string { return fmt.Sprintf("%d of %d", c.equal, c.all) }

// weightSwap compares the answers of engines with other weights under the same name.
type weightSwap struct {
	beside, later equalCount // while the store had a session, and after a restart with the same disk
	hits, differ  int        // tokens that these engines have loaded, and answers that differ from the old weights' answers
}

// storeArguments returns the configuration of an engine with the connector, which uses the store at a path.
func storeArguments(cfg engineConfig, socket string) engineConfig {
	cfg.extra = append(cfg.extra, "--kv-transfer-config", `{"kv_connector": "StatorConnector", "kv_role": "kv_both", `+
		`"kv_connector_module_path": "stator_connector.connector", "kv_load_failure_policy": "recompute"}`)
	cfg.env = append(cfg.env, "STATOR_KV_SOCKET="+socket, "STATOR_KV_MODEL="+modelName)
	return cfg
}

// faultGateway starts a gateway whose agent launches one engine with a store in host memory and on a disk.
func faultGateway(ctx context.Context, b *bench, model string) (*gateway, *engine, error) {
	python, err := filepath.Abs(filepath.Join(filepath.Dir(b.vllm), "python"))
	if err != nil {
		return nil, nil, err
	}
	cfg := b.gatewayConfig("")
	cfg.model = model
	cfg.kv = fmt.Sprintf("{hostBytes: %d, diskPath: %q, diskBytes: %d}", storeHost, filepath.Join(b.folder, "faultdisk"), storeDisk)
	cfg.launch = fmt.Sprintf("{engine: vllm, count: 1, python: %q, args: {max-model-len: 3200, max-num-seqs: 16, enforce-eager: true, "+
		"kv-cache-memory-bytes: %d}, env: {OMP_NUM_THREADS: \"1\", VLLM_CPU_OMP_THREADS_BIND: nobind, VLLM_SERVER_DEV_MODE: \"1\"}}",
		python, faultCache*blockBytes)
	g, err := startGateway(ctx, cfg, nil)
	if err != nil {
		return nil, nil, err
	}
	ranks, err := g.Ranks(ctx)
	if err == nil && len(ranks) != 1 {
		err = fmt.Errorf("the gateway has %d ranks, and should have 1", len(ranks))
	}
	if err != nil {
		g.Stop()
		return nil, nil, err
	}
	return g, &engine{name: ranks[0].Worker, address: ranks[0].Address}, nil
}

// storeSocket returns the socket of the store of a gateway that runs.
func (g *gateway) storeSocket() (string, error) {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), fmt.Sprintf("stator-%d-*", g.PID()), "kv-*.sock"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("sockets of the store: %q, %w", found, err)
	}
	return found[0], nil
}

// runFaults plays all parts in turn.
func runFaults(ctx context.Context, b *bench) (f *faultRun, err error) {
	f = &faultRun{b: b, rng: rand.New(rand.NewPCG(b.seed, 9))}
	b.progressf("store: start an engine behind a faulty proxy, one beside it, one without store, and one with other weights")
	other, err := otherWeights(b)
	if err != nil {
		return nil, err
	}
	f.g, f.second, err = faultGateway(ctx, b, b.model)
	if err != nil {
		return nil, err
	}
	defer func() { f.g.Stop() }()
	socket, err := f.g.storeSocket()
	if err != nil {
		return nil, err
	}
	f.proxy, err = startStoreProxy(filepath.Join(b.folder, "proxy.sock"), socket, b.seed)
	if err != nil {
		return nil, err
	}
	defer f.proxy.stop()

	cfg := engineConfig{vllm: b.vllm, model: b.model, folder: b.folder, blocks: faultCache, maxSeqs: 16}
	swapped := cfg
	swapped.model = other
	var engines []*engine
	defer func() { stopAll(engines) }()
	for _, start := range []struct {
		name string
		cfg  engineConfig
	}{{"faulty", storeArguments(cfg, f.proxy.path)}, {"plain", cfg}, {"swapped", storeArguments(swapped, socket)}} {
		e, err := startEngine(start.name, start.cfg)
		if err != nil {
			return nil, err
		}
		engines = append(engines, e)
	}
	if err := b.awaitEngines(ctx, engines); err != nil {
		return nil, err
	}
	f.faulty, f.plain = engines[0], engines[1]

	if err := f.prepare(ctx); err != nil {
		return nil, err
	}
	if err := f.play(ctx); err != nil {
		return nil, err
	}
	if err := f.freeze(ctx); err != nil {
		return nil, err
	}
	return f, f.swapWeights(ctx, engines[2], other, func() { stopAll(engines[:2]) })
}

// prepare makes the requests, saves their blocks, and asks the engine without store for the right answers.
func (f *faultRun) prepare(ctx context.Context) error {
	w, err := newWriter(f.b.seed+3, f.b.pages)
	if err != nil {
		return err
	}
	for range faultPrompts {
		f.requests = append(f.requests, faultRequest(w, blockSize*(8+f.rng.IntN(24))+f.rng.IntN(blockSize)))
		f.unknown = append(f.unknown, faultRequest(w, f.requests[len(f.requests)-1].prompt))
	}
	for _, e := range []*engine{f.plain, f.faulty} {
		for _, q := range f.requests {
			got, err := q.complete(ctx, "http://"+e.address, nil)
			if err != nil {
				return err
			}
			if e == f.plain {
				q.want = *got
			}
			f.after.countAnswer(q, got)
		}
	}
	return nil
}

func faultRequest(w *writer, tokens int) *legRequest {
	return &legRequest{path: completions, prompt: tokens, body: map[string]any{
		"model": modelName, "prompt": w.ids(tokens), "max_tokens": storeAnswer, "temperature": 0, "return_token_ids": true}}
}

// play repeats rounds until there were enough faults.
func (f *faultRun) play(ctx context.Context) error {
	for f.rounds = 0; f.rounds < faultRounds; f.rounds++ {
		failed, err := f.failedLoads()
		if err != nil {
			return err
		}
		f.failed = failed
		if failed+int(f.proxy.counts[faultSlow].Load()) >= faultLoads {
			break
		}
		if f.rounds%5 == 0 {
			f.b.progressf("store: round %d, %d loads have failed, %d answers of the store had a fault", f.rounds, failed, f.proxy.faults())
		}
		if err := f.round(ctx); err != nil {
			return err
		}
	}
	return f.check(ctx) // also after the last round
}

// failedLoads counts the loads that have failed, by the log of the engine behind the proxy.
func (f *faultRun) failedLoads() (n int, err error) {
	text, err := os.ReadFile(f.faulty.log)
	for line := range bytes.Lines(text) {
		if bytes.Contains(line, []byte("load ")) && bytes.Contains(line, []byte("; the engine computes")) {
			n++
		}
	}
	return n, err
}

// round empties the cache of the engine behind the proxy, and sends all requests at once, of which some clients leave. Then it
// checks the blocks.
func (f *faultRun) round(ctx context.Context) error {
	if err := f.faulty.forget(ctx); err != nil {
		return err
	}
	f.proxy.faulty.Store(true)
	answers := make([]*completion, 0, 2*len(f.requests))
	asked := make([]*legRequest, 0, 2*len(f.requests))
	var mu sync.Mutex
	var all sync.WaitGroup
	send := func(q *legRequest, wait, leave time.Duration) {
		all.Go(func() {
			time.Sleep(wait)
			ctx, stop := context.WithTimeout(ctx, leave)
			defer stop()
			got, err := q.complete(ctx, "http://"+f.faulty.address, nil)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				f.left++
				return
			}
			asked = append(asked, q)
			answers = append(answers, got)
		})
	}
	for _, q := range f.requests {
		leaves := f.rng.IntN(2) == 0
		if !leaves {
			send(q, 0, requestTime)
			continue
		}
		send(q, 0, time.Duration(20+f.rng.IntN(600))*time.Millisecond)
		send(q, time.Duration(f.rng.IntN(500))*time.Millisecond, requestTime) // another client with the same prompt
	}
	all.Wait()
	f.proxy.late.Wait()
	f.proxy.faulty.Store(false)

	for i, q := range asked {
		f.during.countAnswer(q, answers[i])
	}
	return f.check(ctx)
}

// check sends all requests again. The tiers are emptied before, so the engine behind the proxy saves the blocks of its cache, and the
// second engine loads them.
func (f *faultRun) check(ctx context.Context) error {
	time.Sleep(pausedFor)
	if err := (&storeRun{g: f.g}).forget(ctx, "host", "disk"); err != nil {
		return err
	}
	if err := sendAll(ctx, f.faulty, f.requests, &f.after); err != nil {
		return err
	}

	before, err := f.second.hits(ctx)
	if err != nil {
		return err
	}
	if err := f.second.forget(ctx); err != nil {
		return err
	}
	if err := sendAll(ctx, f.second, f.requests, &f.loaded); err != nil {
		return err
	}
	after, err := f.second.hits(ctx)
	f.hits += after - before
	return err
}

func sendAll(ctx context.Context, e *engine, requests []*legRequest, count *equalCount) error {
	for _, q := range requests {
		got, err := q.complete(ctx, "http://"+e.address, nil)
		if err != nil {
			return err
		}
		count.countAnswer(q, got)
	}
	return nil
}

// hits returns the tokens that an engine has found outside of its cache.
func (e *engine) hits(ctx context.Context) (int, error) {
	const name = "vllm:external_prefix_cache_hits_total"
	m, err := e.metrics(ctx, name)
	return int(m[name]), err
}

// freeze measures the longest time between two tokens of a stream, while prompts of the same lengths are computed: with the store, which
// does not have them, and while it is stopped and has them. It repeats both in turn, because other programs use the processors too.
func (f *faultRun) freeze(ctx context.Context) error {
	f.b.progressf("store: the store is stopped")
	for range freezes {
		time.Sleep(pausedFor)
		if err := f.faulty.forget(ctx); err != nil {
			return err
		}
		for _, q := range f.unknown {
			q.body["prompt"].([]uint32)[0]++
		}
		usual, err := f.longestStep(ctx, f.unknown)
		if err != nil {
			return err
		}

		if err := f.g.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		stopped, err := f.longestStep(ctx, f.requests)
		_ = f.g.Signal(syscall.SIGCONT)
		if err != nil {
			return err
		}
		f.usual = append(f.usual, usual)
		f.stopped = append(f.stopped, stopped)
	}
	return nil
}

// longestStep streams an answer for some seconds, sends requests meanwhile, and returns the longest time between two tokens.
func (f *faultRun) longestStep(ctx context.Context, requests []*legRequest) (longest time.Duration, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	raw, err := json.Marshal(map[string]any{
		"model": modelName, "prompt": []uint32{1, 2, 3}, "max_tokens": 16000, "ignore_eos": true, "temperature": 0, "stream": true})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+f.faulty.address+completions, bytes.NewReader(raw))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()

	var others sync.WaitGroup
	others.Go(func() {
		defer stop() // the stream
		for at := 0; at < len(requests); at += 2 {
			time.Sleep(500 * time.Millisecond)
			var pair sync.WaitGroup
			for _, q := range requests[at:min(at+2, len(requests))] {
				pair.Go(func() {
					got, err := q.complete(ctx, "http://"+f.faulty.address, nil)
					if err != nil || got.status != http.StatusOK {
						f.failedStopped.Add(1)
					}
				})
			}
			pair.Wait()
		}
	})
	var last time.Time
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "data:") {
			continue
		}
		now := time.Now()
		if !last.IsZero() {
			longest = max(longest, now.Sub(last))
		}
		last = now
	}
	others.Wait()
	return longest, nil
}

// otherWeights copies the model's folder, with other weights: the signs of those at the end of the file are reversed.
func otherWeights(b *bench) (string, error) {
	folder := filepath.Join(b.folder, "other", modelName)
	if err := os.CopyFS(folder, os.DirFS(b.model)); err != nil {
		return "", err
	}
	path := filepath.Join(folder, "model.safetensors")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	const numbers = 200_000 // of two bytes, little-endian
	for i := range numbers {
		data[len(data)-1-2*i] ^= 0x80
	}
	return folder, os.WriteFile(path, data, 0o644)
}

// swapWeights sends the requests to an engine with other weights and the same name, first beside the engines with the old weights, and then
// after all were stopped, with the disk that the old ones have written.
func (f *faultRun) swapWeights(ctx context.Context, swapped *engine, model string, stopOld func()) error {
	f.b.progressf("store: other weights under the same name")
	var right []*legRequest
	for _, q := range f.requests {
		got, err := q.complete(ctx, "http://"+swapped.address, nil)
		if err != nil {
			return err
		}
		if !slices.Equal(got.ids, q.want.ids) {
			f.swap.differ++
		}
		right = append(right, &legRequest{path: q.path, body: q.body, prompt: q.prompt, want: *got})
	}
	if err := swapped.forget(ctx); err != nil {
		return err
	}
	if err := sendAll(ctx, swapped, right, &f.swap.beside); err != nil {
		return err
	}
	hits, err := swapped.hits(ctx)
	if err != nil {
		return err
	}
	stopOld()
	f.g.Stop()

	g, later, err := faultGateway(ctx, f.b, model)
	if err != nil {
		return err
	}
	f.g = g
	if err := sendAll(ctx, later, right, &f.swap.later); err != nil {
		return err
	}
	after, err := later.hits(ctx)
	f.swap.hits = hits + after
	return err
}

func (f *faultRun) print(p *page) {
	p.text("**Failed, slow and cut loads.** An engine has its session through a proxy, which spoils the answers to its fetches while %d "+
		"requests load at once. About half of their clients leave within 0.6 s, and others ask the same. After each round the tiers "+
		"are emptied, this engine gets all prompts once more and saves their blocks, and a second engine loads these. Answers are "+
		"compared with the answers of an engine without connector.", faultPrompts)
	p.writeRow("", "")
	p.writeRow("rounds", f.rounds)
	for kind, name := range faultNames {
		p.writeRow("answers to fetches "+name, f.proxy.counts[kind].Load())
	}
	p.writeRow("failed loads, by the engine", f.failed)
	p.writeRow("clients that left", f.left)
	p.writeRow("answers with the right tokens in the rounds", f.during)
	p.writeRow("the same prompts afterwards", f.after)
	p.writeRow("by the second engine, from the saved blocks", f.loaded)
	p.writeRow("tokens that it loaded", f.hits)
	p.endTable()

	spoilt := f.failed + int(f.proxy.counts[faultSlow].Load())
	p.bar(fmt.Sprintf("at least %d failed, slow and cut loads", faultLoads), spoilt >= faultLoads)
	p.bar("no wrong token after failed loads", f.during.equal == f.during.all && f.after.equal == f.after.all)
	p.bar("no wrong token of blocks that were saved after failed loads", f.loaded.equal == f.loaded.all && f.hits > 0)

	p.text("\n**Other weights under one name.** An engine with other weights starts beside the store. Then all end, and the agent and an "+
		"engine with these weights start with the same disk. %d of %d answers differ from the answers of the old weights. Equal to the "+
		"answers of the new weights: beside the old ones %s, later %s. Tokens loaded: %d.",
		f.swap.differ, len(f.requests), f.swap.beside, f.swap.later, f.swap.hits)
	equal := f.swap.later.equal == f.swap.later.all && f.swap.beside.equal == f.swap.beside.all
	p.bar("no token of other weights", f.swap.hits == 0 && equal && f.swap.differ > 0)

	usual, stopped := stats.Percentile(f.usual, 0.5), stats.Percentile(f.stopped, 0.95)
	p.text("\n**A store that is stopped.** The longest time between two tokens of a stream, while %d prompts are computed, %d times: "+
		"%s ms with the store, and %s ms while it is stopped by SIGSTOP and has their blocks.",
		len(f.requests), freezes, milliseconds(f.usual), milliseconds(f.stopped))
	p.bar("while the store is stopped, 95 % of the longest steps are at most 100 ms longer than their median with it",
		stopped <= usual+stepBar && f.failedStopped.Load() == 0)
}

func milliseconds(times []time.Duration) string {
	var list []string
	for _, d := range times {
		list = append(list, fmt.Sprint(d.Milliseconds()))
	}
	return strings.Join(list, ", ")
}
