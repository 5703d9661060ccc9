package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stator-project/stator/test/talks"
)

// chatWith returns a body with a conversation, and further members after a comma.
func chatWith(t *testing.T, messages []message, more string) string {
	t.Helper()
	list, err := json.Marshal(messages)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"model":"sim","messages":%s%s}`, list, more)
}

// speculated returns how many next turns have had a result.
func (g *gateway) speculated(result string) float64 {
	g.t.Helper()
	return g.metric("stator_speculative_prefills_total", `result="`+result+`"`)
}

// awaitSpeculated waits until so many next turns have had a result.
func (g *gateway) awaitSpeculated(result string, n float64) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%g next turns are %s", n, result), func() error {
		if have := g.speculated(result); have != n {
			return fmt.Errorf("%g are", have)
		}
		return nil
	})
}

const speculates = `,"nvext":{"agent_hints":{"speculative_prefill":true}}`

// TestSpeculativePrefill has conversations by three APIs whose answers begin with thinking, which the next prompt does not have. With the
// hint a later turn finds the answer before it in the cache, whether that was a stream or not. Without the hint the answer is computed once
// more.
func TestSpeculativePrefill(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, `
gateway: {hintsFrom: everyone, hints: headers}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 2, args: {engineSpeedup: 10, thinkTokens: 32}}]
`))
	const answer, thinking, slack = 112, 32, 48 // tokens; the slack is the last message, and incomplete blocks
	const turns = 4
	sent, asked := 0.0, 0
	for _, hinted := range []bool{true, false} {
		for _, a := range talks.All(instructions(fmt.Sprintf("the conversation with the hint %v", hinted))) {
			var history []any
			before := 0 // tokens of the last prompt
			for turn := range turns {
				more, headers := object{a.Bound: answer}, []string(nil)
				switch {
				case hinted && turn%2 == 0:
					more["nvext"] = object{"agent_hints": object{"speculative_prefill": true}}
				case hinted:
					headers = []string{"x-stator-speculative-prefill", "true"}
				}
				// The answers to the first two turns are streams, so that both hints come with both forms.
				history = append(history, a.User(fmt.Sprintf("Question %d?", turn))...)
				id, text, cached, err := g.askTurn(&a, history, turn < 2, more, headers...)
				if err != nil || text == "" {
					t.Fatalf("%s, turn %d: %q, %v", a.Path, turn, text, err)
				}
				if least := before + answer - thinking - slack; turn > 0 && (hinted && cached < least || !hinted && cached > before) {
					t.Errorf("%s, hint %v: %d tokens were cached; the prompt before had %d", a.Path, hinted, cached, before)
				}
				before = g.decision(id).PromptTokens
				history = append(history, a.Answer(text)...)
				asked++
				if hinted {
					sent++
					g.awaitSpeculated("done", sent)
				}
				g.awaitIdle()
			}
		}
	}
	if n := g.metric("stator_speculative_prefills_total"); n != sent {
		t.Errorf("%g next turns have a result, want %g", n, sent)
	}
	g.assertServed(asked)
}

// TestNoSpeculativePrefill: nothing is sent while the only engine is busy, after an answer whose client has left, after an error, and for
// clients whose hints do not count.
func TestNoSpeculativePrefill(t *testing.T) {
	t.Parallel()
	const launch = `
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 1, args: {engineSpeedup: 1, thinkTokens: 8, blocks: 8192}}]
`
	g := up(t, "--config", configFile(t, "gateway: {hintsFrom: everyone}"+launch))
	talk := []message{{"user", "What is the colour of the sea, and of the sky?"}}
	release := g.hold()
	if r, err := g.send(t.Context(), http.MethodPost, chatPath, []byte(chatWith(t, talk, `,"max_tokens":64`+speculates))); err != nil ||
		r.status != http.StatusOK {
		t.Fatalf("%v %d %s", err, r.status, r.body)
	}
	g.awaitSpeculated("busy", 1)
	release()
	g.awaitIdle()

	ctx, cancel := context.WithCancel(t.Context())
	s := g.readStream(ctx, chatPath, chatWith(t, talk, `,"max_tokens":100000,"stream":true`+speculates), cancel)
	if s.done {
		t.Error("the stream has ended before its client has left")
	}
	if r, err := g.send(t.Context(), http.MethodPost, chatPath, []byte(chatWith(t, talk, `,"n":200`+speculates))); err != nil ||
		r.status != http.StatusBadRequest {
		t.Errorf("%v %d %s", err, r.status, r.body)
	}
	g.awaitIdle()
	if n := g.metric("stator_speculative_prefills_total"); n != 1 {
		t.Errorf("%g next turns have a result, want the one that found the engine busy", n)
	}

	others := up(t, "--config", configFile(t, launch[1:]))
	if r, err := others.send(t.Context(), http.MethodPost, chatPath, []byte(chatWith(t, talk, `,"max_tokens":64`+speculates))); err != nil ||
		r.status != http.StatusOK {
		t.Fatalf("%v %d %s", err, r.status, r.body)
	}
	others.assertServed(1)
	if n := others.metric("stator_speculative_prefills_total"); n != 0 {
		t.Errorf("the hint of a client that is not trusted has had %g results", n)
	}
}
