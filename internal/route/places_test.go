package route

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// newPlaced returns a router as newLegs, for workers whose zone follows an @.
func newPlaced(t *testing.T, cfg serving.Config, names ...string) *Router {
	t.Helper()
	var plain []string
	for _, name := range names {
		plain = append(plain, name[:2])
	}
	r := newLegs(t, cfg, plain...)
	for _, name := range names {
		_, zone, _ := strings.Cut(name, "@")
		if _, err := r.fleet.Update(name[:2], func(w *fleet.Worker) { w.Taints = fleet.Taints("zone=" + zone + ",") }); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// learnTransfers has the router observe transfers of 4,000 tokens that took a time, between workers that share a level.
func (r *Router) learnTransfers(level fleet.Level, took time.Duration) {
	rank := r.fleet.Snapshot().Ranks[0]
	for i := range 60 {
		r.transfers.Add(fmt.Sprint(i), learned.Transfer{Rank: rank, Last: 1, Tokens: 4000, Level: level, Since: noon})
	}
	r.transfers.Settle(func(fleet.Rank, uint64) (time.Time, bool) { return noon.Add(took), true }, noon)
}

// split decides both parts of a request.
func (r *Router) split(t *testing.T, id, text string) (d, p *decision.Decision) {
	t.Helper()
	d = r.ask(id, text)
	if !d.Split {
		t.Fatalf("one leg\n%s", d)
	}
	p = r.ask(d.PrefillID(0), text, func(q *request.Request) { q.Role, q.DecodeID = fleet.Prefill, d.ID })
	if p.Outcome != decision.Picked {
		t.Fatal(p)
	}
	return d, p
}

// TestPrefillInTheZone: a prompt is computed in the zone in which it is decoded if transfers between zones have taken long, and both
// decisions print why. Before any was observed, zones make no difference. A prefill worker of another zone computes it when the zone's
// own have much to do.
func TestPrefillInTheZone(t *testing.T) {
	r := newPlaced(t, serving.Config{Prefill: serving.PrefillRemote}, "p1@a", "p2@b", "d1@a", "d2@b")
	far := 0
	for i := range 16 {
		id := fmt.Sprint("early ", i)
		d, p := r.split(t, id, text(id, 4000))
		if d.Worker[1] != p.Worker[1] {
			far++
		}
		r.End(p.ID, noon)
		r.End(d.ID, noon)
	}
	if far == 0 || far == 16 {
		t.Errorf("without observations %d of 16 prompts are computed in another zone", far)
	}

	r.learnTransfers(fleet.InZone, 20*time.Millisecond)
	r.learnTransfers(fleet.Apart, 500*time.Millisecond)
	for i := range 8 {
		id := fmt.Sprint("later ", i)
		d, p := r.split(t, id, text(id, 4000))
		if d.Worker[1] != p.Worker[1] {
			t.Fatalf("%s computes for %s\n%s\n%s", p.Worker, d.Worker, d, p)
		}
		if p.Onward == nil || p.Onward.Tokens != 4000 || p.Onward.Shared != fleet.InZone ||
			!strings.Contains(p.String(), "4000 tokens go on to "+d.Worker+", in the same zone, in ") {
			t.Errorf("the decision does not name its transfer\n%s", p)
		}
		r.End(p.ID, noon)
		r.End(d.ID, noon)
	}

	d := r.ask("busy", text("busy", 4000))
	near := "p" + d.Worker[1:]
	for i := range 10 {
		id := fmt.Sprint("of ", near, i)
		r.ask(id, text(id, 8000), func(q *request.Request) {
			q.Role, q.Hints = fleet.Prefill, &prompt.Hints{Rank: -1, Worker: near}
		})
	}
	p := r.ask(d.PrefillID(0), text("busy", 4000), func(q *request.Request) { q.Role, q.DecodeID = fleet.Prefill, d.ID })
	if p.Worker == near || p.Onward.Shared != fleet.Apart {
		t.Errorf("%s has 80,000 tokens before it\n%s", near, p)
	}
}

// TestDecodeNearPrefill: of idle decode workers one in the zone of the prefill worker is chosen. When it has many requests, the one in the
// other zone is.
func TestDecodeNearPrefill(t *testing.T) {
	r := newPlaced(t, serving.Config{}, "p1@a", "d1@a", "d2@b")
	r.learnTransfers(fleet.InZone, 20*time.Millisecond)
	r.learnTransfers(fleet.Apart, 500*time.Millisecond)
	remote := func(q *request.Request) { q.Hints = &prompt.Hints{Rank: -1, Prefill: string(serving.PrefillRemote)} }
	for i := range 6 {
		id := fmt.Sprint("idle ", i)
		if d := r.ask(id, text(id, 4000), remote); d.Worker != "d1" || !d.Split {
			t.Errorf("decoded by %s\n%s", d.Worker, d)
		}
		r.End(id, noon)
	}

	var last *decision.Decision
	for i := range 400 {
		id := fmt.Sprint("many ", i)
		last = r.ask(id, text(id, 4000), remote)
		if last.Worker == "d2" {
			break
		}
	}
	if last.Worker != "d2" || !strings.Contains(last.String(), "transfer") {
		t.Errorf("400 requests are in one zone\n%s", last)
	}
}

// TestLegsCountTheDistance: a prompt that a prefill worker of the zone would compute is computed by the decode worker if the only prefill
// worker is too far away.
func TestLegsCountTheDistance(t *testing.T) {
	for zone, want := range map[string]bool{"a": true, "b": false} {
		r := newPlaced(t, serving.Config{}, "p1@"+zone, "d1@a")
		r.learnTransfers(fleet.InZone, 20*time.Millisecond)
		r.learnTransfers(fleet.Apart, 5*time.Second)
		for i := range 8 {
			id := fmt.Sprint(i)
			r.ask(id, text(id, 100), func(q *request.Request) { q.Local = true })
			r.PrefillDone(id, noon)
		}
		if d := r.ask("id", text("id", 4000)); d.Split != want || d.Legs.Why != decision.LegsByCost {
			t.Errorf("prefill worker in zone %s: split %v\n%s", zone, d.Split, d)
		}
	}
}

// TestPartnersCostMore: a decode worker in a zone with a busy prefill worker carries the cost of waiting for it, and its decision prints it.
func TestPartnersCostMore(t *testing.T) {
	r := newPlaced(t, serving.Config{Prefill: serving.PrefillRemote}, "p1@a", "p2@b", "d1@a", "d2@b")
	r.learnTransfers(fleet.InZone, 20*time.Millisecond)
	r.learnTransfers(fleet.Apart, 5*time.Second)
	r.ask("of p1", text("of p1", 8000), func(q *request.Request) { q.Role, q.Hints = fleet.Prefill, &prompt.Hints{Rank: -1, Worker: "p1"} })
	d := r.ask("id", text("id", 4000))
	if d.Worker != "d2" || !strings.Contains(d.String(), "partner") || !strings.Contains(d.String(), "mostly by a cheaper prefill worker in reach") {
		t.Errorf("p1 has 8,000 tokens before it\n%s", d)
	}
}

// TestPullFromTheZone: a worker fetches the beginning of a prompt from one of its zone, though another one holds a little more of it.
func TestPullFromTheZone(t *testing.T) {
	r := newPlaced(t, serving.Config{}, "a1@a", "a2@b", "a3@b")
	r.learnTransfers(fleet.InZone, 20*time.Millisecond)
	r.learnTransfers(fleet.Apart, 100*time.Millisecond)
	on := func(worker string) func(*request.Request) {
		return func(q *request.Request) { q.Hints = &prompt.Hints{Rank: -1, Worker: worker} }
	}
	r.ask("first", text("shared", 8016), on("a1"))
	r.ask("second", text("shared", 8000), on("a2"))
	r.PrefillDone("first", noon)
	r.PrefillDone("second", noon)

	for i := range 40 { // requests that keep both busy
		id := fmt.Sprint(i)
		r.ask(id, text(id, 20_000), on(fmt.Sprint("a", 1+i%2)))
	}

	d := r.ask("third", text("shared", 8100))
	if d.Pull.Worker != "a2" || d.Pull.Tokens != 8000 || d.PullShared != fleet.InZone ||
		!strings.Contains(d.String(), "fetches 8000 tokens of the prompt from the cache of a2, in the same zone") {
		t.Errorf("%+v\n%s", d.Pull, d)
	}
}

// TestPlacesOfARevision: during a rollout only workers of one revision exchange KV caches. A prefill worker nearby of another revision is no
// partner, and a worker with more of a prompt no source.
func TestPlacesOfARevision(t *testing.T) {
	revise := func(r *Router, revision string, names ...string) {
		for _, name := range names {
			if _, err := r.fleet.Update(name, func(w *fleet.Worker) { w.Revision = revision }); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := newPlaced(t, serving.Config{Prefill: serving.PrefillRemote}, "p1@a", "p2@b", "d1@a", "d2@b")
	revise(r, "r1", "p1")
	revise(r, "r2", "p2", "d1", "d2")
	r.learnTransfers(fleet.InZone, 20*time.Millisecond)
	r.learnTransfers(fleet.Apart, 500*time.Millisecond)
	for i := range 6 {
		id := fmt.Sprint(i)
		if d := r.ask(id, text(id, 4000)); d.Worker != "d2" || !d.Split {
			t.Errorf("decoded by %s, far from the prefill worker of its revision\n%s", d.Worker, d)
		}
		r.End(id, noon)
	}

	r = newPlaced(t, serving.Config{}, "a1@a", "a2@a", "a3@a")
	revise(r, "r1", "a1")
	revise(r, "r2", "a2", "a3")
	on := func(worker string) func(*request.Request) {
		return func(q *request.Request) { q.Hints = &prompt.Hints{Rank: -1, Worker: worker} }
	}
	r.ask("first", text("shared", 8016), on("a1"))
	r.ask("second", text("shared", 8000), on("a2"))
	r.PrefillDone("first", noon)
	r.PrefillDone("second", noon)
	for i := range 40 {
		id := fmt.Sprint("busy ", i)
		r.ask(id, text(id, 20_000), on(fmt.Sprint("a", 1+i%2)))
	}
	if d := r.ask("third", text("shared", 8100)); d.Worker != "a3" || d.Pull.Worker != "a2" {
		t.Errorf("%s fetches from %q\n%s", d.Worker, d.Pull.Worker, d)
	}
}

// TestPartnersOfASlice: without known places, too, a decode worker carries the cost of the prefill workers of its own slice: when these have
// much to do, the other slice gets the request.
func TestPartnersOfASlice(t *testing.T) {
	r := newLegs(t, serving.Config{Prefill: serving.PrefillRemote}, "p1@r/0", "d1@r/0", "p2@r/1", "d2@r/1")
	for i := range 6 {
		id := fmt.Sprint(i)
		busy := fmt.Sprint("p", 1+i%2)
		of := r.ask("of "+busy+id, text(id, 8000), func(q *request.Request) {
			q.Role, q.Hints = fleet.Prefill, &prompt.Hints{Rank: -1, Worker: busy}
		})
		d := r.ask(id, text(id, 4000))
		if !d.Split || d.Worker[1] == busy[1] || !strings.Contains(d.String(), "partner") {
			t.Errorf("%s decodes, and %s has 8,000 tokens before it\n%s", d.Worker, busy, d)
		}
		r.End(of.ID, noon)
		r.End(id, noon)
	}
}
