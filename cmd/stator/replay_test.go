package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
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

// TestProgressBar checks that a bar is drawn on terminals alone, at most every 100 ms, and is removed at
// the end.
func TestProgressBar(t *testing.T) {
	var w bytes.Buffer
	if newBar(&w) != nil {
		t.Error("a buffer is not a terminal")
	}
	noBar.show(0.5)
	noBar.clear()
	b := &progressBar{w: &w, began: time.Now().Add(-10 * time.Second)}
	b.show(0.5)
	b.show(0.6) // too soon
	if got := w.String(); got != "\r"+strings.Repeat("█", 20)+strings.Repeat("░", 20)+"  50 %  10s left \x1b[K" {
		t.Errorf("%q", got)
	}
	w.Reset()
	b.clear()
	if w.String() != "\r\x1b[K" {
		t.Errorf("%q", w.String())
	}
}
