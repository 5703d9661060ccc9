package disagg

import (
	"fmt"
	"io"
	"time"
)

// sla has the bounds that a request must meet: the time to its first token, and the mean time between its tokens.
type sla struct {
	ttft, itl time.Duration
}

func (s sla) String() string { return fmt.Sprintf("TTFT %v, ITL %v", s.ttft, s.itl) }

// attainment is the share of requests that must meet their SLA at a rate that a fleet can serve, as in DistServe (Zhong et
// al., OSDI 24, arXiv 2401.09670).
const attainment = 0.9

// workload is the requests that fleets are compared on.
type workload struct {
	name string
	sla  sla
	// mooncake plays rows of Mooncake's conversation trace; otherwise prompts of input tokens and answers of output tokens
	// arrive as a Poisson process, and share nothing.
	mooncake      bool
	input, output int
	// guess is the rate for each GPU at which searches begin.
	guess float64
	// searched and played are the requests for each GPU in a run of a search, and in a run of the tables.
	searched, played int
}

// The lengths come from the published claim for disaggregation in Dynamo's documentation: 3,000 and 150 tokens. The first
// SLA comes from the end-to-end test of Dynamo's planner with the profile's model (components/src/dynamo/planner/tests/manual),
// the second one the planner's default. Mooncake's prompts have 12,000 tokens on average, of which few are computed in 500 ms.
// Their TTFT comes from MLPerf Inference 5.0 for Llama 3.1 405B, whose prompts are nearly as long. Mooncake's own 30 s (Qin et
// al., arXiv 2407.00079) would need much longer runs: a queue of 30 s takes minutes to grow.
var workloads = []workload{
	{"3,000/150", sla{200 * time.Millisecond, 10 * time.Millisecond}, false, 3000, 150, 6, 150, 300},
	{"3,000/150, slower", sla{500 * time.Millisecond, 50 * time.Millisecond}, false, 3000, 150, 6, 150, 300},
	{"Mooncake", sla{6 * time.Second, 50 * time.Millisecond}, true, 0, 0, 2, 150, 300},
}

// printParameters prints the assumptions of the simulation.
func printParameters(w io.Writer) {
	fmt.Fprintf(w, "Llama-3.1-8B FP8 on H200 GPUs: vLLM's times from Dynamo's profiler at TP 1, a model for other sizes; "+
		"%d bytes of KV cache for a token; blocks of %d tokens, %d sequences and %d tokens in a pass by default.\n",
		tokenBytes, blockTokens, maxNumSeqs, maxTokens)
	fmt.Fprintf(w, "Transfers begin after %v. A GPU moves %.1f GB/s within a node of %d GPUs, and %.1f GB/s between nodes.\n",
		transferBase, nodeBandwidth/1e9, gpusOfNode, networkBandwidth/1e9)
	fmt.Fprintf(w, "All times are simulated. %.0f %% of the requests must meet the SLA.\n\n", 100*attainment)
	for _, l := range workloads {
		fmt.Fprintf(w, "- %s: %v\n", l.name, l.sla)
	}
}
