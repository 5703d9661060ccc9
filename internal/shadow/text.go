package shadow

import (
	"fmt"
	"strings"
)

// CannotKnow lists what no report of a shadow can know.
const CannotKnow = "A shadow cannot know how clients would have reacted to other answers or to faster ones, so arrivals stay as they " +
	"were. Prompts from before the log began are in the engines' caches, and not in the replay. Lengths of answers are estimated from their " +
	"bytes, and are the client's bound or 200 tokens if the filter sends no bodies of responses; the replay does not find " +
	"answers in later prompts. Requests that are not mirrored, as those through other gateways, occupy the engines unseen. Times are those of " +
	"--timing, not of your engines: compare them with each other."

// Findings are lines about what the log shows of the caches at the time of each request.
func (m *Model) Findings() []string {
	share := func(tokens int) string {
		return fmt.Sprintf("%d (%.2f %%)", tokens, 100*float64(tokens)/float64(max(1, m.SeenTokens)))
	}
	out := []string{
		fmt.Sprintf("Model %s: %d requests with %d tokens in their prompts, on %d workers.", m.Name, m.Requests, m.Tokens, m.Workers),
	}
	if m.Seen == 0 {
		return append(out, "The log does not show which workers served: the filter needs response_attributes: [upstream.address].")
	}
	return append(out,
		fmt.Sprintf("The log shows the workers of %d requests, with %d tokens. When these came, their workers had %s of the tokens in "+
			"their caches, the router's picks %s, and the workers with most of each prompt %s.",
			m.Seen, m.SeenTokens, share(m.Served), share(m.Picked), share(m.Most)),
		fmt.Sprintf("%d requests would have found more on the router's pick: %d tokens together.", m.Better, m.Gained),
	)
}

// Wrap breaks a text into lines of at most n bytes, at spaces.
func Wrap(text string, n int) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i > 0 && column+1+len(word) > n:
			b.WriteByte('\n')
			column = 0
		case i > 0:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}
