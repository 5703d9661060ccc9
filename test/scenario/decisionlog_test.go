package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/decisionlog"
)

// TestDecisionLogIsReplayed reads the decision log of a gateway. It has every decision and every end, and
// nothing of the prompts' text. `stator replay --decisions` plays it: as many requests with as many prompt
// tokens, of which the simulated fleet reuses as many as the real one.
func TestDecisionLogIsReplayed(t *testing.T) {
	t.Parallel()
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
		t.Error("the log has text of a prompt")
	}
	ends := 0
	log := decisionlog.NewReader(bytes.NewReader(text))
	for {
		line, err := log.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if line.Decision != nil {
			prompt += line.Decision.PromptTokens
			continue
		}
		ends++
		if e := line.End; e.Outcome != "as_picked" || e.FirstByte <= 0 || e.LastByte < e.FirstByte || e.ResponseBytes < 100 {
			t.Errorf("end %+v", e)
		}
	}
	if ends != asked {
		t.Errorf("%d ends of %d requests", ends, asked)
	}

	out, err := exec.Command(binary, "replay", "--decisions", file, "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Requests, Completed int
		Settings            string
		PrefixReuse         float64 `json:"prefix_reuse"`
		PerWorker           []struct {
			Prompt int `json:"prompt_tokens"`
		} `json:"per_worker"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(r.Settings, "--workers 2 ") || !strings.HasSuffix(r.Settings, "--block-size 16") || len(r.PerWorker) != 2 {
		t.Errorf("the fleet is not the log's: %q", r.Settings)
	}
	played := 0
	for _, w := range r.PerWorker {
		played += w.Prompt
	}
	// A hash covers 32 blocks of 16 tokens, so up to 512 tokens of a prompt may count as not cached.
	found := float64(cached) / float64(prompt)
	if r.Completed != asked || played != prompt || r.PrefixReuse > found+0.01 || r.PrefixReuse < found-512*float64(asked)/float64(prompt) {
		t.Errorf("played %d requests of %d tokens with a reuse of %.3f; the gateway had %d of %d with %.3f", r.Completed, played, r.PrefixReuse, asked, prompt, found)
	}
}
