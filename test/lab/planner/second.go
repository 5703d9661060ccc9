package planner

import (
	_ "embed"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
)

//go:embed second.txt
var secondText string

// Sizes of models are from their configurations on Hugging Face.
var (
	qwen7    = perfmodel.Weights{Parameters: 7.62e9, Active: 7.62e9, KVBytes: 57344, Layers: 28, Hidden: 3584, Attention: 3584}
	nemo12   = perfmodel.Weights{Parameters: 12.2e9, Active: 12.2e9, KVBytes: 163840, Layers: 40, Hidden: 5120, Attention: 4096}
	phi14    = perfmodel.Weights{Parameters: 14.7e9, Active: 14.7e9, KVBytes: 204800, Layers: 40, Hidden: 5120, Attention: 5120}
	gptOSS20 = perfmodel.Weights{Parameters: 20.9e9, Active: 3.6e9, KVBytes: 49152, Layers: 24, Hidden: 2880, Attention: 4096}
	gemma27  = perfmodel.Weights{Parameters: 27.2e9, Active: 27.2e9, KVBytes: 376832, Layers: 46, Hidden: 4608, Attention: 4096}
	mixtral  = perfmodel.Weights{Parameters: 46.7e9, Active: 12.9e9, KVBytes: 131072, Layers: 32, Hidden: 4096, Attention: 4096}
	qwen72   = perfmodel.Weights{Parameters: 72.7e9, Active: 72.7e9, KVBytes: 327680, Layers: 80, Hidden: 8192, Attention: 8192}
)

// secondRows returns the second set: eight rows that were fixed after the first set had been looked at. No client, window, model or
// start-up is of the first set. Rules choose the figures, with the capacity model as it was then:
//
//	windows     see second.txt
//	TTFT        4 times that of an idle engine, for a prompt two standard deviations above the mean and at most 8,192 tokens
//	ITL         2.5 times that of an idle engine
//	rate        the mean needs at most 4 engines, the busiest 10 minutes need at most 12, and there are at most 20,000 requests
//	begin       the engines that the mean needs
//	quantile    0.95, 0.9 and 0.97 in turn
//	start-up    20 s, 90 s and 3 minutes in turn
//	roles       every fourth row has engines apart
func secondRows() ([]heldOut, error) {
	clients, err := readWindows(secondText)
	if err != nil {
		return nil, err
	}
	of := clients.load

	const soon, later, late = 20 * time.Second, 90 * time.Second, 3 * time.Minute

	return []heldOut{
		newHeldOut("m-large busiest, Qwen 72B on 2 H100", on("H100", 2, qwen72, 1), within(1300, 45, 0.95), soon, fleet{0, 3},
			of("m-large busiest", 5, 60, 21)),
		newHeldOut("m-mid rise, Phi-4 14B in 16 bits on A100 with 40 GB", on("A100-40GB", 1, phi14, 2), within(1300, 65, 0.9), later,
			fleet{0, 1}, of("m-mid rise", 2.5, 120, 22)),
		newHeldOut("m-small varies, Qwen 7B in 16 bits on RTX 4090", on("RTX4090", 1, qwen7, 2), within(1800, 50, 0.97), late, fleet{0, 2},
			of("m-small varies", 4, 80, 23)),
		newHeldOut("deepseek-r1 busiest, Gemma 2 27B on H100, apart", on("H100", 1, gemma27, 1), within(1500, 30, 0.95), soon, fleet{1, 3},
			of("deepseek-r1 busiest", 5, 60, 24)),
		newHeldOut("mm-image rise, Mistral Nemo 12B on RTX 4090", on("RTX4090", 1, nemo12, 1), within(1100, 45, 0.9), later, fleet{0, 3},
			of("mm-image rise", 4, 80, 25)),
		newHeldOut("m-large varies, Mixtral 8x7B on A100", on("A100-80GB", 1, mixtral, 1), within(1200, 25, 0.97), late, fleet{0, 4},
			of("m-large varies", 3, 80, 26)),
		newHeldOut("m-mid busiest, gpt-oss 20B on L4", on("L4", 1, gptOSS20, 0.55), within(200, 25, 0.95), soon, fleet{0, 4},
			of("m-mid busiest", 6, 50, 27)),
		newHeldOut("deepseek-r1 varies, Phi-4 14B in 16 bits on A100, apart", on("A100-80GB", 1, phi14, 2), within(6900, 50, 0.9), later,
			fleet{1, 3}, of("deepseek-r1 varies", 1.5, 120, 28)),
	}, nil
}
