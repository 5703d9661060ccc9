package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"
)

// The adapters: engine b is started with loadedAdapter, and no engine with neededAdapter.
const (
	loadedAdapter, neededAdapter = "poet", "critic"
	adapterTurns                 = 10
	adapterPatience              = 2 * time.Minute
)

// adapted has the figures of the requests for one model or adapter.
type adapted struct {
	name     string
	requests int
	picks    map[string]int
	equal    int // requests whose cached tokens are as expected
	promised int
	served   int
}

// runAdapters sends turns of one conversation for the model and for each adapter. All have the same prompts, which no two
// of them may find in each other's cache.
func runAdapters(ctx context.Context, b *bench, g *gateway) ([]*adapted, error) {
	var all []*adapted
	for _, name := range []string{modelName, loadedAdapter, neededAdapter} {
		w, err := newWriter(b.seed, b.pages)
		if err != nil {
			return nil, err
		}
		a, err := talkTo(ctx, g, w, name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, a)
	}
	return all, nil
}

// talkTo sends the turns of a conversation for a model or an adapter.
func talkTo(ctx context.Context, g *gateway, w *writer, name string) (*adapted, error) {
	var dialogue []any
	answers := map[string]answer{}
	var ids []string
	for range adapterTurns {
		dialogue = append(dialogue, message("user", w.text(150)))
		a, err := g.sendGood(ctx, chats, map[string]any{"model": name, "messages": dialogue, "max_tokens": 4})
		if err != nil {
			return nil, err
		}
		dialogue = append(dialogue, message("assistant", w.text(30)))
		answers[a.decision] = a
		ids = append(ids, a.decision)
	}

	decisions, err := g.decided(ctx, ids)
	if err != nil {
		return nil, err
	}
	t := &adapted{name: name, picks: map[string]int{}}
	for _, id := range ids {
		d, cached := decisions[id], answers[id].usage.Details.Cached
		t.requests++
		t.picks[d.Worker]++
		t.promised += d.CachedTokens
		t.served += cached
		if d.CachedTokens == cached {
			t.equal++
		}
	}
	return t, nil
}

// awaitAdapter asks for an adapter until an engine has loaded it. It returns the statuses of the answers before.
func awaitAdapter(ctx context.Context, g *gateway, name string) (before []int, took time.Duration, err error) {
	ctx, stop := context.WithTimeout(ctx, adapterPatience)
	defer stop()
	begun := time.Now()
	for {
		a, err := g.send(ctx, chats, map[string]any{"model": name, "messages": []any{message("user", "hi")}})
		if err != nil {
			return before, 0, err
		}
		if a.status == http.StatusOK {
			return before, time.Since(begun), nil
		}
		before = append(before, a.status)
		select {
		case <-ctx.Done():
			return before, 0, fmt.Errorf("no engine loads adapter %s: %.300s", name, a.text)
		case <-time.After(time.Second):
		}
	}
}

// startAdapterEngines starts two engines for adapters, of which the second has one.
func (b *bench) startAdapterEngines(ctx context.Context) (engines []*engine, err error) {
	for _, name := range []string{"a", "b"} {
		cfg := engineConfig{vllm: b.vllm, model: b.model, folder: b.folder, blocks: largeCache, maxSeqs: 16}
		cfg.extra = []string{"--enable-lora", "--max-lora-rank", "8", "--max-loras", "2"}
		if name == "b" {
			cfg.extra = append(cfg.extra, "--lora-modules", loadedAdapter+"="+b.model+"-"+loadedAdapter)
		}
		e, err := startEngine(name, cfg)
		if err != nil {
			return engines, err
		}
		engines = append(engines, e)
	}
	for _, e := range engines {
		b.progressf("wait for engine %s with adapters", e.name)
		if err := e.await(ctx); err != nil {
			return engines, err
		}
	}
	return engines, nil
}

func adapterSection(ctx context.Context, b *bench, _ []*engine, p *page) error {
	engines, err := b.startAdapterEngines(ctx)
	defer func() {
		for _, e := range engines {
			e.stop()
		}
	}()
	if err != nil {
		return err
	}
	cfg := b.gatewayConfig("")
	cfg.adapters = fmt.Sprintf("[{name: %s, path: %q}]", neededAdapter, filepath.Clean(b.model+"-"+neededAdapter))
	g, err := b.startGatewayWith(ctx, cfg, engines)
	if err != nil {
		return err
	}
	defer g.Stop()

	before, took, err := awaitAdapter(ctx, g, neededAdapter)
	if err != nil {
		return err
	}
	all, err := runAdapters(ctx, b, g)
	if err != nil {
		return err
	}
	printAdapters(p, all, before, took)
	return nil
}

// printAdapters writes the section of the report.
func printAdapters(p *page, all []*adapted, before []int, took time.Duration) {
	p.section("LoRA adapters")
	p.text("Engine b was started with adapter %s. The configuration names no adapter but %s, with its path, which no engine had: the "+
		"first requests for it got the statuses %v, and %v after the first one it was served. Then one conversation of %d turns, with the "+
		"same prompts for the model and for each adapter.",
		loadedAdapter, neededAdapter, before, took.Round(100*time.Millisecond), adapterTurns)
	p.writeRow("model", "requests", "to a", "to b", "cached tokens equal", "promised", "served")
	equal, requests := 0, 0
	apart := true
	for _, a := range all {
		p.writeRow(a.name, a.requests, a.picks["a"], a.picks["b"], a.equal, a.promised, a.served)
		equal += a.equal
		requests += a.requests
		if a.name == loadedAdapter {
			apart = a.picks["b"] == a.requests
		}
	}
	p.endTable()
	p.bar("requests for an adapter go to the engine that has it", apart)
	p.bar("cached tokens of adapters are equal", equal == requests)
}
