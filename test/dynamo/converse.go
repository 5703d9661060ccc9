package main

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/test/process"
)

// result is the result of one run.
type result struct {
	version        string // of Dynamo
	turns, later   int
	cached         int // later turns of which Dynamo reports cached tokens
	asPromised     int // turns with as many cached tokens as promised
	promptsEqual   int // turns with as many prompt tokens as expected
	promised, real int // cached tokens
	moved          int // conversations that were served by more than one worker
	byWorker       map[string]int
	ranks          []process.Rank
	doctor         string
	left           string // the state of a worker whose mocker has ended
	afterwards     int    // turns that were answered then, of conversations
	differences    []string
}

// converse plays the conversations, one turn of each after another.
func (b *bench) converse(ctx context.Context, g *gateway) (*result, error) {
	b.progressf("%d conversations of %d turns", conversations, turns)
	answers := make([][]answer, conversations)
	history := make([][]message, conversations)
	for i := range history {
		history[i] = []message{{"system", strings.Repeat(fmt.Sprintf("You are agent %d. ", i), 600)}}
	}
	for turn := range turns {
		for i := range history {
			question := fmt.Sprintf("Turn %d: please continue the story of rivers and mountains.", turn)
			history[i] = append(history[i], message{"user", question})
			a, err := g.chat(ctx, history[i])
			if err != nil {
				return nil, err
			}
			history[i] = append(history[i], message{"assistant", a.text})
			answers[i] = append(answers[i], a)
		}
	}

	decisions, err := g.awaitDecisions(ctx, answers)
	if err != nil {
		return nil, err
	}
	r := &result{byWorker: map[string]int{}}
	for i := range answers {
		r.addConversation(i, answers[i], decisions)
	}
	r.ranks, err = g.Ranks(ctx)
	return r, err
}

// awaitDecisions reads the log until it has the decisions of all answers.
func (g *gateway) awaitDecisions(ctx context.Context, answers [][]answer) (all map[string]*decisionlog.Decision, err error) {
	err = g.Await(ctx, patience, func(ctx context.Context) error {
		all, err = g.readDecisions()
		if err != nil {
			return err
		}
		for _, conversation := range answers {
			for _, a := range conversation {
				if all[a.decision] == nil {
					return fmt.Errorf("decision %q is not in the log", a.decision)
				}
			}
		}
		return nil
	})
	return all, err
}

// addConversation counts the turns of a conversation.
func (r *result) addConversation(conversation int, answers []answer, decisions map[string]*decisionlog.Decision) {
	served := map[string]bool{}
	for turn, a := range answers {
		d := decisions[a.decision]
		served[d.Worker] = true
		r.byWorker[d.Worker]++
		r.turns++
		if turn > 0 {
			r.later++
			if a.cached > 0 {
				r.cached++
			}
		}

		r.promised += d.CachedTokens
		r.real += a.cached
		if d.PromptTokens == a.prompt {
			r.promptsEqual++
		}
		if d.CachedTokens == a.cached {
			r.asPromised++
		} else {
			r.differences = append(r.differences, fmt.Sprintf("conversation %d, turn %d: %d of %d tokens promised on %s, %d real",
				conversation, turn, d.CachedTokens, d.PromptTokens, d.Worker, a.cached))
		}
	}
	if len(served) > 1 {
		r.moved++
	}
}

// endWorker ends a mocker, and sends requests when its worker has left. The frontend goes on, and is healthy by its /health.
func (b *bench) endWorker(ctx context.Context, g *gateway, w *worker, r *result) error {
	b.progressf("end mocker %s", w.name)
	w.mocker.Stop()
	err := g.Await(ctx, patience, func(ctx context.Context) error {
		ranks, err := g.Ranks(ctx)
		if err != nil {
			return err
		}
		for _, rank := range ranks {
			if rank.Worker == w.name && rank.State == "ready" {
				return fmt.Errorf("worker %s is ready without its mocker", w.name)
			}
			if rank.Worker == w.name {
				r.left = rank.State
			}
		}
		return nil
	})
	if err != nil {
		return err
	}

	for i := range conversations {
		if _, err := g.chat(ctx, []message{{"user", fmt.Sprintf("Question %d", i)}}); err != nil {
			b.progressf("%v", err)
			continue
		}
		r.afterwards++
	}
	return nil
}

// report returns the table, and the bars that were not met.
func (r *result) report(mostDifference float64) (text string, missed []string) {
	var b strings.Builder
	row := func(what string, value any) { fmt.Fprintf(&b, "| %s | %v |\n", what, value) }
	fmt.Fprintf(&b, "| two workers of Dynamo %s, one request after another | |\n|---|---|\n", r.version)
	row("turns, in conversations", fmt.Sprintf("%d, %d", r.turns, conversations))
	row("prompt tokens as expected", fmt.Sprintf("%d of %d", r.promptsEqual, r.turns))
	row("later turns with cached tokens", fmt.Sprintf("%d of %d", r.cached, r.later))
	row("cached tokens as promised", fmt.Sprintf("%d of %d", r.asPromised, r.turns))
	row("cached tokens promised ÷ real", fmt.Sprintf("%d ÷ %d = %.3f", r.promised, r.real, float64(r.promised)/float64(max(1, r.real))))
	row("conversations that moved", r.moved)
	for _, rank := range r.ranks {
		row("worker "+rank.Worker, fmt.Sprintf("%d turns, cache state %s", r.byWorker[rank.Worker], rank.Cache))
	}
	row("`stator doctor`", r.doctor)
	row("worker a when its mocker has ended", r.left)
	row("requests answered then", fmt.Sprintf("%d of %d", r.afterwards, conversations))

	b.WriteByte('\n')
	for _, d := range r.differences {
		fmt.Fprintf(&b, "* %s\n", d)
	}
	bar := func(what string, met bool) {
		word := "met"
		if !met {
			word = "**not met**"
			missed = append(missed, what)
		}
		fmt.Fprintf(&b, "* Bar: %s: %s\n", what, word)
	}
	exact := true
	for _, rank := range r.ranks {
		exact = exact && rank.Cache == "exact"
	}
	difference := math.Abs(float64(r.promised-r.real)) / float64(max(1, r.real))
	bar(fmt.Sprintf("at least %d of %d later turns are cached", leastCached, r.later), r.cached >= leastCached)
	bar(fmt.Sprintf("promised and real cached tokens differ by at most %.0f %%", 100*mostDifference), difference <= mostDifference)
	bar("prompt tokens are as expected", r.promptsEqual == r.turns)
	bar("cache states are exact", exact && len(r.ranks) == 2)
	bar("the doctor finds nothing", strings.Contains(r.doctor, "nothing is wrong"))
	bar("a worker whose mocker has ended gets no requests", r.left != "" && r.afterwards == conversations)
	return b.String(), missed
}
