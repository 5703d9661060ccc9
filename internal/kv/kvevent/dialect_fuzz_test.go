package kvevent_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

var fuzzLimits = kvevent.Limits{Bytes: 1 << 16, Events: 64, Blocks: 256, Tokens: 4096}

func FuzzDecodeSGLang(f *testing.F) {
	for _, file := range []string{"sglang-maps.jsonl", "sglang-arrays.jsonl"} {
		for _, m := range made(f, file) {
			f.Add(m)
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte) { decodeProperties(t, kvevent.SGLang, payload) })
}

func FuzzDecodeOutside(f *testing.F) {
	for _, m := range made(f, "lmcache.jsonl") {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		decodeProperties(t, kvevent.Outside, payload)
		split := kvevent.Batch{Split: 2}
		if err := kvevent.Outside.Decode(payload, fuzzLimits, &split); err != nil {
			return
		}
		for _, e := range split.Events {
			if len(e.Blocks) != 0 && len(e.Blocks) != len(e.Hashes) {
				t.Fatalf("%d blocks for %d hashes", len(e.Blocks), len(e.Hashes))
			}
		}
	})
}

func FuzzDecodeTRTLLM(f *testing.F) {
	for _, m := range append(made(f, "trtllm.json"), inputs(f, "trtllm")...) {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, payload []byte) { decodeProperties(t, kvevent.TRTLLM, payload) })
}

func FuzzDecodeDynamo(f *testing.F) {
	for _, m := range append(made(f, "dynamo-frames.jsonl"), inputs(f, "dynamo")...) {
		f.Add(m)
		if json.Valid(m) {
			f.Add(packed(f, string(m)))
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte) { decodeProperties(t, kvevent.Dynamo, payload) })
}

// decodeProperties: an error leaves an empty batch; a success stays within the limits, is the
// same into a fresh batch and into a used one, and every event's slices belong together. What
// an error leaves in a batch's memory does not reach what is decoded into it next after a clear.
func decodeProperties(t *testing.T, d kvevent.Dialect, payload []byte) {
	var b kvevent.Batch
	if err := d.Decode(payload, fuzzLimits, &b); err != nil {
		if len(b.Events) != 0 || b.Unknown+b.Skipped+b.Others != 0 || b.Rank != 0 || b.Worker != 0 || b.Numbered {
			t.Fatalf("error %v with %+v", err, b.Events)
		}
		return
	}
	hashes := 0
	for i, e := range b.Events {
		if n := len(e.Hashes); i == 0 || n == 0 || len(b.Events[i-1].Hashes) != n || &e.Hashes[0] != &b.Events[i-1].Hashes[0] {
			hashes += n // a removal on several tiers has its hashes in common
		}
		if len(e.Blocks) != 0 && len(e.Blocks) != len(e.Hashes) {
			t.Fatalf("%d blocks for %d hashes", len(e.Blocks), len(e.Hashes))
		}
		if e.Window < 0 || e.Kind > kvevent.Cleared || len(e.Hashes) > 0 && e.Kind == kvevent.Cleared {
			t.Fatalf("event %+v", e)
		}
	}
	// One event of TensorRT-LLM may be a clear and a removal on three tiers.
	if len(b.Events) > 4*fuzzLimits.Events || hashes > fuzzLimits.Blocks {
		t.Fatalf("%d events with %d blocks", len(b.Events), hashes)
	}
	first := clone(&b)
	var again kvevent.Batch
	if err := d.Decode(payload, fuzzLimits, &again); err != nil || !reflect.DeepEqual(first, clone(&again)) {
		t.Fatalf("decoded again: %v\n%+v\n%+v", err, first, clone(&again))
	}
	if err := d.Decode(payload, fuzzLimits, &b); err != nil {
		t.Fatalf("decoded into a used batch: %v", err)
	}
}

// inputs returns the messages that stand in a scenario.
func inputs(t testing.TB, scenario string) (messages [][]byte) {
	raw, err := os.ReadFile(filepath.Join("testdata", "dialects", scenario+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(string(raw), "\n\n") {
		head, _, ok := strings.Cut(part, "\n----")
		if _, input, has := strings.Cut(head[max(0, strings.LastIndex(head, "decode ")):], "\n"); ok && has {
			messages = append(messages, []byte(input))
		}
	}
	if len(messages) < 4 {
		t.Fatalf("%s: %d messages", scenario, len(messages))
	}
	return messages
}

// What encoding/json reads in a message our reader reads, too: strings with every escape,
// numbers at the edges.
func FuzzJSON(f *testing.F) {
	f.Add("a\\u0000\"\u2028\U0001F600\xff", int64(-1), uint64(1)<<63)
	f.Add("", int64(-1)<<63, ^uint64(0))
	f.Add("dynamo-cache-salt:t", int64(0), uint64(0))
	f.Fuzz(func(t *testing.T, salt string, id int64, hash uint64) {
		event := map[string]any{"event_id": hash, "data": map[string]any{
			"type": "stored", "cache_salt": salt, salt: salt, "parent_hash": id,
			"blocks": []any{map[string]any{"block_hash": hash, "tokens": []any{1, 2}, "a": []any{salt, map[string]any{salt: 1.5}}}},
		}}
		for _, known := range []string{"type", "cache_salt", "parent_hash", "blocks", "lora_name", "lora_id"} {
			if salt == known {
				return
			}
		}
		raw, err := json.Marshal(event)
		if err != nil {
			t.Fatal(err)
		}
		var read struct {
			Data struct {
				CacheSalt string `json:"cache_salt"`
			}
		}
		if err := json.Unmarshal(raw, &read); err != nil {
			t.Fatal(err)
		}
		var b, want kvevent.Batch
		if err := kvevent.TRTLLM.Decode(raw, kvevent.Limits{}, &b); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		want.Add(&kvevent.Raw{Hashes: []kvevent.EngineHash{kvevent.EngineHash(hash)}, Tokens: []uint32{1, 2}, BlockSize: 2, Salt: read.Data.CacheSalt})
		want.Events[0].Parent, want.Events[0].HasParent = kvevent.EngineHash(id), true
		if !reflect.DeepEqual(clone(&b), clone(&want)) || b.First != hash {
			t.Fatalf("%s:\n got %+v\nwant %+v", raw, clone(&b), clone(&want))
		}
	})
}

func TestDialectsAllocateNothing(t *testing.T) {
	messages := map[kvevent.Dialect][][]byte{
		kvevent.VLLM: {packed(t, `[1, [{"type": "BlockStored", "block_hashes": [5], "token_ids": [9, 9, 9, 9], "block_size": 4,
			"block_mm_infos": [{"mm_objects": [{"mm_hash": 5, "offsets": [[0, 4]]}]}]}], 0]`)},
		kvevent.SGLang: append(made(t, "sglang-maps.jsonl"), made(t, "sglang-arrays.jsonl")...),
		kvevent.TRTLLM: made(t, "trtllm.json"),
		kvevent.Dynamo: made(t, "dynamo-frames.jsonl"),
	}
	for d, all := range messages {
		b := kvevent.Batch{Only: func(worker uint64, rank int) bool { return worker != 2 }}
		for i, m := range all {
			decode := func() {
				if err := d.Decode(m, kvevent.Limits{}, &b); err != nil {
					t.Fatal(err)
				}
			}
			decode()
			if n := testing.AllocsPerRun(100, decode); n != 0 {
				t.Errorf("%v message %d: %v allocations", d, i, n)
			}
		}
	}
}
