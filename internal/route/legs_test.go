package route

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/predict"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/score"
	"github.com/stator-project/stator/internal/route/serving"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// newLegs returns a router for workers that prefill (p…), decode (d…) or do both (a…), without events. A revision follows an @.
func newLegs(t *testing.T, cfg serving.Config, names ...string) *Router {
	t.Helper()
	f := fleet.New(fleet.Hooks{})
	for i, name := range names {
		name, revision, _ := strings.Cut(name, "@")
		w := fleet.Worker{Name: name, Revision: revision, Model: "m", Address: fmt.Sprintf("10.0.0.%d:80", i+1), Ranks: 1, State: fleet.Ready,
			Transfer: fleet.TransferP2P, TransferAt: fmt.Sprintf("10.0.0.%d:25710", i+1)}
		w.Role = map[byte]fleet.Role{'p': fleet.Prefill, 'd': fleet.Decode, 'a': fleet.Aggregated}[name[0]]
		if _, err := f.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	r := New(Config{Seed: 1, Relayed: true}, f, kvindex.New(kvindex.Config{}))
	cfg.Prompt, cfg.BlockSize = bytesOf{}, 16
	if err := r.SetModels(map[string]*serving.Config{"m": &cfg}); err != nil {
		t.Fatal(err)
	}
	return r
}

// text returns a prompt of the given number of tokens that begins with a name.
func text(name string, tokens int) string { return name + strings.Repeat("-", tokens-len(name)) }

// ask decides a completion.
func (r *Router) ask(id, text string, change ...func(*request.Request)) *decision.Decision {
	req := request.Request{ID: id, Endpoint: prompt.Completions, Known: true, Body: []byte(`{"model":"m","prompt":"` + text + `"}`)}
	for _, c := range change {
		c(&req)
	}
	return r.Decide(&req, noon)
}

// TestLegsByCost: an idle decode worker computes prompts by itself. One on which requests run leaves them to a prefill worker,
// unless it holds most of the prompt.
func TestLegsByCost(t *testing.T) {
	r := newLegs(t, serving.Config{}, "p", "d")
	if d := r.ask("first", text("a", 4000)); d.Split || d.Legs.Why != decision.LegsByCost || !strings.Contains(d.String(), "d computes the prompt, too, at cost") {
		t.Errorf("an idle decode worker: %s", d)
	}
	r.PrefillDone("first", noon)
	for i := range 8 {
		id := fmt.Sprint(i)
		r.ask(id, text(id, 100), func(q *request.Request) { q.Local = true })
		r.PrefillDone(id, noon)
	}

	d := r.ask("busy", text("b", 4000))
	if !d.Split || d.Legs.Prefill+d.Legs.Decode >= d.Legs.Local || !strings.Contains(d.String(), "a prefill worker computes the prompt first") {
		t.Errorf("8 requests run: %s", d)
	}
	if d := r.ask("again", text("a", 4000)); d.Split {
		t.Errorf("the decode worker holds the prompt: %s", d)
	}
}

// TestLegsCountAllThatIsDelayed: a prompt waits long at prefill workers before it is cheaper to hold up the many requests that run on a
// decode worker. Its answer is for the decode worker, so requests at a prefill worker are expected to have left soon.
func TestLegsCountAllThatIsDelayed(t *testing.T) {
	r := newLegs(t, serving.Config{}, "p", "d")
	for i := range 40 {
		id := fmt.Sprint(i)
		r.ask(id, text(id, 100), func(q *request.Request) { q.Local = true })
		r.PrefillDone(id, noon)
	}
	waiting := 0
	for ; waiting < 100; waiting++ {
		id := fmt.Sprint("p", waiting)
		d := r.ask(id, text(id, 1000))
		if !d.Split {
			break
		}
		r.ask(id+"-prefill", text(id, 1000), func(q *request.Request) { q.Role = fleet.Prefill })
	}
	if waiting < 10 || waiting > 40 {
		t.Errorf("%d prompts wait at the prefill worker while 40 requests run at the decode worker", waiting)
	}
}

// TestLegsWaitForASlotDuringThePrefill: a decode worker has no slot free. The wait for one begins with the prefill at a prefill worker, so
// only the rest of it counts with two legs. With one leg the prefill follows the wait.
func TestLegsWaitForASlotDuringThePrefill(t *testing.T) {
	r := newLegs(t, serving.Config{}, "p", "d")
	for i := range 300 { // an engine runs 256, as far as is known
		id := fmt.Sprint(i)
		r.ask(id, text(id, 100), func(q *request.Request) { q.Local = true })
		r.PrefillDone(id, noon)
	}

	d := r.ask("next", text("next", 4000))
	slot := d.Candidates[0].Score.Slot
	if slot <= 0 {
		t.Fatalf("the decode worker has a slot free: %s", d)
	}
	if !d.Split || d.Legs.Decode >= d.Candidates[0].Score.Total {
		t.Errorf("all of the wait for a slot counts after the prefill, %.1f of %.1f ms: %s", d.Legs.Decode, d.Candidates[0].Score.Total, d)
	}
	if d.Legs.Decode < d.Candidates[0].Score.Total-slot {
		t.Errorf("more than the wait for a slot passes during the prefill: %s", d)
	}
}

// TestPromptsBehindAWaitForASlot: prompts that wait at a prefill worker delay the ones after them. If these wait longer for a slot of their
// decode worker, that is no delay.
func TestPromptsBehindAWaitForASlot(t *testing.T) {
	cost := map[int]float64{} // of a prefill worker, by the requests on the decode worker
	for _, running := range []int{100, 300} {
		r := newLegs(t, serving.Config{}, "p", "d")
		for i := range running { // an engine runs 256, as far as is known
			id := fmt.Sprint(i)
			r.ask(id, text(id, 100), func(q *request.Request) { q.Local = true })
			r.PrefillDone(id, noon)
		}
		for i := range 10 {
			id := fmt.Sprint("p", i)
			r.ask(id, text(id, 1000), func(q *request.Request) { q.Role = fleet.Prefill })
		}
		cost[running] = r.ask("next", text("next", 1000)).Legs.Prefill
	}
	if ratio := cost[300] / cost[100]; ratio < 0.4 || ratio > 0.6 {
		t.Errorf("a prompt at a prefill worker costs %.0f ms while slots are free, and %.0f ms while none is", cost[100], cost[300])
	}
}

// TestLegsWithoutChoice: a request, or the model's settings, may name the way; without a prefill worker, and if engines
// cannot transfer the prompt, there is one leg; and policies that compare no costs have two.
func TestLegsWithoutChoice(t *testing.T) {
	hint := func(at string) func(*request.Request) {
		return func(q *request.Request) { q.Hints = &prompt.Hints{Rank: -1, Prefill: at} }
	}
	twice := func(q *request.Request) { q.Body = []byte(`{"model":"m","prompt":"a","n":2}`) }
	unread := func(q *request.Request) { q.Known, q.Model, q.Splits = false, "m", true }
	fleets := []string{"p", "d"}
	for _, c := range []struct {
		name   string
		cfg    serving.Config
		fleet  []string
		change func(*request.Request)
		split  bool
		why    decision.LegsReason
	}{
		{"the request asks for two", serving.Config{}, fleets, hint(openai.PrefillRemote), true, decision.LegsAsked},
		{"the request asks for one", serving.Config{Prefill: serving.PrefillRemote}, fleets, hint(openai.PrefillLocal), false, decision.LegsAsked},
		{"the model has two", serving.Config{Prefill: serving.PrefillRemote}, fleets, hint(""), true, decision.LegsAsked},
		{"the model has one", serving.Config{Prefill: serving.PrefillLocal}, fleets, hint(""), false, decision.LegsAsked},
		{"no prefill worker", serving.Config{Prefill: serving.PrefillRemote}, []string{"d"}, hint(""), false, decision.LegsNoPrefill},
		{"two answers", serving.Config{Prefill: serving.PrefillRemote}, fleets, twice, false, decision.LegsNoTransfer},
		{"round robin", serving.Config{Policy: pick.RoundRobin}, fleets, hint(""), true, decision.LegsByPolicy},
		{"not read", serving.Config{}, fleets, unread, true, decision.LegsByPolicy},
		{"aggregated", serving.Config{}, []string{"a"}, hint(""), false, ""},
	} {
		r := newLegs(t, c.cfg, c.fleet...)
		if d := r.ask("id", text("a", 400), c.change); d.Outcome != decision.Picked || d.Split != c.split || d.Legs.Why != c.why {
			t.Errorf("%s: split %v, because %q\n%s", c.name, d.Split, d.Legs.Why, d)
		}
	}
}

// TestRevisionsStayApart: both parts of a request are computed by workers of one revision. A decode worker without a prefill worker of its
// revision computes prompts itself, and gets no requests whose prompts must be computed elsewhere.
func TestRevisionsStayApart(t *testing.T) {
	always := serving.Config{Prefill: serving.PrefillRemote}
	for _, c := range []struct {
		fleet           []string
		decode, prefill string
		split           bool
	}{
		{[]string{"p1@r1", "d1@r1", "p2@r2", "d2@r2"}, "d1 d2", "p1 p2", true},
		{[]string{"p2@r2", "d1@r1", "d2@r2"}, "d2", "p2", true},
		{[]string{"p2@r2", "d1@r1"}, "d1", "", false},
		{[]string{"p1", "d1@r1", "d2"}, "d1 d2", "p1", true},
		{[]string{"p1@r1", "d1", "d2@r2"}, "d1", "p1", true},
	} {
		r := newLegs(t, always, c.fleet...)
		for i := range 12 {
			id := fmt.Sprint("id", i)
			d := r.ask(id, text(id, 400))
			if d.Outcome != decision.Picked || d.Split != c.split || !strings.Contains(c.decode, d.Worker) {
				t.Fatalf("%v: split %v, to %s\n%s", c.fleet, d.Split, d.Worker, d)
			}
			if !d.Split {
				if d.Legs.Why != decision.LegsNoPartner || !strings.Contains(d.String(), "no prefill worker of the same revision is ready") {
					t.Errorf("%v: %s", c.fleet, d)
				}
				continue
			}
			p := r.ask(id+".p", text(id, 400), func(q *request.Request) { q.Role, q.Revision = fleet.Prefill, d.Revision })
			if p.Outcome != decision.Picked || !strings.Contains(c.prefill, p.Worker) {
				t.Fatalf("%v: prompt to %s\n%s", c.fleet, p.Worker, p)
			}
			if strings.Count(c.decode, " ") > 0 && strings.Count(c.prefill, " ") > 0 && d.Worker[1] != p.Worker[1] {
				t.Errorf("%v: %s computes for %s", c.fleet, p.Worker, d.Worker)
			}
		}
	}
}

// TestRetriesStayInARevision: a request that fetches blocks is retried at workers of the picked one's revision alone, because its body names
// the source. Any other request may be retried at all workers.
func TestRetriesStayInARevision(t *testing.T) {
	fleets := []string{"p1@r1", "d1@r1", "p2@r2", "d2@r2"}
	r := newLegs(t, serving.Config{Prefill: serving.PrefillRemote}, fleets...)
	if d := r.ask("split", text("a", 400)); !d.Split || len(d.Others) != 0 {
		t.Errorf("split %v, retried at %v\n%s", d.Split, d.Others, d)
	}
	r = newLegs(t, serving.Config{Prefill: serving.PrefillLocal}, fleets...)
	if d := r.ask("whole", text("a", 400)); d.Split || len(d.Others) != 1 {
		t.Errorf("split %v, retried at %v\n%s", d.Split, d.Others, d)
	}
}

// TestLegsOfQueuedRequests: the way is chosen when the request's turn comes.
func TestLegsOfQueuedRequests(t *testing.T) {
	r := newLegs(t, serving.Config{Prefill: serving.PrefillRemote, Busy: serving.Busy{PrefillTokens: 1}, Queue: &queue.Config{}, MaxWait: time.Minute}, "p", "d")
	first := r.ask("first", text("a", 400), func(q *request.Request) { q.Local = true })
	decided := make(chan *decision.Decision, 1)
	d := r.ask("second", text("b", 400), func(q *request.Request) { q.Ready = func(d *decision.Decision) { decided <- d } })
	if d.Outcome != decision.Queued || !d.Split {
		t.Fatalf("%s", d)
	}
	r.End(first.ID, noon)
	if d := <-decided; !d.Split || d.Legs.Why != decision.LegsAsked {
		t.Errorf("split %v\n%s", d.Split, d)
	}
}

// TestCostsOfQueuedRequests: both ways are compared when the request's turn comes, unless the configuration names one.
func TestCostsOfQueuedRequests(t *testing.T) {
	r := newLegs(t, serving.Config{Busy: serving.Busy{PrefillTokens: 1}, Queue: &queue.Config{}, MaxWait: time.Minute}, "p", "d")
	first := r.ask("first", text("a", 400), func(q *request.Request) { q.Local = true })
	decided := make(chan *decision.Decision, 1)
	d := r.ask("second", text("b", 400), func(q *request.Request) { q.Ready = func(d *decision.Decision) { decided <- d } })
	if d.Outcome != decision.Queued {
		t.Fatalf("%s", d)
	}
	r.End(first.ID, noon)
	if d := <-decided; d.Legs.Why != decision.LegsByCost {
		t.Errorf("the way was chosen %s\n%s", d.Legs.Why, d)
	}
}

// pulls asks for a prompt whose beginning one busy worker holds, and returns that request's decision after the holder's.
func (r *Router) pulls() (first, d *decision.Decision) {
	first = r.ask("first", text("shared", 8000))
	r.PrefillDone("first", noon)
	for i := range 40 { // requests that only the first one's worker can serve
		id := fmt.Sprint(i)
		r.ask(id, text(id, 20_000), func(q *request.Request) { q.Hints = &prompt.Hints{Rank: -1, Worker: first.Worker} })
	}
	return first, r.ask("pulls", text("shared", 8100))
}

// TestPull: a worker fetches the beginning of a prompt from another one's cache, if that one is busy and to
// fetch is faster than to compute. Workers of two revisions fetch nothing from each other.
func TestPull(t *testing.T) {
	r := newLegs(t, serving.Config{}, "a0@r1", "a1@r2")
	if first, d := r.pulls(); d.Worker == first.Worker || d.Pull != (decision.Pull{}) {
		t.Errorf("%s fetches from another revision: %+v\n%s", d.Worker, d.Pull, d)
	}

	r = newLegs(t, serving.Config{}, "a0", "a1")
	first, d := r.pulls()
	if d.Worker == first.Worker || d.Pull.Worker != first.Worker || d.Pull.Tokens != 8000 || d.Pull.At != first.TransferAt {
		t.Errorf("%+v\n%s", d.Pull, d)
	}
	if !strings.Contains(d.String(), "fetches 8000 tokens of the prompt from the cache of "+first.Worker) {
		t.Error(d)
	}
	if d := r.ask("new", text("other", 8100)); d.Pull != (decision.Pull{}) {
		t.Errorf("a prompt that no worker holds: %+v", d.Pull)
	}
}

// TestTransfersAreLearned: a transfer lasts from the end of the prefill to the event of the prompt's last block.
func TestTransfersAreLearned(t *testing.T) {
	r := newLegs(t, serving.Config{Prefill: serving.PrefillRemote}, "p", "d")
	r.predictor = predict.New(r.index, func(fleet.Rank) time.Duration { return time.Second }, nil) // as for workers with events
	rank := r.fleet.Snapshot().Pool("m", fleet.Decode)[0]
	before := r.Speeds()[learned.ClassOf(rank.Worker)].Transfer
	queued := fleet.Report{At: noon, Running: 4, Waiting: 2}
	r.ObserveReport(rank, queued)
	r.ObserveReport(rank, queued)
	if r.Handed(r.ask("waits", text("w", 4000)), "p", noon); r.transfers.Len() != 0 {
		t.Error("the wait for a slot is taken for a transfer")
	}
	r.ObserveReport(rank, fleet.Report{At: noon, Running: 1})
	d := r.ask("id", text("a", 4000))
	if !r.Handed(d, "p", noon) || r.Handed(&decision.Decision{ID: "none"}, "p", noon) {
		t.Error("a transfer of a request without a booking, or none of one with it")
	}

	var tokens []uint32
	for _, c := range []byte(text("a", 4000)) {
		tokens = append(tokens, uint32(c))
	}
	blocks := blockhash.Append(nil, tokens, 16, blockhash.Seed("", ""))
	hashes := make([]uint64, len(blocks))
	for i, s := range blockhash.Chain(nil, blocks) {
		hashes[i] = uint64(s)
	}
	r.SettlePrefills(noon.Add(50 * time.Millisecond))
	r.index.Store(rank.ID, fleet.Device, kvindex.Chain{Hashes: hashes, Blocks: blocks})
	r.SettlePrefills(noon.Add(400 * time.Millisecond))

	after := r.Speeds()[learned.ClassOf(rank.Worker)].Transfer
	if after.Observed != 1 || after.Prefill(4000) <= before.Prefill(4000) {
		t.Errorf("%s became %s", before, after)
	}
	if r.transfers.Settle(nil, noon); r.transfers.Len() != 0 {
		t.Errorf("%d transfers are left", r.transfers.Len())
	}
}

// TestTransfersAreForgotten checks that transfers are forgotten if no event shows their end.
func TestTransfersAreForgotten(t *testing.T) {
	r := newLegs(t, serving.Config{Prefill: serving.PrefillRemote}, "p", "d")
	r.predictor = predict.New(r.index, func(fleet.Rank) time.Duration { return time.Second }, nil)
	r.Handed(r.ask("id", text("a", 4000)), "p", noon)
	r.SettlePrefills(noon.Add(learned.MaxTransfer))
	kept := r.transfers.Len()
	r.SettlePrefills(noon.Add(learned.MaxTransfer + time.Second))
	if kept != 1 || r.transfers.Len() != 0 {
		t.Errorf("%d and %d transfers", kept, r.transfers.Len())
	}
}

// TestTransferAddress: each rank of a vLLM has a port of its own, and SGLang has one for all.
func TestTransferAddress(t *testing.T) {
	for _, c := range []struct {
		w    fleet.Worker
		rank int
		want string
	}{
		{fleet.Worker{Transfer: fleet.TransferP2P, TransferAt: "10.0.0.1:25710"}, 2, "10.0.0.1:25712"},
		{fleet.Worker{Transfer: fleet.TransferP2P, TransferAt: "[fd00::1]:25710"}, 0, "[fd00::1]:25710"},
		{fleet.Worker{Transfer: fleet.TransferBootstrap, TransferAt: "10.0.0.1:8998"}, 2, "10.0.0.1:8998"},
		{fleet.Worker{Transfer: fleet.TransferNixl}, 2, ""},
	} {
		if got := score.TransferAddress(&c.w, c.rank); got != c.want {
			t.Errorf("%+v, rank %d: %s", c.w, c.rank, got)
		}
	}
}
