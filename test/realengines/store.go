package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/test/weed"
)

// The sizes of the store of KV blocks, of which all tiers have room for all prompts, and of vLLM's cache, which has room for the longest.
const (
	storeHost, storeDisk = 64 << 20, 128 << 20
	storeCache           = 128 // blocks
	storePrompts         = 16
	storeAnswer          = 16 // tokens
)

// storeRun is a model whose two engines, launched by the gateway's agent, share a store of KV blocks.
type storeRun struct {
	b        *bench
	g        *gateway
	engines  []*engine
	requests []*legRequest
	rounds   []*storeRound
	changed  []*completion // the answers to the same prompts with another first token
}

// storeRound has the results of the requests after a change of caches and tiers.
type storeRound struct {
	what     string
	answers  []*completion
	workers  []string // that were picked, if the requests went through the gateway
	promised int      // tokens that the decisions expected in caches
	counts   storeCounts
}

// storeCounts are counters of the store and of all engines.
type storeCounts struct {
	committed, fetched     int // blocks that engines wrote to the store, and read from it
	fromDisk, fromExternal int // blocks that the store loaded into host memory
	hits                   int // tokens that vLLM counts as found outside of its cache
}

// startStore starts an object store, and a gateway whose agent launches the engines.
func startStore(ctx context.Context, b *bench) (s *storeRun, stop func(), err error) {
	dir := filepath.Join(b.folder, "store")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	server, err := weed.New(dir)
	if err != nil {
		return nil, nil, err
	}
	if err := server.Start(ctx); err != nil {
		return nil, nil, err
	}
	stop = server.Kill
	if err := server.MakeBucket(ctx, "blocks"); err != nil {
		return nil, stop, err
	}

	python, err := filepath.Abs(filepath.Join(filepath.Dir(b.vllm), "python"))
	if err != nil {
		return nil, stop, err
	}
	cfg := b.gatewayConfig("")
	cfg.kv = fmt.Sprintf("{hostBytes: %d, diskPath: %q, diskBytes: %d, bucket: blocks, endpoint: %q, pathStyle: true, objectWrite: all}",
		storeHost, filepath.Join(b.folder, "disk"), storeDisk, server.Endpoint)
	cfg.launch = fmt.Sprintf("{engine: vllm, count: 2, python: %q, args: {max-model-len: 3200, max-num-seqs: 8, enforce-eager: true, "+
		"kv-cache-memory-bytes: %d}, env: {OMP_NUM_THREADS: \"1\", VLLM_CPU_OMP_THREADS_BIND: nobind, VLLM_SERVER_DEV_MODE: \"1\"}}",
		python, storeCache*blockBytes)
	cfg.env = []string{"AWS_ACCESS_KEY_ID=" + weed.AccessKey, "AWS_SECRET_ACCESS_KEY=" + weed.SecretKey}
	b.progressf("store: start two engines")
	g, err := startGateway(ctx, cfg, nil)
	if err != nil {
		return nil, stop, err
	}
	stop = func() { g.Stop(); server.Kill() }

	ranks, err := g.Ranks(ctx)
	if err != nil {
		return nil, stop, err
	}
	s = &storeRun{b: b, g: g}
	for _, r := range ranks {
		s.engines = append(s.engines, &engine{name: r.Worker, address: r.Address})
	}
	return s, stop, b.awaitEngines(ctx, s.engines)
}

// prompts makes the requests: of all lengths around whole blocks, and of up to 90 blocks.
func (s *storeRun) prompts(w *writer) {
	for i := range storePrompts {
		ids := w.ids(blockSize*(6*i+1) + i*blockSize/(storePrompts-1))
		s.requests = append(s.requests, &legRequest{path: completions, prompt: len(ids), body: map[string]any{
			"model": modelName, "prompt": ids, "max_tokens": storeAnswer, "temperature": 0, "return_token_ids": true,
			"logprobs": 0}})
	}
}

// wholeBlocks returns how many blocks of the prompts can be found: vLLM computes the last token of each in any case.
func (s *storeRun) wholeBlocks() (n int) {
	for _, q := range s.requests {
		n += (q.prompt - 1) / blockSize
	}
	return n
}

// counts reads the counters.
func (s *storeRun) counts(ctx context.Context) (c storeCounts, err error) {
	text, err := getText(ctx, s.g.Admin+"/metrics")
	if err != nil {
		return c, err
	}
	for _, m := range []struct {
		name, label string
		into        *int
	}{
		{"stator_kvstore_committed_blocks_total", "", &c.committed},
		{"stator_kvstore_fetched_blocks_total", "", &c.fetched},
		{"stator_kvstore_loaded_blocks_total", `tier="disk"`, &c.fromDisk},
		{"stator_kvstore_loaded_blocks_total", `tier="external"`, &c.fromExternal},
	} {
		*m.into, err = sample(text, m.name, m.label)
		if err != nil {
			return c, err
		}
	}

	for _, e := range s.engines {
		m, err := e.metrics(ctx, "vllm:external_prefix_cache_hits_total")
		if err != nil {
			return c, err
		}
		c.hits += int(m["vllm:external_prefix_cache_hits_total"])
	}
	return c, nil
}

