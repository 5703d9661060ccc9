package rivals

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/pick"
)

// engine is a candidate as a test describes it.
type engine struct {
	requests, waiting int
	usage             float64
	held              int // blocks of the prompt, by KV events
}

// candidates makes ranks a, b, and so on.
func candidates(engines ...engine) []pick.Candidate {
	list := make([]pick.Candidate, len(engines))
	for i, e := range engines {
		load := &fleet.Load{}
		load.Add(fleet.Amount{Requests: int64(e.requests)}, time.Time{})
		load.SetReport(fleet.Report{Waiting: e.waiting, KVUsage: e.usage}, &fleet.Worker{})
		list[i].Rank = &fleet.Rank{Worker: &fleet.Worker{Name: string(rune('a' + i))}, Load: load}
		list[i].Facts.Overlap[fleet.Device] = e.held
		list[i].Facts.Capacity = 1000
	}
	return list
}

// blocks returns the blocks from to to−1 of a prompt.
func blocks(from, to int) (list []blockhash.Sequence) {
	for i := from; i < to; i++ {
		list = append(list, blockhash.Sequence(i))
	}
	return list
}

// step is a prompt, and the candidate that must be chosen for it.
type step struct {
	name    string
	engines []engine
	prompt  []blockhash.Sequence
	want    int
}

// play chooses for each step in turn. Every choice must have one answer, so each is made by several random sources.
func play(t *testing.T, policy func() pick.Policy, steps []step) {
	t.Helper()
	for seed := range uint64(20) {
		p, rng := policy(), rand.New(rand.NewPCG(seed, 1))
		for _, s := range steps {
			if got := p.Choose(candidates(s.engines...), &pick.Request{Blocks: s.prompt}, rng); got != s.want {
				t.Fatalf("seed %d, %s: chose %d, want %d", seed, s.name, got, s.want)
			}
		}
	}
}

func TestLLMD(t *testing.T) {
	play(t, func() pick.Policy { return NewLLMD() }, []step{
		// 2·(4−0)/4 + 2·(1−0.5) = 3 against 2·(4−4)/4 + 2·1 = 2.
		{"the queue", []engine{{waiting: 4}, {waiting: 0, usage: 0.5}}, blocks(0, 10), 1},
		// b has all blocks: 3 + 0 + 2·0.4 = 3.8 against 2 + 2·0.85 = 3.7.
		{"the prefix", []engine{{waiting: 0, usage: 0.15}, {waiting: 9, usage: 0.6}}, blocks(0, 10), 1},
		// b has 6 of 10 blocks: 1.8 + 0.8 = 2.6 against 3.7.
		{"a part of it", []engine{{waiting: 0, usage: 0.15}, {waiting: 9, usage: 0.6}}, append(blocks(0, 6), blocks(50, 54)...), 0},
		// a has the prompt of the step before: 3 + 2 + 2·0.1 = 5.2; b has 6 of 10 blocks: 1.8 + 2 + 2·0.5 = 4.8.
		{"both parts", []engine{{usage: 0.9}, {usage: 0.5}}, append(blocks(0, 6), blocks(50, 54)...), 0},
		{"requests of the router do not count", []engine{{requests: 50}, {usage: 0.1}}, blocks(70, 80), 0},
	})
	play(t, func() pick.Policy { return NewLLMDPrecise() }, []step{
		// 2·0.5 + 1 + 1 = 3 against 0 + 1 + 1.
		{"the cache by events", []engine{{}, {held: 5}}, blocks(0, 10), 1},
		{"not the prompts that were sent", []engine{{}, {usage: 0.1}}, blocks(0, 10), 0},
	})
	play(t, func() pick.Policy { return NewLLMDLoadAware() }, []step{
		// 0.5 against 0.5·(1 − 64/128).
		{"64 wait", []engine{{waiting: 64}, {}}, blocks(0, 10), 1},
		// 1 + 0.25 against 0.5.
		{"64 wait where the prompt is", []engine{{}, {waiting: 64}}, blocks(0, 10), 1},
	})
	play(t, func() pick.Policy { return NewLLMDActive() }, []step{
		{"own requests", []engine{{requests: 3}, {requests: 2}, {requests: 4}}, blocks(0, 10), 1},
	})
}

// TestLLMDForgets fills the index of a worker: the blocks that were sent first are forgotten first, and only there.
func TestLLMDForgets(t *testing.T) {
	p, rng := NewLLMD(), rand.New(rand.NewPCG(1, 1))
	send := func(prompt []blockhash.Sequence) {
		list := candidates(engine{})
		list[0].Facts.Capacity = 12
		p.Choose(list, &pick.Request{Blocks: prompt}, rng)
	}
	matched := func(prompt []blockhash.Sequence) int {
		list := candidates(engine{})
		p.match(list, prompt)
		return p.matchedOf(&list[0])
	}

	send(blocks(0, 10))
	send(blocks(20, 25))
	if got := matched(blocks(20, 25)); got != 5 {
		t.Errorf("%d blocks of the last prompt match, want 5", got)
	}
	if got := matched(blocks(3, 10)); got != 7 {
		t.Errorf("%d blocks of the end of the first prompt match, want 7", got)
	}
	if got := matched(blocks(0, 10)); got != 0 {
		t.Errorf("%d blocks match behind a forgotten one, want 0", got)
	}
	if len(p.holders) != 12 {
		t.Errorf("the index has %d blocks, want 12", len(p.holders))
	}
}

