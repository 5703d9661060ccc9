package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
)

// smallCache is the number of blocks of an engine whose conversations do not fit: 12,288 tokens.
const smallCache = 384

// eviction counts the tokens that were promised and served while conversations evicted each other.
type eviction struct {
	concurrent       int
	requests, equal  int
	prompt           int
	promised, served int
}

// runEviction plays conversations in rounds of random order, a number of requests at a time.
func runEviction(ctx context.Context, b *bench, g *gateway, conversations, rounds, concurrent int) (*eviction, error) {
	rng := rand.New(rand.NewPCG(b.seed, uint64(concurrent)))
	prompts := make([][]uint32, conversations)
	for i := range prompts {
		prompts[i] = randomIDs(rng, 600)
	}
	var turns []turn
	for range rounds {
		for _, c := range rng.Perm(conversations) {
			turns = append(turns, turn{c, randomIDs(rng, 100+rng.IntN(400))})
		}
	}

	p := &player{g: g, prompts: prompts, locks: make([]sync.Mutex, conversations), answers: map[string]answer{}}
	if err := p.play(ctx, turns, concurrent); err != nil {
		return nil, err
	}

	answers := p.answers
	var sent []string
	for id := range answers {
		sent = append(sent, id)
	}
	decisions, err := g.decided(ctx, sent)
	if err != nil {
		return nil, err
	}
	e := &eviction{concurrent: concurrent}
	for id, a := range answers {
		d := decisions[id]
		e.requests++
		e.prompt += a.usage.Prompt
		e.promised += d.CachedTokens
		e.served += a.usage.Details.Cached
		if d.CachedTokens == a.usage.Details.Cached {
			e.equal++
		}
	}
	return e, nil
}

// turn is the next request of a conversation: its prompt grows by these tokens.
type turn struct {
	conversation int
	more         []uint32
}

// player sends turns. The turns of one conversation follow each other: a turn holds its conversation's lock.
type player struct {
	g       *gateway
	prompts [][]uint32
	locks   []sync.Mutex

	mu      sync.Mutex
	answers map[string]answer // guarded by mu; by the id of the decision
	err     error             // guarded by mu; the first one
}

// play sends the turns, a number of them at a time.
func (p *player) play(ctx context.Context, turns []turn, concurrent int) error {
	next := make(chan turn)
	var workers sync.WaitGroup
	for range concurrent {
		workers.Go(func() {
			for t := range next {
				p.record(p.send(ctx, t))
			}
		})
	}

	for _, t := range turns {
		next <- t
	}
	close(next)
	workers.Wait()
	return p.err
}

func (p *player) send(ctx context.Context, t turn) (answer, error) {
	p.locks[t.conversation].Lock()
	defer p.locks[t.conversation].Unlock()
	p.prompts[t.conversation] = append(p.prompts[t.conversation], t.more...)
	return p.g.sendGood(ctx, completions, map[string]any{"prompt": p.prompts[t.conversation], "max_tokens": 8})
}

func (p *player) record(a answer, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.err = cmp.Or(p.err, err)
		return
	}
	p.answers[a.decision] = a
}

// print writes the section of the report about all eviction runs.
func printEvictions(p *page, runs []*eviction) {
	p.section("Conversations that do not fit")
	p.text("Each engine has %d blocks of %d tokens, and the conversations need more. \"Promised\" are the tokens that decisions "+
		"expected in the picked worker's cache.", smallCache, blockSize)
	p.writeRow("requests at a time", "requests", "equal", "prompt tokens", "promised", "served", "promised ÷ served")
	for _, e := range runs {
		p.writeRow(e.concurrent, e.requests, e.equal, e.prompt, e.promised, e.served, fmt.Sprintf("%.2f", e.ratio()))
	}
	p.endTable()
	for _, e := range runs {
		met := e.ratio() >= 0.9 && e.ratio() <= 1.1
		p.bar(fmt.Sprintf("promised ÷ served is between 0.9 and 1.1 with %d requests at a time", e.concurrent), met)
	}
}

func (e *eviction) ratio() float64 { return float64(e.promised) / float64(max(1, e.served)) }
