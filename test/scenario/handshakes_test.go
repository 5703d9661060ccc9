package scenario

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// fleetWith starts two engines that prefill and two that decode, with one transfer.
func fleetWith(t *testing.T, transfer string) *gateway {
	return up(t, "--config", configFile(t, fmt.Sprintf(`
models:
- name: sim
  path: "builtin:sim"
  router: {prefill: remote}
  launch:
  - {engine: sim, role: prefill, count: 2, args: {transfer: %s}}
  - {engine: sim, role: decode, count: 2, args: {transfer: %s}}
`, transfer, transfer)))
}

// handshakeChats are conversations whose prompts have several blocks.
func handshakeChats() (all [][]message) {
	for i := range 4 {
		all = append(all, []message{{"user", fmt.Sprintf("%d is the number of a chat about %s", i, strings.Repeat("handshakes of engines ", 20))}})
	}
	return all
}

// TestHandshakes: with each transfer, prompts are computed by prefill workers and decoded by others. The answers are those of one
// engine, and nothing stays booked or kept.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	whole := up(t, "--config", configFile(t, `
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim}]
`))
	var want []string
	for _, chat := range handshakeChats() {
		want = append(want, whole.chat(chat, 8).text)
	}

	for _, transfer := range []string{"nixl", "p2p", "bootstrap", "context"} {
		t.Run(transfer, func(t *testing.T) {
			g := fleetWith(t, transfer)
			prompts := 0
			for i, chat := range handshakeChats() {
				r := g.chat(chat, 8)
				prompts += r.usage.PromptTokens
				if r.text != want[i] {
					t.Errorf("%q, want %q", r.text, want[i])
				}
				if d := g.decision(r.decision); !slices.Contains(decodeWorkers, d.Worker) {
					t.Errorf("%s has answered", d.Worker)
				}
			}
			stream := `{"model":"sim","prompt":"a stream of words","stream":true,"max_tokens":4}`
			r, err := g.send(t.Context(), http.MethodPost, "/v1/completions", []byte(stream))
			if err != nil || r.status != http.StatusOK {
				t.Errorf("%d %s, %v", r.status, r.body, err)
			}

			n := len(want) + 1
			g.awaitPrefills("transferred", float64(n))
			fetched, computed := g.engines(decodeWorkers, "vllm:prompt_tokens_by_source_total"), g.engines(decodeWorkers, "vllm:prompt_tokens_total")
			// A p2p tier transfers complete blocks, and the decode worker computes the rest.
			if rest := float64(16 * n); fetched < float64(prompts)-rest || computed > rest || computed > 0 && transfer != "p2p" {
				t.Errorf("decode workers have fetched %g tokens of %d, and computed %g", fetched, prompts, computed)
			}
			g.assertServed(n)
			g.assertNothingBooked()
			if transfer == "p2p" {
				return // a decode worker that holds a prompt fetches nothing, and the blocks are kept for a minute
			}
			eventually(t, "no blocks are kept", func() error {
				if used := g.engines(append(slices.Clone(prefillWorkers), decodeWorkers...), "vllm:kv_cache_usage_perc"); used != 0 {
					return fmt.Errorf("%g of the caches", used)
				}
				return nil
			})
		})
	}
}

// TestLargeStreamsHoldNoBudget: 13 clients read long answers to bodies that together exceed what the relay may hold. The bodies are
// freed when the answers begin, so the requests of others are all served meanwhile.
func TestLargeStreamsHoldNoBudget(t *testing.T) {
	t.Parallel()
	const streams, others = 13, 20
	for _, transfer := range []string{"p2p", "nixl"} {
		t.Run(transfer, func(t *testing.T) {
			g := up(t, "--config", configFile(t, fmt.Sprintf(`
gateway: {maxBodyBytes: 1048576, maxBodiesBytes: 4194304}
models:
- name: sim
  path: "builtin:sim"
  router: {prefill: remote}
  launch:
  - {engine: sim, role: prefill, args: {transfer: %s, engineSpeedup: 0.5}}
  - {engine: sim, role: decode, args: {transfer: %s, engineSpeedup: 0.5}}
`, transfer, transfer)))

			g.http = &http.Client{Transport: client.Transport} // the streams may last longer than patience
			body, err := json.Marshal(map[string]any{"model": "sim", "stream": true, "max_tokens": 50_000, "ignore_eos": true,
				"prompt": strings.Repeat("a long answer ", 20), "padding": strings.Repeat("x", 900_000)})
			if err != nil {
				t.Fatal(err)
			}
			var answers []*http.Response
			for range streams {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/v1/completions", strings.NewReader(string(body)))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("content-type", "application/json")
				resp, err := g.do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = resp.Body.Close() }()
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("stream %d: %s", len(answers)+1, resp.Status)
				}
				answers = append(answers, resp)
			}

			for i := range others {
				if r := g.complete("sim", fmt.Sprintf("%d is another request", i)); r.status != http.StatusOK {
					t.Errorf("request %d: %d %s", i, r.status, r.body)
				}
			}
			if n := g.metric("stator_route_bookings"); n < streams {
				t.Errorf("%g of %d streams are still read", n, streams)
			}
			for _, resp := range answers {
				_ = resp.Body.Close()
			}
			g.assertNothingBooked()
		})
	}
}
