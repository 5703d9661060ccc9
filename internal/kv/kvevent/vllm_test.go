package kvevent_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// message is one line of testdata/captured.
type message struct {
	Seq     uint64 `json:"seq"`
	Payload []byte `json:"payload_b64"`
}

func captured(t testing.TB, file string) []message {
	f, err := os.Open(filepath.Join("testdata", "captured", file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []message
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	if len(all) == 0 {
		t.Fatalf("%s is empty", file)
	}
	return all
}

var captures = []string{"nixl-prefill-int-sha256.jsonl", "offload-tiers-bytes-sha256cbor.jsonl", "p2p-consumer-bytes-sha256cbor.jsonl"}

// A generic reader and a plain loop must find in every captured message what the decoder finds.
func TestDecodeCaptured(t *testing.T) {
	for _, file := range captures {
		var b kvevent.Batch
		salts := map[kvevent.EngineHash]string{}
		for _, m := range captured(t, file) {
			if err := kvevent.VLLM.Decode(m.Payload, kvevent.Limits{}, &b); err != nil {
				t.Fatalf("%s %d: %v", file, m.Seq, err)
			}
			raws, seconds := generic(t, m.Payload)
			var want []kvevent.Event
			for _, r := range raws {
				want = append(want, naive(r, salts))
			}
			if got := clone(&b); !reflect.DeepEqual(got, want) {
				t.Errorf("%s %d:\n got %+v\nwant %+v", file, m.Seq, got, want)
			}
			if b.Seconds != seconds || b.Rank != 0 || b.Unknown != 0 || b.Skipped != 0 {
				t.Errorf("%s %d: %v %d %d %d", file, m.Seq, b.Seconds, b.Rank, b.Unknown, b.Skipped)
			}
		}
	}
}

// What vLLM wrote is what we write, byte by byte. Hashes of 32 bytes are written as numbers,
// so there the meaning is compared.
func TestAppendLikeVLLM(t *testing.T) {
	for _, file := range captures {
		for _, m := range captured(t, file) {
			raws, seconds := generic(t, m.Payload)
			got := kvevent.AppendVLLM(nil, seconds, 0, raws)
			if strings.Contains(file, "-int-") {
				if !bytes.Equal(got, m.Payload) {
					t.Errorf("%s %d:\n got %q\nwant %q", file, m.Seq, got, m.Payload)
				}
				continue
			}
			var a, b kvevent.Batch
			if err := kvevent.VLLM.Decode(got, kvevent.Limits{}, &a); err != nil {
				t.Fatal(err)
			}
			if err := kvevent.VLLM.Decode(m.Payload, kvevent.Limits{}, &b); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(clone(&a), clone(&b)) {
				t.Errorf("%s %d: ours reads %+v, theirs %+v", file, m.Seq, clone(&a), clone(&b))
			}
		}
	}
}

// generic reads a message with maps and interfaces.
func generic(t testing.TB, payload []byte) (raws []kvevent.Raw, seconds float64) {
	v, _, err := msgp.ReadIntfBytes(payload)
	if err != nil {
		t.Fatal(err)
	}
	batch := v.([]any)
	for _, e := range batch[1].([]any) {
		raws = append(raws, rawOf(t, e.(map[string]any)))
	}
	return raws, batch[0].(float64)
}

func rawOf(t testing.TB, m map[string]any) kvevent.Raw {
	r := kvevent.Raw{}
	switch m["type"] {
	case "AllBlocksCleared":
		return kvevent.Raw{Kind: kvevent.Cleared}
	case "BlockRemoved":
		r.Kind = kvevent.Removed
	}
	tiers := map[string]fleet.Tier{"GPU": fleet.Device, "CPU": fleet.Host, "STORAGE": fleet.Disk}
	tier, ok := tiers[m["medium"].(string)]
	if !ok {
		t.Fatalf("medium %v", m["medium"])
	}
	r.Tier = tier
	for _, h := range m["block_hashes"].([]any) {
		r.Hashes = append(r.Hashes, engineOf(h))
	}
	if p := m["parent_block_hash"]; p != nil {
		r.Parent, r.HasParent = engineOf(p), true
	}
	if r.Kind == kvevent.Removed {
		return r
	}
	for _, id := range m["token_ids"].([]any) {
		r.Tokens = append(r.Tokens, uint32(number(id)))
	}
	r.BlockSize = int(number(m["block_size"]))
	r.LoRA, _ = m["lora_name"].(string)
	if r.LoRA != "" {
		r.LoRAID = int(number(m["lora_id"]))
	}
	r.Session, _ = m["session_id"].(string)
	if keys, _ := m["extra_keys"].([]any); len(keys) > 0 && keys[0] != nil {
		if last := keys[0].([]any); last[len(last)-1] != r.LoRA {
			r.Salt = last[len(last)-1].(string)
		}
	}
	return r
}

func engineOf(v any) kvevent.EngineHash {
	if digest, ok := v.([]byte); ok {
		return kvevent.EngineHash(binary.BigEndian.Uint64(digest[24:]))
	}
	return kvevent.EngineHash(number(v))
}

func number(v any) uint64 {
	switch n := v.(type) {
	case int64:
		return uint64(n)
	case uint64:
		return n
	default:
		panic(fmt.Sprintf("%T", v))
	}
}

// naive is the event that r means; salts are those of the chains seen so far. The capture has
// one prompt that goes on from a salted one.
func naive(r kvevent.Raw, salts map[kvevent.EngineHash]string) kvevent.Event {
	e := kvevent.Event{Kind: r.Kind, Tier: r.Tier, Hashes: r.Hashes}
	if r.Kind == kvevent.Cleared {
		clear(salts)
	}
	if r.Kind != kvevent.Stored {
		return e
	}
	e.Parent, e.HasParent, e.BlockSize = r.Parent, r.HasParent, r.BlockSize
	salt := r.Salt
	if r.HasParent {
		salt = salts[r.Parent]
	}
	for _, h := range r.Hashes {
		if salt != "" {
			salts[h] = salt
		}
	}
	if r.Tier == fleet.Device {
		e.Blocks = blockhash.Append(nil, r.Tokens, r.BlockSize, blockhash.Seed(r.LoRA, salt))
	}
	return e
}

// clone copies a batch's events out of its buffers, with empty slices as nil.
func clone(b *kvevent.Batch) []kvevent.Event {
	var all []kvevent.Event
	for _, e := range b.Events {
		e.Hashes = append([]kvevent.EngineHash(nil), e.Hashes...)
		e.Blocks = append([]blockhash.Block(nil), e.Blocks...)
		all = append(all, e)
	}
	return all
}

// vLLM names a salt with the first block only; the chain keeps it.
func TestSaltIsRememberedAlongTheChain(t *testing.T) {
	first := kvevent.Raw{Hashes: []kvevent.EngineHash{11, 12}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2, Salt: "tenant"}
	next := kvevent.Raw{Hashes: []kvevent.EngineHash{13}, Parent: 12, HasParent: true, Tokens: []uint32{5, 6}, BlockSize: 2}
	var b kvevent.Batch
	decode := func(r ...kvevent.Raw) []kvevent.Event {
		t.Helper()
		if err := kvevent.VLLM.Decode(kvevent.AppendVLLM(nil, 1, 0, r), kvevent.Limits{}, &b); err != nil {
			t.Fatal(err)
		}
		return clone(&b)
	}
	salted := blockhash.Hash([]uint32{5, 6}, blockhash.Seed("", "tenant"))
	decode(first)
	if got := decode(next)[0].Blocks; len(got) != 1 || got[0] != salted {
		t.Errorf("the continuation is %v, want [%v]", got, salted)
	}
	plain := blockhash.Hash([]uint32{5, 6}, blockhash.Seed("", ""))
	if got := decode(kvevent.Raw{Kind: kvevent.Cleared}, next)[1].Blocks; got[0] != plain {
		t.Errorf("after a clear the salt is still remembered")
	}
}

// The forms that other versions and engines speak, spelled out as values and encoded here.
func TestForms(t *testing.T) {
	tokens := []any{int64(1), int64(2), int64(3), int64(4)}
	plain := blockhash.Append(nil, []uint32{1, 2, 3, 4}, 2, blockhash.Seed("", ""))
	media := blockhash.Hash([]uint32{3, 4, 0x89abcdef, 0x01234567}, blockhash.Seed("", ""))
	tests := []struct {
		name  string
		event any
		want  string
	}{
		{"sglang array", []any{"BlockStored", []any{int64(-1), int64(7)}, nil, tokens, int64(2), nil},
			fmt.Sprintf("stored device [18446744073709551615 7] blocks %d", plain)},
		{"vllm array with group", []any{"BlockStored", []any{int64(6), int64(7)}, int64(5), tokens, int64(2), nil, "GPU", nil, nil, int64(0), "full_attention"},
			fmt.Sprintf("stored device [6 7] after 5 blocks %d", plain)},
		{"dynamo array", []any{"BlockStored", []any{int64(6), int64(7)}, nil, tokens, int64(2), nil, "GPU", nil, nil, []any{nil, nil}, int64(0), "mla"},
			fmt.Sprintf("stored device [6 7] blocks %d", plain)},
		{"eagle pairs", []any{"BlockStored", []any{int64(6)}, nil, []any{[]any{int64(1), int64(2)}, []any{int64(2), int64(3)}}, int64(2)},
			fmt.Sprintf("stored device [6] blocks %d", plain[:1])},
		{"removed array", []any{"BlockRemoved", []any{int64(6)}, "CPU"}, "removed host [6]"},
		{"cleared array", []any{"AllBlocksCleared"}, "cleared device []"},
		{"media", map[string]any{"type": "BlockStored", "block_hashes": []any{int64(6), int64(7)}, "token_ids": tokens, "block_size": int64(2),
			"extra_keys": []any{nil, []any{[]any{strings.Repeat("0123456789abcdef", 4), int64(1)}}}},
			fmt.Sprintf("stored device [6 7] blocks %d", []blockhash.Block{plain[0], media})},
		{"unknown field", map[string]any{"type": "BlockRemoved", "block_hashes": []any{int64(6)}, "new": map[string]any{"a": []any{nil}}}, "removed device [6]"},
		{"adapter by number", map[string]any{"type": "BlockStored", "block_hashes": []any{int64(6)}, "token_ids": tokens[:2], "block_size": int64(2), "lora_id": int64(3)},
			fmt.Sprintf("stored device [6] blocks %d", blockhash.Append(nil, []uint32{1, 2}, 2, blockhash.Seed("\x03", "")))},
		{"no tokens", map[string]any{"type": "BlockStored", "block_hashes": []any{int64(6)}, "token_ids": []any{}, "block_size": int64(2)}, "stored device [6] blocks []"},
		{"remote", map[string]any{"type": "BlockStored", "block_hashes": []any{int64(6)}, "locality": "REMOTE"}, "skipped 1"},
		{"medium nobody knows", map[string]any{"type": "BlockStored", "block_hashes": []any{int64(6)}, "medium": "TAPE"}, "skipped 1"},
		{"kind nobody knows", map[string]any{"type": "BlockMoved", "block_hashes": "any shape"}, "unknown 1"},
		{"sliding window", map[string]any{"type": "BlockStored", "block_hashes": []any{int64(6)}, "group_idx": int64(1), "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": int64(512)},
			"stored device [6] window 512 of group 1 blocks []"},
		{"and its removal", map[string]any{"type": "BlockRemoved", "block_hashes": []any{int64(6)}, "group_idx": int64(1)}, "removed device [6] window 512 of group 1"},
		{"a removal that names its window", []any{"BlockRemoved", []any{int64(6)}, "GPU", int64(3), "sliding_window", int64(64)}, "removed device [6] window 64 of group 3"},
		{"sliding window, of no known size", map[string]any{"type": "BlockStored", "block_hashes": []any{int64(6)}, "group_idx": int64(1), "kv_cache_spec_kind": "sliding_window"}, "skipped 1"},
		{"mamba", map[string]any{"type": "BlockStored", "block_hashes": []any{int64(6)}, "group_idx": int64(2), "kv_cache_spec_kind": "mamba"}, "skipped 1"},
		{"and its removal", map[string]any{"type": "BlockRemoved", "block_hashes": []any{int64(6)}, "group_idx": int64(2)}, "skipped 1"},
		{"full attention still", map[string]any{"type": "BlockRemoved", "block_hashes": []any{int64(6)}, "group_idx": int64(0)}, "removed device [6]"},
	}
	var b kvevent.Batch
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			payload, err := msgp.AppendIntf(nil, []any{1.5, []any{tt.event}, int64(3)})
			if err != nil {
				t.Fatal(err)
			}
			if err := kvevent.VLLM.Decode(payload, kvevent.Limits{}, &b); err != nil {
				t.Fatal(err)
			}
			if got := describe(&b); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if b.Rank != 3 {
				t.Errorf("rank %d", b.Rank)
			}
		})
	}
}

