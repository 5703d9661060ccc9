package sources_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/kvsource/sources"
)

func newSource(t *testing.T) *kvsource.Source {
	t.Helper()
	src, err := kvsource.New(kvsource.Config{Endpoint: "tcp://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// TestGoneSourcesHaveNoMetrics: a rank has metrics while its source runs, under the name of the part.
func TestGoneSourcesHaveNoMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	set := sources.Register(reg, "agent")
	removeB := set.Add("b", 0, newSource(t))
	removeA := set.Add("a", 1, newSource(t))

	want := `
# HELP stator_agent_source_connected 1 while the rank's event socket is connected, and otherwise 0.
# TYPE stator_agent_source_connected gauge
stator_agent_source_connected{rank="0",worker="b"} 0
stator_agent_source_connected{rank="1",worker="a"} 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "stator_agent_source_connected"); err != nil {
		t.Error(err)
	}
	removeB()
	all := set.All()
	if len(all) != 1 || all[0].Worker != "a" || all[0].Rank != 1 {
		t.Errorf("running sources: %+v", all)
	}
	removeA()
	if n, err := testutil.GatherAndCount(reg); n != 0 || err != nil {
		t.Errorf("%d metrics without a source: %v", n, err)
	}
}

// TestReplacedSourceIsNotRemoved: the late end of an old source leaves the new source of its rank in the set.
func TestReplacedSourceIsNotRemoved(t *testing.T) {
	set := sources.Register(prometheus.NewRegistry(), "sockets")
	removeOld := set.Add("a", 0, newSource(t))
	set.Add("a", 0, newSource(t))

	removeOld()
	if n := len(set.All()); n != 1 {
		t.Errorf("%d sources run", n)
	}
}
