package planner

import (
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/lab/renewal"
	"github.com/stator-project/stator/test/lab/tracefiles"
)

// The rows of --held-out. Their loads, engines, targets and start-up times were chosen, and committed, before any planner had played one
// of them. They are for a check of the planner's defaults alone. A set that was looked at is no longer held out: the planner may be changed
// by it, and the next set shows whether the change serves other loads too. docs/results/benchmarks.md has the looks.

// heldOut is a row.
type heldOut struct {
	workload
	startUp time.Duration
}

// heldOutSets are the sets of rows by name, in the order in which they were committed. Each set that is drawn was fixed after the one
// before it had been played. The seeds of the fourth to the seventh are the first, from 4, 31, 61 and 71 on, with which every row has
// 4,000 to 30,000 requests.
var heldOutSets = []struct {
	name string
	rows func() ([]heldOut, error)
}{
	{"first", heldOutRows},
	{"second", secondRows},
	{"third", func() ([]heldOut, error) { return drawnRows(thirdText, drawnEngines()[:8], 3) }},
	{"fourth", func() ([]heldOut, error) { return drawnRows(fourthText, drawnEngines()[8:], 23) }},
	{"fifth", func() ([]heldOut, error) { return drawnRows(fifthText, drawnEngines(), 34) }},
	{"sixth", func() ([]heldOut, error) { return drawnRows(sixthText, drawnEngines(), 62) }},
	{"seventh", func() ([]heldOut, error) { return drawnRows(seventhText, drawnEngines(), 73) }},
}

// newHeldOut returns a row, in which planners begin with a fleet.
func newHeldOut(name string, m machine, t capacity.Targets, startUp time.Duration, start fleet, l load) heldOut {
	w := workload{name: name, machine: m, sla: sim.SLA{TTFT: t.TTFT, ITL: t.ITL}, quantile: t.Quantile, start: start}
	w.typical, w.source = l.typical, l.source
	return heldOut{w, startUp}
}

// within returns targets, of which the times are in milliseconds.
func within(ttft, itl time.Duration, quantile float64) capacity.Targets {
	return capacity.Targets{TTFT: ttft * time.Millisecond, ITL: itl * time.Millisecond, Quantile: quantile}
}

// Sizes of models are from their configurations on Hugging Face. Times are rooflines of the GPUs' data sheets.
var (
	llama8         = perfmodel.Weights{Parameters: 8.03e9, Active: 8.03e9, KVBytes: 131072, Layers: 32, Hidden: 4096, Attention: 4096}
	qwen14         = perfmodel.Weights{Parameters: 14.77e9, Active: 14.77e9, KVBytes: 196608, Layers: 48, Hidden: 5120, Attention: 5120}
	mistral24      = perfmodel.Weights{Parameters: 23.6e9, Active: 23.6e9, KVBytes: 163840, Layers: 40, Hidden: 5120, Attention: 4096}
	r1Distill32    = perfmodel.Weights{Parameters: 32.8e9, Active: 32.8e9, KVBytes: 262144, Layers: 64, Hidden: 5120, Attention: 5120}
	qwen30MoE      = perfmodel.Weights{Parameters: 30.5e9, Active: 3.3e9, KVBytes: 98304, Layers: 48, Hidden: 2048, Attention: 4096}
	llama70        = perfmodel.Weights{Parameters: 70.6e9, Active: 70.6e9, KVBytes: 327680, Layers: 80, Hidden: 8192, Attention: 8192}
	longestContext = 131072
)

// on returns the engine of a model on GPUs, with weights of so many bytes. The bench counts caches in blocks of 64 tokens, because some of
// them are small.
func on(gpu string, gpus int, w perfmodel.Weights, bytes float64) machine {
	found, err := perfmodel.FindGPU(gpu)
	if err != nil {
		panic(err) // a name in this file is wrong
	}
	w.Bytes = bytes
	r := perfmodel.Roofline{Model: w, GPU: found, GPUs: gpus}
	return machine{
		name: gpu, timing: r, tokens: r.KVTokens(), kvBytes: int(w.KVBytes), maxSeqs: 256, longest: longestContext, gpus: gpus, block: 64,
	}
}

