package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route"
)

func newTestLog(t *testing.T, most int64) *decisionLog {
	t.Helper()
	cfg := &config.Config{Decisions: config.Decisions{Log: filepath.Join(t.TempDir(), "decisions.jsonl"), LogBytes: most, HashEvery: 2}}
	l, err := openDecisionLog(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Lines are whole, a full file is put away once, and the disk never has more than two.
func TestDecisionLogTurns(t *testing.T) {
	l := newTestLog(t, 2000)
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() { l.run(ctx) })
	for i := range 40 {
		l.decided(&route.Decision{ID: "x", Model: "m", Worker: "w"}, []blockhash.Sequence{1, 2, 3})
		for testutil.ToFloat64(l.written) < float64(i) { // line by line, or one write has all
			time.Sleep(time.Millisecond)
		}
	}
	stop()
	writer.Wait()
	if got := testutil.ToFloat64(l.written); got != 40 {
		t.Errorf("%v lines written", got)
	}
	for _, path := range []string{l.path, l.path + ".1"} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfter(string(b), "\n")
		for i, line := range lines[:len(lines)-1] {
			if i == 0 && line == `{"version":1,"format":"stator-decisions"}`+"\n" {
				continue
			}
			if !strings.HasPrefix(line, `{"decision":{"id":"x"`) || !strings.HasSuffix(line, `"hash_every":2,"hashes":["0000000000000002","0000000000000003"]}`+"\n") {
				t.Errorf("%s: %q", path, line)
			}
		}
		if len(b) > 3000 || lines[len(lines)-1] != "" {
			t.Errorf("%s has %d bytes", path, len(b))
		}
	}
	if others, _ := filepath.Glob(l.path + "*"); len(others) != 2 {
		t.Errorf("files %v", others)
	}
}

// Nobody waits for the disk: what finds the queue full is counted, and so is what cannot be written.
func TestDecisionLogLosesRatherThanWaits(t *testing.T) {
	l := newTestLog(t, 1<<30)
	for range decisionQueue + 5 {
		l.decided(&route.Decision{ID: "x"}, nil)
	}
	if got := testutil.ToFloat64(l.lost); got != 5 {
		t.Errorf("%v lost, want 5", got)
	}
	var text bytes.Buffer
	l.log = slog.New(slog.NewTextHandler(&text, nil))
	if err := l.file.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	l.run(ctx)
	if got := testutil.ToFloat64(l.lost); got != decisionQueue+5 || strings.Count(text.String(), "lines are lost") != 1 {
		t.Errorf("%v lost on a closed file; log:\n%s", got, text.String())
	}
}

// A file that cannot be opened is named with the settings that chose it.
func TestDecisionLogMustBeWritable(t *testing.T) {
	cfg := &config.Config{Decisions: config.Decisions{Log: filepath.Join(t.TempDir(), "no", "such", "folder"), LogBytes: 1 << 20, HashEvery: 1}}
	_, err := openDecisionLog(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err == nil || !strings.Contains(err.Error(), "--decision-log") {
		t.Errorf("%v should say which setting is wrong", err)
	}
}

// TestDecisionLogContinuesCutFile opens a file that ends in the middle of a line: the cut line stays
// alone, and everything after it can be read.
func TestDecisionLogContinuesCutFile(t *testing.T) {
	l := newTestLog(t, 1<<30)
	if err := os.WriteFile(l.path, []byte(`{"version":1,"format":"stator-decisions"}`+"\n"+`{"end":{"id":"a","outc`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	l.decided(&route.Decision{ID: "x"}, nil)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	l.run(ctx)

	f, err := os.Open(l.path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	r := decisionlog.NewReader(f)
	line, err := r.Next()
	if err != nil || line.Decision == nil || line.Decision.ID != "x" || r.Skipped() != 1 {
		t.Errorf("%+v, %v, %d lines skipped", line, err, r.Skipped())
	}
}
