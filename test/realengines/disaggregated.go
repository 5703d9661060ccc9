package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stator-project/stator/test/loopback"
)

// The names of the engines that transfer KV caches: "p" computes prompts and "d" decodes.
const computing, decoding = "p", "d"

// startTransferEngines starts engines that transfer KV caches, and waits for them.
func (b *bench) startTransferEngines(ctx context.Context, start ...func() (*engine, error)) (engines []*engine, err error) {
	for _, f := range start {
		e, err := f()
		if err != nil {
			return engines, err
		}
		engines = append(engines, e)
	}
	return engines, b.awaitEngines(ctx, engines)
}

// startNixlPair starts an engine that computes prompts and one that decodes, and waits for them.
func (b *bench) startNixlPair(ctx context.Context) ([]*engine, error) {
	return b.startTransferEngines(ctx,
		func() (*engine, error) { return b.startNixl(computing, "prefill") },
		func() (*engine, error) { return b.startNixl(decoding, "decode") })
}

// startNixl starts an engine with NixlConnector, whose worker has a role.
func (b *bench) startNixl(name, role string) (*engine, error) {
	port, err := loopback.Port()
	if err != nil {
		return nil, err
	}
	cfg := engineConfig{vllm: b.vllm, model: b.model, folder: b.folder, blocks: 1024, maxSeqs: 16}
	cfg.extra = []string{
		"--enable-scale-out", "--enable-log-requests",
		"--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"cpu"}`,
	}
	cfg.env = []string{
		"UCX_TLS=tcp,sm,self", "UCX_NET_DEVICES=lo",
		"VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT=" + strconv.Itoa(port),
	}
	e, err := startEngine(name, cfg)
	if e != nil {
		e.worker = ", role: " + role
	}
	return e, err
}

// disaggregated is a run with one prefill engine and one decode engine.
type disaggregated struct {
	b               *bench
	g               *gateway
	prefill, decode *engine
	front           *front // of the prefill engine
	writer          *writer
	rounds          []*legRound
}

// round sends requests, and keeps their results.
func (d *disaggregated) round(ctx context.Context, what string, list []*legRequest, more map[string]any) (*legRound, error) {
	d.b.progressf("disaggregated: %s", what)
	r, err := runRound(ctx, d.g, d.decode, what, list, more, 1)
	if err != nil {
		return nil, err
	}
	d.rounds = append(d.rounds, r)
	return r, nil
}

// unary returns requests to all endpoints, without streams.
func (d *disaggregated) unary() []*legRequest { return legRequests(d.writer, false) }

// The rounds.
const (
	roundFirst   = "prompts that no cache has"
	roundSecond  = "the same once more"
	roundParams  = "the same with a client's kv_transfer_params"
	roundAtOnce  = "ten prompts at once"
	roundBlocked = "the side channel is out of reach"
	roundFrozen  = "the prefill engine is frozen before the transfer"
	roundDies    = "the prefill engine is killed before the transfer"
	roundDead    = "the prefill engine is dead"
	roundBack    = "the prefill engine is back"
)

// sendRounds sends all rounds.
func (d *disaggregated) sendRounds(ctx context.Context) error {
	list := legRequests(d.writer, false, true)
	for _, what := range []string{roundFirst, roundSecond} {
		if _, err := d.round(ctx, what, list, nil); err != nil {
			return err
		}
	}
	hostile := map[string]any{"kv_transfer_params": map[string]any{"do_remote_prefill": true}}
	if _, err := d.round(ctx, roundParams, list, hostile); err != nil {
		return err
	}
	if err := d.atOnce(ctx); err != nil {
		return err
	}
	if err := d.blocked(ctx); err != nil {
		return err
	}
	if err := d.frozen(ctx); err != nil {
		return err
	}
	if err := d.killed(ctx); err != nil {
		return err
	}
	return wantFrom(ctx, d.prefill, d.rounds)
}

