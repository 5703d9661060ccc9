package sim

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// split is a fleet whose figures can be computed by hand: prefill takes 10 ms and 1 ms for each new token, a decode step
// 5 ms. A transfer begins after 7 ms and moves a token in 1 ms if it is alone.
func split(decode, prefill int) Config {
	timing := perfmodel.Linear{PrefillBase: 10 * time.Millisecond, PrefillToken: time.Millisecond, DecodeBase: 5 * time.Millisecond}
	return Config{
		Workers: decode, Prefill: prefill, PrefillAt: "remote", Engine: engine.Config{Timing: timing, BlockSize: 16},
		Transfer: Transfer{Base: 7 * time.Millisecond, TokenBytes: 1_000_000, NodeBandwidth: 1e9, NetworkBandwidth: 2.5e8},
	}
}

// distinct returns prompts of 100 tokens that share nothing, with one token of answer each, at times in milliseconds.
func distinct(at ...int) (list []trace.Arrival) {
	for i, ms := range at {
		list = append(list, trace.Arrival{
			At: time.Duration(ms) * time.Millisecond, Prompt: trace.Segments{{ID: uint64(i + 1), Length: 100}}, Output: 1,
		})
	}
	return list
}

// ttfts returns the time to first token of every request in milliseconds, in order of arrival; -1 for a failed one.
func ttfts(t *testing.T, cfg Config, list []trace.Arrival) ([]int, *Result) {
	t.Helper()
	out := make([]int, len(list))
	cfg.Ended = func(o Outcome) {
		out[o.Number] = int((o.First - o.At).Milliseconds())
		if o.Failed {
			out[o.Number] = -1
		}
	}
	return out, mustRun(t, cfg, list)
}

// TestTransfers compares times to first token with figures that were computed by hand.
func TestTransfers(t *testing.T) {
	small := split(1, 1)
	small.Engine.Blocks = 8 // one prompt of 100 tokens has 7
	far := split(2, 1)
	far.Transfer.Nodes = 2
	twice := split(1, 1)
	twice.GPUs, twice.PrefillGPUs = 2, 2

	for _, c := range []struct {
		name string
		cfg  Config
		list []trace.Arrival
		want []int
	}{
		// 110 ms of prefill, 7 + 100 ms of transfer, 5 ms of decode.
		{"one prompt", split(1, 1), distinct(0), []int{222}},
		{"one prompt and twice the bandwidth", twice, distinct(0), []int{172}},
		// Both transfers end at the decode worker, which receives both in 200 ms.
		{"two prefill workers", split(1, 2), distinct(0, 0), []int{322, 322}},
		// The first transfer is alone from 117 to 167 ms and shares until 267 ms. The second one is alone for 50 ms more.
		{"two prefill workers, the second prompt later", split(1, 2), distinct(0, 50), []int{272, 272}},
		// Both transfers come from one prefill worker, which computes both prompts in one pass of 210 ms.
		{"two decode workers", split(2, 1), distinct(0, 0), []int{422, 422}},
		// The prefill worker is on node 0. One decode worker is on node 1, where 100 tokens need 400 ms.
		{"two nodes", far, distinct(0, 0), []int{322, 622}},
		// The second prefill begins when the first prompt has left the prefill worker, after 217 ms.
		{"a full prefill worker", small, distinct(0, 0), []int{222, 439}},
	} {
		got, r := ttfts(t, c.cfg, c.list)
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: TTFT %v ms, want %v", c.name, got, c.want)
				break
			}
		}
		if r.Transferred != 1 || r.Completed != len(c.list) {
			t.Errorf("%s: %.2f of %d prompts transferred", c.name, r.Transferred, r.Completed)
		}
	}
}

// TestKnownBlocksStay: of the second turn of a conversation only the new blocks are transferred.
func TestKnownBlocksStay(t *testing.T) {
	turn := func(at time.Duration, tokens int) trace.Arrival {
		return trace.Arrival{At: at, Prompt: trace.Segments{{ID: 1, Length: tokens}}, Output: 1}
	}
	got, r := ttfts(t, split(1, 1), []trace.Arrival{turn(0, 64), turn(time.Second, 96)})
	// 74 + 7 + 64 + 5 ms, and then 42 + 7 + 32 + 5 ms: both workers hold the first 64 tokens.
	if got[0] != 150 || got[1] != 86 || r.Transfer.Mean != 55 {
		t.Errorf("TTFT %v ms, transfers of %v ms; want 150, 86 and 55", got, r.Transfer.Mean)
	}
}