// minus returns the counts since earlier ones.
func (c storeCounts) minus(e storeCounts) storeCounts {
	return storeCounts{
		c.committed - e.committed, c.fetched - e.fetched, c.fromDisk - e.fromDisk, c.fromExternal - e.fromExternal, c.hits - e.hits,
	}
}

// round sends all requests to the gateway, one after another.
func (s *storeRun) round(ctx context.Context, what string) error {
	return s.roundAt(ctx, what, func(int) string { return s.g.URL })
}

// roundAt sends each request to the server that url returns for it.
func (s *storeRun) roundAt(ctx context.Context, what string, url func(i int) string) error {
	s.b.progressf("store: %s", what)
	before, err := s.counts(ctx)
	if err != nil {
		return err
	}
	r := &storeRound{what: what}
	var ids []string
	for i, q := range s.requests {
		c, err := q.complete(ctx, url(i), nil)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if c.status != http.StatusOK {
			return fmt.Errorf("%s: status %d: %.300s", what, c.status, c.body)
		}
		r.answers = append(r.answers, c)
		if c.decision != "" {
			ids = append(ids, c.decision)
		}
	}

	after, err := s.counts(ctx)
	if err != nil {
		return err
	}
	r.counts = after.minus(before)
	decisions, err := s.g.decided(ctx, ids)
	if err != nil {
		return err
	}
	for _, id := range ids {
		r.promised += decisions[id].CachedTokens
		r.workers = append(r.workers, decisions[id].Worker)
	}
	s.rounds = append(s.rounds, r)
	return nil
}

// forget empties the caches of all engines, and then tiers of the store.
func (s *storeRun) forget(ctx context.Context, tiers ...string) error {
	for _, e := range s.engines {
		if err := e.forget(ctx); err != nil {
			return err
		}
	}
	for _, tier := range tiers {
		if _, err := doRequest(ctx, http.MethodPost, s.g.Admin+"/kv/flush", strings.NewReader(`{"tier": "`+tier+`"}`)); err != nil {
			return err
		}
	}
	time.Sleep(2 * time.Second) // engines publish their events, and agents their loads, within a second
	return nil
}

