package route_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// quads makes a token of four characters, as long as a real one: the benchmark measures the
// decision, not a tokenizer.
type quads struct{}

func (quads) Prepare(req *prompt.Request, dst *prompt.Prompt) error {
	text := req.Prompts[0].Text
	for ; len(text) >= 4; text = text[4:] {
		dst.Tokens = append(dst.Tokens, binary.LittleEndian.Uint32([]byte(text[:4])))
	}
	dst.Total = len(dst.Tokens)
	return nil
}

// BenchmarkDecide: what does a decision cost beside its tokenizer? cold prompts share
// nothing; warm ones were seen and are predicted on one rank. The body's parsing is included,
// and so are booking, ending, and keeping the reasons.
//
//	go test -run - -bench Decide ./internal/route
func BenchmarkDecide(b *testing.B) {
	for _, c := range []struct {
		ranks, chars int
		kind         string
	}{{4, 4_000, "cold"}, {4, 4_000, "warm"}, {4, 32_000, "cold"}, {4, 32_000, "warm"}, {1000, 4_000, "warm"}} {
		b.Run(fmt.Sprintf("ranks=%d/chars=%d/cache=%s", c.ranks, c.chars, c.kind), func(b *testing.B) {
			r := benchRouter(b, c.ranks)
			req, fill := body(c.chars)
			i, now := 0, start
			b.ReportAllocs()
			for b.Loop() {
				if i++; c.kind == "cold" {
					copy(fill, fmt.Sprintf("%020d", i))
				}
				now = now.Add(time.Millisecond)
				d := r.Decide(req, now)
				if d.Outcome != decision.Picked || !r.End(d.ID, now) {
					b.Fatal(d)
				}
			}
		})
	}
}

// BenchmarkStores: what does it cost to look for blocks in host memory that candidates can load from? A thousand workers are on 125
// nodes, and one worker of each has the prompt in host memory; with stores, all of them can load it.
//
//	go test -run - -bench Stores ./internal/route
func BenchmarkStores(b *testing.B) {
	const nodes, perNode, chars = 125, 8, 4_000
	req, _ := body(chars)
	for _, stores := range []bool{false, true} {
		b.Run(fmt.Sprintf("stores=%t", stores), func(b *testing.B) {
			x := kvindex.New(kvindex.Config{})
			f := fleet.New(fleet.Hooks{RankGone: x.Drop})
			r := route.New(route.Config{Seed: 1, Decisions: benchDecisions}, f, x)
			if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: quads{}, BlockSize: 16}}); err != nil {
				b.Fatal(err)
			}
			var made prompt.Prompt
			text := strings.Repeat("all work and no play makes a dull router ", chars/41+1)[:chars]
			_ = quads{}.Prepare(&prompt.Request{Prompts: []openai.Prompt{{Text: text}}}, &made) // it returns no error
			blocks := blockhash.Append(nil, made.Tokens, 16, blockhash.Seed("", ""))

			for i := range nodes * perNode {
				name := fleet.WorkerName(fmt.Sprint("n", i/perNode), fmt.Sprint("w", i%perNode))
				if _, err := f.Put(fleet.Worker{
					Name: name, Model: "sim", Address: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1), Ranks: 1, State: fleet.Ready, KVEvents: "tcp://x:1",
				}); err != nil {
					b.Fatal(err)
				}
				rank, _ := f.Snapshot().Rank(name, 0)
				report := fleet.Report{At: start, Store: fleet.Store{Used: stores, Served: stores, Peers: fleet.TierLoad{Token: time.Microsecond}}}
				rank.Load.SetReport(report, rank.Worker)
				if i%perNode != 0 {
					continue
				}
				chain := kvindex.Chain{Blocks: blocks}
				for _, seq := range blockhash.Chain(nil, blocks) {
					chain.Hashes = append(chain.Hashes, uint64(seq))
				}
				x.Store(rank.ID, fleet.Host, chain)
			}

			b.ReportAllocs()
			for b.Loop() {
				d := r.Decide(req, start)
				if d.Outcome != decision.Picked || !r.End(d.ID, start) {
					b.Fatal(d)
				}
			}
		})
	}
}