// TestWorkersDieWhileTheyHandOver: a request survives its prefill worker, except during the transfer.
func TestWorkersDieWhileTheyHandOver(t *testing.T) {
	const decode, prefill, second = 0, 1, 2
	dies := func(worker, ms int) []Restart {
		return []Restart{{Worker: worker, At: time.Duration(ms) * time.Millisecond, After: time.Hour}}
	}
	for _, c := range []struct {
		name     string
		prefills int
		restarts []Restart
		want     int
		share    float64
	}{
		{"there is no prefill worker", 1, dies(prefill, 0), 110, 0},
		{"during the prefill", 1, dies(prefill, 50), 160, 0},
		{"both die", 2, append(dies(prefill, 50), dies(second, 60)...), 170, 0},
		{"before data flow", 1, dies(prefill, 112), -1, 0},
		{"during the transfer", 1, dies(prefill, 150), -1, 0},
		{"the decode worker, during the prefill", 1, dies(decode, 50), -1, 0},
		{"the decode worker, during the transfer", 1, dies(decode, 150), -1, 0},
	} {
		cfg := split(1, c.prefills)
		cfg.Restarts = c.restarts
		got, r := ttfts(t, cfg, distinct(0))
		if got[0] != c.want || r.Transferred != c.share || (r.Errors > 0) != (c.want < 0) {
			t.Errorf("%s: TTFT %d ms, want %d; %.1f transferred, %d errors", c.name, got[0], c.want, r.Transferred, r.Errors)
		}
	}
}

// TestAnotherPrefillWorkerIsAsked: each of two prefill workers has one prompt when one of them dies. The other one computes
// both prompts, one after the other.
func TestAnotherPrefillWorkerIsAsked(t *testing.T) {
	cfg := split(1, 2)
	cfg.Restarts = []Restart{{Worker: 1, At: 50 * time.Millisecond, After: time.Hour}}
	got, r := ttfts(t, cfg, distinct(0, 0))
	if min(got[0], got[1]) != 222 || max(got[0], got[1]) != 332 || r.Transferred != 1 {
		t.Errorf("TTFT %v ms, %.1f transferred; want 222 and 332, and all", got, r.Transferred)
	}
}

// TestFailedTransfersFreeTheirBlocks: the prefill worker computes the next prompt as soon as a transfer to a dead
// worker has ended.
func TestFailedTransfersFreeTheirBlocks(t *testing.T) {
	cfg := split(2, 1)
	cfg.Engine.Blocks = 8
	cfg.DecodePolicy = "round-robin"
	cfg.Restarts = []Restart{{Worker: 0, At: 150 * time.Millisecond, After: time.Hour}}
	got, _ := ttfts(t, cfg, distinct(0, 0))
	// One request fails after 150 ms. The other prompt is computed from then on: 110 + 7 + 100 + 5 ms.
	if got[0] != -1 && got[1] != -1 || max(got[0], got[1]) != 372 {
		t.Errorf("TTFT %v ms, want a failure and 372", got)
	}
}

// TestDecodeWorkersComputePrompts: if the router has a prompt computed on the decode worker, the prompt is not
// transferred. The router does so on an idle decode worker.
func TestDecodeWorkersComputePrompts(t *testing.T) {
	for at, want := range map[string]int{"auto": 110, "local": 110, "remote": 222} {
		cfg := split(1, 1)
		cfg.PrefillAt = at
		got, r := ttfts(t, cfg, distinct(0))
		if got[0] != want || (r.Transferred == 1) != (at == "remote") || r.PerWorker[1].Requests != int(r.Transferred) {
			t.Errorf("%s: TTFT %v ms, want %d; %.1f transferred", at, got, want, r.Transferred)
		}
	}
}

// TestTransferConfig: values out of bounds are refused.
func TestTransferConfig(t *testing.T) {
	for _, x := range []Transfer{{Base: -1}, {TokenBytes: -1}, {NodeBandwidth: 1}, {NetworkBandwidth: -1}, {Nodes: -1}} {
		if err := (Config{Transfer: x}).Validate(); err == nil {
			t.Errorf("%+v is accepted", x)
		}
	}
	if err := (Config{PrefillEngine: &engine.Config{}}).Validate(); err == nil {
		t.Error("an engine for prefill workers that do not exist is accepted")
	}
}

// TestPull: of many prompts with one beginning, some are computed by workers that fetch it from the first one's cache. That is
// quicker than to compute it there too, and no request is lost if a worker dies.
func TestPull(t *testing.T) {
	list := []trace.Arrival{{Prompt: trace.Segments{{ID: 1, Length: 4000}}, Output: 1}}
	for i := range 24 {
		list = append(list, trace.Arrival{
			At: 2*time.Second + time.Duration(i)*15*time.Millisecond, Prompt: trace.Segments{{ID: 1, Length: 4000}, {ID: uint64(i + 2), Length: 800}}, Output: 2,
		})
	}
	cfg := Config{Workers: 3}
	alone := mustRun(t, cfg, list)
	cfg.Pull = true
	pulled := mustRun(t, cfg, list)
	if alone.Pulled != 0 || pulled.Pulled == 0 || pulled.Completed != len(list) {
		t.Fatalf("%v and %v of the prompts were pulled, %d of %d answered", alone.Pulled, pulled.Pulled, pulled.Completed, len(list))
	}
	if pulled.TTFT.Mean > alone.TTFT.Mean {
		t.Errorf("a mean TTFT of %v with pulls, and %v without", pulled.TTFT.Mean, alone.TTFT.Mean)
	}

	for worker := range 3 {
		cfg.Restarts = []Restart{{Worker: worker, At: 2*time.Second + 4*time.Millisecond, After: time.Second}}
		if r := mustRun(t, cfg, list); r.Completed+r.Errors != len(list) {
			t.Errorf("worker %d dies: %d answered and %d failed of %d", worker, r.Completed, r.Errors, len(list))
		}
	}
}