// awaitCopies waits until the disk and the object store have all blocks.
func (s *storeRun) awaitCopies(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, 2*time.Minute)
	defer stop()
	for {
		missing, err := s.missingCopies(ctx)
		if err != nil || missing == "" {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for copies of blocks: %s", missing)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// missingCopies describes a tier that does not have all blocks; empty where all tiers have them.
func (s *storeRun) missingCopies(ctx context.Context) (missing string, err error) {
	text, err := getText(ctx, s.g.Admin+"/metrics")
	if err != nil {
		return "", err
	}
	for _, tier := range []string{"disk", "external"} {
		n, err := sample(text, "stator_kvstore_blocks", `tier="`+tier+`"`)
		if err != nil {
			return "", err
		}
		if n < s.wholeBlocks() {
			missing = fmt.Sprintf("tier %s has %d of %d blocks", tier, n, s.wholeBlocks())
		}
	}
	return missing, nil
}

// The rounds.
const (
	storeComputed = "computed"
	storeAgain    = "once more"
	storeG2       = "from host memory (G2)"
	storeG3       = "from the disk (G3)"
	storeG4       = "from the object store (G4)"
	storeOther    = "by the other engine, from host memory"
)

// sendRounds sends all rounds.
func (s *storeRun) sendRounds(ctx context.Context) error {
	if err := s.round(ctx, storeComputed); err != nil {
		return err
	}
	if err := s.awaitCopies(ctx); err != nil {
		return err
	}
	if err := s.round(ctx, storeAgain); err != nil {
		return err
	}
	for _, r := range []struct {
		what  string
		tiers []string
	}{{storeG2, nil}, {storeG3, []string{"host"}}, {storeG4, []string{"host", "disk"}}} {
		if err := s.forget(ctx, r.tiers...); err != nil {
			return err
		}
		if err := s.round(ctx, r.what); err != nil {
			return err
		}
	}

	if err := s.forget(ctx); err != nil {
		return err
	}
	computedBy := s.rounds[0].workers
	err := s.roundAt(ctx, storeOther, func(i int) string {
		other := slices.IndexFunc(s.engines, func(e *engine) bool { return e.name != computedBy[i] })
		return "http://" + s.engines[other].address
	})
	if err != nil {
		return err
	}
	return s.control(ctx)
}

// control sends the prompts with another first token. Nothing of them may be found, and the answers must depend on it: otherwise equal
// answers would not show that the blocks of a tier are right.
func (s *storeRun) control(ctx context.Context) error {
	s.b.progressf("store: the prompts with another first token")
	for _, q := range s.requests {
		ids := slices.Clone(q.body["prompt"].([]uint32))
		ids[0]++
		c, err := (&legRequest{path: q.path, body: q.body}).complete(ctx, s.g.URL, map[string]any{"prompt": ids})
		if err != nil {
			return err
		}
		if c.status != http.StatusOK || c.usage > 0 {
			return fmt.Errorf("a prompt with another first token: status %d, %d tokens cached", c.status, c.usage)
		}
		s.changed = append(s.changed, c)
	}
	return nil
}

func storeSection(ctx context.Context, b *bench, _ []*engine, p *page) error {
	s, err := runStore(ctx, b)
	if err != nil {
		return err
	}
	f, err := runFaults(ctx, b)
	if err != nil {
		return err
	}
	s.print(p)
	f.print(p)
	return nil
}

// runStore plays the rounds of the tiers.
func runStore(ctx context.Context, b *bench) (*storeRun, error) {
	s, stop, err := startStore(ctx, b)
	if stop != nil {
		defer stop()
	}
	if err != nil {
		return nil, err
	}
	w, err := newWriter(b.seed+2, b.pages)
	if err != nil {
		return nil, err
	}
	s.prompts(w)
	return s, s.sendRounds(ctx)
}

// equal counts the answers of a round that have the token ids of the first round, and exact those that have the logprobs of the second one,
// too, bit for bit. cached sums the tokens that vLLM reports as cached.
func (s *storeRun) equal(r *storeRound) (equal, exact, cached int) {
	for i, a := range r.answers {
		if len(a.ids) == storeAnswer && slices.Equal(a.ids, s.rounds[0].answers[i].ids) {
			equal++
			if len(a.logprobs) == storeAnswer && slices.Equal(a.logprobs, s.rounds[1].answers[i].logprobs) {
				exact++
			}
		}
		cached += a.usage
	}
	return equal, exact, cached
}

func (s *storeRun) print(p *page) {
	p.section("A store of KV blocks")
	blocks := s.wholeBlocks()
	p.text("Two vLLM, launched by Stator's agent with `stator-connector`, share the store of their node: host memory, a disk, and "+
		"SeaweedFS as the object store. %d prompts of %d to %d tokens, with %d whole blocks of %d tokens, are sent one after another in "+
		"each round. Each engine's own cache has room for %d blocks. From the third round on, the engines' caches are emptied before a "+
		"round, and the tiers above the one that is named. vLLM reports that as the end of all blocks, so the router expects only the "+
		"blocks of later events from then on.",
		len(s.requests), s.requests[0].prompt, s.requests[len(s.requests)-1].prompt, blocks, blockSize, storeCache)

	p.writeRow("round", "token ids equal", "logprobs equal to the second round", "tokens expected in caches", "tokens cached, by vLLM",
		"of these outside of its cache, by vLLM", "blocks written", "blocks read", "loaded from the disk", "loaded from objects")
	for _, r := range s.rounds {
		equal, exact, cached := s.equal(r)
		promised := fmt.Sprint(r.promised)
		if r.what == storeOther {
			promised = "-"
		}
		c := r.counts
		p.writeRow(r.what, fmt.Sprintf("%d of %d", equal, len(r.answers)), fmt.Sprintf("%d of %d", exact, len(r.answers)), promised, cached,
			c.hits, c.committed, c.fetched, c.fromDisk, c.fromExternal)
	}
	p.endTable()

	differ := 0
	for i, a := range s.changed {
		if !slices.Equal(a.logprobs, s.rounds[0].answers[i].logprobs) {
			differ++
		}
	}
	p.text("With another first token, nothing is found, and the logprobs of %d of %d answers differ.", differ, len(s.changed))
	s.bars(p, blocks)
	p.bar("logprobs depend on the first token", differ == len(s.changed))
}

// bars writes whether the rounds were as they must be.
func (s *storeRun) bars(p *page, blocks int) {
	_, _, again := s.equal(s.rounds[1])
	p.bar("tokens are cached as expected, once more", again == s.rounds[1].promised && again == blocks*blockSize)
	for _, r := range s.rounds[1:] {
		equal, exact, _ := s.equal(r)
		p.bar("equal token ids and logprobs, "+r.what, equal == len(r.answers) && exact == equal)
	}
	for _, r := range s.rounds[2:] {
		_, _, cached := s.equal(r)
		want := storeCounts{fetched: blocks, hits: blocks * blockSize}
		switch r.what {
		case storeG3:
			want.fromDisk = blocks
		case storeG4:
			want.fromExternal = blocks
		}
		p.bar(fmt.Sprintf("all %d blocks, %s", blocks, r.what), r.counts == want && cached == want.hits)
	}
}