// atOnce sends all requests of a round at once.
func (d *disaggregated) atOnce(ctx context.Context) error {
	list := legRequests(d.writer, false, true)
	d.b.progressf("disaggregated: %s", roundAtOnce)
	r, err := runRound(ctx, d.g, d.decode, roundAtOnce, list, nil, len(list))
	if err != nil {
		return err
	}
	d.rounds = append(d.rounds, r)
	return nil
}

// frozen freezes the prefill engine for frozenTime between its answer and the transfer.
func (d *disaggregated) frozen(ctx context.Context) error {
	d.front.onNext(func(answer []byte) []byte {
		d.prefill.signal(syscall.SIGSTOP)
		time.AfterFunc(frozenTime, func() { d.prefill.signal(syscall.SIGCONT) })
		return answer
	})
	begun := time.Now()
	if _, err := d.round(ctx, roundFrozen, d.unary()[:1], nil); err != nil {
		return err
	}
	time.Sleep(time.Until(begun.Add(frozenTime + time.Second)))
	return d.g.awaitWorker(ctx, computing, "ready")
}

// frozenTime is the time for which the prefill engine is frozen. It is less than vLLM keeps the blocks of a prompt.
const frozenTime = 12 * time.Second

// blocked sends requests whose prefill engine names a side channel at which nothing listens, as with a wrong
// VLLM_NIXL_SIDE_CHANNEL_HOST.
func (d *disaggregated) blocked(ctx context.Context) error {
	all := legRound{what: roundBlocked}
	for i, q := range d.unary() {
		d.front.onNext(func(answer []byte) []byte { return withoutSideChannel(answer, fmt.Sprint("nowhere-", i)) })
		r, err := runRound(ctx, d.g, d.decode, roundBlocked, []*legRequest{q}, nil, 1)
		if err != nil {
			return err
		}
		all.requests = append(all.requests, q)
		all.answers = append(all.answers, r.answers...)
		all.counts = all.counts.plus(r.counts)
	}
	d.rounds = append(d.rounds, &all)
	return nil
}

// withoutSideChannel changes the address in an answer of a prefill engine. The decode engine connects once to each engine id.
func withoutSideChannel(answer []byte, engineID string) []byte {
	var all map[string]json.RawMessage
	var params map[string]any
	if json.Unmarshal(answer, &all) != nil || json.Unmarshal(all["kv_transfer_params"], &params) != nil {
		return answer
	}
	params["remote_port"], params["remote_engine_id"] = 9, engineID
	all["kv_transfer_params"], _ = json.Marshal(params)
	changed, err := json.Marshal(all)
	if err != nil {
		return answer
	}
	return changed
}

// killed kills the prefill engine between its answer and the transfer, sends requests while it is dead, and starts it again.
func (d *disaggregated) killed(ctx context.Context) error {
	d.front.onNext(func(answer []byte) []byte { d.prefill.kill(); return answer })
	if _, err := d.round(ctx, roundDies, d.unary()[:1], nil); err != nil {
		return err
	}
	if _, err := d.round(ctx, roundDead, d.unary(), nil); err != nil {
		return err
	}

	d.b.progressf("disaggregated: start the prefill engine again")
	if err := d.prefill.start(); err != nil {
		return err
	}
	if err := d.prefill.await(ctx); err != nil {
		return err
	}
	if err := d.g.awaitWorker(ctx, computing, "ready"); err != nil {
		return err
	}
	_, err := d.round(ctx, roundBack, d.unary(), nil)
	return err
}

// found returns a round.
func (d *disaggregated) found(what string) *legRound {
	at := slices.IndexFunc(d.rounds, func(r *legRound) bool { return r.what == what })
	return d.rounds[at]
}

// joined counts the answers whose request's id is in the logs of both engines, and those that have such an id.
func (d *disaggregated) joined() (both, all int, err error) {
	var logs []string
	for _, e := range []*engine{d.prefill, d.decode} {
		text, err := os.ReadFile(e.log)
		if err != nil {
			return 0, 0, err
		}
		logs = append(logs, string(text))
	}
	for _, a := range d.found(roundFirst).answers {
		if a.id == "" {
			continue
		}
		all++
		if strings.Contains(logs[0], a.id) && strings.Contains(logs[1], a.id) {
			both++
		}
	}
	return both, all, nil
}

