package planner

import (
	_ "embed"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// The windows of the third set to the seventh.
var (
	//go:embed third.txt
	thirdText string
	//go:embed fourth.txt
	fourthText string
	//go:embed fifth.txt
	fifthText string
	//go:embed sixth.txt
	sixthText string
	//go:embed seventh.txt
	seventhText string
)

// Sizes of models are from their configurations on Hugging Face.
var (
	llama3     = perfmodel.Weights{Parameters: 3.21e9, Active: 3.21e9, KVBytes: 114688, Layers: 28, Hidden: 3072, Attention: 3072}
	mistral7   = perfmodel.Weights{Parameters: 7.25e9, Active: 7.25e9, KVBytes: 131072, Layers: 32, Hidden: 4096, Attention: 4096}
	qwen8      = perfmodel.Weights{Parameters: 8.19e9, Active: 8.19e9, KVBytes: 147456, Layers: 36, Hidden: 4096, Attention: 4096}
	glm9       = perfmodel.Weights{Parameters: 9.4e9, Active: 9.4e9, KVBytes: 40960, Layers: 40, Hidden: 4096, Attention: 4096}
	commandR32 = perfmodel.Weights{Parameters: 32.3e9, Active: 32.3e9, KVBytes: 163840, Layers: 40, Hidden: 8192, Attention: 8192}
	yi34       = perfmodel.Weights{Parameters: 34.4e9, Active: 34.4e9, KVBytes: 245760, Layers: 60, Hidden: 7168, Attention: 7168}
	phi35MoE   = perfmodel.Weights{Parameters: 41.9e9, Active: 6.6e9, KVBytes: 131072, Layers: 32, Hidden: 4096, Attention: 4096}
	llama405   = perfmodel.Weights{Parameters: 405.9e9, Active: 405.9e9, KVBytes: 516096, Layers: 126, Hidden: 16384, Attention: 16384}
)

// drawnEngines returns the engines of the sets that are drawn. The first eight have models that no earlier set has, and are for the third
// set. The other sixteen have models of earlier sets on other GPUs, or with weights of another size, and are for the fourth set. Later
// sets draw from all.
func drawnEngines() []machine {
	return []machine{
		engineOf("Llama 3.2 3B in 16 bits", "L4", 1, 2, llama3),
		engineOf("Mistral 7B", "A10", 1, 1, mistral7),
		engineOf("Qwen3 8B", "RTX4090", 1, 1, qwen8),
		engineOf("GLM-4 9B in 16 bits", "L40S", 1, 2, glm9),
		engineOf("Command R 32B", "A100-80GB", 1, 1, commandR32),
		engineOf("Yi 34B in 16 bits", "A100-80GB", 2, 2, yi34),
		engineOf("Phi-3.5 MoE", "H100", 1, 1, phi35MoE),
		engineOf("Llama 405B", "H100", 8, 1, llama405),

		engineOf("Llama 3.2 3B", "A10", 1, 1, llama3),
		engineOf("Mistral 7B in 16 bits", "L40S", 1, 2, mistral7),
		engineOf("Qwen 7B", "L4", 1, 1, qwen7),
		engineOf("Llama 8B in 16 bits", "RTX4090", 1, 2, llama8),
		engineOf("Qwen3 8B in 16 bits", "A100-40GB", 1, 2, qwen8),
		engineOf("GLM-4 9B", "A10", 1, 1, glm9),
		engineOf("Mistral Nemo 12B in 16 bits", "A100-80GB", 1, 2, nemo12),
		engineOf("Qwen 14B", "RTX4090", 1, 1, qwen14),
		engineOf("gpt-oss 20B", "H100", 1, 0.55, gptOSS20),
		engineOf("Mistral 24B", "A100-80GB", 1, 1, mistral24),
		engineOf("Gemma 2 27B", "A100-80GB", 1, 1, gemma27),
		engineOf("Qwen3 30B-A3B", "L40S", 1, 1, qwen30MoE),
		engineOf("Command R 32B in 16 bits", "H100", 2, 2, commandR32),
		engineOf("R1-Distill 32B", "H100", 1, 1, r1Distill32),
		engineOf("Mixtral 8x7B in 16 bits", "H100", 2, 2, mixtral),
		engineOf("Llama 70B", "A100-80GB", 2, 1, llama70),
	}
}

// engineOf returns an engine of a model by its name, on so many GPUs, with weights of so many bytes.
func engineOf(name, gpu string, gpus int, bytes float64, w perfmodel.Weights) machine {
	m := on(gpu, gpus, w, bytes)
	m.name = fmt.Sprintf("%s on %d %s", name, gpus, gpu)
	return m
}

// namesOf returns the names of windows in their order.
func namesOf(text string) (names []string) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "window" {
			names = append(names, f[1]+" "+f[2])
		}
	}
	return names
}

