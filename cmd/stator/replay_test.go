package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
)

// TestInterruptedReplayPrintsFigures stops a replay: it prints the figures so far, and that they are not
// complete.
func TestInterruptedReplayPrintsFigures(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, complaints bytes.Buffer
	env := environment{out: &out, err: &complaints, hard: context.Background()}
	err := Main(ctx, env, []string{"replay", "--format", "generate", "--requests", "10000000", "--json"})
	var result struct {
		Requests    int
		Interrupted bool
	}
	if err != nil || json.Unmarshal(out.Bytes(), &result) != nil || !result.Interrupted || result.Requests > 100 || complaints.Len() > 0 {
		t.Errorf("%v: %s%s", err, out.String(), complaints.String())
	}
	out.Reset()
	if err := Main(ctx, env, []string{"replay", "--format", "generate"}); err != nil || !strings.Contains(complaints.String(), "interrupted: these are the figures so far") {
		t.Errorf("%v: %s", err, complaints.String())
	}
}
