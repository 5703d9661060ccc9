package engineprobe

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/engines"
)

// TestTiers reads what vLLM counts of its own tiers.
func TestTiers(t *testing.T) {
	page, err := os.ReadFile("testdata/vllm-offloading.txt")
	if err != nil {
		t.Fatal(err)
	}
	hostile := `vllm:num_requests_running 1
vllm:kv_offload_tiering_write_bytes_total{tier="2:P2P\n<script>and a very long name of a tier"} 7
vllm:kv_offload_tiering_write_bytes_total{tier=""} -1
vllm:kv_offload_tiering_write_bytes_total{tier="3:p2p"} NaN
vllm:kv_offload_tiering_write_bytes_total{tier="//"} 2
vllm:kv_offload_tiering_write_bytes_total{engine="0",tier="1:fs"} 5
vllm:kv_offload_tiering_write_bytes_total{engine="1",tier="1:fs"} 6
vllm:kv_offload_tiering_cascade_job_failures_total{tier="1:fs"} 3
vllm:kv_offload_allocation_failure_total 4
`
	for _, c := range []struct {
		page string
		want []Tier
	}{
		{string(page), []Tier{{Name: "fs", Stored: 1818624}, {Name: "host", Stored: 1818624, Loaded: 1818624}}},
		{hostile, []Tier{{Name: "2scriptandaveryl", Stored: 7}, {Name: "fs", Stored: 11, Failed: 3}, {Name: "host", Failed: 4},
			{Name: "other", Stored: 2}}},
		{pages["vllm"], nil},
	} {
		l, err := parse(&engines.VLLM.Metrics, strings.NewReader(c.page))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(l.Tiers, c.want) {
			t.Errorf("%+v, want %+v", l.Tiers, c.want)
		}
	}

	many := "vllm:num_requests_running 1\n"
	for i := range 100 {
		many += fmt.Sprintf("vllm:kv_offload_tiering_read_bytes_total{tier=\"%d:t%d\"} 1\n", i, i)
	}
	if l, err := parse(&engines.VLLM.Metrics, strings.NewReader(many)); err != nil || len(l.Tiers) != maxTiers {
		t.Errorf("%d tiers: %v", len(l.Tiers), err)
	}
}