func describe(b *kvevent.Batch) string {
	var w strings.Builder
	for _, e := range b.Events {
		fmt.Fprintf(&w, "%v %v %d", e.Kind, e.Tier, e.Hashes)
		if e.HasParent {
			fmt.Fprintf(&w, " after %d", e.Parent)
		}
		if e.Window > 0 {
			fmt.Fprintf(&w, " window %d of group %d", e.Window, e.Group)
		}
		if e.Kind == kvevent.Stored {
			fmt.Fprintf(&w, " blocks %d", e.Blocks)
		}
	}
	if b.Unknown > 0 {
		fmt.Fprintf(&w, "unknown %d", b.Unknown)
	}
	if b.Skipped > 0 {
		fmt.Fprintf(&w, "skipped %d", b.Skipped)
	}
	return w.String()
}

func TestRefused(t *testing.T) {
	good := kvevent.AppendVLLM(nil, 1, 0, []kvevent.Raw{sample(4)})
	tests := []struct {
		name    string
		payload []byte
		lim     kvevent.Limits
		want    string
	}{
		{"nothing", nil, kvevent.Limits{}, "decode vllm events: "},
		{"a map", []byte{0x80}, kvevent.Limits{}, "decode vllm events: "},
		{"cut", good[:len(good)-9], kvevent.Limits{}, "event 0: "},
		{"bytes behind", append(good[:len(good):len(good)], 1), kvevent.Limits{}, "1 bytes behind the message"},
		{"too long", good, kvevent.Limits{Bytes: 10}, "the limit is 10"},
		{"too many events", good, kvevent.Limits{Events: -1, Blocks: 3}, "block_hashes: 4 blocks more: the limit is 3"},
		{"too many tokens", good, kvevent.Limits{Tokens: 63}, "token_ids: 64 tokens more: the limit is 63"},
		{"an array that promises 4 billion events", []byte{0x92, 0xc0, 0xdd, 0xff, 0xff, 0xff, 0xff}, kvevent.Limits{}, "the limit is 65536"},
		{"a token that promises 4 billion more", []byte("\x92\xc0\x91\x82\xa4type\xabBlockStored\xa9token_ids\x91\xdd\xff\xff\xff\xff\x01"), kvevent.Limits{}, "token_ids: "},
		{"media that promise as many", []byte("\x92\xc0\x91\x83\xa4type\xabBlockStored\xacblock_hashes\x91\x01\xaeblock_mm_infos\x91\x81\xaamm_objects\xdd\xff\xff\xff\xff\x80"), kvevent.Limits{}, "block_mm_infos: "},
		{"a rank out of range", []byte{0x93, 0xc0, 0x90, 0xff}, kvevent.Limits{}, "rank: -1 is out of range"},
		{"a short digest", []byte("\x92\xc0\x91\x92\xacBlockRemoved\x91\xc4\x02ab"), kvevent.Limits{}, "a digest of 2 bytes"},
	}
	var b kvevent.Batch
	for _, tt := range tests {
		err := kvevent.VLLM.Decode(tt.payload, tt.lim, &b)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
		if len(b.Events) > 0 {
			t.Errorf("%s: an error with %d events", tt.name, len(b.Events))
		}
	}
}

