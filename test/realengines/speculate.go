package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/stator-project/stator/test/nextturns"
	"github.com/stator-project/stator/test/talks"
)

const (
	// The model of this section has more layers than the others', so that its prompts take some time. One block of its cache has keys and
	// values of 32 tokens in 16 layers with 2 heads of 32 numbers of 2 bytes.
	deepBlockBytes = 2 * blockSize * 16 * 2 * 32 * 2

	// What clients send. Answers of the other clients are shorter, so that there are more of them.
	speculateTurns               = 4
	thinkingTokens, answerTokens = 150, 450
	otherTokens                  = 50
	speculatePause               = 2 * time.Second
)

// thinks is the form of answers, to which the engines are bound because a model of random weights does not think. Each digit is one token
// of Qwen3's vocabulary.
var thinks = fmt.Sprintf(`<think>\n[0-9]{%d}\n</think>\n\n[0-9]{%d}`, thinkingTokens, answerTokens)

// speculateLoads are what clients send. Both have one conversation for each engine, and the second one another client for each.
var speculateLoads = []struct {
	name   string
	others int
}{{"idle", 0}, {"shared", 2}}

// speculation is a load, with the results of both ways.
type speculation struct {
	nextturns.Comparison
	name string
	ways map[bool]*promises // by whether requests have the hint
}

// promises are about the later turns of one way.
type promises struct {
	turns, equal, promised, served int
}

// speculateSection plays conversations whose answers begin with thinking, with and without the hint of speculative prefill.
func speculateSection(ctx context.Context, b *bench, _ []*engine, p *page) error {
	model, err := filepath.Abs(b.deep)
	if err != nil {
		return err
	}
	cfg := engineConfig{vllm: b.vllm, model: model, folder: b.folder, blocks: largeCache, blockBytes: deepBlockBytes, maxSeqs: largeBatch}
	engines, err := b.startPair(ctx, cfg)
	defer func() { stopAll(engines) }()
	if err != nil {
		return err
	}

	var all []*speculation
	for _, l := range speculateLoads {
		s := &speculation{name: l.name, ways: map[bool]*promises{}}
		all = append(all, s)
		load := nextturns.Load{
			API: "chat", Conversations: len(engines), Turns: speculateTurns, Pause: speculatePause, First: 300, User: 20,
			Thinking: thinkingTokens, Answer: answerTokens + 20, // with room for the tags
			Others: l.others, OtherUser: 400, OtherTo: otherTokens, Seed: b.seed,
			Members:      talks.Object{"model": modelName, "temperature": 0},
			Conversation: talks.Object{"structured_outputs": talks.Object{"regex": thinks}},
		}
		for round := range b.rounds {
			for i := range 2 {
				hinted := (i+round)%2 == 1
				b.progressf("speculate: %s, round %d of %d, hint %v", l.name, round+1, b.rounds, hinted)
				if err := s.play(ctx, b, model, engines, &load, hinted, uint64(round)); err != nil {
					return err
				}
			}
		}
	}
	printSpeculation(p, b, all)
	return nil
}

// play plays the load once, on empty caches, and compares the promises about later turns with the engines' reports.
func (s *speculation) play(ctx context.Context, b *bench, model string, engines []*engine, load *nextturns.Load, hinted bool, round uint64,
) error {
	cfg := b.gatewayConfig("")
	cfg.model, cfg.hints = model, true
	g, err := b.startGatewayWith(ctx, cfg, engines)
	if err != nil {
		return err
	}
	defer g.Stop()
	r, err := load.Play(ctx, g.Gateway, hinted, round)
	if err != nil {
		return err
	}
	s.Add(hinted, r)

	var ids []string
	for _, a := range r.Later {
		ids = append(ids, a.Decision)
	}
	decisions, err := g.decided(ctx, ids)
	if err != nil {
		return err
	}
	if s.ways[hinted] == nil {
		s.ways[hinted] = &promises{}
	}
	w := s.ways[hinted]
	for _, a := range r.Later {
		promised := decisions[a.Decision].CachedTokens
		w.turns++
		w.promised += promised
		w.served += a.Cached
		if promised == a.Cached {
			w.equal++
		}
	}
	return nil
}
