package shadow

import (
	"fmt"

	"github.com/stator-project/stator/internal/sim"
)

// CannotKnow lists what no report of a shadow can know.
const CannotKnow = "A shadow cannot know how clients would have reacted to other answers or to faster ones, so arrivals stay as they " +
	"were. Prompts from before the log began are in the engines' caches, and not in the replay. Requests that are not mirrored, as those " +
	"through other gateways, occupy the engines unseen. Lengths of answers without a usage are estimated from their bytes; they are the " +
	"client's bound or 200 tokens if the filter sends no bodies of responses. The replay does not find answers in later prompts, and all " +
	"of its workers are equal. Times are those of --timing, not of your engines: compare them with each other."

// Findings are lines about what the log shows of the caches at the time of each request.
func (m *Model) Findings() []string {
	share := func(tokens int) string {
		return fmt.Sprintf("%d (%.2f %%)", tokens, 100*float64(tokens)/float64(max(1, m.SeenTokens)))
	}
	caches := fmt.Sprintf("with caches of %d blocks", m.Blocks)
	if m.Blocks == 0 {
		caches = "with caches of unknown size: give --blocks"
	}
	out := []string{fmt.Sprintf("Model %q: %d requests with %d tokens in their prompts, on %d workers %s.", m.Name, m.Requests, m.Tokens,
		m.Workers, caches)}
	if m.Seen == 0 {
		return append(out, "The log does not show which workers served: the filter needs response_attributes: [upstream.address].")
	}
	return append(out,
		fmt.Sprintf("The log shows the workers of %d requests, with %d tokens. When these came, their workers had %s of the tokens in "+
			"their caches, the router's picks %s, and the workers with most of each prompt %s.",
			m.Seen, m.SeenTokens, share(m.Served), share(m.Picked), share(m.Most)),
		fmt.Sprintf("Of these requests, %d would have found more on the router's pick: %d tokens together.", m.Better, m.Gained),
	)
}

// Lines are the predicted figures: as it was, and the mean of the replays with the router, with the least and the most.
func (p *Prediction) Lines() []string {
	line := func(name, format string, figure func(*sim.Result) float64) string {
		least := figure(p.Routed[0])
		most := least
		mean := 0.0
		for _, r := range p.Routed {
			v := figure(r)
			least = min(least, v)
			most = max(most, v)
			mean += v / float64(len(p.Routed))
		}
		return fmt.Sprintf(name+": "+format+" as it was, "+format+" with the router ("+format+" to "+format+").",
			figure(p.Logged), mean, least, most)
	}
	return []string{
		fmt.Sprintf("Predicted by replays: one as it was, and %d with the router, which breaks ties in other ways each time.",
			len(p.Routed)),
		line("Tokens found in caches", "%.0f", found),
		line("Mean time to first token", "%.1f ms", func(r *sim.Result) float64 { return r.TTFT.Mean }),
		line("p99 of the time to first token", "%.1f ms", func(r *sim.Result) float64 { return r.TTFT.P99 }),
	}
}

// found is the number of tokens that a replay has found in caches.
func found(r *sim.Result) float64 {
	tokens := 0
	for _, w := range r.PerWorker {
		tokens += w.CachedTokens
	}
	return float64(tokens)
}
