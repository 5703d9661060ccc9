package route_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/test/race"
)

// heap returns the number of bytes that are reachable now.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// long is a string with memory of its own.
func long(n int, unlike int) string { return fmt.Sprint(unlike) + strings.Repeat("x", n) }

// hostile is a model that refuses each prompt with an error as long as the request's user, and makes a text
// as long as the prompt.
type hostile struct{ quads }

func (m hostile) Prepare(req *prompt.Request, dst *prompt.Prompt) error {
	if req.ReasoningEffort != "" {
		return &prompt.Error{Status: 400, Message: req.ReasoningEffort, Type: req.ReasoningEffort, Param: req.ReasoningEffort,
			Code: req.ReasoningEffort}
	}
	dst.Text = append(dst.Text, req.Prompts[0].Text...)
	return m.quads.Prepare(req, dst)
}

// hostileRouter routes over workers whose prompts come from hostile.
func hostileRouter(t testing.TB, workers int, cfg serving.Config) *route.Router {
	x := kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
	r := route.New(route.Config{Seed: 1}, newFleet(t, x, workers), x)
	cfg.Prompt = hostile{}
	if err := r.SetModels(map[string]*serving.Config{"sim": &cfg}); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestKeptDecisionsAreSmall fills the ring with decisions whose strings are as long as a client can make them.
func TestKeptDecisionsAreSmall(t *testing.T) {
	race.Skip(t)
	const most = 28 << 20 // as Config.Decisions documents
	const size = 16 << 10
	kinds := map[string]func(i int) *request.Request{
		"session": func(i int) *request.Request {
			req := completion("hello there")
			req.Session, req.Source = long(size, i), long(size, i)
			return req
		},
		"error": func(i int) *request.Request {
			req := completion("hello there")
			req.Parsed.ReasoningEffort = long(size, i)
			return req
		},
		"model": func(i int) *request.Request {
			return &request.Request{Known: true, Parsed: &prompt.Request{Model: long(size, i)}}
		},
		"bad body": func(i int) *request.Request {
			return &request.Request{Known: true, Body: []byte("{"), Model: long(size, i)}
		},
		"user": func(i int) *request.Request {
			req := completion("hello there")
			req.Parsed.User = long(size, i)
			return req
		},
		"allowed worker": func(i int) *request.Request {
			req := completion("hello there")
			req.Hints = &prompt.Hints{Rank: -1, Workers: []string{long(size, i)}}
			return req
		},
		"taint": func(i int) *request.Request {
			req := completion("hello there")
			req.Hints = &prompt.Hints{Rank: -1, Required: []string{long(size, i)}}
			return req
		},
	}
	for name, request := range kinds {
		r := hostileRouter(t, 32, serving.Config{})
		before := heap()
		for range 4096 { // so that each slot has its candidates
			r.End(r.Decide(completion("hello"), start).ID, start)
		}
		for i := range 4096 {
			r.End(r.Decide(request(i), start).ID, start)
		}
		if got := heap() - before; got > most {
			t.Errorf("%s: the decisions take %d KiB", name, got>>10)
		}
		runtime.KeepAlive(r)
	}
}

// TestTicketsAreSmall queues requests whose strings are as long as a client can make them.
func TestTicketsAreSmall(t *testing.T) {
	r := hostileRouter(t, 1, serving.Config{Busy: serving.Busy{PrefillTokens: 1}, Queue: &queue.Config{}, MaxWait: time.Hour})
	first := r.Decide(completion("the first prompt"), start)
	before := heap()
	const waiting, size = 200, 256 << 10
	for i := range waiting {
		req := completion("hello there")
		req.Parsed.User, req.Session = long(size, i), long(size, i)
		req.Ready = func(*decision.Decision) {}
		req.Hints = &prompt.Hints{Rank: -1, Workers: []string{"w0"}, Class: long(size, i)}
		for j := range 255 {
			req.Hints.Workers = append(req.Hints.Workers, long(256, j))
		}
		for j := range 64 {
			req.Hints.Preferred = append(req.Hints.Preferred, prompt.Preference{Taint: long(300, j)})
		}
		if d := r.Decide(req, start); d.Outcome != decision.Queued {
			t.Fatal(d)
		}
	}
	if each := (heap() - before) / waiting; each > 8<<10 {
		t.Errorf("a waiting request takes %d bytes", each)
	}
	r.End(first.ID, start)
}

// TestLongSessionsKeepTheirAffinity compares sessions that differ only at their end, and of which a hash is kept.
func TestLongSessionsKeepTheirAffinity(t *testing.T) {
	r := newRouter(t, "session", 16)
	workers, kept := map[string]bool{}, map[string]bool{}
	for i := range 40 {
		session := strings.Repeat("a", 300) + fmt.Sprint(i)
		first := ""
		for range 3 {
			req := completion("hello")
			req.Session = session
			d := r.Decide(req, start)
			if first == "" {
				first = d.Worker
			}
			if d.Worker != first {
				t.Errorf("session %d went to %s and to %s", i, first, d.Worker)
			}
			workers[d.Worker], kept[d.Session] = true, true
		}
	}
	if len(workers) < 8 || len(kept) != 40 {
		t.Errorf("40 sessions went to %d workers and were kept as %d", len(workers), len(kept))
	}
}

// TestSourcesOfAnyLengthEnd ends the bookings of an Envoy with a long name.
func TestSourcesOfAnyLengthEnd(t *testing.T) {
	r := newRouter(t, "kv", 1)
	req := completion("hello")
	req.Source = long(1000, 1)
	r.Decide(req, start)
	if n := r.EndBefore(long(1000, 1), start.Add(time.Second)); n != 1 {
		t.Errorf("%d bookings ended", n)
	}
}

// TestIdleWorkspacesAreFew decides for many large prompts at once. Then little of their memory is left.
func TestIdleWorkspacesAreFew(t *testing.T) {
	x := kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
	r := route.New(route.Config{Seed: 1, Decisions: 1}, newFleet(t, x, 2), x)
	const requests, size = 64, 3 << 20 // smaller than the memory that one workspace may keep
	var arrived sync.WaitGroup
	arrived.Add(requests)
	if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: meeting{arrived: &arrived}}}); err != nil {
		t.Fatal(err)
	}

	before := heap()
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			req := &request.Request{Endpoint: prompt.Completions, Known: true, Parsed: &prompt.Request{
				Endpoint: prompt.Completions, Model: "sim", Prompts: []openai.Prompt{{Text: strings.Repeat("y", size)}}}}
			r.End(r.Decide(req, start).ID, start)
		})
	}
	all.Wait()

	most := 4 * runtime.GOMAXPROCS(0) * (4 << 20)
	if got := heap() - before; got > most+8<<20 {
		t.Errorf("%d MiB are kept, want at most %d", got>>20, most>>20)
	}
	runtime.KeepAlive(r)
}

// meeting is a model whose prompts wait for each other.
type meeting struct{ arrived *sync.WaitGroup }

func (m meeting) Prepare(req *prompt.Request, dst *prompt.Prompt) error {
	dst.Text = append(dst.Text, req.Prompts[0].Text...)
	dst.Tokens = append(dst.Tokens, 1, 2, 3)
	dst.Total, dst.Prompts = 3, 1
	m.arrived.Done()
	m.arrived.Wait()
	return nil
}
