package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/stator-project/stator/test/process"
)

// result has the requests of a client.
type result struct {
	err       error // of its program
	turns     int
	exchanges []*exchange

	// Of the largest prompt of each turn, which is the conversation's: other requests of an agent are titles and the like.
	compared         int // whose answer has a usage
	cold             int // turns after the first without a cached token
	promised, served int // cached tokens
	tokens           int // of their prompts, by engines
	counted          int // of their prompts, by decisions
	workers          map[string]bool
}

// decision is what the admin port shows of one.
type decision struct {
	Worker string
	Prompt int `json:"prompt_tokens"`
	Cached int `json:"cached_tokens"`
}

// turn adds the exchanges of a turn.
func (r *result) turn(ctx context.Context, g *process.Gateway, list []*exchange) {
	r.turns++
	r.exchanges = append(r.exchanges, list...)
	if len(list) == 0 {
		return
	}
	main := slices.MaxFunc(list, func(a, b *exchange) int { return len(a.body) - len(b.body) })
	if main.usage == nil || main.decision == "" {
		return
	}
	text, err := g.Get(ctx, g.Admin+"/debug/decisions/"+main.decision+"?format=json")
	if err != nil {
		r.err = err
		return
	}
	var d decision
	if err := json.Unmarshal(text, &d); err != nil {
		r.err = err
		return
	}

	r.compared++
	r.promised += d.Cached
	r.served += main.usage.cached
	r.tokens += main.usage.prompt
	r.counted += d.Prompt
	if r.workers == nil {
		r.workers = map[string]bool{}
	}
	r.workers[d.Worker] = true
	if r.turns > 1 && main.usage.cached == 0 {
		r.cold++
	}
}

// problem returns the first failure; empty without one.
func (r *result) problem() string {
	if r.err != nil {
		return r.err.Error()
	}
	if len(r.exchanges) == 0 {
		return "no request came"
	}
	for _, e := range r.exchanges {
		if e.status != http.StatusOK {
			return fmt.Sprintf("%s: status %d", e.path, e.status)
		}
	}
	if r.cold > 0 {
		return fmt.Sprintf("%d turns found no cached token", r.cold)
	}
	return ""
}

const header = "| client | turns | requests | paths | session | workers | prompt tokens: decisions | engines | cached: promised | served " +
	"| result |\n" +
	"|---|---|---|---|---|---|---|---|---|---|---|"

// row returns a line of the table.
func (r *result) row(name string) string {
	paths, sessions := map[string]bool{}, map[string]bool{}
	for _, e := range r.exchanges {
		paths[e.path] = true
		if s := e.session(); s != "" {
			sessions[s] = true
		}
	}
	verdict := "works unchanged"
	if r.problem() != "" {
		verdict = "fails"
	}
	list := func(of map[string]bool) string { return strings.Join(slices.Sorted(maps.Keys(of)), ", ") }
	return fmt.Sprintf("| %s | %d | %d | %s | %s | %d | %d | %d | %d | %d | %s |", name, r.turns, len(r.exchanges), list(paths),
		list(sessions), len(r.workers), r.counted, r.tokens, r.promised, r.served, verdict)
}
