package scenario

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestRequiredTaintsRestrictWorkers: taints from the file reach the router over the bus. A request that requires one goes to no other worker,
// whatever the cost, and is refused when no worker has it.
func TestRequiredTaintsRestrictWorkers(t *testing.T) {
	t.Parallel()
	file := configFile(t, `gateway: {hintsFrom: everyone}
models:
- name: sim
  path: "builtin:sim"
  launch:
  - {engine: sim, count: 3}
  - {engine: sim, taints: ["zone=b", large]}
`)
	g := up(t, "--config", file)
	ask := func(i int, constraints string) reply {
		t.Helper()
		r, err := g.send(t.Context(), http.MethodPost, "/v1/completions",
			fmt.Appendf(nil, `{"model":"sim","prompt":"Harbour number %d","max_tokens":2,"nvext":{"routing_constraints":%s}}`, i, constraints))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for i := range 8 {
		r := ask(i, `{"required_taints":["large","zone=b"]}`)
		if r.status != http.StatusOK || g.decision(r.decision).Worker != "sim-3" {
			t.Errorf("status %d, served by %s, want sim-3: %s", r.status, g.decision(r.decision).Worker, r.body)
		}
	}
	if r := ask(9, `{"preferred_taints":{"zone=b":-3}}`); r.status != http.StatusOK || g.decision(r.decision).Worker == "sim-3" {
		t.Errorf("status %d, served by %s although that is not liked", r.status, g.decision(r.decision).Worker)
	}
	if r := ask(10, `{"required_taints":["zone=c"]}`); r.status != http.StatusServiceUnavailable || r.error.Code != "no_tainted_worker" || !strings.Contains(r.error.Message, "zone=c") {
		t.Errorf("%d: %s", r.status, r.body)
	}
	g.assertServed(9)
}