// drawnRows returns a row for each window, with figures that a seed draws. They follow from the times of engines on their data sheets, and
// not from the planner or its model of capacity, so that a change of these changes no row.
//
//	engine      one of the list, each at most once
//	TTFT        3 to 6 times an idle engine's, for a prompt two standard deviations above the mean and at most 8,192 tokens
//	ITL         2 to 3 times an idle engine's
//	rate        the mean keeps 2 to 4 engines busy for 0.6 of the time, and the busiest 10 minutes at most 10
//	length      about 15,000 requests, at most 2 hours
//	begin       the engines that the mean keeps busy
//	quantile    0.9, 0.95 or 0.98
//	start-up    15 s, 45 s, 2 minutes or 4 minutes
//	roles       every fourth row has engines apart
func drawnRows(text string, engines []machine, seed uint64) ([]heldOut, error) {
	clients, err := readWindows(text)
	if err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(seed, 0))
	order := r.Perm(len(engines))
	between := func(low, high float64) float64 { return low + (high-low)*r.Float64() }
	var out []heldOut
	for i, name := range namesOf(text) {
		m := engines[order[i]]
		s := shapeOf(clients[name], parts)
		long := math.Min(s.Prompt*(1+2*s.PromptSpread), longestText)
		alone := capacity.Targets{
			TTFT: m.timing.Prefill(perfmodel.Prefill{Requests: 1, Input: int(long)}),
			ITL:  m.timing.Decode(perfmodel.Decode{Requests: 1, Context: int(s.Prompt + s.Answer)}),
		}
		t := capacity.Targets{
			TTFT:     roundUp(between(3, 6)*float64(alone.TTFT), 100*time.Millisecond),
			ITL:      roundUp(between(2, 3)*float64(alone.ITL), 5*time.Millisecond),
			Quantile: []float64{0.9, 0.95, 0.98}[r.IntN(3)],
		}
		startUp := []time.Duration{15 * time.Second, 45 * time.Second, 2 * time.Minute, 4 * time.Minute}[r.IntN(4)]

		busy := min(between(2, 4), 10/peakOf(clients[name]))
		rate := math.Round(100*busy*0.6/m.busyFor(&s, t.ITL)) / 100
		minutes := min(120, 10*int(math.Ceil(15000/rate/600)))
		n := int(math.Ceil(busy))
		start := fleet{0, n}
		row := name + ", " + m.name
		if i%4 == 3 {
			start = fleet{(n + 1) / 2, n}
			row += ", apart"
		}
		out = append(out, newHeldOut(row, m, t, startUp, start, clients.load(name, rate, minutes, 10*seed+uint64(i))))
	}
	return out, nil
}

// roundUp returns the next multiple of a step.
func roundUp(d float64, step time.Duration) time.Duration {
	return time.Duration(math.Ceil(d/float64(step))) * step
}

// peakOf returns the rate of a window's busiest 10 minutes by its mean.
func peakOf(clients []clientOf) float64 {
	most, sum := 0.0, 0.0
	for k := range parts {
		rate := 0.0
		for _, c := range clients {
			rate += c.rates[k]
		}
		most = max(most, rate)
		sum += rate / parts
	}
	return most / sum
}

// busyFor returns the seconds of an engine's time that a mean request takes, in batches whose steps are within the target.
func (m *machine) busyFor(s *capacity.Shape, itl time.Duration) float64 {
	context := s.Prompt + s.Answer/2
	step := func(n int) time.Duration {
		return m.timing.Decode(perfmodel.Decode{Requests: n, Context: int(float64(n) * context), Capacity: m.tokens})
	}
	n := 1
	for n < m.maxSeqs && float64(n+1)*context <= float64(m.tokens) && step(n+1) <= itl {
		n++
	}
	return m.timing.Prefill(perfmodel.Prefill{Requests: 1, Input: int(s.Prompt)}).Seconds() + s.Answer*step(n).Seconds()/float64(n)
}
