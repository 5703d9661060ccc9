package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// TestSecurityPageHasTheDefaults: docs/security.md names the defaults of the bounds that the configuration and the
// parser have.
func TestSecurityPageHasTheDefaults(t *testing.T) {
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse([]byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels: [{name: m, path: \"builtin:sim\"}]\n"))
	if err != nil {
		t.Fatal(err)
	}

	g, page := &cfg.Gateway, string(text)
	for _, path := range g.PassPaths {
		if !strings.Contains(page, "`"+path+"`") {
			t.Errorf("the page does not list the passing path %s", path)
		}
	}
	lim := openai.Limits{}.WithDefaults()
	for _, row := range []string{
		fmt.Sprintf("`gateway.maxConnections`, %s ", grouped(g.MaxConnections)),
		fmt.Sprintf("`gateway.maxBodyBytes`, %d MiB |", g.MaxBodyBytes>>20),
		fmt.Sprintf("`gateway.maxBodiesBytes`, %d MiB |", g.MaxBodiesBytes>>20),
		fmt.Sprintf("`gateway.headersTimeout`, %g s |", g.HeadersTimeout.Std().Seconds()),
		fmt.Sprintf("`gateway.bodyTimeout`, %g min |", g.BodyTimeout.Std().Minutes()),
		fmt.Sprintf("`gateway.idleTimeout`, %g min |", g.IdleTimeout.Std().Minutes()),
		fmt.Sprintf("`gateway.decisionTimeout`, %g s |", g.DecisionTimeout.Std().Seconds()),
		fmt.Sprintf("| JSON: depth | %d levels |", lim.Depth),
		fmt.Sprintf("| %s together |", grouped(lim.Values)),
		fmt.Sprintf("| %s; %s; %s; %s |", grouped(lim.Messages), grouped(lim.Parts), grouped(lim.Prompts), grouped(lim.Tokens)),
	} {
		if !strings.Contains(page, row) {
			t.Errorf("the page does not have %q", row)
		}
	}
}

// grouped writes a number with commas between its thousands.
func grouped(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
