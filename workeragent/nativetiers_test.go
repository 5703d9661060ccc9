package workeragent

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/metric"
)

// TestNativeTiers: the counters of an engine's own tiers go on when its process starts again.
func TestNativeTiers(t *testing.T) {
	m := newNativeMetrics(metric.For(prometheus.NewRegistry(), "agent"))
	for _, process := range [][][]engineprobe.Tier{
		{nil, {{Name: "host", Stored: 100}}, {{Name: "fs", Stored: 40, Failed: 1}, {Name: "host", Stored: 150, Loaded: 30}}},
		{{{Name: "host", Stored: 20, Loaded: 5}}, {{Name: "host", Stored: 10, Loaded: 7}}}, // the engine began to count again
	} {
		tiers := nativeTiers{}
		for _, now := range process {
			tiers.count(m, "vllm-0", now)
		}
	}

	for _, c := range []struct {
		counter *prometheus.CounterVec
		tier    string
		want    float64
	}{{m.stored, "host", 180}, {m.loaded, "host", 37}, {m.stored, "fs", 40}, {m.failed, "fs", 1}, {m.loaded, "fs", 0}} {
		if got := testutil.ToFloat64(c.counter.WithLabelValues("vllm-0", c.tier)); got != c.want {
			t.Errorf("%s: %v, want %v", c.tier, got, c.want)
		}
	}
}
