package kvevent_test

import (
	"encoding/binary"
	"reflect"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// FuzzDecodeVLLM: an error leaves an empty batch; a success stays within the limits, is the
// same into a fresh batch, and every event's slices belong together.
func FuzzDecodeVLLM(f *testing.F) {
	for _, file := range captures {
		for _, m := range captured(f, file) {
			if len(m.Payload) < 2000 {
				f.Add(m.Payload)
			}
		}
	}
	lim := kvevent.Limits{Bytes: 1 << 16, Events: 64, Blocks: 256, Tokens: 4096}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var b kvevent.Batch
		if err := kvevent.VLLM.Decode(payload, lim, &b); err != nil {
			if len(b.Events) != 0 || b.Unknown != 0 || b.Skipped != 0 || b.Rank != 0 {
				t.Fatalf("error %v with %+v", err, b)
			}
			return
		}
		hashes := 0
		for _, e := range b.Events {
			hashes += len(e.Hashes)
			if len(e.Blocks) != 0 && len(e.Blocks) != len(e.Hashes) {
				t.Fatalf("%d blocks for %d hashes", len(e.Blocks), len(e.Hashes))
			}
		}
		if len(b.Events) > lim.Events || hashes > lim.Blocks {
			t.Fatalf("%d events with %d blocks", len(b.Events), hashes)
		}
		first := clone(&b)
		b = kvevent.Batch{}
		if err := kvevent.VLLM.Decode(payload, lim, &b); err != nil || !reflect.DeepEqual(first, clone(&b)) {
			t.Fatalf("decoded again: %v\n%+v\n%+v", err, first, clone(&b))
		}
	})
}

// FuzzRoundTrip: what is published is what is decoded, and Add yields the same batch without bytes.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("\x00\x03\x01\x02abcdefghijklmnop"))
	f.Add([]byte("\x01\x02\x00\x00"))
	f.Add([]byte("\x00\x02\x13\x01salted and adapted, then continued\x00\x01\x01\x02"))
	f.Fuzz(func(t *testing.T, data []byte) {
		raws := rawsFrom(data)
		var got, added kvevent.Batch
		if err := kvevent.VLLM.Decode(kvevent.AppendVLLM(nil, 7, 5, raws), kvevent.Limits{}, &got); err != nil {
			t.Fatal(err)
		}
		for i := range raws {
			added.Add(&raws[i])
		}
		if got.Rank != 5 || got.Seconds != 7 || !reflect.DeepEqual(clone(&got), clone(&added)) {
			t.Fatalf("published %+v\ndecoded %+v\nadded %+v", raws, clone(&got), clone(&added))
		}
		salts := map[kvevent.EngineHash]string{}
		for i, r := range raws {
			if want := naive(r, salts); !reflect.DeepEqual(clone(&got)[i], want) {
				t.Fatalf("decoded %+v\nwant %+v", clone(&got)[i], want)
			}
		}
	})
}

// rawsFrom makes events of fuzz bytes: per event kind, number of blocks, flags, block size,
// then what fills hashes and tokens.
func rawsFrom(data []byte) []kvevent.Raw {
	var raws []kvevent.Raw
	for len(data) >= 4 && len(raws) < 32 {
		kind, n, flags, size := kvevent.Kind(data[0]%3), int(data[1]%8), data[2], int(data[3]%4)+1
		data = data[4:]
		r := kvevent.Raw{Kind: kind}
		if kind == kvevent.Cleared {
			raws = append(raws, r)
			continue
		}
		r.Tier = fleet.Tier(flags>>6) % fleet.Tiers
		for range n {
			var h [8]byte
			data = data[copy(h[:], data):]
			r.Hashes = append(r.Hashes, kvevent.EngineHash(binary.LittleEndian.Uint64(h[:])))
		}
		if kind == kvevent.Stored {
			r.BlockSize = size
			for i := range n * size {
				r.Tokens = append(r.Tokens, uint32(flags)<<(i%24))
			}
			if flags&1 != 0 {
				r.Parent, r.HasParent = 99, true
			}
			if flags&2 != 0 {
				r.LoRA, r.LoRAID = "x", 1
			}
			if flags&4 != 0 && !r.HasParent && n > 0 && r.Tier == fleet.Device {
				r.Salt = string('x' + rune(flags>>3&1))
			}
		}
		raws = append(raws, r)
	}
	return raws
}
