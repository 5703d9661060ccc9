package workeragent

import (
	"os"
	"strings"
	"testing"

	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/workeragent/engine"
)

// TestOutputOfEngines: the status of a starting engine has its progress in loading, and the status of a failed one the
// end of its output and what to change, which are logged too. An engine that survives the agent has them in its file.
func TestOutputOfEngines(t *testing.T) {
	launches := []engine.Launch{exec("a", "mistaken"), exec("b", "loading")}
	cfg := Config{}
	if _, err := os.Stat("/proc/self/stat"); err == nil {
		launches = append(launches, surviving("c", "mistaken"), surviving("d", "loading"))
		cfg.State, _ = testState(t)
	}
	s := run(t, cfg, launches...)
	for i := range launches {
		name := launches[i].Name
		testkit.Eventually(t, "the status of "+name, func() bool {
			e := s.agent.Status()[i]
			if launches[i].Command[1] == "loading" {
				return e.Phase == "loading weights, 45 %"
			}
			return e.Failures > 0 && strings.Contains(e.Remedy, "launch[].python") && len(e.LastLines) == 20 &&
				strings.Contains(strings.Join(e.LastLines, " "), "see root cause above")
		})
	}
	if !s.log.Contains("remedy=") || !s.log.Contains("launch[].python") || !s.log.Contains("line 29") {
		t.Error("the log has no remedy, or not the end of the output")
	}
}
