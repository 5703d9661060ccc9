package main

import (
	"bytes"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
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

// TestStreamsMustBeComplete reads a complete stream, and one that breaks off.
func TestStreamsMustBeComplete(t *testing.T) {
	const text = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n"
	r, err := readStream(strings.NewReader(text+"data: [DONE]\n\n"), time.Now())
	if err != nil || r.usage.Prompt != 9 || r.usage.Answer != 3 || r.usage.Details.Cached != 8 || r.e2e < r.ttft {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := readStream(strings.NewReader(text), time.Now()); err == nil {
		t.Error("a stream without its end is no error")
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

func TestOptions(t *testing.T) {
	for _, args := range [][]string{{"--rounds", "0"}, {"--speed", "0"}, {"more"}} {
		if _, err := readOptions(args, io.Discard); err == nil {
			t.Errorf("%q are accepted", args)
		}
	}
	for _, o := range []options{{shapes: "none", concurrency: "1"}, {shapes: "shared", concurrency: "none"}} {
		if _, err := o.loads(); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
