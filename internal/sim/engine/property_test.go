package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/perfmodel"
)

// TestRandomOperations applies random operations to engines. After each one, the references of every block equal
// the requests that use it, a block is in the free list exactly when no request uses it, and the replayed
// events are the cached blocks. Every request ends with its own tokens, and at the end no block is in use.
func TestRandomOperations(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			l := newLife(t, rand.New(rand.NewPCG(seed, 1)))
			for range 300 {
				l.act()
				l.check()
			}
			l.drain()
			l.check()
			if s := l.e.Stats(); s.Active != 0 || s.Running != 0 || s.Waiting != 0 || s.Finished+s.Cancelled != uint64(l.submitted) {
				t.Errorf("at the end: %+v, %d submitted", s, l.submitted)
			}
		})
	}
}

type life struct {
	t         *testing.T
	rng       *rand.Rand
	e         *Engine
	now       time.Time
	cached    map[kvevent.EngineHash]bool // by the events alone
	lower     [fleet.Tiers]map[kvevent.EngineHash]bool
	live      []*Request
	answers   map[*Request][]uint32
	submitted int
}

func newLife(t *testing.T, rng *rand.Rand) *life {
	var tiers []Tier
	for t := fleet.Host; t < fleet.Tiers && rng.IntN(2) == 0; t++ {
		tiers = append(tiers, Tier{t, 1 + rng.IntN(40), time.Duration(1 + rng.IntN(3)), time.Duration(1 + rng.IntN(3)), time.Duration(rng.IntN(3))})
	}
	e, err := New(Config{
		Tiers: tiers, LoadAll: rng.IntN(2) == 0,
		Blocks: 8 + rng.IntN(24), BlockSize: 1 + rng.IntN(5), MaxNumSeqs: 1 + rng.IntN(6), MaxNumBatchedTokens: 6 + rng.IntN(30),
		HashSeed: rng.Uint64(),
		Timing:   perfmodel.Fixed{PrefillTime: 2, DecodeTime: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	l := &life{t: t, rng: rng, e: e, cached: map[kvevent.EngineHash]bool{}, answers: map[*Request][]uint32{}}
	for i := range l.lower {
		l.lower[i] = map[kvevent.EngineHash]bool{}
	}
	return l
}

func (l *life) act() {
	switch n := l.rng.IntN(20); {
	case n < 5:
		l.submit()
	case n < 6 && len(l.live) > 0:
		r := l.live[l.rng.IntN(len(l.live))]
		if !l.e.Cancel(r) {
			l.t.Fatal("a live request could not be cancelled")
		}
		l.forget(r)
	case n < 7:
		if l.e.Reset() {
			clear(l.cached)
		}
	case n < 13:
		l.begin()
	default:
		l.end()
	}
}

// submit makes prompts of few words, so that prefixes are shared.
func (l *life) submit() {
	r := &Request{Prompt: make([]uint32, 1+l.rng.IntN(20)), MaxTokens: 1 + l.rng.IntN(12)}
	word := uint32(l.rng.IntN(3))
	for i := range r.Prompt {
		r.Prompt[i] = word
		if l.rng.IntN(8) == 0 {
			word = uint32(l.rng.IntN(3))
		}
	}
	r.Next = func(i int) (uint32, bool) { return word + uint32(i), word == 2 && i == 3 }
	if l.rng.IntN(5) == 0 {
		r.Salt = "s"
	}
	if l.rng.IntN(4) == 0 {
		r.Delivered = l.rng.IntN(len(r.Prompt) + 2)
	}
	if l.e.Submit(r) == nil {
		l.live = append(l.live, r)
		l.submitted++
	}
}

// begin begins a pass. An engine that waits for a load is asked at its end.
func (l *life) begin() {
	if _, ok := l.e.Begin(l.now); ok {
		return
	}
	if at, ok := l.e.Wake(); ok {
		l.now = at
		if _, ok := l.e.Begin(l.now); !ok {
			l.t.Fatal("nothing runs when a load has ended")
		}
	}
}

func (l *life) end() {
	if !l.e.inPass {
		return
	}
	l.now = l.e.end
	result := l.e.End()
	l.replay(result.Events)
	for _, o := range result.Outputs {
		if !slices.Contains(l.live, o.Request) {
			l.t.Fatal("a request that has ended emits")
		}
		if o.Index != len(l.answers[o.Request]) {
			l.t.Fatalf("token %d comes as number %d", o.Index, len(l.answers[o.Request]))
		}
		l.answers[o.Request] = append(l.answers[o.Request], o.Token)
		if o.Done != NotDone {
			l.finished(o)
		}
	}
}

func (l *life) finished(o Output) {
	for i, token := range l.answers[o.Request] {
		if want, _ := o.Request.Next(i); token != want {
			l.t.Fatalf("token %d is %d, want %d", i, token, want)
		}
	}
	if n := len(l.answers[o.Request]); o.Done == Length && n != o.Request.MaxTokens {
		l.t.Fatalf("ends by length after %d of %d", n, o.Request.MaxTokens)
	}
	l.forget(o.Request)
}

func (l *life) forget(r *Request) {
	l.live = slices.DeleteFunc(l.live, func(o *Request) bool { return o == r })
}

func (l *life) replay(events []kvevent.Raw) {
	for _, e := range events {
		if e.Tier != fleet.Device {
			l.replayLower(&e)
			continue
		}
		if e.Kind == kvevent.Stored && len(e.Tokens) != len(e.Hashes)*e.BlockSize {
			l.t.Fatalf("%d tokens for %d blocks", len(e.Tokens), len(e.Hashes))
		}
		for _, h := range e.Hashes {
			if stored := e.Kind == kvevent.Stored; l.cached[h] == stored {
				// A reset in the middle of a cancelled pass makes its removals late.
				if stored || len(l.cached) > 0 {
					l.t.Fatalf("%v %x, but it was so before", e.Kind, h)
				}
			}
			l.cached[h] = e.Kind == kvevent.Stored
			if e.Kind == kvevent.Removed {
				delete(l.cached, h)
			}
		}
	}
}

func (l *life) replayLower(e *kvevent.Raw) {
	set := l.lower[e.Tier]
	for _, h := range e.Hashes {
		if set[h] == (e.Kind == kvevent.Stored) {
			l.t.Fatalf("%v %x on %v, but it was so before", e.Kind, h, e.Tier)
		}
		set[h] = true
		if e.Kind == kvevent.Removed {
			delete(set, h)
		}
	}
}

func (l *life) drain() {
	for range 10000 {
		l.begin()
		if !l.e.inPass {
			break
		}
		l.end()
	}
	if len(l.live) > 0 {
		l.t.Fatalf("%d requests never end: %v", len(l.live), l.e.Stats())
	}
}

func (l *life) check() {
	refs := make([]int32, l.e.cfg.Blocks)
	for _, r := range slices.Concat(l.e.running, l.e.loading) {
		for _, id := range r.blocks {
			refs[id]++
		}
	}
	p := l.e.pool
	listed := map[int32]bool{}
	for id := p.at(sentinel).next; id != sentinel; id = p.at(id).next {
		if useful := p.at(id).hashed; len(listed) < p.useless && useful {
			l.t.Fatalf("block %d is cached, and is among the %d that are allocated first", id, p.useless)
		}
		listed[id] = true
	}
	hashed := 0
	for id, b := range p.made[1:] {
		if b.refs != refs[id] || listed[int32(id)] != (b.refs == 0) {
			l.t.Fatalf("block %d: refs %d, held by %d, listed %v", id, b.refs, refs[id], listed[int32(id)])
		}
		if b.hashed {
			hashed++
			if found, ok := p.cached.get(b.hash); !ok || found != int32(id) {
				l.t.Fatalf("block %d is not cached under its hash", id)
			}
		}
	}
	if hashed != p.cached.n || p.free != len(listed)+p.size-len(p.made)+1 {
		l.t.Fatalf("%d hashed, %d cached; %d free, %d listed, %d of %d made", hashed, p.cached.n, p.free, len(listed), len(p.made)-1, p.size)
	}
	if l.e.inPass {
		return // its events are still to come
	}
	for _, t := range l.e.tiers {
		set := l.lower[t.Tier.Tier]
		if len(set) != len(t.byHash) || len(set) != t.recent.Len() || len(set) > t.Blocks {
			l.t.Fatalf("%v has %d of %d blocks, and %d by events", t.Tier.Tier, len(t.byHash), t.Blocks, len(set))
		}
	}
	if len(l.cached) != p.cached.n {
		l.t.Fatalf("events say %d blocks, %d are cached", len(l.cached), p.cached.n)
	}
	for _, c := range p.cached.places {
		if c.block != 0 && !l.cached[c.hash] {
			l.t.Fatalf("block %x is cached and was not announced", c.hash)
		}
	}
}

// BenchmarkPass: what does one pass of a busy engine cost? Requests of 2,048 prompt tokens,
// half of them shared, and 64 answer tokens come as fast as they end.
//
//	go test -run - -bench Pass ./internal/sim/engine
func BenchmarkPass(b *testing.B) {
	for _, seqs := range []int{16, 256} {
		b.Run(fmt.Sprintf("seqs=%d", seqs), func(b *testing.B) {
			e, err := New(Config{MaxNumSeqs: seqs, Timing: perfmodel.Fixed{DecodeTime: 1}})
			if err != nil {
				b.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 1))
			shared := make([]uint32, 1024)
			var now time.Time
			requests, tokens := 0, 0
			b.ReportAllocs()
			for b.Loop() {
				for e.Stats().Waiting < 2 {
					r := &Request{Prompt: slices.Concat(shared, make([]uint32, 1024)), MaxTokens: 64,
						Next: func(i int) (uint32, bool) { return uint32(i), false }}
					for i := range r.Prompt[1024:] {
						r.Prompt[1024+i] = rng.Uint32N(150000)
					}
					if err := e.Submit(r); err != nil {
						b.Fatal(err)
					}
					requests++
				}
				now, _ = e.Begin(now)
				tokens += len(e.End().Outputs)
			}
			b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(requests), "ns/request")
		})
	}
}
