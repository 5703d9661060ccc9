package xds

import (
	"strings"
	"testing"
	"time"
)

// TestFailClosed: where requests need a decision, the filter lets none pass without one, and the snippet does not either.
func TestFailClosed(t *testing.T) {
	s := Settings{Listen: "127.0.0.1:0", ExtProc: []string{"127.0.0.1:9002"}, Models: []string{"m"},
		SessionHeaders: []string{"x-session-id"}, MaxBodyBytes: 1 << 20, DecisionTimeout: time.Second, IdleTimeout: time.Minute}
	for _, closed := range []bool{false, true} {
		s.FailClosed = closed
		if allows := buildExtProc(s, audience{}).GetFailureModeAllow(); allows == closed {
			t.Errorf("closed %v: failure_mode_allow %v", closed, allows)
		}

		text, err := Snippet(SnippetSettings{Settings: s, Version: newestVersion})
		if err != nil {
			t.Fatal(err)
		}
		if allows := strings.Contains(string(text), "failure_mode_allow: true"); allows == closed {
			t.Errorf("closed %v: the snippet has failure_mode_allow: %v", closed, allows)
		}
	}
}
