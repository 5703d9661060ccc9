package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/stator-project/stator/test/loopback"
)

// The prompts that are pulled: groups of requests with one beginning, which engine p has in its cache, sent nearly at once.
const (
	pullGroups, pullRequests = 4, 8
	pullPrefix, pullSuffix   = 6000, 50 // tokens
	pullAnswer               = 48       // tokens
	pullPause                = 100 * time.Millisecond
)

// hostTierBytes is the memory of the tier on the host. It is as large as the engine's cache.
const hostTierBytes = 1024 * blockBytes

// startP2P starts an engine with OffloadingConnector and a tier from which other engines fetch blocks.
func (b *bench) startP2P(name string) (*engine, error) {
	port, err := loopback.Port()
	if err != nil {
		return nil, err
	}
	module, err := filepath.Abs("test/realengines/hosttier")
	if err != nil {
		return nil, err
	}
	cfg := engineConfig{vllm: b.vllm, model: b.model, folder: b.folder, blocks: 1024, maxSeqs: 16}
	cfg.extra = []string{"--enable-scale-out", "--kv-transfer-config", fmt.Sprintf(
		`{"kv_connector":"OffloadingConnector","kv_role":"kv_both","engine_id":%q,"kv_connector_extra_config":{"spec_name":"HostTier",`+
			`"spec_module_path":"hosttier","cpu_bytes_to_use":%d,"self_describing_kv_events":true,`+
			`"secondary_tiers":[{"type":"p2p","host":"127.0.0.1","port":%d}]}}`, b.engineID(name), hostTierBytes, port)}
	cfg.env = []string{"PYTHONPATH=" + module, "UCX_TLS=tcp,sm,self", "UCX_NET_DEVICES=lo"}

	e, err := startEngine(name, cfg)
	if e != nil {
		e.transfer = port
		e.worker = ", transfer: p2p, transferAddress: \"127.0.0.1:" + strconv.Itoa(port) + `"`
	}
	return e, err
}

// engineID names an engine's tier, which is a file in /dev/shm.
func (b *bench) engineID(name string) string { return filepath.Base(b.folder) + "-" + name }

// removeTiers removes what engines with tiers leave in memory when they end.
func (b *bench) removeTiers() {
	files, _ := filepath.Glob("/dev/shm/vllm_offload_" + b.engineID("*"))
	for _, f := range files {
		_ = os.Remove(f)
	}
}

func p2pSection(ctx context.Context, b *bench, _ []*engine, p *page) error {
	engines, err := b.startTransferEngines(ctx,
		func() (*engine, error) { return b.startP2P(computing) },
		func() (*engine, error) { return b.startP2P(decoding) })
	defer func() {
		for _, e := range engines {
			e.stop()
		}
		b.removeTiers()
	}()
	if err != nil {
		return err
	}
	w, err := newWriter(b.seed+1, b.pages)
	if err != nil {
		return err
	}

	rounds, err := runConcurrent(ctx, b, engines, w)
	if err != nil {
		return err
	}
	b.progressf("p2p: start the prefill engine again")
	if err := engines[0].start(); err != nil {
		return err
	}
	if err := engines[0].await(ctx); err != nil {
		return err
	}

	pulls, err := runPulls(ctx, b, engines, w)
	if err != nil {
		return err
	}
	if err := pulls.lost(ctx, b, engines, w); err != nil {
		return err
	}
	printConcurrent(p, rounds)
	pulls.print(p)
	return nil
}

// runConcurrent sends requests whose two legs the relay sends at once, and then kills the prefill engine.
func runConcurrent(ctx context.Context, b *bench, engines []*engine, w *writer) ([]*legRound, error) {
	before, err := startFront(engines[0])
	if err != nil {
		return nil, err
	}
	defer before.stop()
	split := make([]*engine, len(engines))
	for i, role := range []string{"prefill", "decode"} {
		e := *engines[i]
		e.worker += ", role: " + role
		split[i] = &e
	}
	g, err := b.startGateway(ctx, split, "{prefill: remote}")
	if err != nil {
		return nil, err
	}
	defer g.Stop()

	var rounds []*legRound
	round := func(what string, list []*legRequest) error {
		b.progressf("p2p: %s", what)
		r, err := runRound(ctx, g, engines[1], what, list, nil, 1)
		rounds = append(rounds, r)
		return err
	}
	list := legRequests(w, false, true)
	for _, what := range []string{roundFirst, roundSecond} {
		if err := round(what, list); err != nil {
			return nil, err
		}
	}

	// The prefill engine gives the answers to compare with before it is killed.
	last, dead := legRequests(w, false)[:1], legRequests(w, false)
	wanted := []*legRound{{requests: list}, {requests: last}, {requests: dead}}
	if err := wantFrom(ctx, engines[0], wanted); err != nil {
		return nil, err
	}
	before.onArrival(engines[0].kill)
	if err := round(roundDies, last); err != nil {
		return nil, err
	}
	return rounds, round(roundDead, dead)
}

