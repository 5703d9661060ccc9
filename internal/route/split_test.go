package route

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// TestSplit: requests go to decode workers if there are any, and to a prefill worker when the caller asks for one. Workers at which a
// request has failed are left out, and both workers have a booking.
func TestSplit(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f := fleet.New(fleet.Hooks{})
	r := New(Config{Seed: 1}, f, kvindex.New(kvindex.Config{}))
	for _, w := range []struct {
		name, address string
		role          fleet.Role
	}{{"d", "10.0.0.1:80", fleet.Decode}, {"p", "10.0.0.2:80", fleet.Prefill}, {"q", "10.0.0.3:80", fleet.Prefill}} {
		if _, err := f.Put(fleet.Worker{Name: w.name, Model: "m", Role: w.role, Address: w.address, Ranks: 1, State: fleet.Ready}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.SetModels(map[string]*serving.Config{"m": {Prompt: bytesOf{}, BlockSize: 4, Prefill: serving.PrefillRemote}}); err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"model":"m","prompt":"a prompt of several blocks"}`)

	d := r.Decide(&request.Request{Endpoint: prompt.Completions, Known: true, Body: body}, now)
	if d.Outcome != decision.Picked || d.Worker != "d" || !d.Split || !strings.Contains(d.String(), "· decode workers") {
		t.Errorf("split %v\n%s", d.Split, d)
	}
	asked := request.Request{ID: d.PrefillID(0), Endpoint: prompt.Completions, Known: true, Body: body, Workers: request.Workers{Role: fleet.Prefill}}
	first := r.Decide(&asked, now)
	asked.ID, asked.Except = d.PrefillID(1), []string{first.Worker}
	second := r.Decide(&asked, now)
	if first.Split || first.Outcome != decision.Picked || second.Outcome != decision.Picked || first.Worker+second.Worker != "pq" && first.Worker+second.Worker != "qp" {
		t.Errorf("prefill workers\n%s\n%s", first, second)
	}
	if r.Bookings() != 3 {
		t.Errorf("%d bookings", r.Bookings())
	}

	asked.ID, asked.Except = d.PrefillID(2), []string{"p", "q"}
	if none := r.Decide(&asked, now); none.Outcome != decision.Refused || none.Reason != decision.ReasonNoReadyWorker {
		t.Errorf("all have failed: %s", none)
	}
	if _, ok := r.Explain(first.ID); !ok || r.Models()[0].Workers != 1 {
		t.Errorf("the prefill decision is explained: %v; %+v", ok, r.Models())
	}
}

// bytesOf is a model whose tokens are the bytes of a prompt.
type bytesOf struct{}

func (bytesOf) Prepare(req *prompt.Request, dst *prompt.Prompt) error {
	for _, c := range []byte(req.Prompts[0].Text) {
		dst.Tokens = append(dst.Tokens, uint32(c))
	}
	dst.Total = len(dst.Tokens)
	return nil
}

// TestReading: the decision about a prefill worker that uses a reading equals one that reads the body. After a reload of the
// configuration the body is read again.
func TestReading(t *testing.T) {
	r := newLegs(t, serving.Config{Prefill: serving.PrefillRemote}, "p", "d")
	decide := func(id, body string, k *request.Reading) *decision.Decision {
		return r.Decide(&request.Request{ID: id, Endpoint: prompt.Completions, Known: true, Body: []byte(body),
			Workers: request.Workers{Role: fleet.Prefill}, IgnoreBodyHints: true, Reading: k}, noon)
	}
	var k request.Reading
	long := text("a", 400)
	if d := r.ask("decode", long, func(q *request.Request) { q.Reading = &k }); !d.Split {
		t.Fatal(d)
	}

	want := decide("prefill", `{"model":"m","prompt":"`+long+`"}`, nil)
	r.End("prefill", noon)
	r.index.Clear(r.fleet.Snapshot().Ranks[1].ID)
	got := decide("prefill", "unread", &k)
	if got.Outcome != decision.Picked || got.Worker != "p" || got.First == 0 {
		t.Fatalf("%s: %v", got, got.Err)
	}
	for _, d := range []*decision.Decision{got, want} { // which others were decided before changes what evicting is expected to cost
		for i := range d.Candidates {
			s := &d.Candidates[i].Score
			s.Total -= s.Evict
			s.Evict = 0
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("with a reading:\n%+v\nwithout:\n%+v", got, want)
	}

	if err := r.SetModels(map[string]*serving.Config{"m": {Prompt: bytesOf{}, BlockSize: 32}}); err != nil {
		t.Fatal(err)
	}
	if d := decide("reloaded", "unread", &k); d.Outcome != decision.Refused {
		t.Errorf("after a reload the body was not read: %s", d)
	}
	if d := decide("reloaded", `{"model":"m","prompt":"`+long+`"}`, &k); d.Blocks != 400/32 {
		t.Errorf("after a reload there are %d blocks", d.Blocks)
	}
}

// TestReadingIsForPrefillWorkers: every other decision reads the body, and one with one leg keeps no reading.
func TestReadingIsForPrefillWorkers(t *testing.T) {
	r := newLegs(t, serving.Config{Prefill: serving.PrefillRemote}, "p", "d")
	var k request.Reading
	with := func(q *request.Request) { q.Reading = &k }
	r.ask("local", text("a", 400), with, func(q *request.Request) { q.Local = true })
	if k.Model != nil {
		t.Error("a request with one leg has a reading")
	}
	r.ask("first", text("a", 400), with)
	if d := r.ask("second", text("b", 320), with); d.PromptTokens != 320 || !d.Split {
		t.Errorf("another request has the first one's reading: %s", d)
	}
	if k.Tokens != 320 {
		t.Errorf("the reading has %d tokens, not the last prompt's 320", k.Tokens)
	}
	r.ask("local again", text("c", 400), with, func(q *request.Request) { q.Local = true })
	if k.Model != nil {
		t.Error("the reading of another request was kept")
	}
}
