package route

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// speculate asks for a speculative prefill of a prompt.
func (r *Router) speculate(text string) (id string, made Speculation) {
	d, made := r.Speculate(&request.Request{Endpoint: prompt.Completions, Known: true, Parsed: &prompt.Request{
		Endpoint: prompt.Completions, Model: "m", N: 1, MaxTokens: 1, Prompts: []openai.Prompt{{Text: text}},
	}}, noon)
	if d == nil {
		return "", made
	}
	return d.ID, made
}

// TestSpeculate books a prefill on the idle rank that holds most of its prompt. It adds no load, and is not counted as a request.
func TestSpeculate(t *testing.T) {
	r := newLegs(t, serving.Config{}, "a1", "a2", "a3")
	turn := text("x", 400)
	holder := r.ask("first", turn).Worker
	if _, made := r.speculate(turn); made != SpeculationCached {
		t.Errorf("a prompt that a busy rank holds: %v", made)
	}
	r.Ended(Ending{ID: "first", Served: r.address(holder)}, noon)

	next := turn + text("y", 400)
	before := r.Stats()
	id, made := r.speculate(next)
	d, _ := r.Explain(id)
	if made != SpeculationBooked || d == nil || d.Worker != holder || d.Cached != 400 || !strings.Contains(d.String(), "policy speculative prefill") {
		t.Fatalf("%v: %v, want %s", made, d, holder)
	}
	if after := r.Stats(); after.Picked != before.Picked || after.Bookings.Open != 1 || r.IsDisturbed(id) || r.booked(holder) != (fleet.Amount{}) {
		t.Errorf("it is counted, or has load %+v: %+v", r.booked(holder), after)
	}
	if d := r.ask("next", next+"z"); d.Worker != holder || d.Cached != 800 || !r.IsDisturbed(id) {
		t.Errorf("the next turn finds %d tokens on %s; disturbed %v", d.Cached, d.Worker, r.IsDisturbed(id))
	}
	r.Ended(Ending{ID: "next", Served: r.address(holder)}, noon)

	if k, ok := r.Ended(Ending{ID: id, Served: r.address(holder), Speculative: true}, noon); !ok || k.Prompt != 800 || r.Bookings() != 0 {
		t.Errorf("its end: %v %+v, %d bookings", ok, k, r.Bookings())
	}
}

// TestStoppedSpeculation: a prefill that is stopped takes its predictions back, and leaves no booking.
func TestStoppedSpeculation(t *testing.T) {
	r := newLegs(t, serving.Config{}, "a1")
	id, made := r.speculate(text("x", 400))
	if made != SpeculationBooked {
		t.Fatal(made)
	}
	if _, again := r.speculate(text("x", 400)); again != SpeculationCached {
		t.Errorf("the same prompt while it is computed: %v", again)
	}
	r.Ended(Ending{ID: id, Left: true, Speculative: true}, noon)
	if s := r.Stats().Bookings; r.Bookings() != 0 || s.Ended[pick.Stopped] != 1 {
		t.Errorf("%d bookings, %d stopped", r.Bookings(), s.Ended[pick.Stopped])
	}
	if _, again := r.speculate(text("x", 400)); again != SpeculationBooked {
		t.Errorf("after it was stopped: %v", again)
	}
}

// TestNoSpeculation: busy ranks, prefill and decode workers, and models whose prompts are not read get none.
func TestNoSpeculation(t *testing.T) {
	r := newLegs(t, serving.Config{}, "a1")
	r.ask("first", text("x", 400))
	if _, made := r.speculate(text("y", 400)); made != SpeculationBusy {
		t.Errorf("one busy rank: %v", made)
	}
	if _, made := newLegs(t, serving.Config{}, "p", "d").speculate(text("x", 400)); made != SpeculationImpossible {
		t.Errorf("prefill and decode workers: %v", made)
	}
	if p, size := r.Preparer("m"); p == nil || size != 16 {
		t.Errorf("the model's prompts: %v, blocks of %d", p, size)
	}
	if p, _ := r.Preparer("other"); p != nil {
		t.Error("a model that there is not")
	}
}

// address returns the address of a worker.
func (r *Router) address(worker string) string {
	rank, _ := r.fleet.Snapshot().Rank(worker, 0)
	return rank.Worker.Address
}

// booked returns the load that is booked on a worker.
func (r *Router) booked(worker string) fleet.Amount {
	rank, _ := r.fleet.Snapshot().Rank(worker, 0)
	return rank.Load.Booked()
}
