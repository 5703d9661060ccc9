package scenario

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// TestHonestLoadDoesNotDrift: conversations grow, share a beginning and overlap in time. Engines find what decisions promised: there
// is no drift, and no cache state is rebuilt.
func TestHonestLoadDoesNotDrift(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, `
index: {driftTokens: 8000}
models: [{name: sim, path: "builtin:sim", launch: [{engine: sim, count: 2, args: {engineSpeedup: 4, blocks: 2048}}]}]
`))
	system := message{"system", strings.Repeat("You keep what you promise, and promise what you have. ", 20)}
	var clients sync.WaitGroup
	for c := range 6 {
		clients.Go(func() {
			for talk := range 6 {
				messages := []message{system}
				for turn := range 8 {
					messages = append(messages, message{"user", fmt.Sprintf("Client %d, talk %d, turn %d: %s", c, talk, turn, strings.Repeat("tell me more. ", 12))})
					r, err := g.tryChat(t.Context(), messages, 8)
					if err != nil {
						t.Error(err)
						return
					}
					messages = append(messages, message{"assistant", r.text})
				}
			}
		})
	}
	clients.Wait()
	eventually(t, "promise and report are compared", func() error {
		if n := g.metric("stator_feed_drift_windows_total"); n == 0 {
			return errNotYet
		}
		return nil
	})
	text, err := get("http://" + g.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "stator_feed_drift_ratio") {
			t.Log(line)
		}
	}
	t.Logf("promised %g, reported %g tokens in %g windows", g.metric("stator_feed_promised_cached_tokens_total"),
		g.metric("stator_feed_reported_cached_tokens_total"), g.metric("stator_feed_drift_windows_total"))
	if n := g.metric("stator_feed_drift_resyncs_total"); n != 0 {
		t.Errorf("%g resyncs", n)
	}
	g.assertServed(288)
}