// heldOutRows returns the first set. Each load has 7,000 to 20,000 requests, so that a row takes minutes: loads of short requests play the
// first half hour or hour of their window. Rates are those that 2 to 6 engines serve in the mean, by internal/plan/capacity.
func heldOutRows() ([]heldOut, error) {
	clients, err := readWindows(clientsText)
	if err != nil {
		return nil, err
	}
	var out []heldOut
	add := func(name string, m machine, t capacity.Targets, startUp time.Duration, start fleet, l load) {
		out = append(out, newHeldOut(name, m, t, startUp, start, l))
	}
	of := clients.load
	both := func(n int) fleet { return fleet{0, n} }

	add("m-large busiest, Llama 70B on 4 A100", on("A100-80GB", 4, llama70, 2), within(1000, 60, 0.9), 5*time.Minute, both(3),
		of("m-large busiest", 6, 40, 1))
	add("m-large rise, R1-Distill 32B on L40S", on("L40S", 1, r1Distill32, 1), within(2000, 80, 0.95), time.Minute, both(3),
		of("m-large rise", 3, 80, 2))
	add("m-mid busiest, Qwen 14B on A10", on("A10", 1, qwen14, 1), within(500, 80, 0.9), 10*time.Second, both(3),
		of("m-mid busiest", 8, 30, 3))
	add("m-mid rise, Mistral 24B on 2 L4", on("L4", 2, mistral24, 1), within(4000, 100, 0.95), 5*time.Minute, both(3),
		of("m-mid rise", 5, 60, 4))
	add("m-small busiest, Llama 8B on L4", on("L4", 1, llama8, 1), within(400, 80, 0.99), 10*time.Second, both(3),
		of("m-small busiest", 8, 30, 5))
	add("m-small rise, Llama 8B in 16 bits on L4", on("L4", 1, llama8, 2), within(1000, 120, 0.95), time.Minute, both(3),
		of("m-small rise", 4, 80, 6))
	add("deepseek-r1 busiest, R1-Distill 32B on L40S", on("L40S", 1, r1Distill32, 1), within(5000, 80, 0.9), time.Minute, both(4),
		of("deepseek-r1 busiest", 1, 120, 7))
	add("deepseek-r1 rise, R1-Distill 14B in 16 bits on L40S", on("L40S", 1, qwen14, 2), within(8000, 60, 0.95), 5*time.Minute, both(4),
		of("deepseek-r1 rise", 1.5, 120, 8))
	add("mm-image busiest, Mistral 24B on L40S", on("L40S", 1, mistral24, 1), within(1500, 100, 0.9), time.Minute, both(2),
		of("mm-image busiest", 4, 60, 9))
	add("mm-image rise, Qwen 14B on L40S", on("L40S", 1, qwen14, 1), within(4000, 60, 0.99), 10*time.Second, both(2),
		of("mm-image rise", 3, 80, 10))

	long := on("A100-80GB", 1, qwen30MoE, 1)
	long.block = blockTokens
	add("Mooncake synthetic, Qwen3 30B-A3B on A100", long, within(6000, 60, 0.9), time.Minute, both(6), load{
		capacity.Shape{Prompt: 15325, Answer: 149, PromptSpread: 1, AnswerSpread: 1, Cached: 0.5}, day(synthetic, 0.5, 11),
	})
	add("BurstGPT's generator, Llama 8B in 16 bits on A10", on("A10", 1, llama8, 2), within(500, 60, 0.9), 10*time.Second, both(2),
		burstGPT(6, 40*time.Minute, 12))

	add("m-large varies, R1-Distill 32B on L40S, apart", on("L40S", 1, r1Distill32, 1), within(2000, 80, 0.9), time.Minute, fleet{2, 2},
		of("m-large varies", 4, 80, 13))
	add("m-mid varies, Mistral 24B on 2 L4, apart", on("L4", 2, mistral24, 1), within(3000, 80, 0.9), 10*time.Second, fleet{2, 1},
		of("m-mid varies", 5, 60, 14))
	add("m-small varies, Llama 8B in 16 bits on L4, apart", on("L4", 1, llama8, 2), within(3000, 100, 0.95), 10*time.Second, fleet{2, 1},
		of("m-small varies", 4, 80, 15))
	add("mm-image varies, R1-Distill 32B on L40S, apart", on("L40S", 1, r1Distill32, 1), within(3000, 80, 0.9), 5*time.Minute, fleet{2, 2},
		of("mm-image varies", 3, 80, 16))
	return out, nil
}

// load is requests and their lengths.
type load struct {
	typical capacity.Shape
	source  func(b *bench) (trace.Source, error)
}

// loadOf returns the load of clients of ServeGen, scaled to a mean rate.
func loadOf(clients []clientOf, rate float64, n int, seed uint64) load {
	scaled := scaleTo(clients, rate, n)
	return load{shapeOf(scaled, n), func(b *bench) (trace.Source, error) {
		all := requestsOf(scaled, n, seed)
		return trace.List(all[:len(all)/b.less]), nil
	}}
}

// synthetic is Mooncake's trace of synthetic prompts.
func synthetic(b *bench) ([]trace.Arrival, error) {
	return b.readArrivals(tracefiles.MooncakeSynthetic, func(r io.Reader) trace.Source { return trace.Mooncake(r, blockTokens) })
}

// burstGPT returns the load that BurstGPT's generator makes by default: times between arrivals from a gamma distribution of shape 0.5, and
// lengths from a Zipf distribution with the parameter 1.1, below 1,024 tokens (example/profile_server/server.py of
// https://github.com/HPMLL/BurstGPT, e92f533). The mean rate is ours, and it varies by 60 % in 20 minutes.
func burstGPT(rate float64, length time.Duration, seed uint64) load {
	const (
		period    = 20 * time.Minute
		swing     = 0.6
		variation = math.Sqrt2 // of shape 0.5
		parameter = 1.1
		longest   = 1023
	)
	weights, sum := make([]float64, longest), 0.0
	mean, squares := 0.0, 0.0
	for i := range weights {
		n := float64(i + 1)
		share := math.Pow(n, -parameter)
		sum += share
		weights[i] = sum
		mean += share * n
		squares += share * n * n
	}
	mean, squares = mean/sum, squares/sum
	zipf := func(r *rand.Rand) int {
		x := r.Float64() * sum
		i := 0
		for i < longest-1 && weights[i] < x {
			i++
		}
		return i + 1
	}
	spread := math.Sqrt(squares/(mean*mean) - 1)

	shape := capacity.Shape{Prompt: mean, Answer: mean, PromptSpread: spread, AnswerSpread: spread}
	return load{shape, func(b *bench) (trace.Source, error) {
		r := rand.New(rand.NewPCG(seed, 0))
		var out []trace.Arrival
		for at := time.Duration(0); at < length/time.Duration(b.less); {
			now := rate * (1 - swing*math.Cos(2*math.Pi*at.Seconds()/period.Seconds()))
			at += time.Duration(renewal.Gamma(r, variation) / now * float64(time.Second))
			out = append(out, trace.Arrival{At: at, Prompt: trace.Segments{{ID: uint64(len(out)) + 1, Length: zipf(r)}}, Output: zipf(r)})
		}
		return trace.List(out), nil
	}}
}
