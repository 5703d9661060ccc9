package engineprobe

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/engines"
)

// TestMetricsOfKinds reads a page with the metrics of each kind of engine. A kind without names of metrics is not read.
func TestMetricsOfKinds(t *testing.T) {
	for _, k := range engines.All() {
		if k.Metrics.Running == "" {
			if New(k.Name, "127.0.0.1:1", nil).ReadsLoad() {
				t.Errorf("%s: its load is read", k.Name)
			}
			continue
		}
		n := &k.Metrics
		var page strings.Builder
		for i, name := range []string{n.Running, n.Waiting, n.Usage, n.Queries, n.Hits, n.Gaps, n.GapTime, n.Capacity, n.Blocks, n.BlockSize} {
			if name != "" {
				fmt.Fprintf(&page, "%s %d\n", name, 20-i)
			}
		}
		got, err := parse(n, strings.NewReader(page.String()))
		running := 20
		if n.RunningHasWaiting {
			running = 1
		}
		if err != nil || got.Running != running || got.Waiting != 19 || n.Queries != "" && (got.PrefixQueries != 17 || got.PrefixHits != 16) ||
			n.Gaps != "" && got.Gaps != 15 || n.Capacity != "" && got.Capacity != 13 || n.Blocks != "" && got.Capacity != 12*11 {
			t.Errorf("%s: %+v, %v", k.Name, got, err)
		}
	}
}
