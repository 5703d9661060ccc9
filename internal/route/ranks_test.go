package route_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// response returns a request to the Responses API, of which vLLM chooses the rank.
func response(text string) *request.Request {
	req := batchOf(1, text)
	req.Endpoint, req.Parsed.Endpoint = prompt.Responses, prompt.Responses
	return req
}

// ranksOfOne returns a router with one vLLM that has two ranks behind its address.
func ranksOfOne(t *testing.T) (*route.Router, []fleet.Rank, *kvindex.Index) {
	t.Helper()
	x := kvindex.New(kvindex.Config{MaxBytes: 16 << 20})
	f := fleet.New(fleet.Hooks{RankGone: x.Drop})
	if _, err := f.Put(fleet.Worker{
		Name: "dp", Model: "sim", Engine: "vllm", Address: "10.0.0.1:8000", Ranks: 2, State: fleet.Ready, KVEvents: "tcp://x:1",
	}); err != nil {
		t.Fatal(err)
	}
	r := route.New(route.Config{Seed: 1}, f, x)
	if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: letters{}, BlockSize: 16}}); err != nil {
		t.Fatal(err)
	}
	return r, f.Snapshot().Ranks, x
}

// TestEngineChoosesRank: conversations go on as completions and as responses. The engine computes a completion on the picked rank, and a
// response on any. A completion gets the promise of its rank, and a response the least of all ranks.
func TestEngineChoosesRank(t *testing.T) {
	r, ranks, x := ranksOfOne(t)
	var prompts [2][]string // that each rank has computed
	cached := func(rank int, text string) (tokens int) {
		for _, old := range prompts[rank] {
			n := 0
			for n < min(len(old)/16*16, len(text)-1) && old[n] == text[n] {
				n++
			}
			tokens = max(tokens, n/16*16)
		}
		return tokens
	}

	rng, now := rand.New(rand.NewPCG(5, 5)), start
	talks := make([]string, 5)
	hits, responses := 0, 0
	for range 400 {
		talk := &talks[rng.IntN(len(talks))]
		if len(*talk) > 900 {
			*talk = ""
		}
		for range 20 + rng.IntN(60) {
			*talk += string(rune('a' + rng.IntN(26)))
		}

		now = now.Add(time.Second)
		req := batchOf(1, *talk)
		isResponse := rng.IntN(2) == 0
		if isResponse {
			req = response(*talk)
			responses++
		}
		d := r.Decide(req, now)
		if d.Outcome != decision.Picked {
			t.Fatal(d)
		}
		rank, want := d.Rank, cached(d.Rank, *talk)
		if isResponse {
			rank, want = rng.IntN(2), min(cached(0, *talk), cached(1, *talk))
			hits += min(1, d.Cached)
		}
		if d.Cached != want {
			t.Fatalf("%d of %d tokens are promised, want %d\n%v", d.Cached, len(*talk), want, d)
		}
		if booking, ok := r.Booking(d.ID); !ok || int(booking.Cached) != want || int(booking.Certain) != want {
			t.Fatalf("the booking promises %d tokens, %d of them certain; want %d", booking.Cached, booking.Certain, want)
		}
		if got := strings.Contains(d.String(), "the engine of dp chooses the rank"); got != isResponse {
			t.Errorf("it is %v that the engine chooses the rank:\n%v", got, d)
		}
		report(x, ranks[rank], *talk)
		r.SettlePrefills(now.Add(time.Millisecond))
		r.End(d.ID, now.Add(2*time.Millisecond))
		prompts[rank] = append(prompts[rank], *talk)
	}
	if hits < 50 || responses < 100 {
		t.Errorf("%d of %d responses were promised tokens", hits, responses)
	}
	if n := r.Promised(); n != 0 {
		t.Errorf("%d promises are left", n)
	}
}

// TestRanksAsOne: the cost of a response has the mean of the blocks of all ranks, and no prefill of it teaches how fast the picked rank is.
func TestRanksAsOne(t *testing.T) {
	r, ranks, x := ranksOfOne(t)
	text := strings.Repeat("all work and no play ", 32) // 42 blocks
	report(x, ranks[1], text)
	d := r.Decide(response(text), start)
	for _, c := range d.Candidates {
		if c.Overlap[fleet.Device] != 21 || c.Score.Uncached != len(text)-21*16 {
			t.Errorf("rank %d is judged by %v blocks\n%v", c.Rank, c.Overlap, d)
		}
	}
	if d.Cached != 0 {
		t.Errorf("%d tokens are promised", d.Cached)
	}

	now := start
	for i := range 50 {
		text := strings.Repeat("no play ", 30+i)
		d := r.Decide(response(text), now)
		now = now.Add(12 * time.Millisecond)
		report(x, ranks[d.Rank], text)
		r.SettlePrefills(now)
		r.End(d.ID, now)
	}
	if got := r.Speeds()[learned.WorkerClass{Model: "sim", Engine: "vllm"}].Prefill; got.Observed != 0 {
		t.Errorf("the router has learned from responses: %s", got)
	}
}

// TestSpeculationNeedsRank: the next response may be computed on any rank, so that none computes its prefix before. The next message is
// computed on the rank that is picked.
func TestSpeculationNeedsRank(t *testing.T) {
	for endpoint, want := range map[prompt.Endpoint]route.Speculation{prompt.Responses: route.SpeculationBusy, prompt.Messages: route.SpeculationBooked} {
		r, _, _ := ranksOfOne(t)
		req := batchOf(1, strings.Repeat("x", 64))
		req.Endpoint = endpoint
		if _, made := r.Speculate(req, start); made != want {
			t.Errorf("%v: %v, want %v", endpoint, made, want)
		}
	}
}
