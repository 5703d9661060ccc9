package engineprobe

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
)

// TestSeenTransfer: the names are those of vLLM 0.32.0, as captured.
func TestSeenTransfer(t *testing.T) {
	const plain = "vllm:num_requests_running{engine=\"0\"} 0\n"
	for _, c := range []struct {
		kind, page string
		want       fleet.Transfer
		known      bool
	}{
		{"vllm", plain, fleet.NoTransfer, true},
		{"vllm", plain + "vllm:nixl_bytes_transferred_sum{engine=\"0\"} 0\n", fleet.TransferNixl, true},
		{"vllm", plain + "vllm:kv_offload_store_bytes_total{engine=\"0\"} 0\n", fleet.NoTransfer, false},
		{"vllm", plain + "vllm:kv_offload_tiering_read_bytes_total{engine=\"0\",tier=\"1:fs\"} 0\n" +
			"vllm:kv_offload_tiering_read_bytes_total{engine=\"0\",tier=\"2:p2p\"} 196608\n", fleet.TransferP2P, true},
		{"vllm", "other 1\n", fleet.NoTransfer, false},
		{"sglang", plain, fleet.NoTransfer, false},
	} {
		page, err := metric.Read(strings.NewReader(c.page))
		if err != nil {
			t.Fatal(err)
		}
		if got, known := SeenTransfer(engines.Of(c.kind), page); got != c.want || known != c.known {
			t.Errorf("%s %q: %v, %v; want %v, %v", c.kind, c.page, got, known, c.want, c.known)
		}
	}
}