// reported counts the answers of the second round whose header has the whole blocks of their prompt, and those that are checked.
func (d *disaggregated) reported() (right, all int) {
	for i, a := range d.found(roundSecond).answers {
		all++
		n, err := strconv.Atoi(a.cached)
		prompt := d.found(roundSecond).requests[i].prompt
		whole := (prompt - 1) / blockSize * blockSize // the last token is computed again
		if err == nil && n > 0 && n%blockSize == 0 && (prompt == 0 || n == whole) {
			right++
		}
	}
	return right, all
}

func disaggregatedSection(ctx context.Context, b *bench, _ []*engine, p *page) error {
	engines, err := b.startNixlPair(ctx)
	defer stopAll(engines)
	if err != nil {
		return err
	}
	d := &disaggregated{b: b, prefill: engines[0], decode: engines[1]}
	d.writer, err = newWriter(b.seed, b.pages)
	if err != nil {
		return err
	}
	d.front, err = startFront(d.prefill)
	if err != nil {
		return err
	}
	defer d.front.stop()

	d.g, err = b.startGateway(ctx, engines, "{prefill: remote}")
	if err != nil {
		return err
	}
	defer d.g.Stop()
	if err := d.sendRounds(ctx); err != nil {
		return err
	}
	return d.print(p)
}

var errNoRequestIDs = errors.New("no answer has the id of its request")

// print writes the section of the report.
func (d *disaggregated) print(p *page) error {
	both, ids, err := d.joined()
	if err != nil {
		return err
	}
	if ids == 0 {
		return errNoRequestIDs
	}
	cached, repeated := d.reported()

	p.section("A prefill engine and a decode engine")
	p.text("Two vLLM with NixlConnector, and `router.prefill: remote`: engine p computes the prompts, and engine d fetches their KV " +
		"caches and decodes, on all five endpoints whose requests are split. \"Equal\" are answers with the tokens of one engine alone " +
		"at temperature 0, or with its text where answers have no token ids. \"Fetched\" and \"computed\" are engine d's " +
		"`vllm:prompt_tokens_by_source_total`.")
	printRounds(p, d.rounds)
	d.printBars(p)
	p.bar(fmt.Sprintf("both engines have the same x-request-id of each of %d answers that name it", ids), both == ids)
	p.bar(fmt.Sprintf("x-stator-cached-tokens has the whole blocks of each of %d prompts that were sent before", repeated),
		cached == repeated)
	return nil
}

// printBars writes which of the rounds were as they must be.
func (d *disaggregated) printBars(p *page) {
	answered, same := true, true
	for _, r := range d.rounds {
		good, equal := r.good()
		answered = answered && good == len(r.answers)
		same = same && equal == len(r.answers)
	}
	first := d.found(roundFirst)
	params := d.found(roundParams)
	blocked := d.found(roundBlocked)
	dies := d.found(roundDies)
	dead := d.found(roundDead)
	back := d.found(roundBack)

	p.bar("all requests are answered", answered)
	p.bar("all answers are equal to the answers of one engine alone", same)
	p.bar("engine d fetches the prompts and computes none", first.counts.transferred == len(first.answers) &&
		first.counts.fetched > 0 && first.counts.computed == 0)
	p.bar("a client's kv_transfer_params do not reach an engine", params.counts.computed == 0)
	p.bar("the relay answers if the transfer fails", blocked.counts.relayed == len(blocked.answers) && dies.counts.relayed == 1)
	p.bar("engine d computes the prompts while the prefill engine is dead", dead.counts.transferred == 0 && dead.counts.computed > 0)
	p.bar("prompts are transferred again when the prefill engine is back", back.counts.transferred == len(back.answers) &&
		back.counts.computed == 0)
}
