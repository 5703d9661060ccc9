package route

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// TestDryRun: a dry run is the decision that the same request gets next, with all candidates, and it leaves no trace.
func TestDryRun(t *testing.T) {
	r := newLegs(t, serving.Config{}, "a1", "a2", "a3")
	r.ask("first", text("x", 400))
	r.End("first", noon)
	before, recent := r.Stats(), len(r.Recent(10))

	req := request.Request{Endpoint: prompt.Completions, Known: true, Body: []byte(`{"model":"m","prompt":"` + text("x", 400) + `"}`)}
	dry := r.DryRun(&req, noon)
	if r.Stats() != before || len(r.Recent(10)) != recent || r.Bookings() != 0 || r.IsBooked(dry.ID) || req.Dry {
		t.Errorf("it was booked or counted: %+v", r.Stats())
	}
	if dry.Outcome != decision.Picked || len(dry.Candidates) != 3 || dry.Cached == 0 || !strings.Contains(dry.String(), "decision dry-run · picked") {
		t.Errorf("dry run: %s", dry)
	}
	sent := r.Decide(&req, noon)
	if sent.Worker != dry.Worker || sent.Cached != dry.Cached || !reflect.DeepEqual(sent.Candidates[0].Score, dry.Candidates[0].Score) {
		t.Errorf("dry run: %sthe same, sent: %s", dry, sent)
	}

	before = r.Stats()
	req.Body = []byte(`{"model":"unknown","prompt":"x"}`)
	if d := r.DryRun(&req, noon); d.Outcome != decision.Refused || r.Stats() != before {
		t.Errorf("unknown model: %s", d)
	}
}
