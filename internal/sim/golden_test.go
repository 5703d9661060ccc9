package sim

import (
	"math"
	"testing"

	"github.com/stator-project/stator/internal/sim/engine"
)

// TestEqualsDynamo plays the first 1,000 rows of the Mooncake trace in turns on four of vLLM's
// engines, where Dynamo's replay (release 1.6.1) has nothing to draw lots about. Its figures are
// ours, to the microsecond that is kept of them; they were printed by its own
// run_mocker_trace_replay(trace, extra_engine_args={"engine": {"backend": "vllm", "block_size": 64,
// "num_gpu_blocks": 16384}}, num_workers=4, router_mode="round_robin", trace_block_size=512).
func TestEqualsDynamo(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	r, err := Run(Config{Policy: "round-robin", Engine: engine.Config{BlockSize: 64}}, first(1000, Mooncake(mooncake(t), 512)))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"reuse", r.PrefixReuse, 0.08078675628474127},
		{"mean TTFT", r.TTFT.Mean, 538.9857709279698},
		{"median TTFT", r.TTFT.P50, 357.3745710000221},
		{"mean ITL", r.ITL.Mean, 10.776448287288659},
		{"mean E2E", r.E2E.Mean, 4293.03696694297},
	} {
		if math.Abs(c.got/c.want-1) > 5e-5 {
			t.Errorf("%s: %v, Dynamo's replay has %v", c.name, c.got, c.want)
		}
	}
}
