package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// The conversations of the llama.cpp section. Each engine has room for four.
const (
	llamaConversations, llamaTurns = 6, 6
	llamaBlock                     = 16 // of predictions; llama.cpp reuses single tokens
)

// llama counts the tokens that were expected of two llama.cpp servers, which publish no events, and the tokens that they report.
type llama struct {
	requests, prompts int // sent, and with equal prompt tokens
	near              int // requests whose cached tokens are at most one block from those expected
	promised, served  int // cached tokens
	moved             int // conversations that were served by more than one engine
	kills             *kills
}

// runLlama starts two llama.cpp servers behind a gateway, and sends turns of conversations one after another.
func runLlama(ctx context.Context, b *bench) (*llama, error) {
	python, err := filepath.Abs(b.llamaPython)
	if err != nil {
		return nil, err
	}
	model, err := filepath.Abs(b.llamaModel)
	if err != nil {
		return nil, err
	}
	cfg := gatewayConfig{stator: b.stator, envoy: b.envoy, model: model, folder: b.folder, block: llamaBlock}
	cfg.launch = fmt.Sprintf("{engine: llamacpp, count: 2, python: %q, args: {ctx: 16384, slots: 4, threads: 1}}", python)
	g, err := startGateway(ctx, cfg, nil)
	if err != nil {
		return nil, err
	}
	running := true
	defer func() {
		if running {
			g.Stop()
		}
	}()

	w, err := newWriter(b.seed, b.pages)
	if err != nil {
		return nil, err
	}
	answers, err := converse(ctx, g, w)
	if err != nil {
		return nil, err
	}
	l, err := compareLlama(ctx, g, answers)
	if err != nil {
		return nil, err
	}
	l.kills, err = killEngines(ctx, g)
	if err != nil {
		return nil, err
	}

	g.Stop()
	running = false
	l.kills.look()
	return l, nil
}

// converse sends the turns of the conversations in rounds of random order. It returns the answers of each conversation.
func converse(ctx context.Context, g *gateway, w *writer) ([][]answer, error) {
	dialogues := make([][]any, llamaConversations)
	answers := make([][]answer, llamaConversations)
	for range llamaTurns {
		for _, i := range w.rng.Perm(llamaConversations) {
			dialogues[i] = append(dialogues[i], message("user", w.text(150)))
			body := map[string]any{"messages": dialogues[i], "max_tokens": 4}
			if i%2 == 1 {
				body["tools"] = tools()
			}
			a, err := g.sendGood(ctx, chats, body)
			if err != nil {
				return nil, err
			}
			answers[i] = append(answers[i], a)
			dialogues[i] = append(dialogues[i], message("assistant", w.text(30)))
		}
	}
	return answers, nil
}

// compareLlama compares the answers with their decisions.
func compareLlama(ctx context.Context, g *gateway, answers [][]answer) (*llama, error) {
	var ids []string
	for _, list := range answers {
		for _, a := range list {
			ids = append(ids, a.decision)
		}
	}
	decisions, err := g.decided(ctx, ids)
	if err != nil {
		return nil, err
	}

	l := &llama{}
	for _, list := range answers {
		workers := map[string]bool{}
		for _, a := range list {
			d := decisions[a.decision]
			workers[d.Worker] = true
			l.requests++
			l.promised += d.CachedTokens
			l.served += a.usage.Details.Cached
			if d.PromptTokens == a.usage.Prompt {
				l.prompts++
			}
			if off := d.CachedTokens - a.usage.Details.Cached; -llamaBlock <= off && off <= llamaBlock {
				l.near++
			}
		}
		if len(workers) > 1 {
			l.moved++
		}
	}
	return l, nil
}

func llamaSection(ctx context.Context, b *bench, _ []*engine, p *page) error {
	l, err := runLlama(ctx, b)
	if err != nil {
		return err
	}
	p.section("llama.cpp")
	p.text("Two llama.cpp servers (xllamacpp), launched by Stator, with a tiny model. They publish no events, so the blocks of a cache "+
		"are predicted from decisions, in blocks of %d tokens; llama.cpp reuses single tokens. %d conversations of %d turns, half "+
		"of them with tools, one turn after another.", llamaBlock, llamaConversations, llamaTurns)
	p.writeRow("requests", "prompt tokens equal", "cached tokens within a block", "promised", "served", "conversations that moved")
	p.writeRow(l.requests, l.prompts, l.near, l.promised, l.served, l.moved)
	p.endTable()

	k := l.kills
	p.text("Then the engines are killed in turn with SIGKILL, and at the end the gateway is stopped.")
	p.writeRow("killed", "back", "longest", "left of processes, ports and /dev/shm")
	p.writeRow(k.killed, k.back, k.longest.Round(100*time.Millisecond), cmp.Or(strings.Join(k.left, ", "), "nothing"))
	p.endTable()
	p.bar("prompt tokens are equal with llama.cpp", l.prompts == l.requests)
	p.bar("no conversation moves between llama.cpp servers", l.moved == 0)
	p.bar("each killed llama.cpp is back, and nothing is left of them at the end", k.back == k.killed && len(k.left) == 0)
	return nil
}
