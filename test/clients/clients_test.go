package main

import (
	"os"
	"testing"
)

// TestPage: each block of the page is a file or can be run, and names the gateway or a command. Each agent has a section.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	clients, err := parsePage(string(text))
	if err != nil {
		t.Fatal(err)
	}

	sections := map[string]bool{}
	for _, c := range clients {
		sections[c.name] = true
		run := 0
		for _, b := range c.blocks {
			switch {
			case b.path != "":
			case b.language == "sh", b.language == "python", b.language == "js":
				run++
			default:
				t.Errorf("%s: a block of %q is no file, and cannot be run", c.name, b.language)
			}
		}
		if run != 1 {
			t.Errorf("%s: %d blocks are run", c.name, run)
		}
	}
	for name := range goesOn {
		if !sections[name] {
			t.Errorf("no section %q", name)
		}
	}
}

// TestUsage reads the usage of each API, from answers and from streams.
func TestUsage(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		want   usage
	}{
		"chat":      {`{"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}`, usage{10, 4}},
		"responses": {"event: x\ndata: {\"response\":{\"usage\":{\"input_tokens\":10,\"input_tokens_details\":{\"cached_tokens\":4}}}}\n\n", usage{10, 4}},
		"messages":  {"data: {\"message\":{\"usage\":{\"input_tokens\":6,\"cache_read_input_tokens\":4}}}\n\ndata: {\"usage\":{\"output_tokens\":3}}\n", usage{10, 4}},
	} {
		if got := usageOf([]byte(c.answer)); got == nil || *got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if got := usageOf([]byte(`{"error":{}}`)); got != nil {
		t.Errorf("%+v of an error", got)
	}
}
