package route_test

import (
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// multimodal is the simulator's model without the file that declares it a model of text.
func multimodal(t testing.TB) *prompt.Model {
	t.Helper()
	folder := fstest.MapFS{}
	err := fs.WalkDir(models.Sim(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path == "config.json" {
			return err
		}
		data, err := fs.ReadFile(models.Sim(), path)
		folder[path] = &fstest.MapFile{Data: data}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := prompt.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestIdleRouterPinsNoBodies decides for many requests with large images at once. When they have ended, their
// bodies are garbage.
func TestIdleRouterPinsNoBodies(t *testing.T) {
	x := kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
	r := route.New(route.Config{Seed: 1}, newFleet(t, x, 2), x)
	if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: multimodal(t)}}); err != nil {
		t.Fatal(err)
	}
	decide := func(image string) {
		body := `{"model":"sim","messages":[{"role":"user","content":[{"type":"text","text":"what is this"},` +
			`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + image + `"}}]}]}`
		d := r.Decide(&request.Request{Endpoint: prompt.Chat, Known: true, Body: []byte(body)}, start)
		if d.Outcome != decision.Picked {
			t.Error(d)
		}
		r.End(d.ID, start)
	}
	decide("AAAA")

	before := heap()
	const requests, size = 48, 4 << 20
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() { decide(fmt.Sprintf("%08d", i) + strings.Repeat("A", size)) })
	}
	all.Wait()
	if got := heap() - before; got > 2*size {
		t.Errorf("%d MiB are kept of %d bodies of %d MiB", got>>20, requests, size>>20)
	}
	runtime.KeepAlive(r)
}

// TestReusedMemoryDoesNotShowInDecisions parses bodies into the same memory and compares the
// kept strings of the first one.
func TestReusedMemoryDoesNotShowInDecisions(t *testing.T) {
	x := kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
	r := route.New(route.Config{Seed: 1}, newFleet(t, x, 1), x)
	if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: letters{}}}); err != nil {
		t.Fatal(err)
	}
	ask := func(letter string) *decision.Decision {
		// The escapes make the parser copy the strings into its own memory.
		name := strings.Repeat(`\u00`+letter, 20)
		body := `{"model":"` + name + `","prompt":"` + name + `","user":"` + name + `"}`
		return r.Decide(&request.Request{Endpoint: prompt.Completions, Known: true, Body: []byte(body)}, start)
	}
	first := ask("41")
	ask("42")
	if want := strings.Repeat("A", 20); first.Model != want || !strings.Contains(first.Err.Message, want) {
		t.Errorf("the first decision has changed to\n%s", first)
	}
}

// TestCacheControl: a request's pin counts for a model whose engines have a store, from clients whose hints count, and not if another worker
// computes the prompt.
func TestCacheControl(t *testing.T) {
	body := []byte(`{"model":"sim","prompt":"x","nvext":{"cache_control":{"ttl":"1h"}}}`)
	for name, c := range map[string]struct {
		store, ignored bool
		role           fleet.Role
		want           time.Duration
	}{
		"a store":   {true, false, fleet.Aggregated, time.Hour},
		"none":      {false, false, fleet.Aggregated, 0},
		"no trust":  {true, true, fleet.Aggregated, 0},
		"a prefill": {true, false, fleet.Prefill, 0},
	} {
		x := kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
		r := route.New(route.Config{Seed: 1}, newFleet(t, x, 1), x)
		if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: multimodal(t), Store: c.store}}); err != nil {
			t.Fatal(err)
		}
		d := r.Decide(&request.Request{Endpoint: prompt.Completions, Known: true, Body: body, IgnoreBodyHints: c.ignored,
			Workers: request.Workers{Role: c.role}}, start)
		if d.Pin != c.want {
			t.Errorf("%s: a pin of %v, want %v", name, d.Pin, c.want)
		}
	}
}