func TestSMG(t *testing.T) {
	play(t, func() pick.Policy { return NewSMG() }, []step{
		{"the least load", []engine{{requests: 2}, {requests: 1}}, blocks(0, 10), 1},
		{"the match, though its load is higher", []engine{{}, {requests: 60}}, blocks(0, 10), 1},
		{"a match of 3 of 10 blocks is too short", []engine{{}, {requests: 60}}, append(blocks(0, 3), blocks(50, 57)...), 0},
		{"a match of 4 of 10 blocks suffices", []engine{{}, {requests: 60}}, append(blocks(0, 4), blocks(60, 66)...), 1},
		{"65 more than none is imbalanced", []engine{{}, {requests: 65}}, blocks(0, 10), 0},
		{"1.4 times as many is not", []engine{{requests: 250}, {requests: 350}}, blocks(0, 4), 1},
		// a has had two requests and b four.
		{"of equal loads the worker with fewer requests so far", []engine{{requests: 1}, {requests: 1}, {requests: 1}}, blocks(80, 90), 2},
	})
	play(t, func() pick.Policy { return &SMG{Threshold: 0.3, Abs: 64, Rel: 1.5, Events: true} }, []step{
		{"most blocks", []engine{{held: 3}, {held: 4, requests: 9}, {}}, blocks(0, 10), 1},
		{"of equal ones less load", []engine{{held: 4, requests: 3}, {held: 4, requests: 2}, {}}, blocks(0, 10), 1},
		{"no blocks", []engine{{requests: 3}, {requests: 2}, {requests: 1}}, blocks(0, 10), 2},
	})
}

// TestSMGOfAWorkerThatLeft sends a prompt to a worker that is no candidate any more: the first one is taken, and the tree stays.
func TestSMGOfAWorkerThatLeft(t *testing.T) {
	p, rng := NewSMG(), rand.New(rand.NewPCG(1, 1))
	all := candidates(engine{requests: 1}, engine{requests: 1}, engine{})
	asked := &pick.Request{Blocks: blocks(0, 10)}
	for _, s := range []struct {
		list []pick.Candidate
		want int
	}{{all, 2}, {all[:2], 0}, {all, 2}} {
		if got := p.Choose(s.list, asked, rng); got != s.want {
			t.Errorf("chose %d of %d, want %d", got, len(s.list), s.want)
		}
	}
}

func TestAIBrix(t *testing.T) {
	play(t, func() pick.Policy { return NewAIBrix() }, []step{
		{"the fewest requests", []engine{{requests: 2}, {requests: 1}, {requests: 2}}, blocks(0, 10), 1},
		// Mean 2.33, deviation of the sample 1.53: b may have 3.86 requests.
		{"a match beyond the deviation", []engine{{requests: 1}, {requests: 4}, {requests: 2}}, blocks(0, 10), 0},
		// Now a and b match. Mean 3, deviation 2: both are within, and a has fewer requests.
		{"of equal matches fewer requests", []engine{{requests: 3}, {requests: 5}, {requests: 1}}, blocks(0, 10), 0},
		{"matches of a part", []engine{{requests: 2}, {requests: 3}, {requests: 1}}, append(blocks(0, 5), blocks(50, 55)...), 0},
		{"the longer match", []engine{{requests: 1}, {requests: 1}, {requests: 1}}, append(blocks(0, 5), blocks(50, 55)...), 0},
		{"9 more is imbalanced: matches of others do not count", []engine{{requests: 9}, {requests: 9}, {}}, blocks(0, 10), 2},
		{"8 more is not", []engine{{requests: 3}, {requests: 8}, {}}, append(blocks(0, 5), blocks(50, 55)...), 0},
	})
	play(t, func() pick.Policy { return &AIBrix{Imbalance: 8, Factor: 1, Events: true} }, []step{
		{"a block of 200 is a match of 0 %, and counts", []engine{{}, {held: 1}}, blocks(0, 200), 1},
		{"the longest match", []engine{{held: 50}, {held: 100, requests: 1}, {requests: 1}}, blocks(0, 200), 1},
	})
}

// TestAIBrixForgets fills the index, which all workers share.
func TestAIBrixForgets(t *testing.T) {
	p, rng := &AIBrix{Imbalance: 8, Factor: 1, Capacity: 12}, rand.New(rand.NewPCG(1, 1))
	choose := func(prompt []blockhash.Sequence, idlest int) int {
		engines := []engine{{requests: 1}, {requests: 1}}
		engines[idlest].requests = 0
		return p.Choose(candidates(engines...), &pick.Request{Blocks: prompt}, rng)
	}
	choose(blocks(0, 10), 0)
	choose(blocks(20, 25), 1)
	if got := choose(blocks(0, 10), 1); got != 1 {
		t.Errorf("a prompt whose first blocks are forgotten went to %d, want the idlest, 1", got)
	}
	if len(p.holders) != 12 {
		t.Errorf("the index has %d blocks, want 12", len(p.holders))
	}
}
