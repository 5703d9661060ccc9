package scenario

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stator-project/stator/test/talks"
)

// instructions are some eight thousand tokens, of which each agent has its own.
func instructions(topic string) string {
	return "You keep the records of " + topic + ". " +
		strings.Repeat("You answer from the records of "+topic+" alone, and you say so when they are silent. ", 400)
}

type object = talks.Object

// askTurn sends one turn of a conversation, as a stream or not, and returns its answer and the cached tokens of its prompt. more has further
// members of the request; headers come in pairs.
func (g *gateway) askTurn(a *talks.API, history []any, stream bool, more object, headers ...string) (
	decision, text string, cached int, err error,
) {
	request := a.Body(history)
	request["stream"] = stream
	if stream && a.Path == chatPath {
		request["stream_options"] = object{"include_usage": true}
	}
	maps.Copy(request, more)
	body, err := json.Marshal(request)
	if err != nil {
		return "", "", 0, err
	}
	r, err := g.send(g.t.Context(), http.MethodPost, a.Path, body, headers...)
	if err != nil || r.status != http.StatusOK {
		return "", "", 0, fmt.Errorf("status %d, %w: %s", r.status, err, r.body)
	}
	if !stream {
		text, u, err := a.Read([]byte(r.body))
		return r.decision, text, u.Cached, err
	}

	// The usage is in the last event that has one.
	usage := []byte(nil)
	lines := bufio.NewScanner(strings.NewReader(r.body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		piece, _ := a.Delta(data)
		text += piece
		if bytes.Contains(data, []byte(`"usage"`)) {
			usage = bytes.Clone(data)
		}
	}
	_, u, err := a.Read(usage)
	return r.decision, text, u.Cached, err
}

// TestAgentsFindTheirCaches: conversations of twelve turns by both APIs of agents, beside each other through four engines, find their
// prompts cached in every turn but the first, on one worker each, and engines serve the tokens from caches that routers promised.
func TestAgentsFindTheirCaches(t *testing.T) {
	t.Parallel()
	const turns = 12
	g := up(t, "--workers", "4")
	agents := []talks.API{talks.Messages(instructions("the lighthouse of Ushant")), talks.Responses(instructions("the harbour of Brest"))}

	var all sync.WaitGroup
	for _, a := range agents {
		all.Go(func() {
			var history []any
			promised, served := 0, 0
			workers := map[string]bool{}
			for turn := range turns {
				history = append(history, a.User(fmt.Sprintf("Question %d: what do the records say of year %d?", turn, 1900+turn))...)
				id, text, cached, err := g.askTurn(&a, history, turn%2 == 1, nil)
				if err != nil || text == "" {
					t.Errorf("%s, turn %d: %q, %v", a.Path, turn, text, err)
					return
				}
				d := g.decision(id)
				workers[d.Worker] = true
				promised += d.Overlap * d.BlockSize
				served += cached
				if turn > 0 && cached < d.PromptTokens*9/10 {
					t.Errorf("%s, turn %d: %d of %d tokens cached", a.Path, turn, cached, d.PromptTokens)
				}
				history = append(history, a.Answer(text)...)
				if turn%3 == 2 {
					history = append(history, a.Used(fmt.Sprint("call_", turn), "The records are silent.")...)
				}
			}
			if len(workers) != 1 {
				t.Errorf("%s: its turns were served by %v", a.Path, workers)
			}
			if least, most := min(promised, served), max(promised, served); least*100 < most*99 {
				t.Errorf("%s: %d tokens were promised and %d served from caches", a.Path, promised, served)
			}
		})
	}
	all.Wait()

	for _, reason := range []string{"part", "field", "tool", "form", "engine", "harmony"} {
		if n := g.metric("stator_route_unread_requests_total", `reason="`+reason+`"`); n != 0 {
			t.Errorf("%g requests were not read: %s", n, reason)
		}
	}
	g.assertServed(turns * len(agents))
}
