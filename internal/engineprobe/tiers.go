package engineprobe

import (
	"cmp"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/metric"
)

// Tier counts an engine's transfers between its cache and one of its native tiers, since the engine started.
type Tier struct {
	// Name is the type of the tier as vLLM has it: host is host memory, and fs, obj or p2p are behind it.
	Name string
	// Stored and Loaded count bytes to the tier and from it: of host memory to and from the device, of others to and from host memory.
	Stored, Loaded uint64
	// Failed counts transfers that failed or were not begun, for lack of room or because the tier is too slow.
	Failed uint64
}

// hostTier is the name of the tier that vLLM has between the device and the others.
const hostTier = "host"

// maxTiers bounds the tiers of an engine.
const maxTiers = 8

// tierCounts are the counters of vLLM's OffloadingConnector. Metrics of the tiers behind host memory have the label tier, such as
// "1:fs".
var tierCounts = map[string]func(*Tier) *uint64{
	"vllm:kv_offload_store_bytes_total":                           func(t *Tier) *uint64 { return &t.Stored },
	"vllm:kv_offload_tiering_write_bytes_total":                   func(t *Tier) *uint64 { return &t.Stored },
	"vllm:kv_offload_load_bytes_total":                            func(t *Tier) *uint64 { return &t.Loaded },
	"vllm:kv_offload_tiering_read_bytes_total":                    func(t *Tier) *uint64 { return &t.Loaded },
	"vllm:kv_offload_allocation_failure_total":                    func(t *Tier) *uint64 { return &t.Failed },
	"vllm:kv_offload_tiering_promotion_job_failures_total":        func(t *Tier) *uint64 { return &t.Failed },
	"vllm:kv_offload_tiering_promotion_allocation_failures_total": func(t *Tier) *uint64 { return &t.Failed },
	"vllm:kv_offload_tiering_cascade_job_failures_total":          func(t *Tier) *uint64 { return &t.Failed },
	"vllm:kv_offload_tiering_backpressure_stores_dropped_total":   func(t *Tier) *uint64 { return &t.Failed },
}

// readTiers returns the tiers that a page of vLLM has, sorted by name. The values of several ranks are
// added up.
func readTiers(page metric.Samples) (tiers []Tier) {
	for _, s := range page {
		count := tierCounts[s.Name]
		if count == nil || !(s.Value >= 0 && s.Value < maxCount) {
			continue
		}
		name := hostTier
		if label, is := s.Labels["tier"]; is {
			name = typeOfTier(label)
		}
		at := slices.IndexFunc(tiers, func(t Tier) bool { return t.Name == name })
		if at < 0 {
			if len(tiers) == maxTiers {
				continue
			}
			at = len(tiers)
			tiers = append(tiers, Tier{Name: name})
		}

		*count(&tiers[at]) += uint64(s.Value)
	}
	slices.SortFunc(tiers, func(a, b Tier) int { return cmp.Compare(a.Name, b.Name) })
	return tiers
}

// typeOfTier returns the type of a tier from vLLM's label. A label of another form is cut to the characters and the length of a
// metric's label.
func typeOfTier(label string) string {
	if _, name, found := strings.Cut(label, ":"); found {
		label = name
	}
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return -1
	}, label)
	return cmp.Or(clean[:min(len(clean), 16)], "other")
}
