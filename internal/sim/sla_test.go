package sim

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/trace"
)

// TestSLA counts misses of requests whose latencies can be computed by hand: three prompts come to an idle engine one after the
// other. Prefill takes 10 ms and 1 ms for each token, and a decode step 5 ms.
func TestSLA(t *testing.T) {
	at := func(seconds, prompt, output int) trace.Arrival {
		return trace.Arrival{
			At: time.Duration(seconds) * time.Second, Output: output, Prompt: trace.Segments{{ID: uint64(seconds + 1), Length: prompt}},
		}
	}
	// TTFT 60, 110 and 210 ms; E2E 260, 115 and 210 ms; tokens every 5 ms, and none after the first one of the last request.
	list := []trace.Arrival{at(0, 50, 41), at(1, 100, 2), at(2, 200, 1)}

	for _, c := range []struct {
		sla    SLA
		warmup time.Duration
		want   int
	}{
		{SLA{TTFT: 100 * time.Millisecond}, 0, 2},
		{SLA{TTFT: 110 * time.Millisecond}, 0, 1},
		{SLA{ITL: 4 * time.Millisecond}, 0, 2},
		{SLA{ITL: 5 * time.Millisecond}, 0, 0},
		{SLA{E2E: 209 * time.Millisecond}, 0, 2},
		{SLA{TTFT: 200 * time.Millisecond, E2E: 250 * time.Millisecond}, 0, 2},
		{SLA{ITL: 4 * time.Millisecond}, time.Second, 1},
	} {
		cfg := split(1, 0)
		cfg.SLA = c.sla
		cfg.Warmup = c.warmup
		if r := mustRun(t, cfg, list); r.SLAMisses == nil || *r.SLAMisses != c.want {
			t.Errorf("%+v: %v misses, want %d", c.sla, r.SLAMisses, c.want)
		}
	}
}

// TestFailuresMissTheSLA: a request that fails has missed every bound. The count is in the JSON if there is an SLA, also as 0.
func TestFailuresMissTheSLA(t *testing.T) {
	cfg := split(1, 0)
	cfg.SLA.E2E = time.Hour
	healthy := mustRun(t, cfg, distinct(0, 1000))
	cfg.Restarts = []Restart{{Worker: 0, At: 50 * time.Millisecond, After: time.Hour}}
	failing := mustRun(t, cfg, distinct(0, 1000))
	if *healthy.SLAMisses != 0 || *failing.SLAMisses != 2 || !strings.Contains(failing.String(), "2 requests missed the SLA\n") {
		t.Errorf("%d and %d misses\n%s", *healthy.SLAMisses, *failing.SLAMisses, failing)
	}

	data, err := json.Marshal(healthy)
	if err != nil || !strings.Contains(string(data), `"sla_misses":0`) {
		t.Errorf("%s, %v", data, err)
	}
	data, err = json.Marshal(mustRun(t, split(1, 0), distinct(0)))
	for _, key := range []string{"sla_misses", "gpu_hours", "replicas"} {
		if err != nil || strings.Contains(string(data), key) {
			t.Errorf("%s without an SLA and planning in %s, %v", key, data, err)
		}
	}
	if err := (Config{SLA: SLA{ITL: -1}}).Validate(); err == nil {
		t.Error("a negative bound is accepted")
	}
}
