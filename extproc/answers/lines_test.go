package answers

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/decision"
)

// TestRequestLinesAreBounded: a second has so many lines, and the next one names how many requests had none.
func TestRequestLinesAreBounded(t *testing.T) {
	l := Lines{PerSecond: LinesPerSecond}
	now := time.Unix(100, 0)
	for i := range LinesPerSecond + 7 {
		if _, ok := l.take(now); ok != (i < LinesPerSecond) {
			t.Errorf("line %d: %v", i, ok)
		}
	}
	if skipped, ok := l.take(now.Add(time.Second)); !ok || skipped != 7 {
		t.Errorf("%d skipped, %v", skipped, ok)
	}
}

// TestLineOfADecision: the line names the pick, the next best, the difference of their costs, and the lines that were left out.
func TestLineOfADecision(t *testing.T) {
	var out bytes.Buffer
	l := Lines{Log: slog.New(slog.NewTextHandler(&out, nil)), PerSecond: 1}
	d := &decision.Decision{ID: "d1", PromptUse: decision.PromptUse{PromptTokens: 9100, Cached: 8192}, Placement: decision.Placement{Worker: "w3"},
		Candidates: []decision.Candidate{
			{Worker: "w3", Picked: true, Score: cost.Score{Total: 10}}, {Worker: "w1", Score: cost.Score{Total: 51.04}},
		}}
	now := time.Unix(100, 0)
	l.Picked(d, "exact", now)
	l.Picked(d, "exact", now)
	if want := "pick=w3 rank=0 over=w1 margin=41 ties=0 cached=8192/9100 state=exact id=d1\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("%s; want %s", out.String(), want)
	}

	d.Candidates = d.Candidates[:1]
	l.Picked(d, "stale", now.Add(time.Second))
	if want := "pick=w3 rank=0 cached=8192/9100 state=stale id=d1 not_shown=1\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("%s; want %s", out.String(), want)
	}
}
