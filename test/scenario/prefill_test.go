package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

var (
	prefillWorkers = []string{"sim-0", "sim-1"}
	decodeWorkers  = []string{"sim-2", "sim-3"}
)

// splitFleet starts two engines that prefill and two that decode.
func splitFleet(t *testing.T) *gateway {
	return up(t, "--config", configFile(t, `
models:
- name: sim
  path: "builtin:sim"
  router: {prefill: remote}
  launch: [{engine: sim, role: prefill, count: 2}, {engine: sim, role: decode, count: 2}]
`))
}

// engines sums a metric over the engines of these workers.
func (g *gateway) engines(workers []string, name string) (sum float64) {
	g.t.Helper()
	for _, r := range g.fleet() {
		if !slices.Contains(workers, r.Worker) {
			continue
		}
		page, err := get("http://" + r.Address + "/metrics")
		if err != nil {
			g.t.Fatal(err)
		}
		sum += sample(page, name)
	}
	return sum
}

func (g *gateway) prefills(outcome string) float64 {
	g.t.Helper()
	return g.metric("stator_extproc_prefills_total", `outcome="`+outcome+`"`)
}

// awaitPrefills waits until so many prefills have that outcome. A leg may end after the client has its answer.
func (g *gateway) awaitPrefills(outcome string, n float64) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%g prompts are %s", n, outcome), func() error {
		if got := g.prefills(outcome); got != n {
			return fmt.Errorf("%g are", got)
		}
		return nil
	})
}

// TestPrefillAndDecode: prefill workers compute the prompts, and decode workers fetch and decode them. The next turn of a
// conversation goes to the prefill worker that has computed the turns before.
func TestPrefillAndDecode(t *testing.T) {
	t.Parallel()
	g := splitFleet(t)
	const conversations, turns = 4, 3
	prompts := 0
	for i := range conversations {
		talk := []message{{"user", fmt.Sprintf("%d is the number of a conversation about %s", i, strings.Repeat("prefill and decode ", 20))}}
		for turn := range turns {
			r := g.chat(talk, 8)
			prompts += r.usage.PromptTokens
			if d := g.decision(r.decision); !slices.Contains(decodeWorkers, d.Worker) {
				t.Errorf("%s has answered", d.Worker)
			}
			first := g.decision(r.decision + "-prefill0")
			if !slices.Contains(prefillWorkers, first.Worker) || (first.Overlap > 0) != (turn > 0) {
				t.Errorf("turn %d: %+v", turn, first)
			}
			// The decode worker has computed nothing of the prompt, so the client gets the prefill worker's number.
			if cached, err := strconv.Atoi(r.header.Get("x-stator-cached-tokens")); err != nil || (cached > 0) != (turn > 0) {
				t.Errorf("turn %d: %q tokens are cached, %v", turn, r.header.Get("x-stator-cached-tokens"), err)
			}
			talk = append(talk, message{"assistant", r.text}, message{"user", "go on"})
			g.awaitIdle() // otherwise load would count, too
		}
	}

	const all = conversations * turns
	g.awaitPrefills("transferred", all)
	if n := g.engines(decodeWorkers, "vllm:prompt_tokens_by_source_total"); n != float64(prompts) {
		t.Errorf("decode workers have fetched %g tokens of %d", n, prompts)
	}
	if n := g.engines(decodeWorkers, "vllm:prompt_tokens_total"); n != 0 {
		t.Errorf("decode workers have computed %g tokens of prompts", n)
	}
	if n := g.engines(prefillWorkers, "vllm:generation_tokens_total"); n != all {
		t.Errorf("prefill workers have made %g tokens for %d prompts", n, all)
	}

	// A stream, and a request that cannot be split.
	for body, split := range map[string]float64{
		`{"model":"sim","prompt":"a stream of words","stream":true,"max_tokens":4}`: 1,
		`{"model":"sim","prompt":"two answers","n":2,"max_tokens":4}`:               0,
	} {
		before := g.prefills("transferred")
		r, err := g.send(t.Context(), http.MethodPost, "/v1/completions", []byte(body))
		if err != nil || r.status != http.StatusOK {
			t.Errorf("%s: %d %s, %v", body, r.status, r.body, err)
		}
		g.awaitPrefills("transferred", before+split)
	}
	g.assertServed(all + 2)
	for _, workers := range [][]string{prefillWorkers, decodeWorkers} {
		eventually(t, "no blocks are kept", func() error {
			if used := g.engines(workers, "vllm:kv_cache_usage_perc"); used != 0 {
				return fmt.Errorf("%v keep blocks: %g", workers, used)
			}
			return nil
		})
	}
}

