package decisionlog

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route"
)

// A prompt has a hash for every n blocks and for what is left of them.
func TestSample(t *testing.T) {
	chain := []blockhash.Sequence{1, 2, 3, 4, 5}
	for n, want := range map[int][]Hash{0: {1, 2, 3, 4, 5}, 1: {1, 2, 3, 4, 5}, 2: {2, 4, 5}, 5: {5}, 9: {5}} {
		if got := Sample(nil, chain, n); !slices.Equal(got, want) {
			t.Errorf("every %d: %v, want %v", n, got, want)
		}
	}
	if got := Sample(nil, nil, 3); got != nil {
		t.Errorf("%v of no blocks", got)
	}
}

// A hash is 16 digits, and nothing else.
func TestHashText(t *testing.T) {
	for _, h := range []Hash{0, 1, 0xa63f17518eae442b, 1<<64 - 1} {
		text, err := h.MarshalText()
		var again Hash
		if err != nil || again.UnmarshalText(text) != nil || again != h || len(text) != 16 {
			t.Errorf("%x becomes %q and %x", uint64(h), text, uint64(again))
		}
	}
	for _, bad := range []string{"", "1", "zzzzzzzzzzzzzzzz", "00000000000000011", "0x00000000000001", "-000000000000001", "+000000000000001", "000000 000000001"} {
		if new(Hash).UnmarshalText([]byte(bad)) == nil {
			t.Errorf("%q is taken for a hash", bad)
		}
	}
}

// These are the keys that programs may rely on.
func TestLines(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, line := range map[string]Line{
		`{"end":{"id":"x","at":"2026-01-02T03:04:05Z","outcome":"retried","firstByteMs":1.5,"lastByteMs":9,"responseBytes":7}}`: {
			End: &End{ID: "x", At: at, Outcome: "retried", FirstByte: 1.5, LastByte: 9, ResponseBytes: 7}},
	} {
		if got, err := line.Append(nil); err != nil || string(got) != want+"\n" {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	got, err := (&Line{Decision: &route.Decision{ID: "x", Outcome: route.Refused}, HashEvery: 2, Hashes: []Hash{5}}).Append(nil)
	var keys struct {
		Decision  struct{ ID, Outcome string }
		HashEvery int
		Hashes    []string
	}
	if err != nil || json.Unmarshal(got, &keys) != nil || keys.Decision.ID != "x" || keys.Decision.Outcome != "refused" || keys.HashEvery != 2 || keys.Hashes[0] != "0000000000000005" {
		t.Errorf("%s, %v", got, err)
	}
}
