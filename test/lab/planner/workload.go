package planner

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/lab/tracefiles"
)

// The parameters of workloads and engines, with their sources. Most were committed after first looks at results, and before changes of
// our algorithm: see docs/results/benchmarks.md for the dates of the changes. None is changed to make a result better.

// errAbsent is the error of a workload whose trace is not on this machine.
var errAbsent = errors.New("the trace is not at hand")

// machine is the engine of a workload.
type machine struct {
	name    string
	timing  perfmodel.Timing
	tokens  int // of the KV cache
	kvBytes int // of a token
	maxSeqs int
	longest int // context of the model, in tokens
	gpus    int // of an engine; 0 is 1
	block   int // tokens of a block; 0 is blockTokens
}

// blockTokens is the size of a block in Mooncake's trace. vLLM's default is 16; larger ones make the simulation faster.
const blockTokens = 512

// maxTokens is vLLM's default of max_num_batched_tokens for a server.
const maxTokens = 8192

// llama8B is Llama-3.1-8B in FP8 with vLLM on an H200: what Dynamo's profiler measured (test/lab/profile).
func llama8B(profile *perfmodel.Profile) machine {
	return machine{
		name: "Llama-3.1-8B FP8", timing: profile, tokens: profile.KVTokens(), kvBytes: 131072, maxSeqs: 1024, longest: 131072,
	}
}

// The larger models have no published profile. Their times come from a roofline of the GPU's data sheet, and their sizes from
// their configurations on Hugging Face. They are large enough that the traces need several engines at their own speed.
func llama70B() machine {
	w := perfmodel.Weights{Parameters: 70.6e9, Active: 70.6e9, Bytes: 1, KVBytes: 327680, Layers: 80, Hidden: 8192, Attention: 8192}
	return modelled("Llama-3.1-70B FP8", w, 131072)
}

func qwen32B() machine {
	w := perfmodel.Weights{Parameters: 32.8e9, Active: 32.8e9, Bytes: 1, KVBytes: 262144, Layers: 64, Hidden: 5120, Attention: 8192}
	return modelled("Qwen3-32B FP8", w, 131072)
}

// modelled returns the engine of a model on an H200. 256 is vLLM's default of max_num_seqs.
func modelled(name string, w perfmodel.Weights, longest int) machine {
	gpu, err := perfmodel.FindGPU("H200")
	if err != nil {
		panic(err) // a name in this file is wrong
	}
	r := perfmodel.Roofline{Model: w, GPU: gpu}
	return machine{name: name, timing: r, tokens: r.KVTokens(), kvBytes: int(w.KVBytes), maxSeqs: 256, longest: longest}
}

// perEngine is the number of GPUs of an engine.
func (m *machine) perEngine() int { return max(1, m.gpus) }

// engine returns the simulated engine.
func (m *machine) engine() engine.Config {
	block := cmp.Or(m.block, blockTokens)
	return engine.Config{
		Blocks: m.tokens / block, BlockSize: block, MaxNumSeqs: m.maxSeqs, MaxNumBatchedTokens: maxTokens, Timing: m.timing,
	}
}

// known returns what planners know of the engine: everything.
func (m *machine) known() capacity.Engine {
	return capacity.Engine{Timing: m.timing, KVTokens: m.tokens, MaxSeqs: m.maxSeqs, MaxBatchedTokens: maxTokens}
}

// fleet is numbers of engines. Without those that only prefill, all engines do both.
type fleet struct{ prefill, decode int }

func (f fleet) String() string {
	if f.prefill == 0 {
		return fmt.Sprintf("%d", f.decode)
	}
	return fmt.Sprintf("%dP %dD", f.prefill, f.decode)
}

