package main

import (
	"github.com/stator-project/stator/test/nextturns"
	"github.com/stator-project/stator/test/stats"
)

// printSpeculation writes the section of the report.
func printSpeculation(p *page, b *bench, all []*speculation) {
	p.section("Speculative prefill of the next turn")
	p.text("Conversations of %d turns, one for each engine at a time, with a model of 16 layers that has 28 million weights beside "+
		"its vocabulary. Engines are bound to answers of %d tokens of thinking and %d others. Clients send all of them back, and "+
		"Qwen3's template leaves out the thinking. Clients pause for %v. In load shared there is another client for each engine. "+
		"It waits for a quarter of the time that its last answer of %d tokens took. %d rounds, both ways in turns and on empty "+
		"caches. Differences are between means, with their 95 %% intervals: later turns are paired, and of the other clients "+
		"the means of rounds.",
		speculateTurns, thinkingTokens, answerTokens, speculatePause, otherTokens, b.rounds)
	for _, s := range all {
		p.writeRow(append([]any{"load"}, nextturns.Titles...)...)
		for _, f := range append(s.Later(), s.Others()...) {
			p.writeRow(append([]any{s.name}, f.Cells()...)...)
		}
		p.endTable()
	}

	p.text("Tokens of the later turns' prompts that decisions promised as cached, and those that vLLM reports as cached.")
	p.writeRow("load", "hint", "later turns", "promised = served", "promised", "served", "speculative prefills", "tokens computed by them")
	turns, equal := 0, 0
	for _, s := range all {
		_, list, tokens := s.Prefills()
		without, with := s.ways[false], s.ways[true]
		p.writeRow(s.name, "without", without.turns, without.equal, without.promised, without.served, "none", 0)
		p.writeRow(s.name, "with", with.turns, with.equal, with.promised, with.served, list, tokens)
		turns += without.turns + with.turns
		equal += without.equal + with.equal
	}
	p.endTable()

	first := all[0].Later()[0]
	computed := stats.Mean(first.Without) - stats.Mean(first.With)
	counts, _, _ := all[1].Prefills()
	stopped := counts["cancelled"]
	others := all[1].Others() // first tokens and whole answers
	number := len(others[1].With)
	delay := stopped * computed / float64(number)
	bound := delay / stats.Mean(others[1].Without)
	p.text("The intervals of the other clients are wide. But only a prefill that a request stops can delay one, by the rest of its "+
		"pass. In load shared %g were stopped, by requests of conversations too. If each had delayed one of the %d others by the %.0f ms "+
		"that an answer's tokens took on idle engines, that would be %.1f ms of each: %.1f %% of the mean time "+
		"of their answers, and %.1f %% of their first tokens'.",
		stopped, number, computed, delay, 100*bound, 100*delay/stats.Mean(others[0].Without))

	p.bar("on idle engines, later turns have their first tokens at least 50 % earlier", first.Difference.Mean <= -0.5)
	p.bar("promised and served tokens are equal in at least 99 % of the later turns", 100*equal >= 99*turns)
	p.bar("stopped prefills can delay the answers of the others by 1 % at most", bound <= 0.01)
}
