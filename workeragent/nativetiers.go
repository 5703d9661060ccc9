package workeragent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/metric"
)

// nativeMetrics count the transfers of engines between their caches and their native tiers, such as the tiers of
// vLLM's OffloadingConnector:
//
//	tier            stored from, loaded to
//	host            the device
//	fs, obj, p2p    host memory
//
// The labels are few: an engine has at most as many tiers as package engineprobe reads.
type nativeMetrics struct{ stored, loaded, failed *prometheus.CounterVec }

func newNativeMetrics(part metric.Part) nativeMetrics {
	return nativeMetrics{
		stored: part.Counters("native_tier_stored_bytes_total",
			"Bytes that an engine wrote to its native tier (vLLM: host, fs, obj or p2p).", "worker", "tier"),
		loaded: part.Counters("native_tier_loaded_bytes_total", "Bytes that an engine loaded from its native tier.", "worker", "tier"),
		failed: part.Counters("native_tier_failures_total",
			"Transfers of an engine with its native tier that failed, or were left out for lack of room or time.", "worker", "tier"),
	}
}

// nativeTiers has the counts of one engine process's tiers when they were last read. It belongs to one goroutine.
type nativeTiers map[string]engineprobe.Tier

// count adds the tiers' counts since the last call to the metrics.
//
// The first reading of a process counts from 0, as its own counters do. An engine that this agent adopted adds its earlier
// moves too.
func (n nativeTiers) count(m nativeMetrics, worker string, now []engineprobe.Tier) {
	for _, t := range now {
		before := n[t.Name]
		m.stored.WithLabelValues(worker, t.Name).Add(since(before.Stored, t.Stored))
		m.loaded.WithLabelValues(worker, t.Name).Add(since(before.Loaded, t.Loaded))
		m.failed.WithLabelValues(worker, t.Name).Add(since(before.Failed, t.Failed))
		n[t.Name] = t
	}
}

// since returns how much a counter has grown. One that has begun again counts from 0.
func since(before, now uint64) float64 {
	if now < before {
		return float64(now)
	}
	return float64(now - before)
}
