package scenario

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What a gateway decided is in its log, with how each request ended and without a word of what was
// said, and `stator replay --decisions` plays it: as many requests, with as many prompt tokens, of
// which the simulated fleet reuses what the real one did.
func TestDecisionLogIsReplayed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "decisions.jsonl")
	g := up(t, "--workers", "2", "--decision-log", file)
	asked, cached, prompt := 0, 0, 0
	for i := range 3 {
		talk := newTalk(fmt.Sprintf("harbour number %d", i), 60)
		for turn := range 4 {
			if err := talk.turn(g, turn); err != nil {
				t.Fatal(err)
			}
			asked++
		}
		cached += talk.cached
	}
	g.assertServed(asked)
	g.up.stop()

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "harbour") {
		t.Error("the log has what was said")
	}
	ends := 0
	for line := range strings.Lines(string(text)) {
		var v struct {
			Decision *decision
			End      *struct {
				Outcome                 string
				FirstByteMs, LastByteMs float64
				ResponseBytes           int
			}
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if v.Decision != nil {
			prompt += v.Decision.PromptTokens
			continue
		}
		ends++
		if v.End.Outcome != "as_picked" || v.End.FirstByteMs <= 0 || v.End.LastByteMs < v.End.FirstByteMs || v.End.ResponseBytes < 100 {
			t.Errorf("an end says %s", line)
		}
	}
	if ends != asked {
		t.Errorf("%d ends of %d requests", ends, asked)
	}

	out, err := exec.Command(binary, "replay", "--decisions", file, "--workers", "2", "--block-size", "16", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Requests, Completed int
		PrefixReuse         float64 `json:"prefix_reuse"`
		PerWorker           []struct {
			Prompt int `json:"prompt_tokens"`
		} `json:"per_worker"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	played := 0
	for _, w := range r.PerWorker {
		played += w.Prompt
	}
	// A hash stands for 32 blocks of 16 tokens: so much of a prompt may be taken for new.
	found := float64(cached) / float64(prompt)
	if r.Completed != asked || played != prompt || r.PrefixReuse > found+0.01 || r.PrefixReuse < found-512*float64(asked)/float64(prompt) {
		t.Errorf("played %d requests of %d tokens with a reuse of %.3f; the gateway had %d of %d with %.3f", r.Completed, played, r.PrefixReuse, asked, prompt, found)
	}
}
