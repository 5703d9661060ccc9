package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// BenchmarkDecide: what does a decision cost on the requests of this program, without gRPC
// and without others who want the processor's caches? decide-µs is the decision alone; ns/op
// includes making the body. Profile this one first: it is quiet where the whole is not.
//
//	go test -run - -bench Decide -benchtime 3000x -cpuprofile cpu.pprof ./test/benchrequest
func BenchmarkDecide(b *testing.B) {
	text, err := load("../../../shared/traces/agent/miniswe")
	if err != nil {
		b.Fatal(err)
	}
	for _, chars := range []int{1000, 4000, 32000} {
		for _, warm := range []bool{false, true} {
			b.Run(fmt.Sprintf("chars=%d/warm=%t", chars, warm), func(b *testing.B) {
				d := newDecisions(b, text, chars)
				known := 1_000_000 / chars
				for i := range known {
					d.decide(b, seedOf(1, chars, true, i), 0)
				}
				d.spent = 0
				n := 0
				b.ReportAllocs()
				for b.Loop() {
					if warm {
						d.decide(b, seedOf(1, chars, true, n%known), 1+n/known)
					} else {
						d.decide(b, seedOf(1, chars, false, n), 1)
					}
					n++
				}
				b.ReportMetric(float64(d.spent.Nanoseconds())/1000/float64(n), "decide-µs/op")
			})
		}
	}
}

// decisions are a router with four workers, and the time it has taken.
type decisions struct {
	router *route.Router
	text   *corpus
	chars  int
	body   []byte
	spent  time.Duration
}

func newDecisions(b *testing.B, text *corpus, chars int) *decisions {
	b.Helper()
	x, f := kvindex.New(kvindex.Config{}), fleet.New(fleet.Hooks{})
	for i := range 4 {
		w := fleet.Worker{Name: fmt.Sprintf("w%d", i), Model: "sim", Address: fmt.Sprintf("127.0.0.1:%d", 9000+i), Ranks: 1, Weight: 1, BlockSize: 16, State: fleet.Ready}
		if _, err := f.Put(w); err != nil {
			b.Fatal(err)
		}
	}
	r := route.New(route.Config{Seed: 1, PredictFor: feed.New(feed.Config{}, f, x).Lifetime}, f, x)
	m, err := prompt.Load(models.Sim())
	if err != nil {
		b.Fatal(err)
	}
	if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: m, BlockSize: 16}}); err != nil {
		b.Fatal(err)
	}
	return &decisions{router: r, text: text, chars: chars}
}

func (d *decisions) decide(b *testing.B, seed uint64, turn int) {
	d.body = dialogue{seed, d.chars}.appendBody(d.body[:0], d.text, turn)
	began := time.Now()
	got := d.router.Decide(&request.Request{Endpoint: prompt.Chat, Known: true, Body: d.body}, began)
	if got.Outcome != decision.Picked || !d.router.End(got.ID, began) {
		b.Fatal(got)
	}
	d.spent += time.Since(began)
}
