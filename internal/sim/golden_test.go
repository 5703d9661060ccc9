package sim

import (
	"math"
	"testing"

	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// TestEqualsDynamo plays the first rows of the Mooncake trace in turns on four of vLLM's engines,
// when they come and in a closed loop, where Dynamo's replay (release 1.6.1) has nothing to draw lots
// about. Its figures are ours, to the microsecond that is kept of them; they were printed by its own
// run_mocker_trace_replay(trace, extra_engine_args={"engine": {"backend": "vllm", "block_size": 64,
// "num_gpu_blocks": 16384}}, num_workers=4, router_mode="round_robin", trace_block_size=512), the
// second with replay_concurrency=24.
func TestEqualsDynamo(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	for _, run := range []struct {
		name                          string
		rows, concurrency             int
		reuse, mean, median, itl, e2e float64
	}{
		{"open loop", 1000, 0, 0.08078675628474127, 538.9857709279698, 357.3745710000221, 10.776448287288659, 4293.03696694297},
		{"closed loop", 600, 24, 0.07653569488163199, 366.7164334849939, 216.90353300026618, 14.56940897655308, 5555.222922911661},
	} {
		cfg := Config{Policy: "round-robin", Concurrency: run.concurrency, Engine: engine.Config{BlockSize: 64}}
		r, err := Run(cfg, trace.Take(run.rows, trace.Mooncake(mooncake(t), 512)))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name      string
			got, want float64
		}{
			{"reuse", r.PrefixReuse, run.reuse},
			{"mean TTFT", r.TTFT.Mean, run.mean},
			{"median TTFT", r.TTFT.P50, run.median},
			{"mean ITL", r.ITL.Mean, run.itl},
			{"mean E2E", r.E2E.Mean, run.e2e},
		} {
			if math.Abs(c.got/c.want-1) > 5e-5 {
				t.Errorf("%s, %s: %v, Dynamo's replay has %v", run.name, c.name, c.got, c.want)
			}
		}
	}
}
