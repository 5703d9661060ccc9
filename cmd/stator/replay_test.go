package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// Asked to stop, a replay says what there is, and that it is not all.
func TestReplayIsInterrupted(t *testing.T) {
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

// A bar is drawn on terminals alone, not oftener than one sees, and leaves nothing behind.
func TestBar(t *testing.T) {
	var w bytes.Buffer
	if newBar(&w) != nil {
		t.Error("a buffer is not a terminal")
	}
	noBar.show(0.5)
	noBar.clear()
	b := &bar{w: &w, began: time.Now().Add(-10 * time.Second)}
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

// A page takes what runs are called and set to for text, and shows every run, also one of which
// nothing was measured.
func TestPageIsSafe(t *testing.T) {
	runs := []namedRun{{Name: `<script>alert("x")</script>`}, {Name: "b"}}
	runs[1].Settings = `"></code><img src=x onerror=y>`
	path := t.TempDir() + "/page.html"
	if err := writePage(path, runs); err != nil {
		t.Fatal(err)
	}
	page, err := readBounded(path, 1<<20)
	if err != nil || bytes.Contains(page, []byte("<script")) || bytes.Contains(page, []byte("<img")) || !bytes.Contains(page, []byte("&lt;script&gt;")) {
		t.Errorf("%v\n%s", err, page)
	}
}