// sample is a stored event of n blocks of 16 tokens.
func sample(n int) kvevent.Raw {
	r := kvevent.Raw{BlockSize: 16, Parent: 42, HasParent: true}
	for i := range n {
		r.Hashes = append(r.Hashes, kvevent.EngineHash(0x9e3779b97f4a7c15*uint64(i+1)))
	}
	for i := range 16 * n {
		r.Tokens = append(r.Tokens, uint32(i*i*31%151000))
	}
	return r
}

func TestDecodeAllocatesNothing(t *testing.T) {
	for _, file := range captures {
		var b kvevent.Batch
		for _, m := range captured(t, file) {
			decode := func() { _ = kvevent.VLLM.Decode(m.Payload, kvevent.Limits{}, &b) }
			decode()
			if n := testing.AllocsPerRun(100, decode); n != 0 {
				t.Errorf("%s %d: %v allocations", file, m.Seq, n)
			}
		}
	}
}

// BenchmarkDecodeVLLM: what does one message of the event socket cost, from bytes to content
// hashes? Blocks have 16 tokens.
//
//	go test -run - -bench DecodeVLLM ./internal/kv/kvevent
func BenchmarkDecodeVLLM(b *testing.B) {
	for _, blocks := range []int{1, 16, 512} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			payload := kvevent.AppendVLLM(nil, 1.5, 0, []kvevent.Raw{sample(blocks)})
			var batch kvevent.Batch
			b.ReportAllocs()
			b.SetBytes(int64(len(payload)))
			for b.Loop() {
				if err := kvevent.VLLM.Decode(payload, kvevent.Limits{}, &batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*blocks)/b.Elapsed().Seconds(), "blocks/s")
		})
	}
}

// BenchmarkAppendVLLM: what does publishing cost a simulated engine?
//
//	go test -run - -bench AppendVLLM ./internal/kv/kvevent
func BenchmarkAppendVLLM(b *testing.B) {
	for _, blocks := range []int{1, 16, 512} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			raws := []kvevent.Raw{sample(blocks)}
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				dst = kvevent.AppendVLLM(dst[:0], 1.5, 0, raws)
			}
		})
	}
}
