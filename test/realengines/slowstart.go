package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

// The slow start: an engine stands still for a moment while it computes its first prompts, as one does that compiles its
// kernels. Then come prompts that no cache has.
const (
	firstPrompts  = 3
	coldPrompts   = 60
	coldTokens    = 1000
	standsStill   = 1500 * time.Millisecond
	leastOfSixty  = 15 // of coldPrompts, that each engine must get
	coldAnswerLen = 1
)

// slowStart counts the cold prompts by engine. They are sent one after another, to idle engines that are equally fast.
type slowStart struct {
	what  string
	picks map[string]int
}

// runSlowStart sends the first prompts to a fresh gateway, where slow while an engine stands still, and then the others.
func runSlowStart(ctx context.Context, b *bench, engines []*engine, what string, slow bool) (*slowStart, error) {
	g, err := b.startGateway(ctx, engines, "")
	if err != nil {
		return nil, err
	}
	defer g.Stop()

	rng := rand.New(rand.NewPCG(b.seed, 5))
	e := engines[len(engines)-1]
	if slow {
		e.signal(syscall.SIGSTOP)
		time.AfterFunc(standsStill, func() { e.signal(syscall.SIGCONT) })
	}
	var ids []string
	for i := range firstPrompts + coldPrompts {
		a, err := g.sendGood(ctx, completions, map[string]any{"prompt": randomIDs(rng, coldTokens), "max_tokens": coldAnswerLen})
		if err != nil {
			return nil, err
		}
		if i >= firstPrompts {
			ids = append(ids, a.decision)
		}
	}

	decisions, err := g.decided(ctx, ids)
	if err != nil {
		return nil, err
	}
	s := &slowStart{what: what, picks: map[string]int{}}
	for _, id := range ids {
		d := decisions[id]
		s.picks[d.Worker]++
	}
	return s, nil
}

func slowStartSection(ctx context.Context, b *bench, engines []*engine, p *page) error {
	if engines[len(engines)-1].cmd == nil {
		return errNotOurs
	}
	plain, err := runSlowStart(ctx, b, engines, "none", false)
	if err != nil {
		return err
	}
	slow, err := runSlowStart(ctx, b, engines, fmt.Sprintf("b, for %v", standsStill), true)
	if err != nil {
		return err
	}

	p.section("A slow start")
	p.text("%d prompts, during which an engine stands still, and then %d prompts of %d tokens that no cache has, one after another.",
		firstPrompts, coldPrompts, coldTokens)
	p.writeRow("stands still", "to a", "to b")
	for _, s := range []*slowStart{plain, slow} {
		p.writeRow(s.what, s.picks["a"], s.picks["b"])
	}
	p.endTable()
	p.bar(fmt.Sprintf("each engine gets at least %d of %d cold prompts after a slow start", leastOfSixty, coldPrompts),
		min(slow.picks["a"], slow.picks["b"]) >= leastOfSixty)
	return nil
}
