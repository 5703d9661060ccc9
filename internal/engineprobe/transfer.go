package engineprobe

import (
	"strings"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
)

// SeenTransfer returns how an engine of that kind transfers KV caches, as far as its metrics show that. Kinds with vLLM's connectors have
// the metrics of a connector from their start:
//
//	metrics                                              transfer
//	vllm:nixl_…                                          nixl
//	vllm:kv_offload_… with a label tier such as "2:p2p"  p2p
//	vllm:kv_offload_… alone                              not known: tiers appear when they are used
//	neither of them                                      none
//
// SGLang shows its transfer in its server info, and TensorRT-LLM nowhere.
func SeenTransfer(kind *engines.Kind, page metric.Samples) (t fleet.Transfer, known bool) {
	if !kind.Connectors {
		return fleet.NoTransfer, false
	}
	var isVLLM, offloads, isP2P bool
	for _, s := range page {
		switch {
		case strings.HasPrefix(s.Name, "vllm:nixl_"):
			return fleet.TransferNixl, true
		case strings.HasPrefix(s.Name, "vllm:kv_offload_"):
			offloads = true
			isP2P = isP2P || strings.HasSuffix(s.Labels["tier"], ":p2p")
		case s.Name == kind.Metrics.Running:
			isVLLM = true
		}
	}
	if isP2P {
		return fleet.TransferP2P, true
	}
	return fleet.NoTransfer, isVLLM && !offloads
}