// workload is requests, the engines that serve them, and the SLA of each request.
type workload struct {
	name    string
	machine machine
	sla     sim.SLA
	// quantile is the share of requests that are to be within the SLA; 0 is the planner's default.
	quantile float64
	// typical is the mean lengths of requests, by which the grid of the reactive algorithm is scaled. Planners do not know it.
	typical capacity.Shape
	// start is the fleet at the beginning, which serves the mean rate. Fleets with separate roles keep them.
	start fleet
	// source returns the requests, or errAbsent. aside returns others like them, on which no parameter is chosen.
	source, aside func(b *bench) (trace.Source, error)
}

// workloads returns all workloads.
//
//	sinusoid   the published scenario of Dynamo's planner: 5 to 45 requests/s in 600 s, 3,000 and 300 tokens, TTFT 200 ms and
//	           ITL 10 ms (components/src/dynamo/planner/tests/manual, and the trace rr-5-45_i3000o300)
//	Azure      the first half of Azure's conversation trace of 2023 at its own speed. ITL 50 ms is the default of Dynamo's planner,
//	           and TTFT 2 s of MLPerf Inference 4.0 for Llama 2 70B
//	code       Azure's code trace of 2023 at its own speed, from 0 to 500 requests a minute. No parameter was chosen on it. TTFT 4 s and
//	           ITL 90 ms for engines apart
//	a day      the whole trace three times, thinned and repeated by a curve of a day, from 0.4 to 1.6 times the requests: in three hours
//	           the traffic of a night and a noon. The swing of 0.6 is our choice: a night has a quarter of the requests of a noon
//	Mooncake   the first half of Mooncake's conversation trace at its own speed. TTFT 6 s and ITL 50 ms as in package disagg
//
// Set aside are a sinusoid of another period and seed, the second halves of the traces, and days with another seed and a swing of 0.4.
func workloads(profile *perfmodel.Profile) []workload {
	chat := sim.SLA{TTFT: 2 * time.Second, ITL: 50 * time.Millisecond}
	chats := capacity.Shape{Prompt: 1155, Answer: 211, PromptSpread: 1, AnswerSpread: 1}
	codes := capacity.Shape{Prompt: 2048, Answer: 28, PromptSpread: 1, AnswerSpread: 1}

	return []workload{
		{
			name: "sinusoid", machine: llama8B(profile), sla: sim.SLA{TTFT: 200 * time.Millisecond, ITL: 10 * time.Millisecond},
			typical: capacity.Shape{Prompt: 3000, Answer: 300}, start: fleet{2, 2},
			source: sinusoid(600*time.Second, 1800*time.Second, 1), aside: sinusoid(900*time.Second, 1800*time.Second, 2),
		},
		{
			name: "Azure", machine: llama70B(), sla: chat, typical: chats, start: fleet{0, 3},
			source: half(azure, false), aside: half(azure, true),
		},
		{
			name: "Azure, apart", machine: llama70B(), sla: chat, typical: chats, start: fleet{2, 1},
			source: half(azure, false), aside: half(azure, true),
		},
		{
			name: "code", machine: llama70B(), sla: chat, typical: codes, start: fleet{0, 3}, source: code, aside: code,
		},
		{
			name: "code, apart", machine: qwen32B(), sla: sim.SLA{TTFT: 4 * time.Second, ITL: 90 * time.Millisecond}, typical: codes,
			start: fleet{2, 1}, source: code, aside: code,
		},
		{
			name: "Azure, a day", machine: llama70B(), sla: chat, typical: chats, start: fleet{0, 3},
			source: day(azure, 0.6, 1), aside: day(azure, 0.4, 2),
		},
		{
			name: "Azure, a day, apart", machine: llama70B(), sla: chat, typical: chats, start: fleet{2, 1},
			source: day(azure, 0.6, 1), aside: day(azure, 0.4, 2),
		},
		{
			name: "Mooncake, a day, apart", machine: qwen32B(), sla: sim.SLA{TTFT: 6 * time.Second, ITL: 50 * time.Millisecond},
			typical: capacity.Shape{Prompt: 12035, Answer: 343, PromptSpread: 1, AnswerSpread: 1}, start: fleet{5, 2},
			source: day(mooncake, 0.6, 1), aside: day(mooncake, 0.4, 2),
		},
		{
			name: "Mooncake, apart", machine: qwen32B(), sla: sim.SLA{TTFT: 6 * time.Second, ITL: 50 * time.Millisecond},
			typical: capacity.Shape{Prompt: 12035, Answer: 343, PromptSpread: 1, AnswerSpread: 1}, start: fleet{5, 2},
			source: half(mooncake, false), aside: half(mooncake, true),
		},
	}
}

