package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/test/loopback"
	"github.com/stator-project/stator/test/stats"
)

const (
	uptoTrials = 20
	uptoWithin = 10 * time.Second // the bar
)

// firsts are the times until the first routed answer beside one engine.
type firsts struct {
	engine, begins string
	took           []time.Duration
	read           int // first answers with the prompt tokens that the decision has
}

// quantile returns the time of a part of the trials.
func (f *firsts) quantile(part float64) time.Duration {
	return stats.Percentile(f.took, part).Round(10 * time.Millisecond)
}

// llamaServer starts llama.cpp without Stator.
func (b *bench) llamaServer() (*engine, error) {
	address, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	python, err := filepath.Abs(b.llamaPython)
	if err != nil {
		return nil, err
	}
	model, err := filepath.Abs(b.llamaModel)
	if err != nil {
		return nil, err
	}
	host, port, _ := strings.Cut(address, ":")
	settings := fmt.Sprintf(`{"model":%q,"alias":%q,"host":%q,"port":%s,"ctx":16384,"slots":4,"threads":1}`, model, modelName, host, port)
	e := &engine{
		name: "llama.cpp", address: address, log: filepath.Join(b.folder, "llama.log"), program: python,
		args: []string{"workeragent/engine/llamacpp.py", settings},
	}
	return e, e.start()
}

// firstAnswer asks until a request is answered, and returns the time since begun.
func (g *gateway) firstAnswer(ctx context.Context, begun time.Time, number int) (a answer, took time.Duration, err error) {
	body := map[string]any{"messages": []any{message("user", fmt.Sprintf("What comes after the number %d, and why?", number))}}
	for {
		a, err = g.send(ctx, chats, body)
		took = time.Since(begun)
		if err == nil && a.status == http.StatusOK {
			return a, took, nil
		}
		if took > time.Minute {
			return a, took, cmp.Or(err, fmt.Errorf("status %d: %.200s", a.status, a.text))
		}
		if err := backoff.Sleep(ctx, closely); err != nil {
			return a, took, err
		}
	}
}

// observe records the first answer of a gateway.
func (f *firsts) observe(ctx context.Context, g *gateway, begun time.Time, number int) error {
	a, took, err := g.firstAnswer(ctx, begun, number)
	if err != nil {
		return err
	}
	decisions, err := g.decided(ctx, []string{a.decision})
	if err != nil {
		return err
	}
	f.took = append(f.took, took)
	if decisions[a.decision].PromptTokens == a.usage.Prompt {
		f.read++
	}
	return nil
}

// beside starts a gateway beside an engine that is ready, a number of times, and times the first answer from the start of the process on.
func (b *bench) beside(ctx context.Context, e *engine) (*firsts, error) {
	f := &firsts{engine: e.name, begins: "`stator up` starts beside the ready engine"}
	for i := range uptoTrials {
		begun := time.Now()
		g, err := startBeside(ctx, b.gatewayConfig(""), nil, "http://"+e.address)
		if err != nil {
			return nil, err
		}
		err = f.observe(ctx, g, begun, i)
		g.Stop()
		if err != nil {
			return nil, err
		}
	}
	return f, nil
}

// before starts a gateway, then has open make an engine ready at an address, and times the first answer from there on.
func (b *bench) before(ctx context.Context, f *firsts, address string, open func() error) error {
	type started struct {
		g   *gateway
		err error
	}
	running := make(chan started, 1)
	go func() {
		g, err := startBeside(ctx, b.gatewayConfig(""), nil, "http://"+address)
		running <- started{g, err}
	}()

	err := b.awaitWaiting(ctx, address)
	if err == nil {
		err = open()
	}
	begun := time.Now()
	s := <-running // it gives up by itself
	if err = cmp.Or(err, s.err); err == nil {
		err = f.observe(ctx, s.g, begun, len(f.took))
	}
	if s.err == nil {
		s.g.Stop()
	}
	return err
}

