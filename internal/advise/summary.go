package advise

import (
	"time"
)

// Summary is the answer of stator plan as JSON. Its keys are stable.
type Summary struct {
	Model     string        `json:"model"`
	Why       string        `json:"why"`
	Proposals []Proposal    `json:"proposals"`
	Simulated *played       `json:"simulated,omitempty"`
	Request   SummaryDemand `json:"requests"`
}

// SummaryDemand is the demand that the fleet should serve. Rate is 0 if the most is asked for.
type SummaryDemand struct {
	Prompt float64 `json:"prompt_tokens"`
	Answer float64 `json:"answer_tokens"`
	Cached float64 `json:"cached"`
	Rate   float64 `json:"rate,omitempty"`
}

// Proposal is one fleet.
type Proposal struct {
	Pools    []Pool  `json:"pools"`
	GPUs     int     `json:"gpus"`
	Watts    float64 `json:"watts,omitempty"`
	Met      bool    `json:"met"`
	Rate     float64 `json:"rate"`
	SlowRate float64 `json:"rate_if_slower"`
	Limit    string  `json:"limit"`
	// Latencies are in milliseconds; -1 is without end.
	TTFT float64 `json:"ttft_ms"`
	ITL  float64 `json:"itl_ms"`
	E2E  float64 `json:"e2e_ms"`
	Load float64 `json:"load"`
}

// Pool is the engines of one role.
type Pool struct {
	Role     string  `json:"role"`
	Replicas int     `json:"replicas"`
	GPUs     int     `json:"gpus_each"`
	SmallKV  bool    `json:"kv_8_bit,omitempty"`
	Doubt    float64 `json:"doubt"`
	Seqs     int     `json:"max_seqs"`
}

// Summary returns the answer as it is printed in JSON.
func (a *Answer) Summary() Summary {
	s := &a.Question.Shape
	out := Summary{
		Model: a.Deployment.Model, Why: a.Why(), Simulated: a.simulated,
		Request: SummaryDemand{s.Prompt, s.Answer, s.Cached, a.Question.Rate},
	}
	for i := range a.list {
		p := &a.list[i]
		one := Proposal{
			GPUs: p.GPUs, Watts: p.Watts, Met: p.Met, Rate: p.Rate, SlowRate: p.SlowRate, Limit: p.Limit,
			TTFT: finiteMS(p.Latency.TTFT), ITL: finiteMS(p.Latency.ITL), E2E: finiteMS(p.Latency.E2E), Load: min(p.Latency.Load, 1e9),
		}
		for k := range p.Pools {
			pool := &p.Pools[k]
			one.Pools = append(one.Pools, Pool{
				pool.Role.String(), pool.Replicas, pool.Engine.GPUs, pool.Engine.SmallKV, pool.Engine.Doubt, a.Question.Seqs(pool),
			})
		}
		out.Proposals = append(out.Proposals, one)
	}
	return out
}

// finiteMS returns milliseconds, and -1 for a latency without end.
func finiteMS(d time.Duration) float64 {
	const day = 24 * time.Hour
	if d > day {
		return -1
	}
	return ms(d)
}
