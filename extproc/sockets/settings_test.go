package sockets

import (
	"reflect"
	"testing"

	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// TestWrongSettings: each mistake is found on the worker that has it, and is gone when the engine is corrected, or another one has the
// worker's address.
func TestWrongSettings(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	put := func(name, model, address, engine string) *fleet.Worker {
		t.Helper()
		w := fleet.Worker{Name: name, Model: model, Address: address, Engine: engine, Ranks: 1, State: fleet.Ready}
		if _, err := f.Put(w); err != nil {
			t.Fatal(err)
		}
		return f.Snapshot().Worker(name)
	}
	a, b := put("a", "m", "127.0.0.1:1", "vllm"), put("b", "m", "127.0.0.1:2", "vllm")
	other, sim := put("other", "n", "127.0.0.1:3", "llamacpp"), put("sim", "m", "127.0.0.1:4", "sim")
	s := NewSettings(f, func() map[string]string { return map[string]string{"m": "m", "alias": "m", "n": "n"} })
	expect := func(when string, want map[string][]string) {
		t.Helper()
		if got := s.wrong(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	none := map[string][]string{}
	store := func(w *fleet.Worker, hash kvevent.EngineHash) {
		s.stored(w, &kvevent.Batch{Events: []kvevent.Event{{
			Kind: kvevent.Stored, Hashes: []kvevent.EngineHash{hash}, Blocks: []blockhash.Block{7}, BlockSize: 16,
		}}})
	}

	expect("at first", none)
	s.listed(a, []string{"alias"})
	s.listed(b, []string{"n"})
	s.listed(other, []string{"file.gguf"}) // it serves any name
	expect("models are listed", map[string][]string{"b": {wrongModel}})
	s.listed(b, []string{"x", "m"})
	s.loaded(a, &engineprobe.Load{CachingOff: true})
	expect("caching is off", map[string][]string{"a": {wrongCaching}})
	s.loaded(a, &engineprobe.Load{})

	store(a, 1)
	store(sim, 2) // simulated engines have seeds of their own
	store(b, 1)
	expect("equal hashes", none)
	store(b, 3)
	expect("another hash", map[string][]string{"b": {wrongHashes}})
	store(b, 1)
	expect("the engine has the seed now", none)
	store(b, 3)
	put("b", "m", "127.0.0.1:5", "vllm")
	expect("another engine", none)

	put("b", "m", "127.0.0.1:1", "vllm")
	expect("one address", map[string][]string{"a": {wrongAddress}, "b": {wrongAddress}})
}

// TestSettingsAreBounded: engines with many first blocks and many models do not fill the memory.
func TestSettingsAreBounded(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	if _, err := f.Put(fleet.Worker{Name: "a", Model: "m", Address: "127.0.0.1:1", Ranks: 1, State: fleet.Ready}); err != nil {
		t.Fatal(err)
	}
	w := f.Snapshot().Worker("a")
	s := NewSettings(f, func() map[string]string { return nil })
	for i := range 3 * maxRoots {
		s.stored(w, &kvevent.Batch{Events: []kvevent.Event{{
			Kind: kvevent.Stored, Hashes: []kvevent.EngineHash{1}, Blocks: []blockhash.Block{blockhash.Block(i)}, BlockSize: 16,
		}}})
	}
	s.listed(w, make([]string, 10*maxListed))
	if len(s.roots) > maxRoots || len(s.seen["a"].models) > maxListed {
		t.Errorf("%d first blocks, %d models", len(s.roots), len(s.seen["a"].models))
	}
}