// awaitWaiting returns when the gateway's output has the engine for which it waits.
func (b *bench) awaitWaiting(ctx context.Context, address string) error {
	for range 600 {
		text, err := os.ReadFile(filepath.Join(b.folder, "stator.log"))
		if err == nil && strings.Contains(string(text), "http://"+address+": ") {
			return nil
		}
		if err := backoff.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("the gateway does not wait for its engine")
}

// upLlama times first answers beside llama.cpp, which is started in each trial in which the gateway waits for it.
func (b *bench) upLlama(ctx context.Context) ([]*firsts, error) {
	e, err := b.llamaServer()
	if err != nil {
		return nil, err
	}
	defer func() { e.stop() }()
	if err := e.awaitEvery(ctx, closely); err != nil {
		return nil, err
	}
	beside, err := b.beside(ctx, e)
	if err != nil {
		return nil, err
	}

	waits := &firsts{engine: e.name, begins: "the engine is ready, for which `stator up` has waited"}
	for range uptoTrials {
		e.stop()
		err := b.before(ctx, waits, e.address, func() error {
			if err := e.start(); err != nil {
				return err
			}
			return e.awaitEvery(ctx, closely)
		})
		if err != nil {
			return nil, err
		}
	}
	return []*firsts{beside, waits}, nil
}

// upVLLM times first answers beside vLLM. It starts once while the gateway waits. In the other trials a server in front of it begins to
// listen then, because vLLM needs a minute to start.
func (b *bench) upVLLM(ctx context.Context, e *engine) ([]*firsts, error) {
	cold := &firsts{engine: e.name, begins: "the engine is ready, for which `stator up` has waited"}
	err := b.before(ctx, cold, e.address, func() error {
		if err := e.start(); err != nil {
			return err
		}
		return e.awaitEvery(ctx, closely)
	})
	if err != nil {
		return nil, err
	}
	b.version, err = e.version(ctx)
	if err != nil {
		return nil, err
	}
	beside, err := b.beside(ctx, e)
	if err != nil {
		return nil, err
	}

	reached := &firsts{engine: e.name, begins: "the engine can be reached, for which `stator up` has waited"}
	for range uptoTrials {
		address, err := loopback.Address()
		if err != nil {
			return nil, err
		}
		var f *front
		err = b.before(ctx, reached, address, func() (err error) {
			f, err = startFrontAt(e, address)
			return err
		})
		if f != nil {
			f.stop()
		}
		if err != nil {
			return nil, err
		}
	}
	return []*firsts{cold, beside, reached}, nil
}

// scaledOut is the comparison of an engine that was started with or without --enable-scale-out.
type scaledOut struct {
	engine string
	render int // the status of the page that renders a chat
	*truth
}

func (b *bench) compareScaledOut(ctx context.Context, e *engine) (*scaledOut, error) {
	chat := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hi"}]}`, modelName)
	rendered, err := post(ctx, "http://"+e.address+chats+"/render", chat)
	if err != nil {
		return nil, err
	}
	if err := e.forget(ctx); err != nil {
		return nil, err
	}
	g, err := startBeside(ctx, b.gatewayConfig(""), everyRank(1), "http://"+e.address)
	if err != nil {
		return nil, err
	}
	defer g.Stop()
	t, err := runTruth(ctx, b, g)
	return &scaledOut{e.name, rendered.status, t}, err
}

func uptoSection(ctx context.Context, b *bench, _ []*engine, p *page) error {
	b.progressf("upto: llama.cpp")
	all, err := b.upLlama(ctx)
	if err != nil {
		return err
	}

	var compared []*scaledOut
	for _, flags := range [][]string{nil, {"--enable-scale-out"}} {
		name := strings.Join(append([]string{"vLLM"}, flags...), " ")
		b.progressf("upto: %s", name)
		e, err := b.newEngine(strings.ReplaceAll(name, " ", ""), flags...)
		if err != nil {
			return err
		}
		e.name = name
		list, err := b.upVLLM(ctx, e)
		if err == nil {
			var c *scaledOut
			c, err = b.compareScaledOut(ctx, e)
			compared = append(compared, c)
		}
		e.stop()
		if err != nil {
			return err
		}
		all = append(all, list...)
	}

	printUpto(p, all, compared)
	return nil
}

// printUpto writes the section of the report.
func printUpto(p *page, all []*firsts, compared []*scaledOut) {
	p.section("Without a configuration")
	p.text("`stator up --to http://HOST:PORT` in front of one engine, with no configuration, until Envoy passes a chat's answer on. " +
		"\"Read\" are first answers whose decision has the prompt tokens that the engine reports, so that its tokenizer and template " +
		"were found.")
	p.writeRow("engine", "from when", "trials", "p50", "p95", "longest", "read")
	late, unread := 0, 0
	for _, f := range all {
		p.writeRow(f.engine, f.begins, len(f.took), f.quantile(0.5), f.quantile(0.95), f.quantile(1), f.read)
		for _, took := range f.took {
			if took > uptoWithin {
				late++
			}
		}
		unread += len(f.took) - f.read
	}
	p.endTable()
	p.bar(fmt.Sprintf("the first answer is routed within %s", uptoWithin), late == 0)
	p.bar("the prompt of each first answer was read", unread == 0)

	p.text("The requests of the section about expected and reported cached tokens, in front of vLLM with and without its pages that " +
		"render prompts (`--enable-scale-out`).")
	p.writeRow("engine", "status of `/v1/chat/completions/render`", "requests", "prompt tokens equal", "cached tokens equal",
		"vLLM reports otherwise", "token ids of chats equal")
	same := len(compared) == 2 && compared[0].render != http.StatusOK && compared[1].render == http.StatusOK
	for _, c := range compared {
		odd := 0
		for _, n := range c.odd {
			odd += n
		}
		p.writeRow(c.engine, c.render, c.sent, c.prompts, c.cached, odd, fmt.Sprintf("%d of %d", c.equalIDs, c.chats))
		same = same && c.prompts == c.compared && 100*c.cached >= 99*(c.compared-odd) && c.equalIDs == c.chats
		for _, d := range c.differences {
			p.item("%s: %s.", c.engine, d)
		}
	}
	p.endTable()
	p.bar("without the pages that render prompts everything works as with them", same)
}