func printConcurrent(p *page, rounds []*legRound) {
	p.section("Both legs at once")
	p.text("Two vLLM with OffloadingConnector and a tier of the type p2p, and `router.prefill: remote`: the relay sends both legs of a " +
		"request at once. vLLM offers this connector on graphics cards only; `test/realengines/hosttier` copies its blocks on processors.")
	printRounds(p, rounds)

	same := true
	first := rounds[0]
	for _, r := range rounds {
		_, equal := r.good()
		same = same && equal == len(r.answers)
	}
	p.bar("the relay sends both legs", first.counts.relayed == len(first.answers) && first.counts.transferred == len(first.answers))
	p.bar("all answers of both legs are equal to the answers of one engine alone", same)
	p.bar("engine d fetches whole blocks of each prompt", first.counts.fetched > 0 &&
		first.counts.computed <= len(first.answers)*blockSize)
}

// pulls are requests with a beginning that one of two engines has in its cache.
type pulls struct {
	kinds             [3]pullKind // in the order of pullKinds
	served            int         // pulled requests with as many cached tokens in vLLM's usage as the decision expected
	fetched, expected int         // tokens from the other engine, by vLLM's metrics and by the decisions

	direct []*legRound // requests to engine d itself that name a source
}

// pullKind is requests of one kind.
type pullKind struct{ requests, good, equal int }

// The kinds of requests: for engine p, and for engine d with and without a source in their decision.
const (
	atSource = iota
	pulled
	afterPull
)

var pullKinds = [...]string{"to engine p, which has it", "to engine d, which is to fetch it", "to engine d after these"}

// total returns the sum of the kinds.
func (p *pulls) total() (sum pullKind) {
	for _, k := range p.kinds {
		sum.requests += k.requests
		sum.good += k.good
		sum.equal += k.equal
	}
	return sum
}

// runPulls sends groups of requests to two engines that serve whole requests.
func runPulls(ctx context.Context, b *bench, engines []*engine, w *writer) (*pulls, error) {
	g, err := b.startGateway(ctx, engines, "")
	if err != nil {
		return nil, err
	}
	defer g.Stop()

	before, err := fetchedBy(ctx, engines)
	if err != nil {
		return nil, err
	}
	p := &pulls{}
	for range pullGroups {
		b.progressf("p2p: requests with one beginning")
		if err := p.group(ctx, g, engines, w); err != nil {
			return nil, err
		}
	}
	after, err := fetchedBy(ctx, engines)
	p.fetched = after - before
	return p, err
}

