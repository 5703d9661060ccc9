package main

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
)

// TestRolesThatNeedTheRelay: an InferencePool has no endpoint for the relay, so workers whose transfer needs it are refused, and the others
// stay. With the flag, and for a control plane, all stay.
func TestRolesThatNeedTheRelay(t *testing.T) {
	found := []config.Found{
		{Name: "p", Address: "10.0.0.1:8000", Model: "m", Engine: "sglang", Role: fleet.Prefill, Ranks: 1, Epoch: 1},
		{Name: "d", Address: "10.0.0.2:8000", Model: "m", Engine: "sglang", Role: fleet.Decode, Ranks: 1, Epoch: 1},
		{Name: "both", Address: "10.0.0.3:8000", Model: "m", Engine: "sglang", Role: fleet.Aggregated, Ranks: 1, Epoch: 1},
		{Name: "vp", Address: "10.0.0.4:8000", Model: "v", Engine: "vllm", Role: fleet.Prefill, Ranks: 1, Epoch: 1},
		{Name: "vd", Address: "10.0.0.5:8000", Model: "v", Engine: "vllm", Role: fleet.Decode, Ranks: 1, Epoch: 1},
	}
	for _, c := range []struct {
		name string
		p    *pools
		want string
	}{
		{"a pool", &pools{names: "llm/m"}, "both vp vd"},
		{"a pool that reaches the relay", &pools{names: "llm/m", reachesRelay: true}, "p d both vp vd"},
		{"labels", &pools{selector: "app=m"}, "p d both vp vd"},
	} {
		cfg, err := config.Default().With(found)
		if err != nil {
			t.Fatal(err)
		}
		err = c.p.withoutRelayed(cfg)
		var left []string
		for i := range cfg.Found {
			left = append(left, cfg.Found[i].Name)
		}
		if got := strings.Join(left, " "); got != c.want {
			t.Errorf("%s: %s are left, want %s", c.name, got, c.want)
		}
		refuses := c.want == "both vp vd"
		if (err != nil) != refuses || refuses && !strings.Contains(err.Error(), "p (prefill, transfer bootstrap), d (decode") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
