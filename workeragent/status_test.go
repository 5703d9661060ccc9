package workeragent

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/test/testkit"
)

// TestStatusOfEngines: the status of a ready engine has its process, its mirror and its source. The status of an
// engine that does not start has the reason.
func TestStatusOfEngines(t *testing.T) {
	s := run(t, Config{}, simulated("a"), exec("broken", "broken"))
	w := s.await("a", fleet.Ready, 0)
	post(w.Address, "/v1/completions", `{"model": "sim", "prompt": "`+strings.Repeat("a long prompt ", 40)+`", "max_tokens": 1}`)

	var status []EngineStatus
	testkit.Eventually(t, "the mirror is exact, and the broken engine has failed", func() bool {
		status = s.agent.Status()
		return len(status[0].Ranks) == 1 && status[0].Ranks[0].State == feed.Exact && status[0].Ranks[0].Blocks > 0 && status[1].Failures > 0
	})

	a, broken := status[0], status[1]
	if a.Worker != "a" || a.PID != s.agent.Processes()["a"] || a.Epoch != w.Epoch || a.Address != w.Address || a.State != fleet.Ready ||
		a.Unready != 0 || a.InState <= 0 || a.Failures != 0 {
		t.Errorf("engine %+v", a)
	}
	rank := a.Ranks[0]
	if rank.Next == 0 || rank.PastBatches != int(rank.Next) || rank.PastBytes == 0 || rank.Source == nil || !rank.Source.Connected {
		t.Errorf("rank %+v", rank)
	}
	if broken.Unready <= 0 || broken.LastError != "exit status 1" || broken.LastLine != "out of memory" || broken.SinceFailure <= 0 {
		t.Errorf("broken engine %+v", broken)
	}
}

// TestTimeDownIsMeasured: the metric is 0 while an engine is ready, and grows when it does not answer.
func TestTimeDownIsMeasured(t *testing.T) {
	s := run(t, Config{}, exec("a", "obey", "{port}"))
	down := func() float64 {
		return testutil.ToFloat64(metric.Collector(s.agent.collectEngines))
	}

	w := s.await("a", fleet.Ready, 0)
	if d := down(); d != 0 {
		t.Errorf("a ready engine is down for %g s", d)
	}
	post(w.Address, "/set?health=500", "")
	testkit.Eventually(t, "the time is measured", func() bool { return down() > 0.05 })
	post(w.Address, "/set?health=200", "")
	testkit.Eventually(t, "it is ready again", func() bool { return down() == 0 })
}
