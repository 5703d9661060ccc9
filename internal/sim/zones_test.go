package sim

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// twoZones is a fleet of prefill and decode workers in two zones, between which a transfer takes 80 times as long as within one: 4,000 tokens
// need 6.6 ms and half a second.
func twoZones(decode, prefill int) Config {
	return Config{
		Workers: decode, Prefill: prefill, PrefillAt: "remote", Engine: engine.Config{BlockSize: 16}, Warmup: 10 * time.Second,
		Transfer: Transfer{Nodes: 2, NetworkBandwidth: 1e9},
	}
}

// poisson returns prompts that share nothing, at a rate each second, for a minute.
func poisson(rate float64, tokens, answer int) (list []trace.Arrival) {
	rng := rand.New(rand.NewPCG(1, 2))
	for at := time.Duration(0); at < time.Minute; at += time.Duration(rng.ExpFloat64() / rate * float64(time.Second)) {
		list = append(list, trace.Arrival{
			At: at, Prompt: trace.Segments{{ID: uint64(len(list) + 1), Length: tokens/2 + rng.IntN(tokens)}}, Output: answer,
		})
	}
	return list
}

// TestTransfersStayInTheirZone: where routers know the zones, prompts are computed in the zone in which they are decoded, and first tokens
// come sooner.
func TestTransfersStayInTheirZone(t *testing.T) {
	list := poisson(12, 4000, 60)
	cfg := twoZones(4, 4)
	without := mustRun(t, cfg, list)
	cfg.Transfer.Zones = true
	with := mustRun(t, cfg, list)
	t.Logf("mean TTFT %.1f ms with zones, %.1f ms without; %.1f %% and %.1f %% of the transfers between zones",
		with.TTFT.Mean, without.TTFT.Mean, 100*with.Crossed, 100*without.Crossed)
	if with.Completed != len(list) || without.Crossed < 0.3 || with.Crossed > 0.1 {
		t.Errorf("%.2f of the transfers cross with zones, %.2f without; %d of %d completed", with.Crossed, without.Crossed, with.Completed, len(list))
	}
	if with.TTFT.Mean > 0.8*without.TTFT.Mean {
		t.Errorf("mean TTFT %.1f ms with zones, %.1f ms without", with.TTFT.Mean, without.TTFT.Mean)
	}
}

// TestTransfersLeaveABusyZone: no rule keeps prompts in their zone. The only decode worker has one prefill worker in its zone, which cannot
// compute all prompts, so that the one of the other zone computes some.
func TestTransfersLeaveABusyZone(t *testing.T) {
	list := poisson(16, 4000, 8)
	cfg := twoZones(1, 2)
	cfg.Transfer.NetworkBandwidth = 10e9
	without := mustRun(t, cfg, list)
	cfg.Transfer.Zones = true
	with := mustRun(t, cfg, list)
	t.Logf("mean TTFT %.1f ms with zones, %.1f ms without; %.1f %% and %.1f %% of the transfers between zones",
		with.TTFT.Mean, without.TTFT.Mean, 100*with.Crossed, 100*without.Crossed)
	if with.Completed != len(list) || with.Crossed < 0.1 || with.Crossed >= without.Crossed {
		t.Errorf("%.2f of the transfers cross with zones, %.2f without; %d of %d completed", with.Crossed, without.Crossed, with.Completed, len(list))
	}
}