// BenchmarkDecisionOnCores: what does the decision itself cost among a thousand ranks, and does it scale with
// cores? The body is parsed and the decision's memory is used again; blocks, lookup, scores, pick,
// booking, its end, and keeping the reasons are included.
//
//	make bench-cores
func BenchmarkDecisionOnCores(b *testing.B) {
	for _, by := range []cost.Function{cost.Default(), cost.Dynamo()} {
		r := benchRouter(b, 1000)
		if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: quads{}, Cost: by}}); err != nil {
			b.Fatal(err)
		}
		turns := make(chan func(), runtime.GOMAXPROCS(0))
		for i := range cap(turns) {
			turns <- again(b, r, fmt.Sprint("client ", i))
		}
		b.Run(fmt.Sprintf("ranks=1000/cost=%s", by), func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				turn := <-turns
				for p.Next() {
					turn()
				}
				turns <- turn
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

// again returns a function that decides for one request once more, and ends it. It has been done often
// enough that all memory is there.
func again(t testing.TB, r *route.Router, id string) func() {
	req, _ := body(4_000)
	req.ID, req.Session = id, id
	req.Parsed, _ = openai.Parse(req.Endpoint, req.Body, openai.Limits{})
	d, now := new(decision.Decision), start
	turn := func() {
		now = now.Add(time.Millisecond)
		if d = r.DecideInto(d, req, now); d.Outcome != decision.Picked || !r.End(d.ID, now) {
			t.Error(d)
		}
	}
	for range 2 * benchDecisions {
		turn()
	}
	return turn
}

// benchDecisions is the number of decisions that the routers of benchmarks keep.
const benchDecisions = 256

// TestDecideAllocatesNothing: a decision whose memory is used again, with its reasons kept.
func TestDecideAllocatesNothing(t *testing.T) {
	turn := again(t, benchRouter(t, 100), "one")
	if n := testing.AllocsPerRun(100, turn); n > 0 {
		t.Errorf("%v allocations per warm decision, want none", n)
	}
}

func benchRouter(t testing.TB, ranks int) *route.Router {
	x := kvindex.New(kvindex.Config{})
	r := route.New(route.Config{Seed: 1, Decisions: benchDecisions}, newFleet(t, x, ranks), x)
	if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: quads{}}}); err != nil {
		t.Fatal(err)
	}
	return r
}

// body returns a completion request with a prompt of the given number of characters, and the part of its bytes from
// the beginning of the prompt.
func body(chars int) (*request.Request, []byte) {
	req := &request.Request{Endpoint: prompt.Completions, Known: true, Source: "bench"}
	req.Body = []byte(`{"model": "sim", "prompt": "` + strings.Repeat("all work and no play makes a dull router ", chars/41+1)[:chars] + `"}`)
	return req, req.Body[len(`{"model": "sim", "prompt": "`):]
}

// BenchmarkPlaces: what do places add to the decisions about both workers of a request? A fleet has 500 prefill and 500 decode workers in
// two zones with 35 racks each.
//
//	go test -run - -bench Places ./internal/route
func BenchmarkPlaces(b *testing.B) {
	const each, racks = 500, 70
	req, _ := body(4_000)
	for _, places := range []bool{false, true} {
		b.Run(fmt.Sprintf("places=%t", places), func(b *testing.B) {
			x := kvindex.New(kvindex.Config{})
			f := fleet.New(fleet.Hooks{RankGone: x.Drop})
			r := route.New(route.Config{Seed: 1, Decisions: benchDecisions}, f, x)
			if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: quads{}, BlockSize: 16, Prefill: serving.PrefillRemote}}); err != nil {
				b.Fatal(err)
			}
			for i := range 2 * each {
				w := fleet.Worker{
					Name: fmt.Sprint("w", i), Model: "sim", Role: []fleet.Role{fleet.Prefill, fleet.Decode}[i%2], Ranks: 1, State: fleet.Ready,
					Address: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1), Transfer: fleet.TransferNixl,
				}
				if rack := i / 2 % racks; places {
					w.Taints = fleet.Taints(fmt.Sprintf("rack=%d,zone=%d,", rack, rack%2))
				}
				if _, err := f.Put(w); err != nil {
					b.Fatal(err)
				}
			}

			ask := *req
			ask.Role = fleet.Prefill
			b.ReportAllocs()
			for b.Loop() {
				d := r.Decide(req, start)
				ask.ID, ask.DecodeID = d.PrefillID(0), d.ID
				p := r.Decide(&ask, start)
				if !d.Split || p.Outcome != decision.Picked || !r.End(p.ID, start) || !r.End(d.ID, start) {
					b.Fatal(d, p)
				}
			}
		})
	}
}