// sinusoid returns requests of 3,000 and 300 tokens whose rate goes from 25 up to 45, down to 5 and back in a period.
func sinusoid(period, length time.Duration, seed uint64) func(b *bench) (trace.Source, error) {
	const mean = 25
	return func(b *bench) (trace.Source, error) {
		requests := int(mean * length.Seconds() / float64(b.less))
		return trace.Generated{
			Requests: requests, Rate: mean, Arrivals: "sinusoid", Swing: 0.8, Period: period, Input: 3000, Output: 300, Seed: seed,
		}.Source()
	}
}

// azure and mooncake read the public traces.
func azure(b *bench) ([]trace.Arrival, error) {
	return b.readArrivals(tracefiles.Azure, func(r io.Reader) trace.Source { return trace.Azure(r, false) })
}

// code returns Azure's code trace.
func code(b *bench) (trace.Source, error) {
	all, err := b.readArrivals(tracefiles.AzureCode, func(r io.Reader) trace.Source { return trace.Azure(r, false) })
	return trace.List(all), err
}

// mooncake spreads arrivals over the 3 s to which its times are rounded.
func mooncake(b *bench) ([]trace.Arrival, error) {
	const rounded = 3 * time.Second
	return b.readArrivals(tracefiles.Mooncake, func(r io.Reader) trace.Source {
		return trace.Jitter(rounded, 1, trace.Mooncake(r, blockTokens))
	})
}

// dayTimes is the number of times that a day plays its trace.
const dayTimes = 3

// day returns a trace that is repeated with a curve of a day.
func day(of func(b *bench) ([]trace.Arrival, error), swing float64, seed uint64) func(b *bench) (trace.Source, error) {
	return func(b *bench) (trace.Source, error) {
		all, err := of(b)
		if err != nil {
			return nil, err
		}
		next, _ := trace.Tile(trace.Tiling{Times: dayTimes, Swing: swing, Seed: seed}, trace.List(all[:len(all)/b.less]))
		return next, nil
	}
}

// half returns the first or the second half of the time of a trace.
func half(of func(b *bench) ([]trace.Arrival, error), second bool) func(b *bench) (trace.Source, error) {
	return func(b *bench) (trace.Source, error) {
		all, err := of(b)
		if err != nil {
			return nil, err
		}
		middle := all[len(all)-1].At / 2
		var out []trace.Arrival
		for _, a := range all {
			if (a.At >= middle) != second {
				continue
			}
			if second {
				a.At -= middle
			}
			out = append(out, a)
		}
		return trace.List(out[:len(out)/b.less]), nil
	}
}

// readArrivals returns the arrivals of a trace, which is read once.
func (b *bench) readArrivals(file tracefiles.File, parse func(r io.Reader) trace.Source) ([]trace.Arrival, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if list := b.arrivals[file.Path]; list != nil {
		return list, nil
	}
	path, ok := tracefiles.Find(b.traces, file.Path)
	if !ok {
		return nil, errAbsent
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	defer func() { _ = f.Close() }()

	next := parse(f)
	var list []trace.Arrival
	for {
		a, ok, err := next()
		if err != nil {
			return nil, fmt.Errorf("read trace: %w", err)
		}
		if !ok {
			b.arrivals[file.Path] = list
			return list, nil
		}
		list = append(list, a)
	}
}