// fetchedBy returns how many tokens of prompts the engines have fetched from others.
func fetchedBy(ctx context.Context, engines []*engine) (int, error) {
	sum := 0
	for _, e := range engines {
		text, err := getText(ctx, "http://"+e.address+"/metrics")
		if err != nil {
			return 0, err
		}
		n, err := sample(text, "vllm:prompt_tokens_cached_by_source_total", `source="p2p"`)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// group sends the requests of one group, and counts what became of them.
func (p *pulls) group(ctx context.Context, g *gateway, engines []*engine, w *writer) error {
	prefix := w.ids(pullPrefix)
	warm := &legRequest{path: completions, body: map[string]any{"model": modelName, "prompt": prefix, "max_tokens": 1}}
	if _, err := warm.complete(ctx, "http://"+engines[0].address, nil); err != nil {
		return err
	}
	time.Sleep(time.Second) // the events of the blocks arrive

	list := make([]*legRequest, pullRequests)
	answers := make([]*completion, pullRequests)
	errs := make([]error, pullRequests)
	var senders sync.WaitGroup
	for i := range list {
		prompt := append(append([]uint32(nil), prefix...), w.ids(pullSuffix)...)
		list[i] = &legRequest{path: completions, body: map[string]any{
			"model": modelName, "prompt": prompt, "max_tokens": pullAnswer, "temperature": 0, "return_token_ids": true}}
		senders.Go(func() { answers[i], errs[i] = list[i].complete(ctx, g.URL, nil) })
		time.Sleep(pullPause)
	}
	senders.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	if err := wantFrom(ctx, engines[0], []*legRound{{requests: list}}); err != nil {
		return err
	}
	return p.count(ctx, g, list, answers)
}

// count compares the answers with their decisions.
func (p *pulls) count(ctx context.Context, g *gateway, list []*legRequest, answers []*completion) error {
	var ids []string
	for _, a := range answers {
		ids = append(ids, a.decision)
	}
	decisions, err := g.decided(ctx, ids)
	if err != nil {
		return err
	}

	for i, a := range answers {
		d := decisions[a.decision]
		kind := afterPull
		switch {
		case d.Worker == computing:
			kind = atSource
		case d.Pull != nil:
			kind = pulled
			p.expected += d.Pull.Tokens
			if a.usage == d.Pull.Tokens {
				p.served++
			}
		}

		k := &p.kinds[kind]
		k.requests++
		if a.status == http.StatusOK {
			k.good++
		}
		if a.equal(&list[i].want) {
			k.equal++
		}
	}
	return nil
}

// lost asks engine d itself to fetch the beginning of a prompt from where nothing listens, from an engine that is frozen, and
// from that engine when it is back. It is the last use of engine d: it may fetch nothing from that engine any more.
func (p *pulls) lost(ctx context.Context, b *bench, engines []*engine, w *writer) error {
	nowhere, err := loopback.Port()
	if err != nil {
		return err
	}
	ask := func(what string, port int) error {
		b.progressf("p2p: %s", what)
		r, err := askToFetch(ctx, engines[1], what, legRequests(w, false)[:1], port)
		p.direct = append(p.direct, r)
		return err
	}

	if err := ask("nothing listens there", nowhere); err != nil {
		return err
	}
	engines[0].signal(syscall.SIGSTOP)
	thaw := time.AfterFunc(frozenTime, func() { engines[0].signal(syscall.SIGCONT) })
	defer thaw.Stop() // the end of the engine continues it
	if err := ask(fmt.Sprintf("engine p, frozen for %v", frozenTime), engines[0].transfer); err != nil {
		return err
	}
	time.Sleep(time.Second)
	if err := ask("engine p, a second after that", engines[0].transfer); err != nil {
		return err
	}
	return wantFrom(ctx, engines[0], p.direct)
}

// fetchPatience is the time for which askToFetch waits for an answer.
const fetchPatience = frozenTime + 30*time.Second

// askToFetch sends a request to an engine that is to fetch the prompt from a port of this machine. An answer that does not come in
// time has status 0.
func askToFetch(ctx context.Context, e *engine, what string, list []*legRequest, port int) (*legRound, error) {
	bounded, stop := context.WithTimeout(ctx, fetchPatience)
	defer stop()
	begun := time.Now()
	source := map[string]any{"kv_request_id": what, "remote_host": "127.0.0.1", "remote_port": port}
	more := map[string]any{"kv_transfer_params": map[string]any{"remote_kv_source": source}}
	c, err := list[0].complete(bounded, "http://"+e.address, more)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		c = &completion{took: time.Since(begun)}
		err = nil
	}
	return &legRound{what: what, requests: list, answers: []*completion{c}}, err
}

// print writes the section of the report.
func (p *pulls) print(page *page) {
	page.section("A prefix from another engine's cache")
	page.text("The same engines serve whole requests, with `transfer: p2p`. Engine p has the %d tokens with which %d requests begin, "+
		"which follow each other after %v; %d such groups. Answers of %d tokens are compared with the answers to requests alone: in "+
		"a batch, vLLM rounds otherwise, which may change a token.", pullPrefix, pullRequests, pullPause, pullGroups, pullAnswer)
	page.writeRow("requests", "sent", "status 200", "equal")
	for i, k := range p.kinds {
		page.writeRow(pullKinds[i], k.requests, k.good, k.equal)
	}
	page.endTable()
	page.text("Decisions have engine d fetch %d tokens, and it has fetched %d.", p.expected, p.fetched)

	page.text("Then engine d itself was asked to fetch the beginning of a prompt from elsewhere, without the gateway. Clients waited %v.",
		fetchPatience)
	page.writeRow("source", "answer", "equal", "after")
	for _, r := range p.direct {
		_, equal := r.good()
		answer := "none"
		if r.answers[0].status != 0 {
			answer = strconv.Itoa(r.answers[0].status)
		}
		page.writeRow(r.what, answer, equal, r.longest().Round(10*time.Millisecond))
	}
	page.endTable()

	all := p.total()
	fetch := p.kinds[pulled]
	page.bar("all requests with one beginning are answered", all.good == all.requests)
	page.bar("at least 9 of 10 answers are equal to the answers to requests alone", 10*all.equal >= 9*all.requests)
	page.bar("the router has the less loaded engine fetch the beginning", fetch.requests > 0)
	page.bar("answers to requests that fetch it are equal to the answers to requests alone", fetch.equal == fetch.requests)
	page.bar("vLLM reports the fetched tokens as cached", p.served == fetch.requests)
	page.bar("engine d fetches what decisions name, but for the first time, when the engines are not connected",
		p.fetched > 0 && p.fetched >= p.expected-pullPrefix)
}
