package main

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestBodiesShareTheirPrefixes makes prompts of both shapes: they have as many words as they should, and share the first ones.
func TestBodiesShareTheirPrefixes(t *testing.T) {
	for _, s := range shapes {
		l := load{shape: s, requests: 50 * s.prefixes}
		starts := map[string]bool{}
		for _, body := range l.bodies(rand.New(rand.NewPCG(1, 1)), 7) {
			_, text, _ := bytes.Cut(body, []byte(`"content":" `))
			prompt := strings.Fields(strings.TrimSuffix(string(text), `"}]}`))
			if len(prompt) != promptTokens {
				t.Fatalf("%s: %d words", s.name, len(prompt))
			}
			starts[strings.Join(prompt[:s.prefix], " ")] = true
		}
		if len(starts) != s.prefixes {
			t.Errorf("%s: %d prefixes, want %d", s.name, len(starts), s.prefixes)
		}
	}
}

// TestReportWarnsOfBusyProcessors prints loads below and above the bound.
func TestReportWarnsOfBusyProcessors(t *testing.T) {
	for _, c := range []struct {
		own, machine float64
		want         string
	}{{0.2, 0.5, "used at most 20 %"}, {0.2, 0.9, "DISTURBED"}, {0.9, 0.9, "CPU BOUND"}} {
		var out bytes.Buffer
		list := []result{{rate: 10, ttft: 1, ttft99: 1, e2e: 1, own: c.own, machine: c.machine}}
		printLoad(&out, load{shape: shapes["shared"]}, []string{"kv", "round-robin"}, [][]result{list, list})
		if !strings.Contains(out.String(), c.want) {
			t.Errorf("no %q in %s", c.want, &out)
		}
	}
}
