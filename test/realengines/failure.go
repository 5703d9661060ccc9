package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/test/process"
)

const (
	// failingConversations is the number of conversations that are cached before an engine fails. failingTurns
	// of their turns are sent after it, one each turnPause.
	failingConversations, failingTurns = 8, 60
	turnPause                          = 100 * time.Millisecond
	// patience is the time for which the clients of a frozen engine wait, and freezeTime the time for which it is frozen.
	patience   = 4 * time.Second
	freezeTime = 30 * time.Second
	// settled is after how long no request may go to a dead engine any more.
	settled = 2 * time.Second
)

// failure has the results of requests while an engine was dead or frozen.
type failure struct {
	what       string
	had        int // requests that the engine served before
	sent, good int
	gaveUp     int           // clients that waited for longer than their patience
	met        int           // requests that were picked for the engine while it was gone
	last       time.Duration // from the failure to the last of them
	longest    time.Duration // of good answers
}

// conversationList has the prompts of some conversations.
type conversationList struct {
	rng     *rand.Rand
	prompts [][]uint32
}

func (c *conversationList) grow(i, n int) []uint32 {
	c.prompts[i] = append(c.prompts[i], randomIDs(c.rng, n)...)
	return slices.Clone(c.prompts[i])
}

// runFailure caches conversations, lets one engine fail, sends turns of all conversations, and lets the engine come back.
// The clients have so much patience; 0 waits without a bound.
func runFailure(ctx context.Context, b *bench, g *gateway, what string, fail, heal func() error, wait time.Duration) (*failure, error) {
	f := &failure{what: what}
	source := rand.NewPCG(b.seed, xxh3.HashString(what)) // other prompts than for the failure before
	c := &conversationList{rand.New(source), make([][]uint32, failingConversations)}
	if err := f.begin(ctx, g, c); err != nil {
		return nil, err
	}

	failed := time.Now()
	if err := fail(); err != nil {
		return nil, err
	}
	ids, err := f.turns(ctx, g, c, wait)
	if err != nil {
		return nil, err
	}
	if err := f.count(ctx, g, ids, failed); err != nil {
		return nil, err
	}
	return f, heal()
}

// begin sends the first two turns of the conversations, all of one turn at once, so that both engines get some.
func (f *failure) begin(ctx context.Context, g *gateway, c *conversationList) error {
	var ids []string
	for range 2 {
		answers := make([]answer, len(c.prompts))
		errs := make([]error, len(c.prompts))
		var senders sync.WaitGroup
		for i := range c.prompts {
			body := map[string]any{"prompt": c.grow(i, 700), "max_tokens": 1}
			senders.Go(func() { answers[i], errs[i] = g.sendGood(ctx, completions, body) })
		}
		senders.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		for _, a := range answers {
			ids = append(ids, a.decision)
		}
	}

	records, err := g.records(ctx, ids)
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.decision != nil && r.decision.Worker == failing && slices.Contains(ids, r.decision.ID) {
			f.had++
		}
	}
	return nil
}

// turns sends turns of the conversations, and several at once if they take long. It returns the decisions.
func (f *failure) turns(ctx context.Context, g *gateway, c *conversationList, wait time.Duration) (ids []string, err error) {
	var mu sync.Mutex
	var senders sync.WaitGroup
	for i := range failingTurns {
		prompt := c.grow(i%failingConversations, 40)
		senders.Go(func() {
			bounded, stop := ctx, context.CancelFunc(func() {})
			if wait > 0 {
				bounded, stop = context.WithTimeout(ctx, wait)
			}
			defer stop()
			a, failed := g.send(bounded, completions, map[string]any{"prompt": prompt, "max_tokens": 1})

			mu.Lock()
			defer mu.Unlock()
			f.sent++
			switch {
			case errors.Is(failed, context.DeadlineExceeded):
				f.gaveUp++
			case failed != nil:
				err = failed
			case a.status == http.StatusOK:
				f.good++
				f.longest = max(f.longest, a.took)
				ids = append(ids, a.decision)
			}
		})
		time.Sleep(turnPause)
	}
	senders.Wait()
	return ids, err
}

// count finds the requests that were picked for the failing engine, which is the last one.
func (f *failure) count(ctx context.Context, g *gateway, ids []string, failed time.Time) error {
	records, err := g.records(ctx, ids)
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(records)) {
		d := records[id].decision
		if d == nil || d.Worker != failing || d.At.Before(failed) {
			continue
		}
		f.met++
		f.last = max(f.last, d.At.Sub(failed))
	}
	return nil
}

// failing is the name of the engine that fails.
const failing = "b"

var errNotOurs = errors.New("this section stops an engine, so it takes none that it has not started")

// failureSection kills an engine, starts it again, and freezes it.
func failureSection(ctx context.Context, b *bench, engines []*engine, p *page) error {
	g, err := b.startGateway(ctx, engines, "")
	if err != nil {
		return err
	}
	defer g.Stop()
	e := engines[len(engines)-1]
	if e.cmd == nil {
		return errNotOurs
	}

	frozen, err := runFailure(ctx, b, g, "frozen for 30 s", func() error {
		e.signal(syscall.SIGSTOP)
		time.AfterFunc(freezeTime, func() { e.signal(syscall.SIGCONT) })
		return nil
	}, func() error { return g.awaitWorker(ctx, failing, "ready") }, patience)
	if err != nil {
		return err
	}

	b.progressf("failures: kill an engine")
	dead, err := runFailure(ctx, b, g, "killed", func() error { e.kill(); return nil }, func() error {
		b.progressf("failures: start the engine again")
		if err := e.start(); err != nil {
			return err
		}
		if err := e.await(ctx); err != nil {
			return err
		}
		return g.awaitWorker(ctx, failing, "ready")
	}, 0)
	if err != nil {
		return err
	}

	printFailures(p, dead, frozen)
	return nil
}

// awaitWorker returns when the gateway lists a worker with a state.
func (g *gateway) awaitWorker(ctx context.Context, name, state string) error {
	return process.Await(ctx, 2*time.Minute, func(ctx context.Context) error {
		ranks, err := g.Ranks(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(ranks, func(r process.Rank) bool { return r.Worker == name && r.State == state }) {
			return fmt.Errorf("worker %s is not %s", name, state)
		}
		return nil
	})
}

func printFailures(p *page, dead, frozen *failure) {
	p.section("Engines that fail")
	p.text("%d conversations are cached on both engines. Then one engine fails, and %d of their turns follow, one each %v. \"Met\" are "+
		"requests that were picked for the engine while it was gone.", failingConversations, failingTurns, turnPause)
	p.writeRow("engine", "served before", "requests", "good answers", "gave up", "met", "last one after", "longest good answer")
	for _, f := range []*failure{dead, frozen} {
		p.writeRow(f.what, f.had, f.sent, f.good, f.gaveUp, f.met, f.last.Round(10*time.Millisecond), f.longest.Round(10*time.Millisecond))
	}
	p.endTable()
	p.bar("the engine has served conversations before it fails", min(dead.had, frozen.had) > 0)
	p.bar("at most 3 requests meet a dead engine", dead.met <= 3)
	p.bar(fmt.Sprintf("no request meets a dead engine after %v", settled), dead.last <= settled)
	p.bar("all requests are answered although an engine is dead", dead.good == dead.sent)
	p.bar(fmt.Sprintf("no request meets a frozen engine after the %v that its clients wait", patience), frozen.last <= patience)
}