// TestAnswerWithoutTokenAfterTransfer: after a transfer that leaves an empty answer, the next turns of the conversation do not go to the
// prefill worker that has computed the turns before, but to the other one.
func TestAnswerWithoutTokenAfterTransfer(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, `
models:
- name: sim
  path: "builtin:sim"
  router: {prefill: remote}
  launch: [{engine: sim, role: prefill, count: 2}, {engine: sim, role: decode, count: 1}]
`))
	talk := []message{{"user", strings.Repeat("prefill and decode ", 50)}}
	first := g.decision(g.chat(talk, 4).decision + "-prefill0").Worker
	g.awaitIdle() // otherwise load would count, too
	if again := g.decision(g.chat(talk, 4).decision + "-prefill0").Worker; again != first {
		t.Fatalf("the prompt goes to %s and then to %s", first, again)
	}
	g.awaitIdle()

	for _, r := range g.fleet() {
		if r.Worker == decodeWorkers[0] {
			resp, err := http.Post("http://"+r.Address+"/lose_answer", "", nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
		}
	}
	lost, err := g.tryChat(t.Context(), talk, 4)
	if err != nil || lost.body != "" || g.decision(lost.decision+"-prefill0").Worker != first {
		t.Fatalf("%q, %v", lost.body, err)
	}
	eventually(t, "the empty answer counts", func() error {
		if n := g.metric("stator_extproc_transfer_empty_answers_total"); n != 1 {
			return fmt.Errorf("%g empty answers", n)
		}
		return nil
	})
	for range 3 {
		if other := g.decision(g.chat(talk, 4).decision + "-prefill0").Worker; other == first || !slices.Contains(prefillWorkers, other) {
			t.Errorf("the prompt goes to %q", other)
		}
	}
	if n := g.metric("stator_extproc_transfer_empty_answers_total"); n != 1 {
		t.Errorf("%g empty answers", n)
	}
}

// TestPrefillWorkersDie: prefill workers die one after the other, each with requests that it has not answered. Every request is answered:
// by the other prefill worker, or by decode workers alone.
func TestPrefillWorkersDie(t *testing.T) {
	t.Parallel()
	g := splitFleet(t)
	const each = 6
	number := 0
	ask := func() (wait func()) {
		var all sync.WaitGroup
		for range each {
			number++
			prompt := fmt.Sprintf("%d %s", number, strings.Repeat("words of a prompt ", 20))
			all.Go(func() {
				if _, err := g.tryChat(t.Context(), []message{{"user", prompt}}, 4); err != nil {
					t.Error(err)
				}
			})
		}
		return all.Wait
	}

	ask()()
	for _, worker := range prefillWorkers {
		// A stopped engine accepts requests and answers none.
		pid := childWith(t, g.up.cmd.Process.Pid, worker)
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		wait := ask()
		eventually(t, worker+" has requests", func() error {
			for _, r := range g.fleet() {
				if r.Worker == worker && r.Booked > 0 {
					return nil
				}
			}
			return errNotYet
		})
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wait()
	}
	g.assertServed(number)
	if g.prefills("transferred") < each || g.prefills("unreachable")+g.prefills("failed") == 0 {
		t.Errorf("%g prompts were transferred, %g prefill workers were unreachable, and %g failed",
			g.prefills("transferred"), g.prefills("unreachable"), g.prefills("failed"))
	}
}

// TestClientsLeaveDuringPrefill: the prefill of a client that leaves is cancelled, and nothing stays booked.
func TestClientsLeaveDuringPrefill(t *testing.T) {
	t.Parallel()
	g := splitFleet(t)
	for _, worker := range prefillWorkers {
		pid := childWith(t, g.up.cmd.Process.Pid, worker)
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	}

	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := g.tryChat(ctx, []message{{"user", "a client that leaves"}}, 4)
		left <- err
	}()
	eventually(t, "both workers are booked", func() error {
		if n := g.metric("stator_route_bookings"); n != 2 {
			return fmt.Errorf("%g bookings", n)
		}
		return nil
	})
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	g.assertNothingBooked()
	g.awaitPrefills("cancelled", 1)
}
