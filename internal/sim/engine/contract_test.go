package engine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/sim/engine"
)

// TestSubmitRefusesUnusableRequests refuses a request without a prompt, and one that was submitted before.
func TestSubmitRefusesUnusableRequests(t *testing.T) {
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Submit(&engine.Request{}); err == nil || err.Error() != "submit request: its prompt is empty" {
		t.Errorf("no prompt: %v", err)
	}
	r := &engine.Request{Prompt: []uint32{1}, MaxTokens: 1, Next: func(int) (uint32, bool) { return 2, true }}
	if err := e.Submit(r); err != nil {
		t.Fatal(err)
	}
	if err := e.Submit(r); err == nil || errors.Is(err, engine.ErrQueueFull) {
		t.Errorf("submitted twice: %v", err)
	}
	if s := e.Stats(); s.Waiting != 1 {
		t.Errorf("%d requests wait, want 1", s.Waiting)
	}
}

// TestPassIsEndedOnce checks that End without a pass has an empty result, and that an engine without settings
// computes passes of a positive duration, with a token that ends the answer.
func TestPassIsEndedOnce(t *testing.T) {
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if result := e.End(); len(result.Outputs) != 0 || len(result.Events) != 0 {
		t.Errorf("a result without a pass: %+v", result)
	}

	r := &engine.Request{Prompt: make([]uint32, 40), Next: func(int) (uint32, bool) { return 2, true }}
	if err := e.Submit(r); err != nil {
		t.Fatal(err)
	}
	end, ok := e.Begin(time.Time{})
	if !ok || !end.After(time.Time{}) {
		t.Fatalf("pass until %v, %v", end, ok)
	}
	if again, ok := e.Begin(end); !ok || again != end {
		t.Errorf("begun twice: %v, %v", again, ok)
	}
	if result := e.End(); len(result.Outputs) != 1 || result.Outputs[0].Done != engine.Stop || len(result.Events) != 1 {
		t.Errorf("%+v", result)
	}
	if result := e.End(); len(result.Outputs) != 0 || e.Stats().Passes != 1 {
		t.Errorf("ended twice: %+v", result)
	}
}

// TestPromptHashes: the hashes of a prompt are known before it is submitted, and find its blocks in the cache afterwards.
func TestPromptHashes(t *testing.T) {
	e, err := engine.New(engine.Config{BlockSize: 4})
	if err != nil {
		t.Fatal(err)
	}
	r := &engine.Request{Prompt: make([]uint32, 11), MaxTokens: 1, Next: func(int) (uint32, bool) { return 2, false }}
	hashes := e.PromptHashes(r)
	if len(hashes) != 2 || e.Cached(hashes) != 0 {
		t.Fatalf("%d hashes of 2 complete blocks, %d are cached", len(hashes), e.Cached(hashes))
	}

	if err := e.Submit(r); err != nil {
		t.Fatal(err)
	}
	e.Begin(time.Time{})
	e.End()
	if other := e.PromptHashes(&engine.Request{Prompt: make([]uint32, 11), Salt: "s"}); e.Cached(hashes) != 2 || e.Cached(other) != 0 {
		t.Errorf("%d blocks are cached, %d with a salt", e.Cached(hashes), e.Cached(other))
	}
}
