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

// TestReportSaysWhenProcessorsAreBusy prints loads below and above the bound.
func TestReportSaysWhenProcessorsAreBusy(t *testing.T) {
	for share, want := range map[float64]bool{0.5: false, 0.9: true} {
		var out bytes.Buffer
		list := []result{{rate: 10, ttft: 1, ttft99: 1, e2e: 1, own: share}}
		printLoad(&out, load{shape: shapes["shared"]}, []string{"kv", "round-robin"}, [][]result{list, list})
		if got := strings.Contains(out.String(), "CPU BOUND"); got != want {
			t.Errorf("busy for %.1f of the time: %s", share, &out)
		}
	}
}
