package tiers

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// The parameters of engines, tiers and conversations, with their sources. They were committed before the first comparison.

// blockTokens is the size of a block, in tokens.
const blockTokens = 64

// llama70B is Llama-3.1-70B in FP8: sizes of its configuration on Hugging Face, of which a KV cache of 16 bits follows: 80 layers, keys
// and values of 8 heads of 128 numbers each.
var llama70B = perfmodel.Weights{Parameters: 70.6e9, Active: 70.6e9, Bytes: 1, KVBytes: 327680, Layers: 80, Hidden: 8192, Attention: 8192}

// gpu is the accelerator of an engine, by its data sheet.
const gpu = "H200"

// The tiers of one GPU of a p5en.48xlarge: 2 TiB of memory and 8 SSDs of 3.84 TB for 8 GPUs.
//
//	hostBandwidth   54 GB/s were measured from the host to a GPU by PCIe of the fifth generation with vLLM's offloading (the
//	                repository gahow/agentic-kvc), of 64 GB/s of the standard
//	disk            data sheet of Micron's 7450 PRO of 3.84 TB: sequential reads of 6.8 GB/s and writes of 5.3 GB/s, latency 80 µs
//	loadLatency     of one load: vLLM's scheduler sees that it has ended in the pass that follows. A pass of this model lasts 15 ms
const (
	hostBytes      = 256e9
	hostBandwidth  = 54e9
	diskBytes      = 3.84e12
	diskReads      = 6.8e9
	diskWrites     = 5.3e9
	diskLatency    = 80 * time.Microsecond
	loadLatency    = 15 * time.Millisecond
	maxBatchTokens = 8192 // vLLM's default of max_num_batched_tokens for a server
	maxSeqs        = 256  // and of max_num_seqs
)

// conversations are users who each have a conversation of several turns. A prompt is all of the conversation so far.
type conversations struct {
	users, turns int
	// Numbers of tokens: of the first prompt, of the question that each further turn adds, and of an answer.
	first, question, answer int
	// pause is the mean time from an answer to the next question. Answers are assumed to take 20 ms a token.
	pause time.Duration
}

// shape is the conversations of the published claim (80 users with 10 turns each). It does not give lengths and pauses. We
// chose them as in chats with a document of two pages, and of a user who reads and writes for half a minute.
var shape = conversations{users: 80, turns: 10, first: 2048, question: 256, answer: 256, pause: 30 * time.Second}

// best has the conversations for which a cache behind the GPU's saves most: few users with long documents, who come back
// when others have evicted them.
var best = conversations{users: 16, turns: 10, first: 32768, question: 64, answer: 64, pause: 120 * time.Second}

// shapes are the kinds of conversations that are compared. Those with longer pauses were added after the first comparison: without
// tiers the engine cannot serve the others, so their times would measure a queue.
var shapes = []struct {
	name string
	conversations
}{
	{"the published shape", shape},
	{"the published shape, longer pauses", shape.withPause(120 * time.Second)},
	{"the best case", best},
	{"the best case, longer pauses", best.withPause(600 * time.Second)},
}

// withPause returns the conversations with another pause.
func (c conversations) withPause(d time.Duration) conversations {
	c.pause = d
	return c
}

const perToken = 20 * time.Millisecond

// source returns the requests of all users, who begin at random within a pause and two times of a turn.
func (c *conversations) source(seed uint64) trace.Source {
	rng := rand.New(rand.NewPCG(seed, 17))
	var all []trace.Arrival
	next := uint64(1)
	fresh := func(tokens int) (ids []uint64) {
		for range tokens / blockTokens {
			ids = append(ids, next)
			next++
		}
		return ids
	}

	for range c.users {
		ids := fresh(c.first)
		at := time.Duration(rng.Float64() * float64(2*c.pause))
		for range c.turns {
			all = append(all, trace.Arrival{
				At:     at,
				Prompt: trace.Blocks{IDs: slices.Clone(ids), Size: blockTokens, Length: len(ids) * blockTokens},
				Output: c.answer,
			})
			// The answer's blocks are not those that the engine has computed, so they are computed again with the next question. Real
			// engines find them.
			ids = append(ids, fresh(c.answer+c.question)...)
			at += time.Duration(c.answer)*perToken + time.Duration(rng.ExpFloat64()*float64(c.pause))
		}
	}
	slices.SortStableFunc(all, func(a, b trace.Arrival) int { return cmp.Compare(a.At, b.At) })
	return trace.List(all)
}

// setting is the tiers of an engine.
type setting struct {
	host, bandwidth float64 // bytes, and bytes per second; 0 means no tiers
	disk            bool
	all             bool // load whatever is there
}

// engine returns the engine of a setting.
func (s *setting) engine() (engine.Config, error) {
	g, err := perfmodel.FindGPU(gpu)
	if err != nil {
		return engine.Config{}, err
	}
	timing := perfmodel.Roofline{Model: llama70B, GPU: g}
	blockBytes := llama70B.KVBytes * blockTokens
	out := engine.Config{
		Blocks: timing.KVTokens() / blockTokens, BlockSize: blockTokens, MaxNumSeqs: maxSeqs, MaxNumBatchedTokens: maxBatchTokens,
		Timing: timing, LoadAll: s.all,
	}

	per := func(bandwidth float64) time.Duration { return time.Duration(blockBytes / bandwidth * 1e9) }
	if s.host > 0 {
		out.Tiers = append(out.Tiers, engine.Tier{
			Tier: fleet.Host, Blocks: int(s.host / blockBytes), Read: per(s.bandwidth), Write: per(s.bandwidth), Latency: loadLatency,
		})
	}
	if s.disk {
		out.Tiers = append(out.Tiers, engine.Tier{
			Tier: fleet.Disk, Blocks: int(diskBytes / blockBytes), Read: per(diskReads), Write: per(diskWrites),
			Latency: loadLatency + diskLatency,
		})
	}
	return out, nil
}

// play plays conversations on one engine of a setting. later is the mean time to first token of all turns but the first, in
// milliseconds.
func play(c *conversations, s *setting, seed uint64) (r *sim.Result, later float64, err error) {
	e, err := s.engine()
	if err != nil {
		return nil, 0, err
	}
	turns := 0
	r, err = sim.Run(sim.Config{
		Workers: 1, Engine: e, FirstTokens: true, Seed: seed,
		Ended: func(o sim.Outcome) {
			if o.Prompt > c.first {
				turns++
				later += (o.First - o.At).Seconds() * 1e3
			}
		},
	}, c.source(seed))
	return r, later / float64(max(1, turns)), err
}
